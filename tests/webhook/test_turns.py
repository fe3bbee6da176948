"""In charge of the slots: lines take turns for them, and troubled ones have half at most."""

from appliance.webhook.line import DEAD, FAILING, PACE, SLOW, Line
from appliance.webhook.turns import Turns
from appliance.webhook_model import DuePost, Lane, PostResult, PostStatus, Trigger


def line(name: str, posts: int = 0, *, failures: int = 0) -> Line:
    """A line with so many posts in it."""
    lane = Lane(name, Trigger.EVENT)
    made = Line(lane, failures=failures)
    made.take([DuePost(lane, f"{name}{number}", 0, b"") for number in range(posts)])
    return made


def result(post: DuePost, *, ok: bool, duration: int = 1) -> PostResult:
    """What came of a post."""
    status = PostStatus.SUCCESS if ok else PostStatus.FAILED
    return PostResult(post, status, "", 200, "", None, duration, 0, None)


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


def test_troubled_lines_have_half_of_the_slots() -> None:
    """One that keeps failing waits while the others go on; it makes no difference when it became so."""
    turns, bad, good = Turns(4), line("bad", failures=FAILING), line("good")
    taken = [turns.take_slot(bad), turns.take_slot(bad)]
    becoming = line("becoming")
    for each in (bad, becoming, good):
        turns.add(each)
    becoming.failures = FAILING
    assert [turns.next(), turns.next()] == [good, None]
    turns.give_back(taken[0])
    assert turns.next() is bad


def test_a_line_goes_on_unless_others_wait() -> None:
    """With a free slot for everybody it goes on; if the last one is wanted by others it does not."""
    turns, one, other = Turns(2), line("one"), line("other")
    assert turns.may_go_on(one)
    turns.take_slot(other)
    assert turns.may_go_on(one)
    turns.add(other)
    assert not turns.may_go_on(one)


def test_a_troubled_line_goes_on_unless_others_of_its_kind_wait() -> None:
    """Half of the slots are all it may use, and it shares them."""
    turns, bad, worse = Turns(4), line("bad", failures=FAILING), line("worse", failures=DEAD)
    assert turns.may_go_on(bad)
    turns.add(worse)
    assert not turns.may_go_on(bad)


def test_a_line_is_as_its_receiver_answers() -> None:
    """Failures in a row make it troubled and then slow it down; a success ends that; a slow answer is trouble, too."""
    one = line("one", 60)
    assert one.allowed == 8
    for number in range(DEAD):
        assert one.troubled == (number >= FAILING)
        assert one.allowed == (1 if number >= FAILING else 8)
        one.ended(post := one.begin(100.0), result(post, ok=False))
    assert one.may_begin_at == 0.0
    one.ended(post := one.begin(100.0), result(post, ok=False))
    assert one.may_begin_at == 100.0 + PACE
    one.ended(post := one.begin(101.0), result(post, ok=True, duration=SLOW + 1))
    assert (one.failures, one.troubled, one.allowed) == (0, True, 8)
    one.ended(post := one.begin(102.0), result(post, ok=True))
    assert not one.troubled


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
