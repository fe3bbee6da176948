"""What the verbs know of an engine: a transaction and its statements, and the functions that it runs, each as one.

The verbs are written once, for every engine. A function that is handed over may be run twice, so it must have no effect
but on the database; once the engine returns, what it did is durable.

The text of a statement is common to both engines. Where they differ, PostgreSQL's executor translates what SQLite takes
as it is: named parameters, the rows of a `Bulk`, hints to SQLite's planner, and the conditions of `owned` and
`any_owner`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import outcome
import trio

from appliance.concurrency.fair_share import SERVER_WORK
from appliance.environment import Environment
from appliance.model.database import NO_OTHERS, NodeState, OtherNodes

T = TypeVar("T")
Item = TypeVar("Item")

# ---- statements

Row = tuple[Any, ...]
Bindings = Mapping[str, Any]

VALUE = re.compile(r"\?([ib]?)")

NEWEST = "~"  # comes after every id: where a list with the newest first begins


class Bulk:
    """A statement over several rows of values, of which its text has one in braces: far cheaper than one each.

    A value is written as `?` (text), `?i` (an integer) or `?b` (bytes), any of which may be NULL: PostgreSQL takes one
    array for each column.
    """

    def __init__(self, text: str) -> None:
        self.before, self.row, self.after = re.split("[{}]", text)
        self.kinds = tuple(VALUE.findall(self.row))

    def run(self, tx: "Tx", values: Sequence[Row]) -> list[Row]:
        """Run it for all these rows, however many; what it returned for them."""
        return tx.many(self, values)

    def count(self, tx: "Tx", values: Sequence[Row]) -> int:
        """The same; how many rows it changed."""
        return tx.count_many(self, values)


class Cursor(Protocol):
    """What a statement returned; to be read to its end, or closed."""

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    def close(self) -> None: ...


class Tx(Protocol):
    """An open transaction of either engine, or a connection that only reads."""

    def execute(self, sql: str, bindings: Bindings, /) -> Cursor: ...

    def changes(self) -> int:
        """How many rows the last statement changed."""

    def many(self, statement: Bulk, values: Sequence[Row], /) -> list[Row]: ...

    def count_many(self, statement: Bulk, values: Sequence[Row], /) -> int: ...

    def gather(self, sql: str, columns: str, bindings: Bindings, /) -> list[Row]:
        """These columns of all rows of a query, which it names, read on a thread without disturbing others."""

    def lock(self, statement: Bulk, values: Sequence[Row], /) -> None:
        """Keep others from changing the rows that this query finds, where there is more than one writer."""


def run(tx: Tx, sql: str, bindings: Bindings) -> None:
    tx.execute(sql, bindings)


def changed(tx: Tx, sql: str, bindings: Bindings) -> int:
    tx.execute(sql, bindings)
    return tx.changes()


def rows(tx: Tx, sql: str, bindings: Bindings) -> list[Row]:
    return tx.execute(sql, bindings).fetchall()


def first(tx: Tx, sql: str, bindings: Bindings) -> Row | None:
    """The first row, the statement run to its end: one that returns what it changed must not stay open."""
    selected = tx.execute(sql, bindings).fetchall()
    return selected[0] if selected else None


def one(tx: Tx, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
    """Return what `kind` makes of the first row, or None without a row."""
    selected = tx.execute(sql, bindings).fetchall()
    return kind(*selected[0]) if selected else None


def gathered(tx: Tx, sql: str, columns: str, bindings: Bindings) -> list[Row]:
    """These columns of all rows, sorted by the first."""
    return sorted(tx.gather(sql, columns, bindings), key=itemgetter(0))


# ---- ownership: each row of these tables belongs to the node that delivers it

OWNED_TABLES = ("recipients", "webhook_deliveries", "pool_states", "smtp_sessions")
IS_OWNED, HAS_ANY_OWNER = "is_owned", "has_any_owner"


def owned(table: str) -> str:
    """Return the condition that this node owns a row of the table of this name or alias.

    Each engine defines the function: without that a statement fails, so no engine can ignore the condition.
    `tests/store/test_ownership.py` lists every statement over these tables that goes without it, with the reason.
    """
    return f"{IS_OWNED}('{table}')"


def any_owner(table: str) -> str:
    """Return the condition for waiting recipients of all nodes, which lets PostgreSQL use indexes by owner."""
    return f"{HAS_ANY_OWNER}('{table}')"


# ---- slices

START = ""  # comes before every id: where a walk begins


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of one transaction that deletes rows: how long it took, and where to continue."""

    deleted: int
    seconds: float
    more: bool  # at once
    after: str = START  # the last row that was read
    account_id: str = ""  # whose rows they were, where all are of one account


