"""The nodes that share one database: who delivers which rows, and who takes them over when a node is gone.

Each run of a node is an owner: it writes its id into the rows that it accepts, and delivers no others, while it holds a
lease that it renews every BEAT. By the node's own clock the lease ends LEASE after the renewal was *sent*, so never
later than by the database's, by which others may adopt the rows of an expired run. An adopted run ends. An expired run
that no node adopted continues: after an outage all are in that state, so a node adopts only after STEADY seconds of
beats on time. A node that starts on the data directory of an earlier run ends that run at once.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address

import psycopg
from msgspec import Struct
from psycopg import errors

from appliance.errors import StorageFault
from appliance.model.database import NO_OTHERS, DatabaseRefused, FailureKind, LoginFailure, NodeState, OtherNodes
from appliance.store.engine import Row, distinct, record
from appliance.store.postgresql.connection import IntArray, TextArray, run
from appliance.store.postgresql.migrate import keep_schema
from appliance.times import DAY

LEASE = 10.0  # seconds
BEAT = 2.0  # seconds
STEADY = 15.0  # seconds of beats on time before a node takes over others' rows
LATE = 2 * BEAT  # seconds after which a beat is not in time
ADOPTED_TOGETHER = 500  # rows in one transaction
KEPT = 3_600_000_000  # microseconds for which a run that has ended is still listed
HOLDS_KEPT = 7 * DAY  # after the last probe that a node without a run could have made
MOST_SKEW = 30_000_000  # microseconds; with a clock that is further off a node delivers nothing
WARN_SKEW = 2_000_000
CHORE_LEASE = 30_000_000  # microseconds

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_NAMED = f"""SELECT owner, home, lease_until > {_NOW} FROM nodes WHERE name = %s AND adopted_by IS NULL FOR UPDATE"""
_JOIN = f"""INSERT INTO nodes (owner, name, home, address, version, schema, started_at, beat_at, lease_until)
    VALUES (%s, %s, %s, %s, %s, %s, {_NOW}, {_NOW}, {_NOW} + %s)"""
_BEAT = f"""WITH now AS MATERIALIZED (SELECT {_NOW} AS at)
    UPDATE nodes SET beat_at = now.at, lease_until = now.at + %s, skew = %s, in_flight = %s, addresses = %s
    FROM now WHERE owner = %s AND adopted_by IS NULL RETURNING now.at, draining"""
_LIVE = f"SELECT owner, address, addresses FROM nodes WHERE adopted_by IS NULL AND lease_until > {_NOW}"
# Never the own row; and none if this statement is late, because then the others' beats may be late, too.
_ADOPT = f"""UPDATE nodes SET adopted_by = %s WHERE adopted_by IS NULL AND lease_until < {_NOW} AND owner <> %s
    AND EXISTS (SELECT 1 FROM nodes n WHERE n.owner = %s AND n.adopted_by IS NULL AND n.beat_at > {_NOW} - %s)"""
_ADOPT_RUN = "UPDATE nodes SET adopted_by = %s WHERE owner = %s"
_LEAVE = f"""UPDATE nodes SET adopted_by = '', lease_until = {_NOW}, in_flight = 0
    WHERE owner = %s AND adopted_by IS NULL"""
_FORGET_REQUESTS = f"DELETE FROM cancellations WHERE asked_at < {_NOW} - %s"
_FORGET = f"DELETE FROM nodes WHERE adopted_by IS NOT NULL AND lease_until < {_NOW} - %s"
_FORGET_HOLDS = f"""DELETE FROM node_holds WHERE probe_at < {_NOW} - %s
    AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.name = node_holds.node AND n.adopted_by IS NULL)"""
# Owners of queued recipients that are not a live run.
_LEFT = f"""{distinct("owner", "{table} WHERE next_attempt_at IS NOT NULL")}
    AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.owner = walk.value AND n.adopted_by IS NULL)"""
_SKEW = "SELECT skew FROM nodes WHERE owner = %s"
_TAKE = """UPDATE {table} SET owner = %s, next_attempt_at = next_attempt_at + %s WHERE ({key}) IN (
    SELECT {key} FROM {table} WHERE owner = %s AND next_attempt_at IS NOT NULL LIMIT %s FOR UPDATE SKIP LOCKED)"""
_TABLES = (("recipients", "message_id, id"), ("webhook_deliveries", "webhook_id, id"))
_CHORE = f"""INSERT INTO chores (name, owner, lease_until) VALUES (%s, %s, {_NOW} + %s)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until
    WHERE chores.owner = excluded.owner OR chores.lease_until < {_NOW}
        OR NOT EXISTS (SELECT 1 FROM nodes n WHERE n.owner = chores.owner AND n.adopted_by IS NULL)
    RETURNING name"""

_NODES = f"""SELECT n.name, n.address, n.version, n.started_at, n.beat_at, n.lease_until - {_NOW}, n.skew, n.in_flight,
        (SELECT count(*) FROM recipients r WHERE r.owner = n.owner AND r.next_attempt_at IS NOT NULL),
        n.draining, n.adopted_by IS NOT NULL
    FROM nodes n ORDER BY n.adopted_by IS NOT NULL, n.name, n.started_at DESC"""
HOSTS = f"""SELECT DISTINCT address FROM nodes
    WHERE address <> '' AND (adopted_by IS NULL OR lease_until > {_NOW} - :kept) ORDER BY address"""
_DRAIN = "UPDATE nodes SET draining = 1 WHERE name = %s AND adopted_by IS NULL RETURNING name"


_state = record(NodeState)


def states(connection: psycopg.Connection[Row]) -> list[NodeState]:
    return [_state(*row) for row in run(connection, _NODES)]


def drain(connection: psycopg.Connection[Row], name: str) -> bool:
    return bool(run(connection, _DRAIN, (name,)))


FAILURES_SHARED = 60_000_000  # microseconds for which others can still hear of a failed login
_TELL = """INSERT INTO login_failures (kind, account, network, at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])"""
_HEAR = """SELECT number, kind, account, network, at FROM login_failures
    WHERE at > %s AND owner <> current_setting('appliance.owner')"""
_KINDS = frozenset(FailureKind)  # a newer node may report others
_FORGET_FAILURES = "DELETE FROM login_failures WHERE at < %s"


class SharedFailures:
    """Failed logins of all nodes, exchanged once a second."""

    def __init__(self) -> None:
        self._heard: set[int] = set()

    def exchange(
        self, connection: psycopg.Connection[Row], own: Sequence[LoginFailure], now: int
    ) -> list[LoginFailure]:
        since = now - FAILURES_SHARED
        if own:
            kinds, accounts, networks, times = zip(*own, strict=True)
            run(connection, _TELL, (TextArray(kinds), TextArray(accounts), TextArray(networks), IntArray(times)))
            run(connection, _FORGET_FAILURES, (since - FAILURES_SHARED,))
        selected = run(connection, _HEAR, (since,))
        new = [
            LoginFailure(FailureKind(kind), *row)
            for number, kind, *row in selected
            if number not in self._heard and kind in _KINDS
        ]
        self._heard = {number for number, *_ in selected}
        return new


class Fenced(StorageFault):
    """Other nodes have taken this run's rows because its lease expired, so it must not deliver them."""


