"""Places for large answers: an account's share, whose turn it is, and who gives way to whom."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.errors import Code, Refused
from appliance.web.places import LOOK_EVERY, OWN_PLACES, PLACES, STALLED, Place, Places

WAIT = 20.0
SOON = STALLED + 2 * LOOK_EVERY


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    """For clients that wait."""
    async with trio.open_nursery() as opened:
        yield opened
        opened.cancel_scope.cancel()


async def filled(places: Places, *, writing: bool = True) -> tuple[list[Place], list[Place]]:
    """Every place taken by clients that read nothing, each of another account; and a list of those that were cut."""
    held, cut = [await places.take(f"acc_{number}") for number in range(PLACES)], list[Place]()

    def end(place: Place) -> None:
        cut.append(place)
        place.release()

    for place in held if writing else ():
        place.begin(lambda place=place: end(place))  # type: ignore[misc]
    return held, cut


async def test_an_account_has_its_share(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Two places, the second only while half of all are free; then one for each account."""
    places, got = Places(WAIT), list[str]()

    async def take(account_id: str) -> None:
        await places.take(account_id)
        got.append(account_id)

    for account_id in "aaabbbcccdddeeefff":
        nursery.start_soon(take, account_id)
        await trio.testing.wait_all_tasks_blocked()
    assert got == ["a", "a", "b", "b", "c", "d", "e", "f"]
    assert (got.count("a"), len(got)) == (OWN_PLACES, PLACES)


async def test_a_client_that_does_not_read_gives_way_to_another(autojump_clock: MockClock) -> None:
    """The one that has read nothing for longest, and only that one."""
    places = Places(WAIT)
    held, cut = await filled(places)
    await trio.sleep(STALLED / 2)
    for place in held[1:]:
        place.progress()
    with trio.fail_after(SOON):
        await places.take("new")
    assert cut == [held[0]]


async def test_a_client_that_reads_is_not_cut(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Nor one whose message is still being loaded: the client that waits is told to retry."""
    for writing in (True, False):
        places = Places(WAIT)
        held, cut = await filled(places, writing=writing)

        async def read(held: list[Place] = held) -> None:
            while True:
                await trio.sleep(STALLED / 2)
                for place in held:
                    place.progress()

        nursery.start_soon(read)
        began = trio.current_time()
        with pytest.raises(Refused) as refused:
            await places.take("new")
        assert refused.value.code is Code.TEMPORARY_FAILURE
        assert trio.current_time() - began == pytest.approx(WAIT)
        assert cut == []


async def test_an_account_that_has_a_place_waits_for_its_own(autojump_clock: MockClock) -> None:
    """It makes no other account give way, though they read nothing either."""
    places = Places(WAIT)
    held, cut = await filled(places)
    with trio.fail_after(SOON):
        await places.take("acc_3")
    assert cut == [held[3]]


async def test_without_anybody_waiting_no_client_is_cut(autojump_clock: MockClock) -> None:
    """A client may take its time while there is room."""
    places = Places(WAIT)
    held = [await places.take("a") for _ in range(2)]
    cut = list[int]()
    for place in held:
        place.begin(lambda: cut.append(1))
    await trio.sleep(WAIT)
    await places.take("b")
    assert cut == []


async def test_a_place_is_given_back_once_and_by_who_is_cancelled(autojump_clock: MockClock) -> None:
    """Neither a second release nor a client that stops waiting changes what others have."""
    places = Places(WAIT)
    held, _ = await filled(places, writing=False)
    with trio.move_on_after(1):
        await places.take("gone")
    held[0].release()
    held[0].release()
    with trio.fail_after(0.1):
        taken = await places.take("new")
    with trio.move_on_after(1) as waiting:
        await places.take("another")
    assert waiting.cancelled_caught
    taken.release()
    with trio.fail_after(0.1):
        await places.take("another")
