"""Kills under load: HTTP, submission, delivery and webhooks together, each life of the program ended at any moment."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import trio

from tests.torture.load import Load, loaded

LONGEST = 1.2  # seconds of load before an end
STOPS = 0.15  # share of the lives that SIGTERM ends


async def _lives(directory: Path, seed: int, kills: int, told: Callable[[str], None]) -> Load:
    choose = random.Random(seed)
    async with loaded(directory, seed) as load:
        while load.deaths < kills:
            told(f"kill {load.deaths + 1} of {kills}; {load.messages:,} messages")
            await load.begin()
            await trio.sleep(choose.uniform(0.0, LONGEST))
            await (load.stop if choose.random() < STOPS else load.kill)()
        await load.settle()
        return load


def run(seed: int, kills: int, told: Callable[[str], None]) -> tuple[str, list[str]]:
    """So many kills; what was done, and what does not hold afterwards."""
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        load = trio.run(_lives, Path(directory), seed, kills, told)
        return f"{kills} kills, {load.messages:,} messages, {load.again} again", load.check()