class NodeIdentity(Struct, frozen=True):
    owner: str  # of this run
    name: str
    home: str
    address: str
    version: str
    schema: int  # that this version knows


# A clock that runs while the machine sleeps, and that no process can set.
_boot_time = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Membership:
    """This run as a node. Methods with a connection run on threads, one at a time."""

    def __init__(self, identity: NodeIdentity, clock: Callable[[], float] = _boot_time) -> None:
        self.identity = identity
        self.live = 1
        self.others = NO_OTHERS
        self.draining = False
        self.skew = 0  # microseconds
        self._clock = clock
        self._deadline = 0.0
        self._steady_since: float | None = None
        self._beat_at = 0.0

    def holds(self) -> bool:
        """Whether no other node can have taken this run's rows."""
        return self._clock() < self._deadline and self.has_right_clock()

    def has_right_clock(self) -> bool:
        return abs(self.skew) < MOST_SKEW

    def is_steady(self) -> bool:
        """Whether beats were on time for so long that another node's expired lease is not merely slow."""
        now = self._clock()
        is_late = now > self._beat_at + LATE  # the answer to the last one was, or what followed it
        return not is_late and self._steady_since is not None and now >= self._steady_since + STEADY

    # ---- on a thread

    def join(self, connection: psycopg.Connection[Row]) -> None:
        """Join. Raises DatabaseRefused if another node has this name, NewerDatabase for a newer schema."""
        asked, me = self._clock(), self.identity
        try:
            with connection.transaction():
                keep_schema(connection, me.schema)
                earlier = run(connection, _NAMED, (me.name,))
                for owner, home, is_live in earlier:
                    if home != me.home and is_live:
                        raise _name_taken(me.name)
                    run(connection, _ADOPT_RUN, (me.owner, owner))
                lease = round(LEASE * 1_000_000)
                run(connection, _JOIN, (me.owner, me.name, me.home, me.address, me.version, me.schema, lease))
        except errors.UniqueViolation:
            raise _name_taken(me.name) from None
        self._deadline, self._beat_at = asked + LEASE, asked
        self._hear(connection)
        for owner, _, _ in earlier:
            while self._clock() < asked + BEAT and self._take(connection, owner):
                pass

    def beat(self, connection: psycopg.Connection[Row], in_flight: int, addresses: Sequence[str] = ()) -> None:
        """Renew the lease and exchange state with the other nodes. Raises Fenced if others own this run's rows."""
        asked, before = self._clock(), time.time_ns() // 1_000
        lease = round(LEASE * 1_000_000)
        selected = run(connection, _BEAT, (lease, self.skew, in_flight, " ".join(addresses), self.identity.owner))
        if not selected:
            self._deadline = 0.0
            raise Fenced("other nodes have taken over the mail of this one, whose lease had expired")
        ((database_now, draining),) = selected
        # The database's time lies between two times of this clock, far apart if the commit hangs: change skew least.
        self.skew = min(max(self.skew, before - database_now), time.time_ns() // 1_000 - database_now)
        self.draining = bool(draining)
        if self._steady_since is None or asked > self._beat_at + LATE:
            self._steady_since = asked
        self._deadline, self._beat_at = asked + LEASE, asked
        self._hear(connection)

    def adopt(self, connection: psycopg.Connection[Row]) -> int:
        """Take over some rows without an owner; return how many. Only a steady node ends others."""
        if self.is_steady() and self.holds():
            own = self.identity.owner
            run(connection, _ADOPT, (own, own, own, round(LATE * 1_000_000)))
            run(connection, _FORGET, (KEPT,))
            run(connection, _FORGET_REQUESTS, (KEPT,))
            run(connection, _FORGET_HOLDS, (HOLDS_KEPT,))
        taken = 0
        for table, _ in _TABLES:
            for (owner,) in run(connection, _LEFT.format(table=table)):
                if not self.holds():
                    return taken
                taken += self._take(connection, owner, self._ahead_of(connection, owner))
        return taken

    def leave(self, connection: psycopg.Connection[Row]) -> None:
        self._deadline = 0.0
        run(connection, _LEAVE, (self.identity.owner,))

    def has_chore(self, connection: psycopg.Connection[Row], name: str) -> bool:
        return self.holds() and bool(run(connection, _CHORE, (name, self.identity.owner, CHORE_LEASE)))

    def _hear(self, connection: psycopg.Connection[Row]) -> None:
        live = [where for owner, *where in run(connection, _LIVE) if owner != self.identity.owner]
        self.live = 1 + len(live)
        self.others = OtherNodes(
            frozenset(name for name, _ in live),
            frozenset(ip_address(item) for _, addresses in live for item in addresses.split()),
        )

    def _ahead_of(self, connection: psycopg.Connection[Row], owner: str) -> int:
        """Microseconds that this clock is ahead of the clock by which another run's rows are due."""
        ahead = sum(self.skew - skew for (skew,) in run(connection, _SKEW, (owner,)))
        return ahead if abs(ahead) >= WARN_SKEW else 0

    def _take(self, connection: psycopg.Connection[Row], owner: str, ahead: int = 0) -> int:
        taken = 0
        values = self.identity.owner, ahead, owner, ADOPTED_TOGETHER
        for table, key in _TABLES:
            taken += connection.execute(_TAKE.format(table=table, key=key).encode(), values).rowcount
        return taken


def _name_taken(name: str) -> DatabaseRefused:
    return DatabaseRefused(f"another node is named {name!r}: give each node a name of its own in server.node")
