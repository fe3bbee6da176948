"""The interface of the two engines: transactions, statements, and the functions that an engine runs.

An engine may run a function twice, so it must change nothing but the database; once the engine returns, its changes are
durable. Both engines run the same statements: PostgreSQL's connection translates named parameters, the rows of a
`Bulk`, hints to SQLite's planner, and the conditions of `owned` and `any_owner`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from operator import itemgetter
from time import perf_counter
from types import UnionType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args, get_origin, get_type_hints

import outcome
import trio
from msgspec import Struct

from appliance.concurrency.fair_share import SERVER_WORK
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.model.database import (
    NO_OTHERS,
    CancelAnswer,
    CancelRequest,
    Feature,
    LoginFailure,
    NodeState,
    OtherNodes,
)

T = TypeVar("T")
P = ParamSpec("P")
Item = TypeVar("Item")

# ---- statements

Row = tuple[Any, ...]
Bindings = Mapping[str, Any]

VALUE = re.compile(r"\?([ib]?)")

NEWEST = "~"  # sorts after every id: the start of a list, newest first


class Bulk:
    """A statement over many rows, one of which is in braces: `?` is text, `?i` an integer, `?b` bytes; all nullable."""

    def __init__(self, text: str) -> None:
        self.before, self.row, self.after = re.split("[{}]", text)
        self.kinds = tuple(VALUE.findall(self.row))

    def run(self, tx: "Tx", values: Sequence[Row]) -> list[Row]:
        return tx.many(self, values)

    def count(self, tx: "Tx", values: Sequence[Row]) -> int:
        return tx.count_many(self, values)


class Cursor(Protocol):
    """The result of a statement. Read it to the end, or close it."""

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    def close(self) -> None: ...


class Tx(Protocol):
    """An open transaction of either engine, or a connection that only reads."""

    def execute(self, sql: str, bindings: Bindings, /) -> Cursor: ...

    def changes(self) -> int: ...

    def total_changes(self) -> int: ...

    def many(self, statement: Bulk, values: Sequence[Row], /) -> list[Row]: ...

    def count_many(self, statement: Bulk, values: Sequence[Row], /) -> int: ...

    def gather(self, sql: str, columns: str, bindings: Bindings, /) -> list[Row]:
        """Read these columns of a query, which names them, on a thread without disturbing other tasks."""

    def lock(self, statement: Bulk, values: Sequence[Row], /) -> None:
        """Lock the rows of this query against other writers, if there are any."""


def run(tx: Tx, sql: str, bindings: Bindings) -> None:
    tx.execute(sql, bindings)


def changed(tx: Tx, sql: str, bindings: Bindings) -> int:
    tx.execute(sql, bindings)
    return tx.changes()


def rows(tx: Tx, sql: str, bindings: Bindings) -> list[Row]:
    return tx.execute(sql, bindings).fetchall()


def first(tx: Tx, sql: str, bindings: Bindings) -> Row | None:
    """The first row. Reads all rows: a statement with RETURNING must not stay open."""
    selected = tx.execute(sql, bindings).fetchall()
    return selected[0] if selected else None


def one(tx: Tx, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
    selected = tx.execute(sql, bindings).fetchall()
    return kind(*selected[0]) if selected else None


def record(kind: type[T]) -> Callable[..., T]:
    """Return a function that makes a record of a row: its fields decide which values become enums and booleans."""
    converted = [
        (at, item)
        for at, hint in enumerate(get_type_hints(kind).values())
        for item in (get_args(hint) if get_origin(hint) is UnionType else (hint,))
        if isinstance(item, type) and issubclass(item, bool | Enum)
    ]

    def made(*row: Any) -> T:
        values = list(row)
        for at, convert in converted:
            if at < len(values) and values[at] is not None:
                values[at] = convert(values[at])
        return kind(*values)

    return made


def gathered(tx: Tx, sql: str, columns: str, bindings: Bindings) -> list[Row]:
    return sorted(tx.gather(sql, columns, bindings), key=itemgetter(0))


# ---- ownership: each row of these tables belongs to the node that delivers it

OWNED_TABLES = ("recipients", "webhook_deliveries", "pool_states", "smtp_sessions")
IS_OWNED, HAS_ANY_OWNER = "is_owned", "has_any_owner"


def owned(table: str) -> str:
    """Return the condition that this node owns a row of this table or alias. Each engine defines the function."""
    return f"{IS_OWNED}('{table}')"


def any_owner(table: str) -> str:
    """Return the condition for waiting recipients of all nodes, which lets PostgreSQL use indexes by owner."""
    return f"{HAS_ANY_OWNER}('{table}')"


def distinct(column: str, rows: str, after: str = "") -> str:
    """Return a query for the values of an indexed column, from one to the next: SQLite has no skip scan."""
    return f"""WITH RECURSIVE walk (value) AS (
        SELECT min({column}) FROM {rows} {after and f"AND {column} > {after}"}
        UNION ALL SELECT (SELECT min({column}) FROM {rows} AND {column} > walk.value) FROM walk WHERE value IS NOT NULL
    ) SELECT value FROM walk WHERE value IS NOT NULL"""


# ---- slices

START = ""  # sorts before every id: the start of a walk


class Slice(Struct, frozen=True):
    """The result of one deleting transaction: its duration, and where to continue."""

    deleted: int
    seconds: float
    more: bool  # at once
    after: str = START  # the last row that was read
    account_id: str = ""  # the owner, if all rows are of one account


def timed(work: Callable[[Tx], int]) -> Callable[[Tx], tuple[int, float]]:
    def measured(tx: Tx) -> tuple[int, float]:
        began = perf_counter()
        return work(tx), perf_counter() - began

    return measured


# ---- the engine

Work = Callable[[Tx], T]
# Writes several items. Returns each item's result, or the exception that refused it; a refused item writes nothing.
JointWork = Callable[[Tx, Sequence[Item]], Sequence[T | Exception]]


# Part of a transaction. Raises Refused if the request was withdrawn.
RecordAnswer = Callable[[Tx, CancelAnswer], None]


class Partitions(Protocol):
    """Tables partitioned by time: `bodies`, `mail`, `events` and webhook `posts`."""

    async def make(self, kept: Mapping[str, int], now: int) -> None: ...

    async def clear(self, kind: str, ended: int, before: int, now: int) -> Slice: ...

    def sliced_until(self, kind: str) -> int: ...


class Engine(ABC):
    """One of possibly several nodes on a database; the embedded engine is always alone."""

    is_shared = False  # several nodes share the database
    node = ""  # name of this node; empty for a command
    partitions: Partitions | None = None
    reads_at_once = False  # `read` never waits
    ordinary_writes = 0  # started by this node so far, except bulk work

    def holds_lease(self) -> bool:
        """Whether this node may deliver mail: no other node can have taken its rows."""
        return True

    def has_right_clock(self) -> bool:
        """Whether this node's clock is close enough to the database's to deliver mail."""
        return True

    def live_nodes(self) -> int:
        """Number of nodes that share the installation's limits."""
        return 1

    def others(self) -> OtherNodes:
        return NO_OTHERS

    def slowest_clock(self, now: int) -> int:
        """The earliest time that another node's clock may show at `now` of this one; its ids start with it."""
        return now

    def shared_clock(self, now: int) -> int:
        """The database's time at `now` of this node."""
        return now

    async def has_chore(self, name: str) -> bool:
        """Whether this node does a job that only one node does at a time."""
        return True

    async def keep_lease(
        self, in_flight: Callable[[], int], drain: Callable[[], None], addresses: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Stay a node until cancelled; call `drain` when asked to end."""
        return

    async def finish_upgrade(self) -> None:
        """Apply the schema changes that waited for older nodes to end."""
        return

    async def fence_older_nodes(self, feature: Feature) -> None:
        """Refuse a feature while a node does not know it; afterwards let no such node join."""
        return

    async def nodes(self) -> list[NodeState]:
        return []

    async def hosts(self) -> tuple[str, ...]:
        """Host names of all nodes, including those that ended within the hour and may be restarting."""
        return ()

    async def drain(self, name: str) -> bool:
        """Ask a node to hand over its mail and end; return whether it exists."""
        return False

    async def share_failures(self, failures: Sequence[LoginFailure]) -> list[LoginFailure]:
        """Publish failed logins to the other nodes; return the failures they published since the last call."""
        return []

    async def cancel_elsewhere(self, message_id: str, account_id: str | None, reason: str) -> list[CancelAnswer]:
        """Ask the nodes that deliver a message to cancel it; return their answers."""
        return []

    async def answer_cancellations(self, cancel: Callable[[CancelRequest, RecordAnswer], Awaitable[None]]) -> None:
        """Cancel messages that other nodes ask for, until cancelled."""
        return

    @abstractmethod
    async def write(
        self, work: Work[T], *, urgent: bool = False, large: bool = False, bulk: bool = False, locks: bool = False
    ) -> T:
        """Run `work` as one durable transaction.

        `large` work runs off the event loop; `bulk` work too, in a commit of its own, in turn with others. With several
        writers it is serializable, unless it `locks` the rows that it depends on, as items do.
        """

    async def write_ahead(self, work: Work[T]) -> T:
        """Run `work` as a bulk transaction that is durable once a later one is: a crash before that may undo it."""
        return await self.write(work, bulk=True)

    @abstractmethod
    async def write_item(self, work: JointWork[Item, T], item: Item, *, urgent: bool = False, large: bool = False) -> T:
        """Like `write`, for one of many items with the same `work`, which gets all waiting items at once."""

    async def check_writable(self) -> None:
        await self.write(lambda _: None)

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run `work` on a reader, for look-ups by index."""

    @abstractmethod
    async def snapshot(self, work: Work[T]) -> T:
        """Like `read`; all statements see one state."""

    @abstractmethod
    async def scan(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        """Like `snapshot`, for longer reads; accounts get equal shares of the time."""

    @abstractmethod
    async def version(self) -> int:
        """Return a number that changes with every write, also by another process."""

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes, and close the connections."""

    async def change(self, sql: str, bindings: Bindings) -> list[Row]:
        return await self.write(lambda tx: rows(tx, sql, bindings))

    async def rows(self, sql: str, bindings: Bindings) -> list[Row]:
        return await self.read(lambda tx: rows(tx, sql, bindings))

    async def one(self, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
        return await self.read(lambda tx: one(tx, kind, sql, bindings))

    async def all(self, kind: Callable[..., T], sql: str, bindings: Bindings) -> list[T]:
        return [kind(*row) for row in await self.rows(sql, bindings)]


class StorePart(Struct):
    """Verbs over the tables of one subject, each a single transaction."""

    engine: Engine
    env: Environment

    async def delete_slice(self, any_old: str, statements: Sequence[str], bindings: Bindings) -> Slice:
        """Delete old rows in one transaction. Without any, write nothing: a server at rest leaves its disk alone."""
        if not (await self.engine.rows(any_old, bindings))[0][0]:
            return Slice(0, 0.0, more=False)
        work = timed(lambda tx: sum(changed(tx, statement, bindings) for statement in statements))
        deleted, seconds = await self.engine.write(work, large=True)
        return Slice(deleted, seconds, more=deleted > 0)


Part = TypeVar("Part", bound=StorePart)


def transaction(verb: Callable[Concatenate[Part, Tx, P], T]) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
    """Run a method as one durable transaction; an engine may run it twice."""

    @wraps(verb)
    async def written(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part.engine.write(lambda tx: verb(part, tx, *args, **kwargs))

    return written


# ---- faults of both engines: some end the process, others become a 503
class CommitUnknown(StorageFault):
    """A commit failed on disk. The rows may or may not be there, so the process must end."""


OnFault = Callable[[StorageFault], None]


def busy() -> StorageUnavailable:
    return StorageUnavailable("The storage cannot take writes right now. Retry with the same key.")


# ---- one batch of writes: which functions go together, and how each result reaches the task that waits for it

NO_RESULT: outcome.Outcome[Any] = outcome.Error(RuntimeError("this job was not run"))

JOBS_PER_COMMIT = 64  # functions and items per commit: a few milliseconds on the event loop
ALONE: Any = object()  # stands for no item


class Job(Struct):
    work: Callable[..., Any]  # Work, or with an item JointWork
    item: Any
    large: bool
    task: trio.lowlevel.Task
    durable: bool = True  # else alone in its commit
    result: outcome.Outcome[Any] = NO_RESULT

    def take_result(self) -> outcome.Outcome[Any]:
        """Return and forget the result: an exception that leads back to its own job would keep the message alive."""
        result, self.result = self.result, NO_RESULT
        return result


def together(jobs: list[Job]) -> list[list[Job]]:
    """Group jobs with items for the same work. Large items go alone: an engine copies what a statement is given."""
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
    first = jobs[0]
    if first.item is ALONE:
        first.result = outcome.Value(first.work(tx))
        return
    results = first.work(tx, [job.item for job in jobs])
    for job, result in zip(jobs, results, strict=True):
        job.result = outcome.Error(result) if isinstance(result, Exception) else outcome.Value(result)
