"""Accounts take turns in a queue; of a limited number of slots no holder gets all, and none is left without."""

import pytest

from appliance.deliver.due_mail import AccountQueue, Shares


def fill(shares: Shares, *holders: str) -> None:
    """Let the holders take slots in turn for as long as any may."""
    while any(shares.have_room(holder) for holder in holders):
        for holder in holders:
            if shares.have_room(holder):
                shares.take(holder)


@pytest.mark.parametrize(("slots", "holders", "least_free"), [(500, 1, 100), (500, 3, 30), (500, 20, 5), (16, 1, 3)])
def test_some_slots_stay_free_for_a_newcomer(slots: int, holders: int, least_free: int) -> None:
    """However many holders take all they may, one that comes later still gets slots."""
    shares = Shares(slots)
    fill(shares, *(f"holder {number}" for number in range(holders)))
    assert slots - shares.used >= least_free
    assert shares.have_room("newcomer")
    shares.take("newcomer")
    assert shares.of("newcomer") == 1


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_few_slots_can_all_be_used(slots: int) -> None:
    """With very few slots one holder may have them all: holding one back would cost too much."""
    shares = Shares(slots)
    fill(shares, "one")
    assert shares.used == slots


def test_equal_holders_get_equal_shares() -> None:
    """Two that want all they can get have the same, and what one gives back both may take."""
    shares = Shares(500)
    fill(shares, "one", "two")
    assert abs(shares.of("one") - shares.of("two")) <= 1
    for _ in range(50):
        shares.give_back("one")
    assert shares.have_room("one")
    assert shares.have_room("two")


def test_fewer_slots_than_are_used_let_none_in() -> None:
    """Slots can be taken away while they are in use: then no holder gets one until enough are given back."""
    shares = Shares(10)
    for _ in range(5):
        shares.take("one")
    shares.slots = 4
    assert not shares.have_room("two")
    shares.give_back("one")
    shares.give_back("one")
    assert shares.have_room("two")
    assert not shares.have_room("one") or shares.of("one") < 4


def test_accounts_take_turns() -> None:
    """The first of every account, then the second of each, in the order in which they came."""
    queue: AccountQueue[str] = AccountQueue()
    for account_id, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")):
        queue.add(account_id, item)
    assert len(queue) == 6
    assert [queue.next() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    queue.add("b", "b2")
    assert [queue.next() for _ in range(3)] == ["c2", "a3", "b2"]
    assert not queue
