"""A PostgreSQL that crashes, and nodes that are killed or stopped, again and again under load.

Customers send through a balancer before two nodes; tests/e2e/nodes/observer.py says what must hold once everything is
final. A node that was stopped must have ended as promised, and no node may end because the database is away.
"""

import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import Cluster, cluster
from tests.e2e.nodes.observer import Observer, observed
from tests.fakes.webhook_server import hooks
from tests.postgresql_server import PostgresServer, postgresql
from tests.running_appliance import Running

NODES = "ab"
CUSTOMERS, PAUSE = 6, 0.05
LONGEST = 1.5  # seconds of load before a fault
AWAY = 1.0  # seconds at most that the database or a node is not there
FEW = 10  # messages that are acknowledged before the next round
RESUMED_WITHIN = 60.0  # seconds
CHECKED_EVERY = 20  # rounds
FINAL_WITHIN = 120.0  # seconds
STOPPED_WITHIN = 75.0  # seconds: the default of the setting, and some for a busy machine


@dataclass
class Crashes:
    """The faults, and what was wrong with them."""

    made: Cluster
    observer: Observer
    server: PostgresServer
    choose: random.Random
    wrong: list[str] = field(default_factory=list)

    async def one_round(self) -> None:
        load = self.observer.load
        load.paused = False
        await trio.sleep(self.choose.uniform(0.0, LONGEST))
        name, node = self.choose.choice(NODES), self.made.nodes
        faults: list[Callable[[], Awaitable[None]]] = [
            self._database,
            self._database,
            lambda: self._killed(node[name]),
            lambda: self._stopped(node[name]),
            self._everything,
        ]
        with self.observer.fault():
            self.observer.note()
            await self.choose.choice(faults)()
            for each in node.values():
                if not each.is_alive():
                    self.wrong.append(f"a node has ended: {each.log_lines()[-1].decode()[:300]}")
                    await trio.to_thread.run_sync(each.start)
            wanted = len(load.acknowledged) + FEW
            with trio.move_on_after(RESUMED_WITHIN) as waiting:
                while len(load.acknowledged) < wanted:  # noqa: ASYNC110 - customers' answers
                    await trio.sleep(0.05)
            if waiting.cancelled_caught:
                self.wrong.append(f"nothing is acknowledged any more: {load.statuses.most_common(4)}")

    async def _database(self) -> None:
        await trio.to_thread.run_sync(self.server.stop, "immediate")
        await trio.sleep(self.choose.uniform(0.0, AWAY))
        await trio.to_thread.run_sync(self.server.start)

    async def _killed(self, node: Running) -> None:
        node.kill()
        await trio.sleep(self.choose.uniform(0.0, AWAY))
        await trio.to_thread.run_sync(node.start)

    async def _stopped(self, node: Running) -> None:
        began = time.monotonic()
        code = await trio.to_thread.run_sync(node.terminate, STOPPED_WITHIN)
        if code != 0:
            self.wrong.append(f"SIGTERM: exit code {code} after {time.monotonic() - began:.1f} s")
        await trio.to_thread.run_sync(node.start)

    async def _everything(self) -> None:
        for node in self.made.nodes.values():
            node.kill()
        await self._database()
        async with trio.open_nursery() as starting:
            for node in self.made.nodes.values():
                starting.start_soon(trio.to_thread.run_sync, node.start)

    async def check(self) -> bool:
        """Let everything become final, and compare; whether it became so."""
        try:
            await self.observer.settle(FINAL_WITHIN)
        except trio.TooSlowError:
            self.wrong.append(self.observer.unsettled())
            return False
        self.wrong += self.observer.all_wrong()
        self.wrong += [line[:300] for line in self.made.all_complaints() if "Traceback" in line][:3]
        return True


async def _rounds(directory: Path, seed: int, rounds: int, told: Callable[[str], None]) -> tuple[str, list[str]]:
    choose = random.Random(seed)
    with postgresql() as server, hooks(directory) as receiver:
        url, more = server.new_database(), f"[webhooks]\n{receiver.settings(directory)}"
        async with (
            cluster(directory, url, NODES, delays(*["1s"] * 20), more=more) as made,
            observed(made, receiver, choose, customers=CUSTOMERS, pause=PAUSE) as observer,
        ):
            crashes = Crashes(made, observer, server, choose)
            for number in range(1, rounds + 1):
                told(f"round {number} of {rounds}; {len(observer.load.acknowledged):,} messages")
                await crashes.one_round()
                if (number % CHECKED_EVERY == 0 or number == rounds) and not await crashes.check():
                    break
            keys = list(observer.load.acknowledged)
            async with trio.open_nursery() as customers:
                for first in range(CUSTOMERS):
                    customers.start_soon(observer.load.repeat, keys[first::CUSTOMERS])
            if observer.load.changed:
                crashes.wrong.append(f"keys with another message: {observer.load.changed[:3]}")
            return f"{number} rounds, {len(keys):,} messages, {observer.again} again", crashes.wrong


def run(seed: int, rounds: int, told: Callable[[str], None]) -> tuple[str, list[str]]:
    """So many faults; what was done, and what does not hold afterwards."""
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        return trio.run(_rounds, Path(directory), seed, rounds, told)
