"""In charge of the slots: lines take turns for them, and those whose receiver may hang have a part at most."""

from math import inf

import pytest

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus, Trigger
from appliance.webhook.receiver import DEAD, FAILING, PACE, SLOW, Line, Standing
from appliance.webhook.slots import Turns


def line(name: str, posts: int = 0, *, failures: int = 0, proven: bool = True) -> Line:
    """A line with so many posts in it."""
    lane = Lane(name, Trigger.EVENT)
    made = Line(lane, proven=proven, failures=failures)
    made.take([DuePost(lane, f"{name}{number}", 0, b"") for number in range(posts)])
    return made


def result(post: DuePost, *, ok: bool, duration: int = 1) -> PostResult:
    """What came of a post."""
    status = PostStatus.SUCCESS if ok else PostStatus.FAILED
    return PostResult(post, status, "", 200, "", None, duration, 0, None)


def test_a_late_post_gives_its_slot_back() -> None:
    """Receivers that answered before and hang now keep their slots for a second, and only so many go on without."""
    turns, hanging, good = Turns(2), line("hanging"), line("good")
    first = [turns.take_slot(hanging, 10.0), turns.take_slot(hanging, 10.5)]
    assert turns.wait(10.6) == inf  # no line waits
    turns.add(good)
    assert turns.next(10.9) is None
    assert turns.wait(10.9) == pytest.approx(0.1)
    assert turns.next(11.0) is good
    second = [turns.take_slot(good, 11.0)]
    turns.add(good)
    assert turns.next(11.6) is good
    second.append(turns.take_slot(good, 11.6))
    turns.add(good)
    assert turns.next(99.0) is None  # two are late already
    assert turns.wait(99.0) == inf
    turns.give_back(first[0])
    assert turns.next(99.0) is good
    for slot in (first[1], *second):
        turns.give_back(slot)
    turns.add(good)
    assert turns.next(99.0) is good


def test_lines_take_turns() -> None:
    """Whoever comes first is first, and nobody waits twice."""
    turns, one, two = Turns(), line("one"), line("two")
    for each in (one, two, one):
        turns.add(each)
    assert [turns.next(), turns.next(), turns.next()] == [one, two, None]
    turns.add(one)
    assert turns.next() is one


def test_there_are_so_many_slots() -> None:
    """When all are in use, everybody waits; one given back is the next one's."""
    turns, one = Turns(2), line("one")
    taken = [turns.take_slot(one), turns.take_slot(one)]
    turns.add(one)
    assert turns.next() is None
    turns.give_back(taken[0])
    assert turns.next() is one


def test_troubled_lines_have_a_quarter_of_the_slots() -> None:
    """One that keeps failing waits while the others go on; it makes no difference when it became so."""
    turns, bad, good = Turns(8), line("bad", failures=FAILING), line("good")
    taken = [turns.take_slot(bad), turns.take_slot(bad)]
    becoming = line("becoming")
    for each in (bad, becoming, good):
        turns.add(each)
    becoming.failures = FAILING
    assert [turns.next(), turns.next()] == [good, None]
    turns.give_back(taken[0])
    assert turns.next() is bad


def test_unknown_lines_have_half_of_the_slots() -> None:
    """Receivers never seen to answer leave the other half to the others, and a quarter is only for good ones."""
    turns, good, new, bad = Turns(8), line("good"), line("new", proven=False), line("bad", failures=FAILING)
    for _ in range(4):
        turns.take_slot(new)
    for _ in range(2):
        turns.take_slot(bad)
    for each in (new, bad, good):
        turns.add(each)
    assert [turns.next(), turns.next()] == [good, None]


def test_unknown_lines_are_not_kept_waiting_by_busy_ones() -> None:
    """With more good lines than slots, one that was never seen before gets one of the next slots all the same."""
    turns, new = Turns(4), line("new", proven=False)
    many = [line(f"good{number}") for number in range(9)]
    for each in (*many, new):
        turns.add(each)
    begun = [turns.next() for _ in range(3)]
    assert new in begun
    turns, last = Turns(2), line("last", proven=False)
    turns.take_slot(many[0])
    turns.add(last)
    assert not turns.may_go_on(many[0])


def test_an_unknown_receiver_is_tried_out_with_one_post() -> None:
    """Several at once it gets when it has answered in time; an answer that comes late is none."""
    new = line("new", 9, proven=False)
    assert (new.standing, new.allowed) == (Standing.UNKNOWN, 1)
    new.ended(post := new.begin(0.0), result(post, ok=False, duration=5_000))
    assert (new.standing, new.allowed) == (Standing.TROUBLED, 1)
    new.ended(post := new.begin(0.0), result(post, ok=True, duration=SLOW + 1))
    assert (new.standing, new.allowed) == (Standing.TROUBLED, 1)
    new.ended(post := new.begin(0.0), result(post, ok=True))
    assert (new.standing, new.allowed) == (Standing.GOOD, 8)


def test_a_line_goes_on_unless_others_wait() -> None:
    """With a free slot for everybody it goes on; if the last one is wanted by others it does not."""
    turns, one, other = Turns(2), line("one"), line("other")
    assert turns.may_go_on(one)
    turns.take_slot(other)
    assert turns.may_go_on(one)
    turns.add(other)
    assert not turns.may_go_on(one)


def test_a_troubled_line_goes_on_unless_others_of_its_kind_wait() -> None:
    """A quarter of the slots is all it may use, and it shares them."""
    turns, bad, worse = Turns(4), line("bad", failures=FAILING), line("worse", failures=DEAD)
    assert turns.may_go_on(bad)
    turns.add(worse)
    assert not turns.may_go_on(bad)


def test_a_line_is_as_its_receiver_answers() -> None:
    """Failures in a row make it troubled and then slow it down; a success ends that; a slow answer is trouble, too."""
    one = line("one", 60)
    assert one.allowed == 8
    for number in range(DEAD):
        assert (one.standing is Standing.TROUBLED) == (number >= FAILING)
        assert one.allowed == (1 if number >= FAILING else 8)
        one.ended(post := one.begin(100.0), result(post, ok=False))
    assert one.may_begin_at == 0.0
    one.ended(post := one.begin(100.0), result(post, ok=False))
    assert one.may_begin_at == 100.0 + PACE
    one.ended(post := one.begin(101.0), result(post, ok=True, duration=SLOW + 1))
    assert (one.failures, one.standing, one.allowed) == (0, Standing.TROUBLED, 8)
    one.ended(post := one.begin(102.0), result(post, ok=True))
    assert one.standing is Standing.GOOD


def test_what_is_in_hand_is_bounded() -> None:
    """There is room up to a limit, none while enough waits, and what is dropped makes room again."""
    one = line("one")
    assert (one.room(64), one.room(2)) == (64, 2)
    one.take([DuePost(one.lane, str(number), 0, b"") for number in range(9)])
    assert (one.room(64), one.room(2)) == (0, 0)
    one.begin(0.0)
    assert one.room(64) == 64 - 9
    one.drop()
    assert (one.room(64), one.room(2)) == (63, 1)
    assert (len(one.taken), one.perhaps_more, one.idle) == (1, False, False)
