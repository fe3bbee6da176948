"""Shares leave room for newcomers, and a queue of turns is fair, for any sequence of requests."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.concurrency import fair_share as workers
from appliance.concurrency.fair_share import ON_LOOP, SPARE_SHARE, FairQueue, MemoryBudget, Shares, TurnQueue, Workers
from appliance.errors import Code, Refused

OWNERS = st.sampled_from("abcde")


def fill(shares: Shares[str], *holders: str) -> None:
    while any(shares.has_room(holder) for holder in holders):
        for holder in holders:
            if shares.has_room(holder):
                shares.take(holder)


# ---- shares


@pytest.mark.parametrize(("slots", "holders", "least_free"), [(500, 1, 100), (500, 3, 30), (500, 20, 5), (16, 1, 3)])
def test_slots_stay_free_for_a_newcomer(slots: int, holders: int, least_free: int) -> None:
    shares = Shares[str](slots)
    fill(shares, *(f"holder {number}" for number in range(holders)))
    assert shares.free >= least_free
    assert shares.has_room("newcomer")


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_few_slots_can_all_be_used(slots: int) -> None:
    """With very few slots one holder may have them all: keeping one free would cost too much."""
    shares = Shares[str](slots)
    fill(shares, "one")
    assert shares.used == slots


@given(slots=st.integers(1, 600), holders=st.integers(1, 30))
def test_equally_greedy_holders_get_equal_shares(slots: int, holders: int) -> None:
    shares, names = Shares[str](slots), [str(number) for number in range(holders)]
    fill(shares, *names)
    held = [shares.of(name) for name in names]
    assert max(held) - min(held) <= 1
    assert shares.has_room("newcomer") == (shares.free > 0)


@given(st.integers(0, 20), st.lists(st.tuples(st.booleans(), OWNERS, st.integers(1, 5))))
def test_counts_add_up(total: int, changes: list[tuple[bool, str, int]]) -> None:
    """`used` is the sum of all holders' amounts, and the stricter share never admits more than the usual one."""
    shares, held = Shares[str](total), Counter[str]()
    for takes, owner, amount in changes:
        if takes:
            shares.take(owner, amount)
            held[owner] += amount
        elif held[owner] >= amount:
            shares.give_back(owner, amount)
            held[owner] -= amount
        assert [shares.of(name) for name in "abcde"] == [held[name] for name in "abcde"]
        assert shares.used == total - shares.free == held.total()
        assert shares.has_room(owner) or not shares.has_room(owner, SPARE_SHARE)


def test_shrunk_shares_admit_no_holder() -> None:
    shares = Shares[str](10)
    shares.take("one", 5)
    shares.total = 4
    assert not shares.has_room("two")
    shares.give_back("one", 2)
    assert shares.has_room("two")


# ---- turns


@given(st.lists(OWNERS))
def test_no_owner_gets_two_turns_before_another_gets_one(owners: list[str]) -> None:
    """The n-th item of every owner comes before the (n+1)-th of any; an owner's items keep their order."""
    queue = TurnQueue[str, tuple[str, int]]()
    numbers = Counter[str]()
    for owner in owners:
        queue.add(owner, (owner, numbers[owner]))
        numbers[owner] += 1
    drained = queue.drain()
    assert [number for _, number in drained] == sorted(number for _, number in drained)
    assert sorted(drained) == sorted((owner, n) for owner, count in numbers.items() for n in range(count))
    assert not queue


@given(st.lists(st.tuples(st.sampled_from(["add", "next", "that", "back", "remove"]), OWNERS)))
def test_the_queue_behaves_like_a_plain_model(steps: list[tuple[str, str]]) -> None:
    queue, model, turns = TurnQueue[str, int](), {name: deque[int]() for name in "abcde"}, list[str]()
    owner_of: dict[int, str] = {}

    def took(owner: str) -> int:
        turns.remove(owner)
        item = model[owner].popleft()
        if model[owner]:
            turns.append(owner)
        return item

    for number, (step, owner) in enumerate(steps):
        if step in ("add", "back"):
            owner_of[number] = owner
            if not model[owner]:
                turns.append(owner)
            model[owner].append(number) if step == "add" else model[owner].appendleft(number)
            queue.add(owner, number) if step == "add" else queue.put_back(owner, number)
        elif step == "next" and turns:
            assert queue.next() == took(turns[0])
        elif step == "that":
            others = [name for name in turns if name != owner]
            item = queue.next_that(lambda item, owner=owner: owner_of[item] != owner)  # type: ignore[misc]
            assert item == (took(others[0]) if others else None)
        elif step == "remove" and model[owner]:
            queue.remove(owner, last := model[owner].pop())
            assert last not in queue.heads()
            turns = [name for name in turns if model[name]]
        assert list(queue.owners()) == turns
        assert queue.heads() == [model[name][0] for name in turns]
        assert [queue.count(name) for name in "abcde"] == [len(model[name]) for name in "abcde"]
        assert len(queue) == sum(map(len, model.values()))


