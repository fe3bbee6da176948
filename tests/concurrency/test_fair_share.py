"""Shares leave room for newcomers, and a queue of turns is fair, for any sequence of requests."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.concurrency.fair_share import SPARE_SHARE, Shares, TurnQueue

OWNERS = st.sampled_from("abcde")


def fill(shares: Shares[str], *holders: str) -> None:
    """Let the holders take slots in turn for as long as any may."""
    while any(shares.has_room(holder) for holder in holders):
        for holder in holders:
            if shares.has_room(holder):
                shares.take(holder)


# ---- shares


@pytest.mark.parametrize(("slots", "holders", "least_free"), [(500, 1, 100), (500, 3, 30), (500, 20, 5), (16, 1, 3)])
def test_slots_stay_free_for_a_newcomer(slots: int, holders: int, least_free: int) -> None:
    """After all holders took all they may, a new holder still gets a slot."""
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
    """Holders that take turns differ by one slot at most, and a newcomer has room while a slot is free."""
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
    """The total may shrink below the slots in use: then no holder gets one until enough are given back."""
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
    """Against lists: turns, a head that may not go, an item put back, an item removed."""
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
    """A retry passes its account's untried mail, but gains no turn."""
    queue = TurnQueue[str, str]()
    for owner, item in (("a", "a1"), ("b", "b1"), ("b", "b2")):
        queue.add(owner, item)
    queue.add("b", "retry", ahead_of=lambda item: item == "b1")
    assert queue.drain() == ["a1", "retry", "b1", "b2"]
