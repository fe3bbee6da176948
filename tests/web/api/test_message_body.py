"""AnswerSlots for large answers: an account's share, whose turn it is, and who gives way to whom."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.errors import Code, Refused
from appliance.web.api.message_body import (
    ACCOUNT_SLOTS,
    ANSWER_SLOTS,
    STALL_CHECK_INTERVAL,
    STALLED_AFTER,
    AnswerSlot,
    AnswerSlots,
)

WAIT = 20.0
SOON = STALLED_AFTER + 2 * STALL_CHECK_INTERVAL


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as opened:
        yield opened
        opened.cancel_scope.cancel()


async def filled(slots: AnswerSlots, *, writing: bool = True) -> tuple[list[AnswerSlot], list[AnswerSlot]]:
    """Every slot taken by clients that read nothing, each of another account; and a list of those that were cut."""
    held, cut = [await slots.take(f"acc_{number}") for number in range(ANSWER_SLOTS)], list[AnswerSlot]()

    def end(slot: AnswerSlot) -> None:
        cut.append(slot)
        slot.release()

    for slot in held if writing else ():
        slot.begin(lambda slot=slot: end(slot))  # type: ignore[misc]
    return held, cut


async def test_an_account_has_its_share(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slots, got = AnswerSlots(WAIT), list[str]()

    async def take(account_id: str) -> None:
        await slots.take(account_id)
        got.append(account_id)

    for account_id in "aaabbbcccdddeeefff":
        nursery.start_soon(take, account_id)
        await trio.testing.wait_all_tasks_blocked()
    assert got == ["a", "a", "b", "b", "c", "d", "e", "f"]
    assert (got.count("a"), len(got)) == (ACCOUNT_SLOTS, ANSWER_SLOTS)


async def test_a_client_that_does_not_read_gives_way_to_another(autojump_clock: MockClock) -> None:
    slots = AnswerSlots(WAIT)
    held, cut = await filled(slots)
    await trio.sleep(STALLED_AFTER / 2)
    for slot in held[1:]:
        slot.progress()
    with trio.fail_after(SOON):
        await slots.take("new")
    assert cut == [held[0]]


async def test_a_client_that_reads_is_not_cut(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    for writing in (True, False):
        slots = AnswerSlots(WAIT)
        held, cut = await filled(slots, writing=writing)

        async def read(held: list[AnswerSlot] = held) -> None:
            while True:
                await trio.sleep(STALLED_AFTER / 2)
                for slot in held:
                    slot.progress()

        nursery.start_soon(read)
        began = trio.current_time()
        with pytest.raises(Refused) as refused:
            await slots.take("new")
        assert refused.value.code is Code.TEMPORARY_FAILURE
        assert trio.current_time() - began == pytest.approx(WAIT)
        assert cut == []


async def test_an_account_that_has_a_place_waits_for_its_own(autojump_clock: MockClock) -> None:
    slots = AnswerSlots(WAIT)
    held, cut = await filled(slots)
    with trio.fail_after(SOON):
        await slots.take("acc_3")
    assert cut == [held[3]]


async def test_without_a_waiting_client_none_is_cut(autojump_clock: MockClock) -> None:
    slots = AnswerSlots(WAIT)
    held = [await slots.take("a") for _ in range(2)]
    cut = list[int]()
    for slot in held:
        slot.begin(lambda: cut.append(1))
    await trio.sleep(WAIT)
    await slots.take("b")
    assert cut == []


async def test_a_place_is_given_back_once_and_by_who_is_cancelled(autojump_clock: MockClock) -> None:
    slots = AnswerSlots(WAIT)
    held, _ = await filled(slots, writing=False)
    with trio.move_on_after(1):
        await slots.take("gone")
    held[0].release()
    held[0].release()
    with trio.fail_after(0.1):
        taken = await slots.take("new")
    with trio.move_on_after(1) as waiting:
        await slots.take("another")
    assert waiting.cancelled_caught
    taken.release()
    with trio.fail_after(0.1):
        await slots.take("another")
