"""What is pending is counted by pool and account, whatever happens to an envelope until its session starts."""

from ipaddress import ip_address
from random import Random

from appliance.deliver.due_mail import Envelope
from appliance.deliver.pending import Pending, PoolQueue
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.providers import PoolLimits
from appliance.deliver.route import Host, Route
from appliance.model.mail import DueRecipient

ROUTE = Route("a.test", (Host("mx.a.test", (ip_address("192.0.2.1"),)),), 25)
POOLS = {name: PoolLimiter(name, PoolLimits()) for name in ("a", "b", "c")}


def ready(pool: str, account: str, message: str = "m", *, large: bool = False, attempts: int = 0) -> Ready:
    """An envelope that waits for a session."""
    sender = "shop@example.com"
    recipient = DueRecipient(
        "r", message, account, "ada@a.test", "a.test", attempts, None, None, sender, "s", 1, 1, sender
    )
    routed = Routed(Envelope(message, account, "a.test", (recipient,)), ROUTE, POOLS[pool], [], None, 0.0, large)
    return Ready(routed, b"")


def always(_: Ready) -> bool:
    """Everything may go."""
    return True


def test_one_envelope_is_counted_once_on_its_way() -> None:
    """Taken for an unknown pool, routed to another, queued and started: it is pending until then, in one pool."""
    pending = Pending()
    pending.add("", "acc")
    pending.move("", "a", "acc")
    assert ("" in pending, pending["a"], pending.of("a", "acc"), pending.total) == (False, 1, 1, 1)
    pending.enqueue(ready("a", "acc"))
    assert pending["a"] == 1
    assert pending.next("a", always) is not None
    assert ("a" in pending, pending.total, pending.queues) == (False, 0, {})


def test_what_may_not_go_stays() -> None:
    """An envelope that is refused a session waits on, and is still counted."""
    pending = Pending()
    pending.add("a", "acc")
    pending.enqueue(ready("a", "acc"))
    assert pending.next("a", lambda _: False) is None
    assert pending.next("b", always) is None
    assert (pending.total, len(pending.queues["a"])) == (1, 1)


def test_retries_go_before_the_untried_mail_of_their_account() -> None:
    """In the order in which they came; the accounts take turns all the same."""
    pending = Pending()
    order = [("a", "new 1", 0), ("a", "again 1", 1), ("b", "new 2", 0), ("a", "new 3", 0), ("a", "again 2", 3)]
    for account, message, attempts in order:
        pending.add("a", account)
        pending.enqueue(ready("a", account, message, attempts=attempts))
    started = [pending.next("a", always) for _ in order]
    messages = [each.routed.envelope.message_id for each in started if each is not None]
    assert messages == ["again 1", "new 2", "again 2", "new 1", "new 3"]


def test_what_is_put_back_goes_first() -> None:
    """It is pending again, before the others of its account."""
    pending = Pending()
    for message in ("first", "second"):
        pending.add("a", "acc")
        pending.enqueue(ready("a", "acc", message))
    started = pending.next("a", always)
    assert started is not None
    pending.put_back(started)
    assert pending.total == 2
    again = pending.next("a", always)
    assert again is not None
    assert again.routed.envelope.message_id == "first"


def test_a_pool_that_turns_out_to_be_another_is_moved_whole() -> None:
    """What waits for it waits in the pools it belongs to now, and is counted there."""
    pending = Pending()
    for account in ("x", "y", "x"):
        pending.add("a", account)
        pending.enqueue(ready("a", account))
    pending.reassign("a", lambda each: POOLS["b" if each.routed.envelope.account_id == "x" else "c"])
    assert (pending["a"], pending["b"], pending["c"], pending.of("b", "x")) == (0, 2, 1, 2)
    assert {pool: len(queue) for pool, queue in pending.queues.items()} == {"b": 2, "c": 1}
    pending.reassign("a", lambda _: POOLS["b"])  # nothing waits there any more
    assert pending.total == 3


def test_pools_take_turns() -> None:
    """A pool that was served stands behind the others; one without a queue has no turn to end."""
    pending = Pending()
    for pool in ("a", "b", "a"):
        pending.add(pool, "acc")
        pending.enqueue(ready(pool, "acc"))
    pending.end_turn("a")
    pending.end_turn("c")
    assert list(pending.queues) == ["b", "a"]


def test_small_and_large_messages_take_turns() -> None:
    """Where both could go they alternate; where only one may, it does."""
    queue = PoolQueue(POOLS["a"])
    for number in range(3):
        queue.add(ready("a", "acc", f"small{number}"))
        queue.add(ready("a", "acc", f"large{number}", large=True))
    first = [queue.next_that(always) for _ in range(4)]
    assert [each.routed.large for each in first if each is not None] == [False, True, False, True]
    only_small = queue.next_that(lambda each: not each.routed.large)
    assert only_small is not None
    assert not only_small.routed.large
    assert [each.routed.large for each in queue.drain()] == [True]


def test_the_counts_agree_with_what_was_done() -> None:
    """After any sequence of steps the counts are those of a plain list of what is pending."""
    random, pending, plain = Random(5), Pending(), list[tuple[str, str]]()
    for _ in range(2_000):
        pool, account = random.choice("abc"), random.choice("xy")
        match random.randrange(4):
            case 0:
                pending.add(pool, account)
                pending.enqueue(ready(pool, account, large=random.random() < 0.3))
                plain.append((pool, account))
            case 1 if (started := pending.next(pool, lambda _: random.random() < 0.7)) is not None:
                plain.remove((pool, started.routed.envelope.account_id))
                if random.random() < 0.3:
                    pending.put_back(started)
                    plain.append((pool, started.routed.envelope.account_id))
            case 2 if random.random() < 0.1:
                to = random.choice("abc")
                pending.reassign(pool, lambda _: POOLS[to])  # noqa: B023 - called at once
                plain = [(to if each == pool else each, owner) for each, owner in plain]
            case _:
                pending.end_turn(pool)
        assert pending.total == len(plain) == sum(map(len, pending.queues.values()))
        for each in "abc":
            assert pending[each] == sum(found == each for found, _ in plain)
            assert (each in pending) == (pending[each] > 0)
            assert pending.of(each, "x") == plain.count((each, "x"))
