"""Shares of a limited number of places: no holder gets them all, and none is left without."""

import pytest

from appliance.deliver.shares import Shares


def fill(shares: Shares, *holders: str) -> None:
    """Let the holders take places in turn for as long as any may."""
    while any(shares.have_room(holder) for holder in holders):
        for holder in holders:
            if shares.have_room(holder):
                shares.take(holder)


@pytest.mark.parametrize(("places", "holders", "least_free"), [(500, 1, 100), (500, 3, 30), (500, 20, 5), (16, 1, 3)])
def test_some_places_stay_free_for_a_newcomer(places: int, holders: int, least_free: int) -> None:
    """However many holders take all they may, one that comes later still gets places."""
    shares = Shares(places)
    fill(shares, *(f"holder {number}" for number in range(holders)))
    assert places - shares.used >= least_free
    assert shares.have_room("newcomer")
    shares.take("newcomer")
    assert shares.of("newcomer") == 1


@pytest.mark.parametrize("places", [1, 2, 4])
def test_few_places_can_all_be_used(places: int) -> None:
    """With very few places one holder may have them all: holding one back would cost too much."""
    shares = Shares(places)
    fill(shares, "one")
    assert shares.used == places


def test_equal_holders_get_equal_shares() -> None:
    """Two that want all they can get have the same, and what one gives back both may take."""
    shares = Shares(500)
    fill(shares, "one", "two")
    assert abs(shares.of("one") - shares.of("two")) <= 1
    for _ in range(50):
        shares.give_back("one")
    assert shares.have_room("one")
    assert shares.have_room("two")


def test_fewer_places_than_are_used_let_nobody_in() -> None:
    """Places can be taken away while they are in use: then nobody gets one until enough are given back."""
    shares = Shares(10)
    for _ in range(5):
        shares.take("one")
    shares.places = 4
    assert not shares.have_room("two")
    shares.give_back("one")
    shares.give_back("one")
    assert shares.have_room("two")
    assert not shares.have_room("one") or shares.of("one") < 4
