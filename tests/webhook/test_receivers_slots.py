"""The slots: queues share them in turn, and receivers that may hang have a part of them at most."""

from math import inf

import pytest

from appliance.webhook.receivers import DEAD_AFTER, FAILING_AFTER, Slots
from tests.webhook.receiver_queues import queue


def test_a_late_post_gives_its_slot_back() -> None:
    """Receivers that answered before and hang now keep their slots for a second, and only so many go on without."""
    slots, hanging, good = Slots(2), queue("hanging"), queue("good")
    first = [slots.take(hanging, 10.0), slots.take(hanging, 10.5)]
    assert slots.seconds_until_late(10.6) == inf  # no queue waits
    slots.add(good)
    assert slots.next(10.9) is None
    assert slots.seconds_until_late(10.9) == pytest.approx(0.1)
    assert slots.next(11.0) is good
    second = [slots.take(good, 11.0)]
    slots.add(good)
    assert slots.next(11.6) is good
    second.append(slots.take(good, 11.6))
    slots.add(good)
    assert slots.next(99.0) is None  # two are late already
    assert slots.seconds_until_late(99.0) == inf
    slots.give_back(first[0])
    assert slots.next(99.0) is good
    for slot in (first[1], *second):
        slots.give_back(slot)
    slots.add(good)
    assert slots.next(99.0) is good


def test_queues_take_turns() -> None:
    """The first to come is the first to start, and none waits twice."""
    slots, one, two = Slots(), queue("one"), queue("two")
    for each in (one, two, one):
        slots.add(each)
    assert [slots.next(), slots.next(), slots.next()] == [one, two, None]
    slots.add(one)
    assert slots.next() is one


def test_there_are_so_many_slots() -> None:
    """When all are in use, every queue waits; a slot given back goes to the next."""
    slots, one = Slots(2), queue("one")
    taken = [slots.take(one), slots.take(one)]
    slots.add(one)
    assert slots.next() is None
    slots.give_back(taken[0])
    assert slots.next() is one


def test_troubled_queues_have_a_quarter_of_the_slots() -> None:
    """One that keeps failing waits while the others go on; it makes no difference when it became so."""
    slots, bad, good = Slots(8), queue("bad", failures=FAILING_AFTER), queue("good")
    taken = [slots.take(bad), slots.take(bad)]
    becoming = queue("becoming")
    for each in (bad, becoming, good):
        slots.add(each)
    becoming.failures = FAILING_AFTER
    assert [slots.next(), slots.next()] == [good, None]
    slots.give_back(taken[0])
    assert slots.next() is bad


def test_unknown_queues_have_half_of_the_slots() -> None:
    """Receivers never seen to answer leave the other half to the others, and a quarter is only for good ones."""
    slots, good, new, bad = Slots(8), queue("good"), queue("new", proven=False), queue("bad", failures=FAILING_AFTER)
    for _ in range(4):
        slots.take(new)
    for _ in range(2):
        slots.take(bad)
    for each in (new, bad, good):
        slots.add(each)
    assert [slots.next(), slots.next()] == [good, None]


def test_unknown_queues_are_not_kept_waiting_by_busy_ones() -> None:
    """With more good queues than slots, one never seen before still gets one of the next slots."""
    slots, new = Slots(4), queue("new", proven=False)
    many = [queue(f"good{number}") for number in range(9)]
    for each in (*many, new):
        slots.add(each)
    begun = [slots.next() for _ in range(3)]
    assert new in begun
    slots, last = Slots(2), queue("last", proven=False)
    slots.take(many[0])
    slots.add(last)
    assert not slots.may_continue(many[0])


def test_a_queue_goes_on_unless_others_wait() -> None:
    """With a free slot for each queue it goes on; if another waits for the last one it does not."""
    slots, one, other = Slots(2), queue("one"), queue("other")
    assert slots.may_continue(one)
    slots.take(other)
    assert slots.may_continue(one)
    slots.add(other)
    assert not slots.may_continue(one)


def test_a_troubled_queue_goes_on_unless_others_of_its_kind_wait() -> None:
    """A quarter of the slots is all it may use, and it shares them."""
    slots, bad, worse = Slots(4), queue("bad", failures=FAILING_AFTER), queue("worse", failures=DEAD_AFTER)
    assert slots.may_continue(bad)
    slots.add(worse)
    assert not slots.may_continue(bad)
