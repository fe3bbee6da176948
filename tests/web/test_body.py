"""In charge of the memory for bodies: who gets how much of it, and who is never kept waiting."""

import pytest
import trio
from trio.testing import MockClock

from appliance.errors import Code, Refused
from appliance.web.body import SMALL, WAIT, Budget

MIB = 1024 * 1024


async def test_one_sender_gets_half_of_the_memory_at_most(autojump_clock: MockClock) -> None:
    """A sender whose bodies fill half of it waits and is then refused, while another is served at once."""
    memory = Budget(256 * MIB).part_for(16 * MIB)
    for _ in range(3):
        await memory.take("greedy", 32 * MIB)
    began = trio.current_time()
    with pytest.raises(Refused) as refused:
        await memory.take("greedy", 32 * MIB)
    assert refused.value.code is Code.TEMPORARY_FAILURE
    assert trio.current_time() - began == pytest.approx(WAIT)
    await memory.take("other", 32 * MIB)
    assert trio.current_time() - began == pytest.approx(WAIT)


async def test_small_bodies_never_wait_for_large_ones(autojump_clock: MockClock) -> None:
    """However much large bodies hold, the part for small ones is there."""
    budget = Budget(64 * MIB)
    large = budget.part_for(16 * MIB)
    await large.take("one", 28 * MIB)
    await large.take("two", 28 * MIB)
    began = trio.current_time()
    await budget.part_for(SMALL).take("three", 2 * SMALL)
    assert trio.current_time() == began


async def test_memory_that_is_given_back_goes_to_who_waits(autojump_clock: MockClock) -> None:
    """A waiting body goes on as soon as there is room."""
    memory = Budget(64 * MIB).part_for(16 * MIB)
    await memory.take("one", 28 * MIB)
    await memory.take("two", 28 * MIB)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.take, "three", 28 * MIB)
        await trio.sleep(1)
        memory.give_back("one", 28 * MIB)
    assert trio.current_time() - began == pytest.approx(1)


async def test_a_single_body_always_fits() -> None:
    """Even one that is larger than anybody's share is taken when nothing else is in the way."""
    memory = Budget(16 * MIB).part_for(16 * MIB)
    await memory.take("one", 32 * MIB)
    memory.give_back("one", 32 * MIB)
    await memory.take("two", 1 * MIB)
    assert memory.is_taken
