"""The queue of one receiver, by how it has answered; the slots that queues share in turn."""

from math import inf

import pytest

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus, Trigger
from appliance.webhook.receivers import (
    DEAD_AFTER,
    DEAD_INTERVAL,
    FAILING_AFTER,
    SLOW_MS,
    ReceiverHealth,
    ReceiverQueue,
    Slots,
)


def queue(name: str, posts: int = 0, *, failures: int = 0, proven: bool = True) -> ReceiverQueue:
    lane = Lane(name, Trigger.EVENT)
    made = ReceiverQueue(lane, proven=proven, failures=failures)
    made.load([DuePost(lane, f"{name}{number}", 0, b"") for number in range(posts)])
    return made


def result(post: DuePost, *, ok: bool, duration: int = 1) -> PostResult:
    status = PostStatus.SUCCESS if ok else PostStatus.FAILED
    return PostResult(post, status, "", 200, "", None, duration, 0, None)


def test_an_unknown_receiver_is_tried_out_with_one_post() -> None:
    new = queue("new", 9, proven=False)
    assert (new.health, new.in_flight_limit) == (ReceiverHealth.UNKNOWN, 1)
    new.finish(post := new.start(0.0), result(post, ok=False, duration=5_000))
    assert (new.health, new.in_flight_limit) == (ReceiverHealth.TROUBLED, 1)
    new.finish(post := new.start(0.0), result(post, ok=True, duration=SLOW_MS + 1))
    assert (new.health, new.in_flight_limit) == (ReceiverHealth.TROUBLED, 1)
    new.finish(post := new.start(0.0), result(post, ok=True))
    assert (new.health, new.in_flight_limit) == (ReceiverHealth.GOOD, 8)


def test_health_follows_the_answers() -> None:
    """Failures in a row make a receiver troubled, then dead; a success ends both; a slow answer is trouble, too."""
    one = queue("one", 60)
    assert one.in_flight_limit == 8
    for number in range(DEAD_AFTER):
        assert (one.health is ReceiverHealth.TROUBLED) == (number >= FAILING_AFTER)
        assert one.in_flight_limit == (1 if number >= FAILING_AFTER else 8)
        one.finish(post := one.start(100.0), result(post, ok=False))
    assert one.not_before == 0.0
    one.finish(post := one.start(100.0), result(post, ok=False))
    assert one.not_before == 100.0 + DEAD_INTERVAL
    one.finish(post := one.start(101.0), result(post, ok=True, duration=SLOW_MS + 1))
    assert (one.failures, one.health, one.in_flight_limit) == (0, ReceiverHealth.TROUBLED, 8)
    one.finish(post := one.start(102.0), result(post, ok=True))
    assert one.health is ReceiverHealth.GOOD


def test_what_is_loaded_is_bounded() -> None:
    one = queue("one")
    assert (one.room(64), one.room(2)) == (64, 2)
    one.load([DuePost(one.lane, str(number), 0, b"") for number in range(9)])
    assert (one.room(64), one.room(2)) == (0, 0)
    one.start(0.0)
    assert one.room(64) == 64 - 9
    one.drop()
    assert (one.room(64), one.room(2)) == (63, 1)
    assert (len(one.loaded), one.more_due, one.idle) == (1, False, False)


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
    slots, one, two = Slots(), queue("one"), queue("two")
    for each in (one, two, one):
        slots.add(each)
    assert [slots.next(), slots.next(), slots.next()] == [one, two, None]
    slots.add(one)
    assert slots.next() is one


def test_there_are_so_many_slots() -> None:
    slots, one = Slots(2), queue("one")
    taken = [slots.take(one), slots.take(one)]
    slots.add(one)
    assert slots.next() is None
    slots.give_back(taken[0])
    assert slots.next() is one


def test_troubled_queues_have_a_quarter_of_the_slots() -> None:
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
    slots, one, other = Slots(2), queue("one"), queue("other")
    assert slots.may_continue(one)
    slots.take(other)
    assert slots.may_continue(one)
    slots.add(other)
    assert not slots.may_continue(one)


def test_a_troubled_queue_goes_on_unless_others_of_its_kind_wait() -> None:
    slots, bad, worse = Slots(4), queue("bad", failures=FAILING_AFTER), queue("worse", failures=DEAD_AFTER)
    assert slots.may_continue(bad)
    slots.add(worse)
    assert not slots.may_continue(bad)
