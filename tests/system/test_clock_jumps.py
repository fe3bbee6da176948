"""In charge of a clock that was set: noticed soon, with the direction, and not confused with time that passes."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from appliance.outside import Outside
from appliance.system.clock_jumps import CLOCK_CHECK_INTERVAL, JUMP_TOLERANCE, ClockJumps

TWO_DAYS = 2 * 86_400.0


@dataclass
class Wall:
    """A clock on the wall that goes as Trio's does, and that tests may set."""

    ahead: float = 1_700_000_000.0  # seconds

    def __call__(self) -> int:
        """The time."""
        return round((self.ahead + trio.current_time()) * 1_000_000)


@pytest.mark.parametrize("by", [TWO_DAYS, -TWO_DAYS, -2 * JUMP_TOLERANCE])
async def test_it_is_noticed_soon(autojump_clock: MockClock, by: float) -> None:
    """Whoever waits is told within two looks by how much, once."""
    wall = Wall()
    clock = ClockJumps(Outside(now=wall))
    async with trio.open_nursery() as nursery:

        async def set_it() -> None:
            await trio.sleep(30)
            wall.ahead += by

        nursery.start_soon(set_it)
        assert await clock.wait(600) == pytest.approx(by, abs=0.01)
        assert trio.current_time() <= 30 + 2 * CLOCK_CHECK_INTERVAL
        assert await clock.wait(600) == 0.0


async def test_time_that_passes_sets_no_clock(autojump_clock: MockClock) -> None:
    """Nor do corrections of a second, however many; the wait lasts as long as was asked."""
    wall = Wall()
    clock = ClockJumps(Outside(now=wall))
    for _ in range(20):
        wall.ahead -= 1
        assert clock.was_set_by() == 0.0
    began = trio.current_time()
    assert await clock.wait(601) == 0.0
    assert trio.current_time() == pytest.approx(began + 601)
