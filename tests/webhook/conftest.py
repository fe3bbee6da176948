"""A simulated dispatcher on a virtual clock, and its usual account."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.webhook.simulated_dispatcher import Simulation, simulation


@pytest.fixture
def clock() -> MockClock:
    """pytest-trio uses it only if the test names it."""
    return MockClock(autojump_threshold=0)


@pytest.fixture
async def sim(tmp_path: Path, clock: MockClock) -> AsyncIterator[Simulation]:
    async with simulation(tmp_path) as made:
        yield made


@pytest.fixture
async def demo(sim: Simulation) -> None:
    await sim.account("demo")
