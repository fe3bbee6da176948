"""Several nodes on one database: who delivers which rows, who takes over, and what each may do with its lease."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from appliance.model.database import DatabaseRefused, FailureKind, LoginFailure, OtherNodes
from appliance.store.postgresql import nodes
from appliance.store.postgresql.connection import PostgresConnection, connect, run
from appliance.store.postgresql.migrate import newest_known
from appliance.store.postgresql.nodes import (
    ADOPTED_TOGETHER,
    BEAT,
    CHORE_LEASE,
    FAILURES_SHARED,
    KEPT,
    LATE,
    LEASE,
    MOST_SKEW,
    STEADY,
    WARN_SKEW,
    Fenced,
    Membership,
    NodeIdentity,
    SharedFailures,
    drain,
    states,
)

_RECIPIENTS = """INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
        billing_status, next_attempt_at, owner)
    SELECT %s, 'rcp' || n, 'acc', 'a@b.test', 'b.test', 0, 1, 'queued', 'reserved', %s, %s
    FROM generate_series(1, %s) n"""
_POSTS = """INSERT INTO webhook_deliveries (webhook_id, id, event_id, type, url, cause, status, request_body,
        created_at, next_attempt_at, owner)
    SELECT 'whk', %s || n, 'evt', 'delivered', '', 'event', 'pending', '', 0, 0, %s FROM generate_series(1, %s) n"""


@dataclass
class Run:
    """One run of a node, on a connection and a clock of its own."""

    member: Membership
    connection: PostgresConnection
    _moment: list[float] = field(default_factory=lambda: [1_000.0])

    @property
    def owner(self) -> str:
        return self.member.identity.owner

    def passes(self, seconds: float) -> None:
        self._moment[0] += seconds

    def join(self) -> None:
        self.member.join(self.connection)

    def beat(self, in_flight: int = 0, *addresses: str) -> None:
        self.member.beat(self.connection, in_flight, addresses)

    def adopt(self) -> int:
        return self.member.adopt(self.connection)

    def has_chore(self, name: str = "chore") -> bool:
        return self.member.has_chore(self.connection, name)

    def becomes_steady(self) -> None:
        for _ in range(int(STEADY / BEAT) + 2):
            self.passes(BEAT)
            self.beat()
        assert self.member.is_steady()


Start = Callable[..., Run]


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    with ExitStack() as stack:
        count = 0

        def started(name: str, home: str | None = None, *, joins: bool = True) -> Run:
            nonlocal count
            count += 1
            moment = [1_000.0]
            identity = NodeIdentity(
                f"node_{count}", name, home or f"home of {name}", f"{name}.test", "1.2.3", newest_known()
            )
            member = Membership(identity, lambda: moment[0])
            made = Run(member, stack.enter_context(closing(connect(url, identity.owner))), moment)
            if joins:
                made.join()
            return made

        yield started


@pytest.fixture
def database(url: str) -> Iterator[PostgresConnection]:
    with closing(connect(url)) as connection:
        yield connection


def expire(database: PostgresConnection, gone: Run) -> None:
    run(database, "UPDATE nodes SET lease_until = beat_at WHERE owner = %s", (gone.owner,))


def stall(database: PostgresConnection, seconds: float) -> None:
    passed = round(seconds * 1_000_000)
    run(database, "UPDATE nodes SET beat_at = beat_at - %s, lease_until = lease_until - %s", (passed, passed))


def beat_slowly(node: Run, *seconds: float) -> None:
    quick, left = node.connection.execute, list(seconds)

    def slow(*args: Any, **options: Any) -> Any:
        found = quick(*args, **options)
        node.passes(left.pop(0))
        return found

    node.connection.execute = slow  # type: ignore[method-assign]
    try:
        node.beat()
    finally:
        node.connection.execute = quick  # type: ignore[method-assign]


def wait(database: PostgresConnection, owner: str, count: int, message_id: str = "msg") -> None:
    run(database, _RECIPIENTS, (message_id, 0, owner, count))


def owners(database: PostgresConnection, table: str = "recipients") -> dict[str, int]:
    return dict(run(database, f"SELECT owner, count(*) FROM {table} GROUP BY owner"))


# ---- joining
def test_three_nodes_join_and_are_counted(start: Start) -> None:
    runs = [start(name) for name in ("a", "b", "c")]
    for each in runs:
        each.beat()
        assert each.member.holds()
        assert each.member.live == 3


def test_a_name_is_taken_while_its_node_lives(start: Start, database: PostgresConnection) -> None:
    first = start("a")
    wait(database, first.owner, 3)
    with pytest.raises(DatabaseRefused, match="another node is named 'a': give each node a name of its own"):
        start("a", home="elsewhere")
    first.beat()
    assert owners(database) == {first.owner: 3}
    expire(database, first)
    second = start("a", home="elsewhere")
    assert owners(database) == {second.owner: 3}
    with pytest.raises(Fenced):
        first.beat()


def test_two_that_join_at_once_with_one_name(start: Start, url: str) -> None:
    first = start("a", joins=False)
    second = start("a", home="elsewhere", joins=False)
    with first.connection.transaction():
        first.join()
        second.connection.execute("SET lock_timeout = '300ms'")
        with pytest.raises((DatabaseRefused, psycopg.errors.LockNotAvailable)):
            second.join()
    with pytest.raises(DatabaseRefused):
        second.join()


def test_a_start_on_the_same_directory_takes_the_rows_at_once(start: Start, database: PostgresConnection) -> None:
    """All of them, more than one slice, though the lease of the run before has not expired: that run is over."""
    first, other = start("a"), start("b")
    wait(database, first.owner, 2 * ADOPTED_TOGETHER + 1)
    wait(database, other.owner, 5, "msg of b")
    run(database, _POSTS, ("p", first.owner, 7))
    second = start("a")
    assert owners(database) == {second.owner: 2 * ADOPTED_TOGETHER + 1, other.owner: 5}
    assert owners(database, "webhook_deliveries") == {second.owner: 7}
    assert second.member.holds()
    with pytest.raises(Fenced):
        first.beat()
    assert not first.member.holds()


def test_a_start_with_a_large_queue_keeps_its_lease(start: Start, database: PostgresConnection) -> None:
    first, other = start("a"), start("b")
    count = 6 * ADOPTED_TOGETHER
    wait(database, first.owner, count)
    second = start("a", joins=False)
    quick = second.connection.execute

    def slow(*args: Any, **options: Any) -> Any:
        second.passes(0.6 if "SKIP LOCKED" in str(args[0]) else 0)
        return quick(*args, **options)

    second.connection.execute = slow  # type: ignore[method-assign]
    second.join()
    assert owners(database) == {first.owner: count - 2 * ADOPTED_TOGETHER, second.owner: 2 * ADOPTED_TOGETHER}
    second.beat()
    assert second.member.holds()
    assert not second.member.is_steady()
    assert [second.adopt(), other.adopt(), second.adopt(), second.adopt(), second.adopt()] == [
        *4 * (ADOPTED_TOGETHER,),
        0,
    ]
    assert owners(database) == {second.owner: 5 * ADOPTED_TOGETHER, other.owner: ADOPTED_TOGETHER}


def test_final_rows_keep_their_owner(start: Start, database: PostgresConnection) -> None:
    first = start("a")
    run(database, _RECIPIENTS, ("msg", None, first.owner, 3))
    start("a")
    assert owners(database) == {first.owner: 3}


# ---- the lease
def test_a_lease_lasts_from_when_its_renewal_was_sent(start: Start) -> None:
    node = start("a")
    node.passes(LEASE - 0.01)
    assert node.member.holds()
    node.passes(0.01)
    assert not node.member.holds()
    node.beat()
    assert node.member.holds()
    node.passes(LEASE)
    assert not node.member.holds()


def test_an_answer_that_takes_long_gives_no_more_time(start: Start) -> None:
    node = start("a")
    node.passes(8)
    beat_slowly(node, 3, 3)
    node.passes(LEASE - 6 - 0.01)
    assert node.member.holds()
    node.passes(0.02)
    assert not node.member.holds()


def test_an_expired_run_that_no_other_adopted_goes_on(start: Start, database: PostgresConnection) -> None:
    node = start("a")
    wait(database, node.owner, 2)
    expire(database, node)
    node.passes(60)
    assert not node.member.holds()
    node.beat()
    assert node.member.holds()
    assert owners(database) == {node.owner: 2}


def test_an_adopted_run_is_fenced(start: Start, database: PostgresConnection) -> None:
    gone, node = start("a"), start("b")
    node.becomes_steady()
    count = ADOPTED_TOGETHER + 200
    wait(database, gone.owner, count)
    run(database, _POSTS, ("p", gone.owner, 3))
    expire(database, gone)
    assert node.adopt() == ADOPTED_TOGETHER + 3
    assert node.adopt() == count - ADOPTED_TOGETHER
    assert node.adopt() == 0
    assert owners(database) == {node.owner: count}
    assert owners(database, "webhook_deliveries") == {node.owner: 3}
    assert gone.member.holds()  # by its own clock, until it asks
    with pytest.raises(Fenced):
        gone.beat()
    assert not gone.member.holds()
    node.beat()
    assert node.member.live == 1


def test_a_live_run_is_not_adopted(start: Start, database: PostgresConnection) -> None:
    first, second = start("a"), start("b")
    wait(database, first.owner, 2)
    second.becomes_steady()
    assert second.adopt() == 0
    first.beat()
    assert owners(database) == {first.owner: 2}


def test_only_a_steady_node_adopts(start: Start, database: PostgresConnection) -> None:
    gone, node = start("a"), start("b")
    wait(database, gone.owner, 2)
    expire(database, gone)
    node.beat()
    assert node.adopt() == 0
    node.becomes_steady()
    node.passes(LATE + 0.01)
    node.beat()
    assert not node.member.is_steady()
    assert node.adopt() == 0
    gone.beat()  # it was only slow
    expire(database, gone)
    node.becomes_steady()
    assert node.adopt() == 2


@pytest.mark.parametrize("of_second", [(9.1, 0), (0, 9.1), (11, 0)])
def test_hung_commits_end_no_node(start: Start, database: PostgresConnection, of_second: tuple[float, float]) -> None:
    """As when a synchronous standby is lost: every lease has expired when the answers come, and all nodes go on."""
    first, second = start("a"), start("b")
    first.becomes_steady()
    second.becomes_steady()
    beat_slowly(first, 11, 0)
    stall(database, 11 - sum(of_second))
    beat_slowly(second, *of_second)
    stall(database, sum(of_second))
    for each in (second, first):
        assert not each.member.is_steady()
        assert each.adopt() == 0
    for each in (first, second):
        each.passes(0.1)
        each.beat()
        assert each.member.holds()
        assert not each.member.is_steady()
        assert each.adopt() == 0


def test_a_take_over_that_reaches_the_database_late_ends_no_node(start: Start, database: PostgresConnection) -> None:
    first, second = start("a"), start("b")
    first.becomes_steady()
    stall(database, 11)
    assert first.adopt() == 0
    first.beat()
    second.beat()


def test_a_node_that_delivers_nothing_ends_no_other(
    start: Start, database: PostgresConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, node = start("a"), start("b")
    expire(database, gone)
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "time", SimpleNamespace(time_ns=lambda: time.time_ns() - 2_000 * MOST_SKEW))
        node.becomes_steady()
        assert node.adopt() == 0
    gone.beat()


def test_of_two_steady_nodes_one_adopts_each_row(start: Start, database: PostgresConnection) -> None:
    gone, first, second = start("a"), start("b"), start("c")
    first.becomes_steady()
    second.becomes_steady()
    wait(database, gone.owner, 3 * ADOPTED_TOGETHER)
    expire(database, gone)
    taken = [first.adopt(), second.adopt(), first.adopt(), second.adopt()]
    assert taken == [ADOPTED_TOGETHER, ADOPTED_TOGETHER, ADOPTED_TOGETHER, 0]
    assert owners(database) == {first.owner: 2 * ADOPTED_TOGETHER, second.owner: ADOPTED_TOGETHER}


@pytest.mark.parametrize("owner", ["", "node_that_is_long_gone"])
def test_rows_without_a_node_are_taken_by_any(start: Start, database: PostgresConnection, owner: str) -> None:
    """What a command has stored, or a run that is no longer listed: no lease has to expire for these."""
    node = start("a")
    wait(database, owner, ADOPTED_TOGETHER + 1)
    assert node.adopt() == ADOPTED_TOGETHER
    assert node.adopt() == 1
    assert owners(database) == {node.owner: ADOPTED_TOGETHER + 1}


def test_a_node_without_a_lease_takes_nothing(start: Start, database: PostgresConnection) -> None:
    node = start("a")
    wait(database, "", 1)
    node.passes(LEASE)
    assert node.adopt() == 0
    assert owners(database) == {"": 1}


def test_locked_rows_are_left_for_later(start: Start, database: PostgresConnection, url: str) -> None:
    node = start("a")
    wait(database, "", 3)
    with closing(connect(url)) as other, other.transaction():
        run(other, "SELECT 1 FROM recipients WHERE id = 'rcp2' FOR UPDATE")
        assert node.adopt() == 2
    assert node.adopt() == 1


# ---- leaving
def test_leaving_hands_over_at_once(start: Start, database: PostgresConnection) -> None:
    leaving, node = start("a"), start("b")
    wait(database, leaving.owner, 4)
    leaving.member.leave(leaving.connection)
    assert not leaving.member.holds()
    assert node.adopt() == 4
    node.beat()
    assert node.member.live == 1
    start("a", home="elsewhere")  # the name is free


def test_a_fenced_run_that_leaves_changes_nothing(start: Start, database: PostgresConnection) -> None:
    first = start("a")
    second = start("a")
    first.member.leave(first.connection)
    second.beat()
    assert second.member.holds()


# ---- chores
def test_a_chore_is_one_nodes_at_a_time(start: Start, database: PostgresConnection) -> None:
    first, second, third = start("a"), start("b"), start("c")
    assert first.has_chore()
    assert not second.has_chore()
    assert first.has_chore()
    assert second.has_chore("another chore")
    first.member.leave(first.connection)
    assert not first.has_chore()
    assert second.has_chore()
    assert not third.has_chore()
    run(database, "UPDATE chores SET lease_until = lease_until - %s", (CHORE_LEASE,))
    assert third.has_chore()
    assert not second.has_chore()
    third.becomes_steady()
    second.becomes_steady()
    expire(database, third)
    second.adopt()
    assert second.has_chore()


def test_a_node_without_a_lease_has_no_chore(start: Start) -> None:
    node = start("a")
    assert node.has_chore()
    node.passes(LEASE)
    assert not node.has_chore()
    node.beat()
    assert node.has_chore()


# ---- clocks
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_is_far_off_delivers_nothing(start: Start, monkeypatch: pytest.MonkeyPatch, sign: int) -> None:
    node = start("a")
    off = sign * (MOST_SKEW + 1_000_000) * 1_000
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + off))
        node.beat()
        assert abs(node.member.skew - off // 1_000) < 1_000_000
        assert not node.member.holds()
        node.beat()
    assert abs(states(node.connection)[0].skew - off // 1_000) < 1_000_000
    node.beat()
    assert node.member.holds()
    assert abs(node.member.skew) < 1_000_000


def test_an_answer_that_takes_long_is_no_difference_of_clocks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start("a")
    node.beat()

    def beat(before: int, after: int) -> float:
        ahead = iter((before, after))
        late = SimpleNamespace(time_ns=lambda: time.time_ns() + next(ahead) * 1_000_000_000)
        with monkeypatch.context() as patched:
            patched.setattr(nodes, "time", late)
            node.beat()
        return node.member.skew / 1_000_000

    assert beat(0, 11) == pytest.approx(0, abs=1)
    assert beat(5, 16) == pytest.approx(5, abs=1)
    assert beat(-20, -9) == pytest.approx(-9, abs=1)
    assert beat(3, 3) == pytest.approx(3, abs=1)


def test_rows_of_another_clock_are_due_when_they_were(start: Start, database: PostgresConnection) -> None:
    first, second, third = start("a"), start("b"), start("c")
    for gone, skew in ((first, 29_000_000), (second, WARN_SKEW - 1_000_000)):
        run(database, "UPDATE nodes SET skew = %s WHERE owner = %s", (skew, gone.owner))
        run(database, _RECIPIENTS, (gone.owner, 100_000_000, gone.owner, 1))
        expire(database, gone)
    third.becomes_steady()
    assert third.adopt() == 2
    due: dict[str, int] = dict(run(database, "SELECT message_id, next_attempt_at FROM recipients"))
    assert due[first.owner] == pytest.approx(71_000_000, abs=1_000_000)
    assert due[second.owner] == 100_000_000


# ---- what is told of nodes
def test_what_is_told_of_nodes(start: Start, database: PostgresConnection) -> None:
    ended, node, expired = start("a"), start("b"), start("c")
    wait(database, node.owner, 3)
    node.beat(in_flight=2)
    ended.member.leave(ended.connection)
    expire(database, expired)
    found = states(database)
    assert [each.name for each in found] == ["b", "c", "a"]
    assert [each.ended for each in found] == [False, False, True]
    assert [each.waiting for each in found] == [3, 0, 0]
    assert [each.in_flight for each in found] == [2, 0, 0]
    assert (found[0].address, found[0].version) == ("b.test", "1.2.3")
    assert (LEASE - 5) * 1_000_000 < found[0].lease <= LEASE * 1_000_000
    assert found[1].lease <= 0
    assert found[0].beat_at >= found[0].started_at


def test_where_the_other_nodes_are(start: Start, database: PostgresConnection) -> None:
    one, other, third = (start(name) for name in ("a", "b", "c"))
    assert one.member.others == OtherNodes()
    assert third.member.others == OtherNodes(frozenset({"a.test", "b.test"}))
    other.beat(0, "192.0.1.5", "2600::5")
    third.beat()
    one.beat(0, "192.0.1.4")
    addresses = frozenset({ip_address("192.0.1.5"), ip_address("2600::5")})
    assert one.member.others == OtherNodes(frozenset({"b.test", "c.test"}), addresses)
    other.beat(0, "192.0.1.6")
    third.member.leave(third.connection)
    one.beat()
    assert one.member.others == OtherNodes(frozenset({"b.test"}), frozenset({ip_address("192.0.1.6")}))
    expire(database, other)
    one.beat()
    assert one.member.others == OtherNodes()
    assert one.member.live == 1


def test_a_node_is_drained(start: Start, database: PostgresConnection) -> None:
    """It hears of it with its next beat; one that is not there, or has ended, cannot be."""
    node, ended = start("a"), start("b")
    ended.member.leave(ended.connection)
    assert not drain(database, "c")
    assert not drain(database, "b")
    assert drain(database, "a")
    heard = [node.member.draining]
    node.beat()
    heard.append(node.member.draining)
    assert heard == [False, True]
    assert states(database)[0].draining
    again = start("a")  # it was stopped, and is started anew
    again.beat()
    assert not again.member.draining


def test_runs_that_ended_long_ago_are_forgotten(start: Start, database: PostgresConnection) -> None:
    ended, node = start("a"), start("b")
    ended.member.leave(ended.connection)
    node.becomes_steady()
    node.adopt()
    assert len(states(database)) == 2
    run(database, "UPDATE nodes SET lease_until = lease_until - %s WHERE owner = %s", (KEPT, ended.owner))
    node.adopt()
    assert [each.name for each in states(database)] == ["b"]


# ---- failed logins
def test_failed_logins_are_heard_once_by_each_other_node(start: Start) -> None:
    first, second, third = start("a"), start("b"), start("c")
    heard = {each.owner: SharedFailures() for each in (first, second, third)}
    now = 10 * FAILURES_SHARED

    def exchange(of: Run, *own: LoginFailure, at: int = now) -> list[LoginFailure]:
        return heard[of.owner].exchange(of.connection, own, at)

    failures = [
        LoginFailure(FailureKind.LOGIN, "ada", "192.0.2.0/24", now),
        LoginFailure(FailureKind.CODE, "ada", "192.0.2.0/24", now),
    ]
    old = LoginFailure(FailureKind.LOGIN, "bob", "198.51.100.0/24", now - FAILURES_SHARED - 1)
    assert exchange(first, *failures, old) == []
    assert exchange(second) == failures
    assert exchange(second) == []
    assert exchange(third, LoginFailure(FailureKind.KNOWN_CODE, "eve\0", "203.0.113.0/24", now + 1)) == failures
    assert (
        exchange(first)
        == exchange(second)
        == [LoginFailure(FailureKind.KNOWN_CODE, "eve\ufffd", "203.0.113.0/24", now + 1)]
    )
    assert exchange(third) == []
    later = now + 3 * FAILURES_SHARED
    assert exchange(first, LoginFailure(FailureKind.CREDENTIAL, "x", "y", later), at=later) == []
    assert run(first.connection, "SELECT account FROM login_failures") == [("x",)]


def test_a_failed_login_of_an_unknown_kind_is_skipped(start: Start) -> None:
    """During a rolling upgrade a newer node may report a kind that this version does not know."""
    first, second = start("a"), start("b")
    now = 10 * FAILURES_SHARED
    insert = "INSERT INTO login_failures (kind, account, network, at) VALUES (%s, 'ada', '192.0.2.0/24', %s)"
    for kind in ("newer", FailureKind.LOGIN):
        run(first.connection, insert, (kind, now))
    heard = SharedFailures().exchange(second.connection, [], now)
    assert heard == [LoginFailure(FailureKind.LOGIN, "ada", "192.0.2.0/24", now)]
