"""The memory budget: each owner has a share, and old bodies come to their end first."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.concurrency.fair_share import MemoryBudget

PATIENCE = 5.0  # seconds


async def take(budget: MemoryBudget, owner: str, amount: int, age: int) -> bool:
    """As the budget does, with some patience."""
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
    """Younger bodies do not overtake one that waits, even for less than there is."""
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
    """Even one that is larger than the whole budget is taken when nothing else is in the way."""
    budget = MemoryBudget(10, owner_part=2)
    assert await take(budget, "one", 32, age=1)
    budget.give_back("one", 32, age=1)
    assert await take(budget, "two", 5, age=2)
    assert budget.shares.of("two") == 5


async def test_a_body_that_is_cancelled_while_it_waits_leaves_nothing(autojump_clock: MockClock) -> None:
    """Its place in the queue is gone, and what is given back goes to the others."""
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
