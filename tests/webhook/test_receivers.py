"""The queue of one receiver: how many posts are loaded and in flight, by how the receiver has answered."""

from appliance.model.webhooks import DuePost, PostResult, PostStatus
from appliance.webhook.receivers import DEAD_AFTER, DEAD_INTERVAL, FAILING_AFTER, SLOW_MS, ReceiverHealth
from tests.webhook.receiver_queues import queue


def result(post: DuePost, *, ok: bool, duration: int = 1) -> PostResult:
    """The result of a post."""
    status = PostStatus.SUCCESS if ok else PostStatus.FAILED
    return PostResult(post, status, "", 200, "", None, duration, 0, None)


def test_an_unknown_receiver_is_tried_out_with_one_post() -> None:
    """Several at once it gets when it has answered in time; an answer that comes late is none."""
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
    """There is room up to a limit, none while enough waits, and what is dropped makes room again."""
    one = queue("one")
    assert (one.room(64), one.room(2)) == (64, 2)
    one.load([DuePost(one.lane, str(number), 0, b"") for number in range(9)])
    assert (one.room(64), one.room(2)) == (0, 0)
    one.start(0.0)
    assert one.room(64) == 64 - 9
    one.drop()
    assert (one.room(64), one.room(2)) == (63, 1)
    assert (len(one.loaded), one.more_due, one.idle) == (1, False, False)
