"""A wake ends a wait, the current one or the next."""

import trio
from trio.testing import MockClock, assert_checkpoints

from appliance.concurrency.wake import SLEEP_LIMIT, Wake


async def test_a_wake_ends_the_wait(autojump_clock: MockClock) -> None:
    """A waiting task goes on at once."""
    wake = Wake()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake.wait, 50)
        await trio.sleep(1)
        wake.set()
    assert trio.current_time() - began == 1


async def test_a_wake_before_the_wait_is_not_lost(autojump_clock: MockClock) -> None:
    """What was set while no task waited ends the next wait, and only that."""
    wake = Wake()
    wake.set()
    wake.set()
    began = trio.current_time()
    await wake.wait(50)
    assert trio.current_time() == began
    await wake.wait(50)
    assert trio.current_time() - began == 50


async def test_no_wait_is_longer_than_the_limit(autojump_clock: MockClock) -> None:
    """So a jump of the clock does no harm for more than a minute."""
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
