"""What is pending is counted by pool and account, whatever happens to an envelope until its session starts."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.deliver.pending import (
    FEW_PENDING,
    PASSING,
    PENDING_OF_NEW,
    PENDING_OF_ONE,
    PENDING_PER_POOL,
    PENDING_WITH_RETRIES,
    UNROUTED_NEW,
    Admission,
    Pending,
    PoolQueue,
)
from appliance.deliver.polling import POLL_AT_ONCE, POLL_SOON, Poll, PollState, next_poll
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import UNROUTED
from appliance.deliver.preparing import Envelope, Flow, Ready, Routed
from appliance.deliver.providers import PoolLimits
from appliance.deliver.route import Host, Route
from appliance.model.mail import DueRecipient

ROUTE = Route("a.test", (Host("mx.a.test", (ip_address("192.0.2.1"),)),), 25)
POOLS = {name: PoolLimiter(name, PoolLimits()) for name in ("a", "b", "c")}


def ready(pool: str, account: str, message: str = "m", *, large: bool = False, attempts: int = 0) -> Ready:
    sender = "shop@example.com"
    recipient = DueRecipient(
        "r", message, account, "ada@a.test", "a.test", attempts, None, None, sender, "s", 1, 1, sender
    )
    routed = Routed(Envelope(message, account, "a.test", (recipient,)), ROUTE, POOLS[pool], [], None, 0.0, large)
    return Ready(routed, b"")


def always(_: Ready) -> bool:
    return True


def test_one_envelope_is_counted_once_on_its_way() -> None:
    """Taken for an unknown pool, routed to another, queued and started: it is pending until then, in one pool."""
    pending = Pending()
    pending.add("", Flow("acc"))
    pending.move("", "a", Flow("acc"))
    assert ("" in pending, pending["a"], pending.of("a", Flow("acc")), pending.total) == (False, 1, 1, 1)
    pending.enqueue(ready("a", "acc"))
    assert pending["a"] == 1
    assert pending.next("a", always) is not None
    assert ("a" in pending, pending.total, pending.queues) == (False, 0, {})


def test_what_may_not_go_stays() -> None:
    pending = Pending()
    pending.add("a", Flow("acc"))
    pending.enqueue(ready("a", "acc"))
    assert pending.next("a", lambda _: False) is None
    assert pending.next("b", always) is None
    assert (pending.total, len(pending.queues["a"])) == (1, 1)


def test_retries_go_before_the_untried_mail_of_their_account() -> None:
    pending = Pending()
    order = [("a", "new 1", 0), ("a", "again 1", 1), ("b", "new 2", 0), ("a", "new 3", 0), ("a", "again 2", 3)]
    for account, message, attempts in order:
        pending.add("a", Flow(account))
        pending.enqueue(ready("a", account, message, attempts=attempts))
    started = [pending.next("a", always) for _ in order]
    messages = [each.routed.envelope.message_id for each in started if each is not None]
    assert messages == ["again 1", "new 2", "again 2", "new 1", "new 3"]


def test_what_is_put_back_goes_first() -> None:
    pending = Pending()
    for message in ("first", "second"):
        pending.add("a", Flow("acc"))
        pending.enqueue(ready("a", "acc", message))
    started = pending.next("a", always)
    assert started is not None
    pending.put_back(started)
    assert pending.total == 2
    again = pending.next("a", always)
    assert again is not None
    assert again.routed.envelope.message_id == "first"


def test_a_pool_that_turns_out_to_be_another_is_moved_whole() -> None:
    pending = Pending()
    for account in ("x", "y", "x"):
        pending.add("a", Flow(account))
        pending.enqueue(ready("a", account))
    pending.reassign("a", lambda each: POOLS["b" if each.routed.envelope.account_id == "x" else "c"])
    assert (pending["a"], pending["b"], pending["c"], pending.of("b", Flow("x"))) == (0, 2, 1, 2)
    assert {pool: len(queue) for pool, queue in pending.queues.items()} == {"b": 2, "c": 1}
    pending.reassign("a", lambda _: POOLS["b"])  # nothing waits there any more
    assert pending.total == 3


def test_pools_take_turns() -> None:
    """A pool that was served stands behind the others; one without a queue has no turn to end."""
    pending = Pending()
    for pool in ("a", "b", "a"):
        pending.add(pool, Flow("acc"))
        pending.enqueue(ready(pool, "acc"))
    pending.end_turn("a")
    pending.end_turn("c")
    assert list(pending.queues) == ["b", "a"]


def test_small_and_large_messages_take_turns() -> None:
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
    random, pending, plain = Random(5), Pending(), list[tuple[str, str]]()
    for _ in range(2_000):
        pool, account = random.choice("abc"), random.choice("xy")
        match random.randrange(4):
            case 0:
                pending.add(pool, Flow(account))
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
            assert pending.of(each, Flow("x")) == plain.count((each, "x"))


@dataclass
class Pools:
    held: set[str] = field(default_factory=set)
    probes: set[str] = field(default_factory=set)
    limit: int = 10**9  # of the warm-up

    def pool_of(self, domain: str, via: object = None) -> str:
        return UNROUTED if domain.startswith("x") else domain

    def is_held(self, pool: str) -> bool:
        return pool in self.held

    def may_probe(self, pool: str, account: str) -> bool:
        return pool in self.probes

    def pending_limit(self, pool: str) -> int:
        return self.limit

    def limits(self, envelope: Envelope, pool: str) -> list[str]:
        return [pool]

    def limits_of_lane(self, flow: Flow, domain: str, via: object, pool: str) -> list[str]:
        return [pool]


def envelope(account: str, domain: str, *, tries: int = 0) -> Envelope:
    sender = "shop@example.com"
    recipient = DueRecipient("r", "m", account, f"ada@{domain}", domain, tries, None, None, sender, "s", 1, 1, sender)
    return Envelope("m", account, domain, (recipient,))


def admission(pending: dict[tuple[str, str], int], pools: Pools | None = None) -> Admission:
    counts = Pending()
    states: Any = pools or Pools()
    for (pool, account), number in pending.items():
        for _ in range(number):
            counts.add(pool, Flow(account))
    return Admission(counts, states, states, states)


class Case(NamedTuple):
    """Account "me" asks for domain a.test, or for x.test, which has no route."""

    pending: dict[tuple[str, str], int]
    is_taken: bool
    domain: str = "a.test"
    tries: int = 0
    pools: Pools = Pools()


FULL = {("a.test", "other"): PENDING_PER_POOL}
DUE = {
    "nothing is pending": Case({}, True),
    "the pool is full": Case({("a.test", "me"): PENDING_PER_POOL}, False),
    "the pool is full of others' mail": Case(FULL, True),
    "the account has its minimum": Case({**FULL, ("a.test", "me"): PENDING_OF_ONE}, False),
    "a retry to a full pool": Case({("a.test", "me"): PENDING_PER_POOL}, True, tries=1),
    "a retry, with very much pending": Case({("a.test", "me"): PENDING_WITH_RETRIES}, False, tries=1),
    "a warm-up permits few": Case({("a.test", "me"): PENDING_OF_ONE}, False, pools=Pools(limit=5)),
    "the pool is held": Case({}, False, pools=Pools(held={"a.test"})),
    "the pool is held, and a probe is due": Case({}, True, pools=Pools({"a.test"}, {"a.test"})),
    "a probe is pending": Case({("a.test", "me"): 1}, False, pools=Pools({"a.test"}, {"a.test"})),
    "no route, one account": Case({(UNROUTED, "me"): PENDING_PER_POOL * 4 // 5}, False, "x.test"),
    "no route, another account": Case({(UNROUTED, "other"): PENDING_PER_POOL * 4 // 5}, True, "x.test"),
}


@pytest.mark.parametrize("name", DUE)
def test_due_mail(name: str) -> None:
    """Mail that is not taken is remembered as left, so that polls read it once there is room."""
    case = DUE[name]
    made = admission(case.pending, case.pools)
    pool = made.pool_for_due(envelope("me", case.domain, tries=case.tries))
    assert (pool == case.pools.pool_of(case.domain)) == case.is_taken
    assert (pool is None) == bool(made.left) != case.is_taken
    if not case.tries:
        assert made.may_take(Flow("me"), case.domain) == case.is_taken


@pytest.mark.parametrize(
    ("pending", "domain", "is_behind", "expected"),
    [
        ({}, "a.test", False, "a.test"),
        ({("a.test", "me"): PENDING_PER_POOL}, "a.test", False, "a.test"),
        ({("a.test", "me"): PENDING_OF_NEW}, "a.test", False, None),
        ({("a.test", "me"): 1}, "a.test", True, None),
        ({("b.test", "me"): 1}, "a.test", True, "a.test"),
        ({}, "x.test", True, UNROUTED_NEW),
        ({(UNROUTED_NEW, "me"): PENDING_OF_NEW}, "x.test", False, None),
    ],
)
def test_new_mail(pending: dict[tuple[str, str], int], domain: str, is_behind: bool, expected: str | None) -> None:
    """Mail in memory does not pass older mail of its account and pool; unrouted mail has its own room."""
    assert admission(pending).pool_for_new(envelope("me", domain), is_behind=is_behind) == expected


def test_some_new_mail_may_pass_the_backlog_of_its_account() -> None:
    made, behind = admission({("a.test", "me"): PENDING_PER_POOL}), envelope("me", "a.test")
    made.leave("a.test", behind.flow)
    passing = 0
    while (new := made.as_new(behind)).new:
        assert made.pool_for_new(new, is_behind=True) == "a.test"
        made.pending.add("a.test", new.flow)
        passing += 1
    assert passing == PASSING
    assert made.pool_for_new(new, is_behind=True) is None
    assert made.as_new(envelope("other", "a.test")).new
    assert not made.as_new(behind._replace(account_id="other", low=1)).new


def test_new_mail_does_not_pass_mail_left_in_the_store() -> None:
    made = admission({("a.test", "me"): 1, ("a.test", "other"): 1})
    made.leave("a.test", Flow("me"))
    assert made.pool_for_new(envelope("me", "a.test"), is_behind=False) is None
    assert made.pool_for_new(envelope("other", "a.test"), is_behind=False) == "a.test"
    made.left.clear()
    assert made.pool_for_new(envelope("me", "a.test"), is_behind=False) == "a.test"


@pytest.mark.parametrize(
    ("pending", "left", "is_behind", "held", "expected"),
    [
        (0, None, False, False, False),
        (0, "a.test", False, False, True),
        (0, "b.test", False, False, False),
        (0, UNROUTED_NEW, False, False, True),
        (FEW_PENDING, "a.test", False, False, False),
        (FEW_PENDING, None, True, False, False),
        (FEW_PENDING - 1, None, True, False, True),
        (0, "a.test", False, True, False),
    ],
)
def test_room_for_mail_that_was_left(
    pending: int, left: str | None, is_behind: bool, held: bool, expected: bool
) -> None:
    made = admission({("a.test", "me"): pending}, Pools({"a.test"} if held else set()))
    if left is not None:
        made.leave(left, Flow("me"))
    assert made.should_poll(Envelope("m", "me", "a.test", ()), is_behind=is_behind) == expected


NOW = 1_000.0
ALL_EVERY = 1.0
# Everything was read just now, and there is nothing to do.
REST = PollState(polled_at=NOW, polled_all_at=NOW, checked_at=NOW, is_requested=False)
BUSY = replace(REST, is_short=False)  # enough envelopes are pending
LATER = NOW + ALL_EVERY + 0.5

TABLE = [
    # a poll is asked for
    (replace(REST, is_requested=True), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(REST, is_requested=True), NOW + POLL_AT_ONCE, 0.0, Poll.NEW),
    (replace(BUSY, is_requested=True), NOW, POLL_SOON, Poll.NEW),
    (replace(BUSY, is_requested=True, has_room=True), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(BUSY, is_requested=True, polled_at=NOW + 0.98), NOW + 0.98, 0.02, Poll.ALL),
    (replace(REST, is_requested=True), LATER, 0.0, Poll.ALL),
    (replace(REST, is_requested=True, polled_at=LATER), LATER, 0.0, Poll.ALL),
    # a recipient is due
    (replace(REST, due_in=30.0), NOW, 30.0, Poll.ALL),
    (replace(REST, due_in=0.5), NOW, 0.5, Poll.NEW),
    (replace(REST, due_in=-5.0), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(BUSY, due_in=-5.0), NOW, POLL_SOON, Poll.NEW),
    (replace(REST, due_in=600.0), NOW, SLEEP_LIMIT, Poll.ALL),
    # due mail was left in the store
    (replace(BUSY, has_left=True), NOW, ALL_EVERY, Poll.ALL),
    (replace(BUSY, has_left=True, polled_at=LATER), LATER, 0.0, Poll.ALL),
    (replace(BUSY, has_left=True, is_requested=True), NOW, POLL_SOON, Poll.NEW),
    # ready mail waits for a session
    (replace(BUSY, has_ready=True), NOW, ALL_EVERY, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5), NOW, 0.0, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5, is_requested=True), NOW + POLL_SOON, 0.0, Poll.NEW),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5, is_requested=True), NOW, 0.0, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, has_left=True), NOW, ALL_EVERY, Poll.ALL),
    # always
    (REST, NOW, SLEEP_LIMIT, Poll.ALL),
    (BUSY, NOW + 20, SLEEP_LIMIT - 20, Poll.ALL),
    (REST, NOW + 2 * SLEEP_LIMIT, 0.0, Poll.ALL),
    (PollState(), 0.0, 0.0, Poll.ALL),  # at the start
]


@pytest.mark.parametrize(("state", "now", "seconds", "poll"), TABLE)
def test_the_earliest_reason_decides(state: PollState, now: float, seconds: float, poll: Poll) -> None:
    until, what = next_poll(state, now, ALL_EVERY)
    assert until == pytest.approx(seconds)
    assert what is poll


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("due_in", [-1.0, 0.2, 100.0, inf])
def test_no_sleep_is_too_long(few: bool, asked: bool, left: bool, waiting: bool, due_in: float) -> None:
    """Whatever holds, something is read within a minute, and never at once after everything was."""
    state = replace(REST, is_short=few, is_requested=asked, has_left=left, has_ready=waiting, due_in=due_in)
    seconds, _ = next_poll(state, NOW, ALL_EVERY)
    assert seconds + 1e-9 >= POLL_AT_ONCE
    assert seconds <= SLEEP_LIMIT
