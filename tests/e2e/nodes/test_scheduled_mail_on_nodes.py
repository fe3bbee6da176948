"""Scheduled mail belongs to no node before it is due: any node queues it, and what a lost node queued another takes."""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
import trio

from appliance.times import SECOND
from tests.e2e.delivery.world import CREDITS, SENDER
from tests.e2e.nodes.cluster import Cluster, cluster
from tests.e2e.nodes.test_nodes import arrivals
from tests.fakes.mx import FakeMx
from tests.running_appliance import command

BATCHES = 3  # on each node: the release of them takes several transactions


async def test_each_goes_once_whichever_node_is_lost(tmp_path: Path, url: str) -> None:
    """A node is killed while both queue what is due. Delivery is paused until then."""
    async with cluster(tmp_path, url, ("a", "b")) as made:
        server = FakeMx()
        await made.domain("a.test", server)
        shell = partial(command, made.nodes["b"].config_file)
        await trio.to_thread.run_sync(shell, "pause", "--reason", "kills")
        addresses = [await _schedule(made, node, number) for node in "ab" for number in range(BATCHES)]
        due_at = time.time_ns() // 1000 + SECOND  # accepting so many may take very long
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("UPDATE scheduled_messages SET due_at = %s", (due_at,))
        total = 100 * len(addresses)
        await made.until(lambda: _scheduled(made) < total)
        made.nodes["a"].kill()
        assert time.time_ns() // 1000 >= due_at
        await made.until(lambda: not _scheduled(made))
        await trio.to_thread.run_sync(shell, "resume")
        await made.until(lambda: not made.rows("SELECT 1 FROM messages WHERE status = 'queued' LIMIT 1"))
        assert arrivals(server) == dict.fromkeys([address for several in addresses for address in several], 1)
        assert made.credits() == CREDITS - total


async def _schedule(made: Cluster, node: str, number: int) -> list[str]:
    addresses = [f"{node}{number}-{index}@a.test" for index in range(100)]
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    emails = [{"from": SENDER, "to": to, "subject": "s", "text": "t", "scheduled_at": at} for to in addresses]
    headers = {"Idempotency-Key": addresses[0]}
    answer = await made.request(node, "POST", "/emails/batch", json={"emails": emails}, headers=headers)
    assert answer.status_code == 202, answer.text
    return addresses


def _scheduled(made: Cluster) -> int:
    ((count,),) = made.rows("SELECT count(*) FROM scheduled_messages")
    return int(count)