def test_an_item_goes_ahead_of_others_of_its_owner_only() -> None:
    queue = TurnQueue[str, str]()
    for owner, item in (("a", "a1"), ("b", "b1"), ("b", "b2")):
        queue.add(owner, item)
    queue.add("b", "retry", ahead_of=lambda item: item == "b1")
    assert queue.drain() == ["a1", "retry", "b1", "b2"]


COSTLY = ON_LOOP + 1


class HeldWork:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    async def has_begun(self) -> None:
        assert await trio.to_thread.run_sync(self.begun.wait, 10)

    def work(self) -> None:
        self.begun.set()
        assert self.open.wait(10)


def _noted(order: list[str], name: str, seconds: float = 0.0) -> Callable[[], None]:
    def work() -> None:
        order.append(name)
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    return work


def nothing() -> int:
    return 0


async def test_cheap_work_is_done_at_once() -> None:
    assert await Workers().run("a", ON_LOOP, threading.get_ident) == threading.get_ident()


async def test_costly_work_is_done_on_a_thread() -> None:
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


async def test_an_owner_s_jobs_with_low_priority_get_one_turn_in_ten() -> None:
    """A login code does not wait for the owner's newsletter, which still gets its turns. Others are not affected."""
    turns, order = FairQueue(1, rest=0.0), list[str]()

    async def work(owner: str, name: str, low: bool) -> None:
        async with turns.take(owner, low=low):
            order.append(name)

    async with trio.open_nursery() as nursery, turns.take("x"):
        for owner, name, low in [("a", "low", True)] * 2 + [("a", "high", False)] * 20 + [("b", "other", True)]:
            nursery.start_soon(work, owner, name, low)
            await wait_all_tasks_blocked()
    assert [place for place, name in enumerate(name for name in order if name != "other") if name == "low"] == [9, 19]


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
    pool, began = Workers(), time.monotonic()
    for number in range(4):
        await pool.run("a", COSTLY, _noted([], str(number), 0.02))
    assert time.monotonic() - began >= 4 * 0.02 + 3 * 0.02


PATIENCE = 5.0  # seconds


async def take(budget: MemoryBudget, owner: str, amount: int, age: int) -> bool:
    return await budget.take(owner, amount, age=age, patience=PATIENCE)


async def test_one_owner_has_its_share_at_most(autojump_clock: MockClock) -> None:
    """An owner with its share, and one body beyond it, waits and gets none, while another is served at once."""
    budget = MemoryBudget(100, owner_part=2)
    assert await take(budget, "greedy", 50, age=1)
    assert await take(budget, "greedy", 10, age=2)  # the one that may go beyond
    began = trio.current_time()
    assert not await take(budget, "greedy", 10, age=3)
    assert trio.current_time() - began == pytest.approx(PATIENCE)
    assert await take(budget, "other", 40, age=4)
    assert trio.current_time() - began == pytest.approx(PATIENCE)


async def test_what_is_given_back_goes_to_the_oldest_body(autojump_clock: MockClock) -> None:
    budget, order = MemoryBudget(100, owner_part=1), []

    async def take_in_order(name: str, amount: int, age: int) -> None:
        assert await budget.take(name, amount, age=age, patience=PATIENCE)
        order.append(name)

    await take(budget, "first", 60, age=1)
    await take(budget, "second", 40, age=2)
    await take(budget, "beyond", 1, age=3)
    async with trio.open_nursery() as nursery:
        for name, amount, age in (("young", 1, 6), ("old", 50, 4), ("middle", 50, 5)):
            nursery.start_soon(take_in_order, name, amount, age)
            await wait_all_tasks_blocked()
        budget.give_back("second", 40, 2)
        await wait_all_tasks_blocked()
        assert order == []
        budget.give_back("first", 60, 1)
        await wait_all_tasks_blocked()
        assert order == ["old"]
        budget.give_back("beyond", 1, 3)
        await wait_all_tasks_blocked()
    assert sorted(order) == ["middle", "old", "young"]  # the last two at once, and Trio shuffles


async def test_a_single_body_always_fits() -> None:
    budget = MemoryBudget(10, owner_part=2)
    assert await take(budget, "one", 32, age=1)
    budget.give_back("one", 32, age=1)
    assert await take(budget, "two", 5, age=2)
    assert budget.shares.of("two") == 5


async def test_a_body_that_is_cancelled_while_it_waits_leaves_nothing(autojump_clock: MockClock) -> None:
    budget = MemoryBudget(10, owner_part=1)
    await take(budget, "one", 10, age=1)
    await take(budget, "beyond", 1, age=2)
    with trio.move_on_after(1):
        await take(budget, "cancelled", 10, age=3)
    budget.give_back("one", 10, age=1)
    assert await take(budget, "other", 9, age=4)
    assert budget.shares.of("cancelled") == 0


def test_without_waiting_there_is_some_at_once_or_none() -> None:
    """No owner has more than its share, but one that has nothing may have one message of any size."""
    budget = MemoryBudget(100, owner_part=2)
    assert budget.try_take("a", 40)
    assert not budget.try_take("a", 20)
    assert budget.try_take("b", 60)
    assert not budget.try_take("c", 1)
    budget.give_back("b", 60)
    budget.give_back("a", 40)
    assert budget.try_take("c", 100)
    assert (budget.shares.of("a"), budget.shares.of("c")) == (0, 100)
