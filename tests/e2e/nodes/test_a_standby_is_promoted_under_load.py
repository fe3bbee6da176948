"""The primary is lost under load, and its synchronous standby promoted: the nodes find it, and nothing is lost."""

import random
from pathlib import Path

import trio

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import cluster
from tests.e2e.nodes.observer import observed
from tests.fakes.webhook_server import hooks
from tests.ports import free_port
from tests.postgresql_server import USER, postgresql, standby
from tests.programs import needs

FEW = 20  # messages
WITHIN = 30.0  # seconds, on a busy machine


@needs("postgresql")
async def test_a_standby_is_promoted_under_load(tmp_path: Path) -> None:
    """What was acknowledged is there, once; no node ends; and mail goes on by itself."""
    ports = [free_port(), free_port()]
    first, second = ({"listen_addresses": "'127.0.0.1'", "port": str(port)} for port in ports)
    with postgresql(**first) as primary, standby(primary, **second) as follower, hooks(tmp_path) as receiver:
        database = primary.new_database().partition("?")[0].rpartition("/")[2]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url, more = f"postgresql://{USER}@{hosts}/{database}", f"[webhooks]\n{receiver.settings(tmp_path)}"
        async with (
            cluster(tmp_path, url, ("a", "b"), delays(*["1s"] * 20), more=more) as made,
            observed(made, receiver, random.Random(1), customers=8, pause=0.05) as observer,
        ):
            runs = {name: node.pid for name, node in made.nodes.items()}
            load = observer.load
            load.paused = False
            with trio.fail_after(WITHIN):
                while len(load.acknowledged) < FEW:  # noqa: ASYNC110 - a customer's answers
                    await trio.sleep(0.05)
            with observer.fault():
                primary.kill()
                before = len(load.acknowledged)
                await trio.sleep(1)
                await trio.to_thread.run_sync(follower.promote)
                with trio.fail_after(WITHIN):
                    while len(load.acknowledged) < before + FEW:  # noqa: ASYNC110
                        await trio.sleep(0.05)
            await observer.settle(WITHIN)
            assert observer.wrong() == []
            assert load.statuses["503"] > 0
            assert {name: node.pid for name, node in made.nodes.items() if node.is_alive()} == runs