def timed(work: Callable[[Tx], int]) -> Callable[[Tx], tuple[int, float]]:

    def measured(tx: Tx) -> tuple[int, float]:
        began = perf_counter()
        return work(tx), perf_counter() - began

    return measured


# ---- the engine

Work = Callable[[Tx], T]
# Writes several items. Returns each item's result, or the exception that refused it; a refused item writes nothing.
JointWork = Callable[[Tx, Sequence[Item]], Sequence[T | Exception]]


class FailureKind(StrEnum):
    """What was wrong, and so how the failure counts (see `intake.login_throttle`)."""

    LOGIN = "login"
    CODE = "code"  # two-factor code from a network that the account does not know
    KNOWN_CODE = "known_code"  # two-factor code from a known network
    CREDENTIAL = "credential"  # API key, token, cookie or SMTP password; has no account


class LoginFailure(NamedTuple):
    """A failed login on one node, counted on all nodes."""

    kind: FailureKind
    account: str  # as the client sent it
    network: str
    at: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request to give up what this node delivers of a message."""

    id: str
    message_id: str
    account_id: str | None  # None: the operator asks
    reason: str


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    cancelled: int
    refusal: str | None = None


# As part of a transaction; raises Refused if it is not wanted any more.
RecordAnswer = Callable[[Tx, CancelAnswer], None]


class Partitions(Protocol):
    """Tables that are partitioned by time, of four kinds: `bodies`, `mail`, `events` and `posts` (of webhooks).

    What is old of them is cleared by whole partitions, before the rest is deleted.
    """

    async def make(self, kept: Mapping[str, int], now: int) -> None:
        """Make partitions ahead, by kind for the time that its rows are kept. A sweep begins with it."""

    async def clear(self, kind: str, ended: int, before: int, now: int) -> Slice:
        """Do one step with the partitions that end by a time: rows stay that were not final before the other."""

    def sliced_until(self, kind: str) -> int:
        """After `clear`, the time before which rows are to be deleted in slices."""


class Engine(ABC):
    """One of possibly several nodes on a database; the embedded engine is always alone."""

    is_shared = False  # by several nodes
    node = ""  # the name of this node; empty for a command
    partitions: Partitions | None = None
    ordinary_writes = 0  # begun by this node so far: all but bulk work

    def holds_lease(self) -> bool:
        """Whether this node may hand over mail now: no other node can have taken its rows."""
        return True

    def has_right_clock(self) -> bool:
        """Whether the clock of this node is so near the database's that the node delivers mail."""
        return True

    def live_nodes(self) -> int:
        """How many nodes share the limits that hold for all of them together."""
        return 1

    def others(self) -> OtherNodes:
        """Where the other live nodes are."""
        return NO_OTHERS

    def slowest_clock(self, now: int) -> int:
        """What the clock of another node may show when that of this one shows `now`: its ids begin with that."""
        return now

    async def has_chore(self, name: str) -> bool:
        """Whether this node is to do what only one does at a time."""
        return True

    async def keep_lease(
        self, in_flight: Callable[[], int], drain: Callable[[], None], addresses: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Stay one of the nodes until cancelled, and tell the others where this one is.

        `drain` is called when it is asked to end.
        """
        return

    async def finish_upgrade(self) -> None:
        """Change the schema where that had to wait for older nodes, once the last of them has ended."""
        return

    async def nodes(self) -> list[NodeState]:
        """All nodes, those that have ended lately too."""
        return []

    async def hosts(self) -> tuple[str, ...]:
        """The host names of all nodes, also of those that ended within the hour: they may be restarting."""
        return tuple(sorted({node.address for node in await self.nodes() if node.address}))

    async def drain(self, name: str) -> bool:
        """Ask a node to hand over its mail and end; whether there is one of that name."""
        return False

    async def share_failures(self, failures: Sequence[LoginFailure]) -> list[LoginFailure]:
        """Publish failed logins to the other nodes; return the failures they published since the last call."""
        return []

    async def cancel_elsewhere(self, message_id: str, account_id: str | None, reason: str) -> list[CancelAnswer]:
        """Ask the other nodes that deliver something of a message to give it up; their answers."""
        return []

    async def answer_cancellations(self, cancel: Callable[[CancelRequest, RecordAnswer], Awaitable[None]]) -> None:
        """Do what other nodes ask of this one, until cancelled."""
        return

    @abstractmethod
    async def write(
        self, work: Work[T], *, urgent: bool = False, large: bool = False, bulk: bool = False, locks: bool = False
    ) -> T:
        """Run `work` as one durable transaction.

        `large` work is done off the event loop; `bulk` work too, in a commit of its own, and takes turns with others.
        Where there are several writers it goes as if it were alone; unless it `locks` what it must keep from others,
        as items do: then each of its statements sees what others have committed until then.
        """

    @abstractmethod
    async def write_item(self, work: JointWork[Item, T], item: Item, *, urgent: bool = False, large: bool = False) -> T:
        """The same for one of many items that the same `work` writes: it is given all that wait, at once."""

    async def check_writable(self) -> None:
        """Raise unless a writer can take the lock and commit right now."""
        await self.write(lambda _: None)

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run `work` on a reader: for look-ups by index."""

    @abstractmethod
    async def snapshot(self, work: Work[T]) -> T:
        """Like `read`, with all of its statements seeing one state."""

    @abstractmethod
    async def scan(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        """Like `snapshot`, for what may take longer: accounts that scan get equal shares of the time."""

    @abstractmethod
    async def version(self) -> int:
        """A number that changes when anything is written, also by another process."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections, the writer's after its work."""

    async def change(self, sql: str, bindings: Bindings) -> list[Row]:
        """Run one statement as a durable transaction; the rows it returned."""
        return await self.write(lambda tx: rows(tx, sql, bindings))

    async def rows(self, sql: str, bindings: Bindings) -> list[Row]:
        return await self.read(lambda tx: rows(tx, sql, bindings))

    async def one(self, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
        """What `kind` makes of the first row that a statement finds; None where it finds none."""
        return await self.read(lambda tx: one(tx, kind, sql, bindings))

    async def all(self, kind: Callable[..., T], sql: str, bindings: Bindings) -> list[T]:
        return [kind(*row) for row in await self.rows(sql, bindings)]


@dataclass(frozen=True, slots=True)
class StorePart:
    """Verbs over the tables of one subject, each a single transaction."""

    engine: Engine
    env: Environment


# ---- one batch of writes: which functions go together, and how each result reaches the task that waits for it

NO_RESULT: outcome.Outcome[Any] = outcome.Error(RuntimeError("this job was not run"))

JOBS_PER_COMMIT = 64  # functions and items in one commit: bounds how long they keep the event loop, a few milliseconds
ALONE: Any = object()  # the item of a function that takes no item


@dataclass(slots=True)
class Job:
    """A function to be run, alone or with an item, and the task that waits for its result."""

    work: Callable[..., Any]  # Work, or with an item JointWork
    item: Any
    large: bool
    task: trio.lowlevel.Task
    result: outcome.Outcome[Any] = NO_RESULT

    def take_result(self) -> outcome.Outcome[Any]:
        """The result, which the job then no longer has.

        An exception that leads back to its own job would stay until the collector comes, and with it the message.
        """
        result, self.result = self.result, NO_RESULT
        return result


def together(jobs: list[Job]) -> list[list[Job]]:
    """The jobs in their order, those with items for the same work where the first of them stands.

    All of them still wait for their result, so no caller relies on another order. A large item is written alone:
    an engine copies what a statement is given, and that should not be a dozen large messages at once.
    """
    order: list[list[Job]] = []
    kinds: dict[Callable[..., Any], list[Job]] = {}
    for job in jobs:
        if job.item is ALONE or job.large:
            order.append([job])
        elif job.work in kinds:
            kinds[job.work].append(job)
        else:
            order.append([job])
            kinds[job.work] = order[-1]
    return order


def run_jobs(tx: Tx, jobs: list[Job]) -> None:
    """Run one job, or several with items for the same work; afterwards each has its result."""
    first = jobs[0]
    if first.item is ALONE:
        first.result = outcome.Value(first.work(tx))
        return
    results = first.work(tx, [job.item for job in jobs])
    for job, result in zip(jobs, results, strict=True):
        job.result = outcome.Error(result) if isinstance(result, Exception) else outcome.Value(result)
