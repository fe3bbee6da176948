"""A wake ends a wait, the current one or the next; a clock that was set is noticed soon, and by how much."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints

from appliance.concurrency.wake import CLOCK_CHECK_INTERVAL, JUMP_TOLERANCE, SLEEP_LIMIT, ClockJumps, Gathering, Wake
from appliance.environment import Environment


async def test_a_wake_ends_the_wait(autojump_clock: MockClock) -> None:
    wake = Wake()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake.wait, 50)
        await trio.sleep(1)
        wake.set()
    assert trio.current_time() - began == 1


async def test_a_wake_before_the_wait_is_not_lost(autojump_clock: MockClock) -> None:
    wake = Wake()
    wake.set()
    wake.set()
    began = trio.current_time()
    await wake.wait(50)
    assert trio.current_time() == began
    await wake.wait(50)
    assert trio.current_time() - began == 50


async def test_no_wait_is_longer_than_the_limit(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    await Wake().wait(1e9)
    assert trio.current_time() - began == SLEEP_LIMIT == 60


async def test_waiting_lets_others_run_and_can_be_cancelled() -> None:
    """Also when the wake was set before: a loop that is woken all the time must not keep other tasks waiting."""
    wake = Wake()
    with trio.CancelScope() as scope:
        scope.cancel()
        wake.set()
        await wake.wait(50)
    assert scope.cancelled_caught
    with assert_checkpoints():
        await wake.wait(50)  # what was set is still set: a wait that was cancelled has used nothing up


TWO_DAYS = 2 * 86_400.0


@dataclass
class Wall:
    ahead: float = 1_700_000_000.0  # seconds

    def __call__(self) -> int:
        return round((self.ahead + trio.current_time()) * 1_000_000)


@pytest.mark.parametrize("by", [TWO_DAYS, -TWO_DAYS, -2 * JUMP_TOLERANCE])
async def test_it_is_noticed_soon(autojump_clock: MockClock, by: float) -> None:
    wall = Wall()
    clock = ClockJumps(Environment(now=wall))
    async with trio.open_nursery() as nursery:

        async def set_it() -> None:
            await trio.sleep(30)
            wall.ahead += by

        nursery.start_soon(set_it)
        assert await clock.wait(600) == pytest.approx(by, abs=0.01)
        assert trio.current_time() <= 30 + 2 * CLOCK_CHECK_INTERVAL
        assert await clock.wait(600) == 0.0


async def test_time_that_passes_sets_no_clock(autojump_clock: MockClock) -> None:
    wall = Wall()
    clock = ClockJumps(Environment(now=wall))
    for _ in range(20):
        wall.ahead -= 1
        assert clock.jump() == 0.0
    began = trio.current_time()
    assert await clock.wait(601) == 0.0
    assert trio.current_time() == pytest.approx(began + 601)


async def test_those_who_come_shortly_after_each_other_go_on_together(autojump_clock: MockClock) -> None:
    """The first at once, the others at the end of the rest, also if the one that waits for it is cancelled."""
    gathering, began, gone = Gathering(10), trio.current_time(), list[tuple[str, float]]()

    async def go(name: str, at: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(at)
            await gathering.join()
            gone.append((name, trio.current_time() - began))

    times = {"a": 0, "b": 1, "c": 9, "d": 12, "e": 13, "f": 40, "g": 41, "h": 42}
    scopes = {name: trio.CancelScope() for name in times}
    async with trio.open_nursery() as nursery:
        for name, at in times.items():
            nursery.start_soon(go, name, at, scopes[name])
        await trio.sleep(43)
        scopes["g"].cancel()
    assert sorted(gone) == [("a", 0), ("b", 10), ("c", 10), ("d", 20), ("e", 20), ("f", 40), ("h", 43)]
