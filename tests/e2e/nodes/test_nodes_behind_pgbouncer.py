"""Two nodes reach PostgreSQL through PgBouncer, pool_mode = session: they deliver, also after PgBouncer restarts.

One node is killed while its mail waits, and the other takes it over.
"""

from collections import Counter
from pathlib import Path

import trio

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import cluster
from tests.e2e.nodes.test_nodes import arrivals, grey_addresses, greylisting
from tests.fakes.mx import FakeMx
from tests.pgbouncer import pgbouncer
from tests.postgresql_server import postgresql
from tests.programs import needs
from tests.running_appliance import command

pytestmark = [needs("postgresql"), needs("pgbouncer")]


async def test_nodes_behind_pgbouncer(tmp_path: Path) -> None:
    grey = grey_addresses(3)
    with postgresql() as server, pgbouncer(server, "session") as pooler:
        url = server.new_database()
        far = dict.fromkeys("ab", pooler.url(url))
        async with cluster(tmp_path, url, ("a", "b"), delays("4s", "4s"), far=far) as made:
            later = await greylisting(made, grey)
            await made.domain("a.test", mx := FakeMx())
            await made.final(*[await made.send_to(node, f"{node}@a.test") for node in "ab"])
            listed = await trio.to_thread.run_sync(command, made.nodes["a"].config_file, "nodes")
            assert {node["name"] for node in listed["nodes"]} == {"a", "b"}

            pooler.stop()
            answer = await made.request("a", "GET", "/readyz")
            assert answer.status_code == 503, answer.text
            await trio.to_thread.run_sync(pooler.start)
            with trio.fail_after(20):
                while (await made.request("a", "GET", "/readyz")).status_code != 200:  # noqa: ASYNC110 - it asks
                    await trio.sleep(0.1)
            await made.final(await made.send_to("a", "again@a.test"))

            waiting = [await made.send_to("a", address) for address in grey]
            made.nodes["a"].kill()
            await made.final(*waiting)
            expected = ["a@a.test", "b@a.test", "again@a.test", *grey]
            assert arrivals(mx, later) == Counter(expected)
