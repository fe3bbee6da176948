"""Costly work is done on a thread, one piece at a time, fairly between owners, within bounds."""

import threading
import time
from collections.abc import Callable

import pytest
import trio
import trio.testing

from appliance.concurrency import fair_share as workers
from appliance.concurrency.fair_share import ON_LOOP, FairQueue, Workers
from appliance.errors import Code, Refused

COSTLY = ON_LOOP + 1


class HeldWork:
    """Work that waits, on its thread, until it is let go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    async def has_begun(self) -> None:
        """Wait until the work is on its thread."""
        assert await trio.to_thread.run_sync(self.begun.wait, 10)

    def work(self) -> None:
        """Wait; in the end give up, so that no failing test hangs."""
        self.begun.set()
        assert self.open.wait(10)


def _noted(order: list[str], name: str, seconds: float = 0.0) -> Callable[[], None]:
    """Work that notes its name and burns some CPU time."""

    def work() -> None:
        order.append(name)
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    return work


def nothing() -> int:
    """Work that is none."""
    return 0


async def test_cheap_work_is_done_at_once() -> None:
    """What costs less than a trip to a thread is worth stays on the event loop."""
    assert await Workers().run("a", ON_LOOP, threading.get_ident) == threading.get_ident()


async def test_costly_work_is_done_on_a_thread() -> None:
    """The event loop goes on meanwhile; the result, or the error, is the work's own."""
    pool = Workers()
    assert await pool.run("a", COSTLY, threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await pool.run("a", COSTLY, lambda: 1 // 0)
    assert await pool.run("a", COSTLY, len, "abc") == 3


async def test_owners_get_equal_shares_of_time() -> None:
    """An owner with many dear pieces does not keep back one who comes later with cheap ones."""
    pool, held, order = Workers(), HeldWork(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "greedy", COSTLY, held.work)
        await held.has_begun()
        for _ in range(4):
            nursery.start_soon(pool.run, "greedy", COSTLY, _noted(order, "greedy", 0.02))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(pool.run, "modest", COSTLY, _noted(order, "modest", 0.001))
        await trio.testing.wait_all_tasks_blocked()
        held.open.set()
    assert sorted(order) == ["greedy"] * 4 + ["modest"] * 3
    assert order[4:] == ["greedy"] * 3  # all of the modest one's in front of the second of the greedy one's


async def test_too_much_waiting_is_refused_for_now() -> None:
    """One owner's queue is bounded, and others still get in; all queues together are bounded, too."""
    pool, held = Workers(), HeldWork()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "a", COSTLY, held.work)
        await held.has_begun()
        for number in range(workers.QUEUED):
            nursery.start_soon(pool.run, f"a{number // workers.QUEUED_PER_OWNER}", COSTLY, nothing)
        await trio.testing.wait_all_tasks_blocked()
        for owner in ("a0", "new"):
            with pytest.raises(Refused) as refused:
                await pool.run(owner, COSTLY, nothing)
            assert (refused.value.code, refused.value.retry_after) == (Code.TEMPORARY_FAILURE, 2)
        nursery.cancel_scope.cancel()
        held.open.set()
    assert await pool.run("a0", COSTLY, nothing) == 0


async def test_one_owner_cannot_fill_the_queue() -> None:
    """An owner with too much work waiting is refused; the next owner is not."""
    pool, held = Workers(), HeldWork()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "a", COSTLY, held.work)
        await held.has_begun()
        for _ in range(workers.QUEUED_PER_OWNER):
            nursery.start_soon(pool.run, "a", COSTLY, nothing)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Refused):
            await pool.run("a", COSTLY, nothing)
        nursery.start_soon(pool.run, "b", COSTLY, nothing)
        held.open.set()


async def test_waiting_is_cancelled_without_a_trace() -> None:
    """A piece whose caller goes away before its turn is never done, and delays no other."""
    pool, held, order = Workers(), HeldWork(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "a", COSTLY, held.work)
        await held.has_begun()
        async with trio.open_nursery() as leaving:
            leaving.start_soon(pool.run, "b", COSTLY, _noted(order, "b"))
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        held.open.set()
    assert await pool.run("b", COSTLY, nothing) == 0
    assert order == []


async def test_what_has_begun_is_finished() -> None:
    """Cancelling a caller ends the wait once its piece is done, and the next piece gets its turn."""
    pool, held, ended = Workers(), HeldWork(), list[str]()

    def work() -> None:
        held.work()
        ended.append("done")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "a", COSTLY, work)
        await held.has_begun()
        nursery.cancel_scope.cancel()
        held.open.set()
    assert ended == ["done"]
    assert await pool.run("a", COSTLY, nothing) == 0


async def test_a_wait_without_end_is_refused() -> None:
    """A piece that has waited too long is refused, and no longer waits."""
    pool, held = Workers(patience=0.05), HeldWork()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, "a", COSTLY, held.work)
        await held.has_begun()
        with pytest.raises(Refused, match="Retry in 2 seconds"):
            await pool.run("b", COSTLY, nothing)
        held.open.set()
    assert await pool.run("b", COSTLY, nothing) == 0


async def test_turns_for_what_is_no_thread() -> None:
    """A turn that is taken by itself excludes others, costs its owner the time it took, and is followed by a rest."""
    turns, inside, most = FairQueue(1, rest=2.0), 0, 0

    async def hold(owner: str) -> None:
        nonlocal inside, most
        async with turns.take(owner):
            inside += 1
            most = max(most, inside)
            await trio.sleep(0.02)
            inside -= 1

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for owner in "aab":
            nursery.start_soon(hold, owner)
    assert most == 1
    assert trio.current_time() - began >= 3 * 0.02 + 2 * 0.04


async def test_the_thread_rests_as_long_as_it_worked() -> None:
    """Half of the time the event loop has the interpreter for itself, however much work waits."""
    pool, began = Workers(), time.monotonic()
    for number in range(4):
        await pool.run("a", COSTLY, _noted([], str(number), 0.02))
    assert time.monotonic() - began >= 4 * 0.02 + 3 * 0.02
