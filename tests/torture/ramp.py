"""Kills under a ramp whose percentage changes all the time: no recipient's message is ever taken by both routes."""

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from appliance.model.ramp import RampPlan
from tests import engines
from tests.torture.load import Load, loaded

LONGEST = 1.2  # seconds of load before an end
STOPS = 0.15  # share of the lives that SIGTERM ends
CHANGES = 0.3  # seconds between two changes of the percentage, at most
PERCENTAGES = (0, 20, 50, 80, 100)
BOTH = """SELECT count(*) FROM (SELECT recipient_id FROM attempts GROUP BY recipient_id
    HAVING count(DISTINCT route) > 1)"""


async def _change(load: Load, choose: random.Random) -> None:
    def changed(plan: RampPlan) -> RampPlan:
        return plan.having("", choose.choice(PERCENTAGES), 0)

    while True:
        await trio.sleep(choose.uniform(0.0, CHANGES))
        async with engines.beside(load.made.running.data_dir) as store:
            await store.ramp.change(changed)


async def _lives(directory: Path, seed: int, kills: int, told: Callable[[str], None]) -> Load:
    choose = random.Random(seed)
    async with loaded(directory, seed, under_ramp=True) as load:
        while load.deaths < kills:
            told(f"kill {load.deaths + 1} of {kills}; {load.messages:,} messages")
            await load.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_change, load, choose)
                await trio.sleep(choose.uniform(0.0, LONGEST))
                nursery.cancel_scope.cancel()
            await (load.stop if choose.random() < STOPS else load.kill)()
        await load.settle()
        return load


def _wrong(load: Load) -> list[str]:
    found, relay = load.check(), load.made.mx_port
    both = [address for address, ports in load.ports.items() if len(ports) > 1]
    if both:
        found.append(f"taken by both routes: {both[:3]} of {len(both)}")
    if (tried := load.made.rows(BOTH)) != [(0,)]:
        found.append(f"tried by both routes: {tried[0][0]} recipients")
    if {relay in ports for ports in load.ports.values()} != {True, False}:
        found.append("one of the routes had no mail")
    return found


def run(seed: int, kills: int, told: Callable[[str], None]) -> tuple[str, list[str]]:
    """So many kills; what was done, and what does not hold afterwards."""
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        load = trio.run(partial(_lives, Path(directory), seed, kills, told))
        return f"{kills} kills, {load.messages:,} messages, {load.again} again", _wrong(load)
