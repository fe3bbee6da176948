"""Runs transactions on PostgreSQL, in threads: nothing of it happens on the event loop.

Writers: each is a thread with a connection of its own, which writes all that waits as one transaction. Outcomes of
deliveries have a writer to themselves, and so does what is large. Items that share a function are written READ
COMMITTED, with locks where several nodes could meet; all other functions SERIALIZABLE, and run again when that fails.

A database that is away is no reason to end: what is asked of it is refused with 503 until it is back. A connection that
is lost during COMMIT leaves it unknown whether the rows are there; the caller is told so, and repeats its request
with the same key.
"""

import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from time import perf_counter
from typing import Any

import outcome
import psycopg
import trio
import trio.lowlevel
from psycopg import errors

from appliance.concurrency.workers import SERVER_WORK, FairQueue
from appliance.errors import Code, Refused
from appliance.model.nodes import NO_OTHERS, NodeState, OtherNodes
from appliance.store.engine import (
    ALONE,
    JOBS_PER_COMMIT,
    CancelAnswer,
    CancelRequest,
    Engine,
    Item,
    Job,
    JointWork,
    LoginFailure,
    RecordAnswer,
    Row,
    T,
    Tx,
    Work,
    rows,
    run_jobs,
    together,
)
from appliance.store.faults import busy
from appliance.store.postgresql import cancellations, nodes
from appliance.store.postgresql.connection import (
    LONG_STATEMENT_TIMEOUT,
    STATEMENT_TIMEOUT,
    PostgresConnection,
    PostgresTx,
    command,
    connect,
)
from appliance.store.postgresql.migrate import MIGRATION_TIMEOUT, advance, migrate, newest_known, plan
from appliance.store.postgresql.nodes import BEAT, WARN_SKEW, Membership, NodeIdentity
from appliance.store.postgresql.partitions import TimePartitions, make_first
from appliance.store.postgresql.refusals import refusals
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import (
    COMMIT_BATCH,
    COMMIT_SECONDS,
    STORE_RECONNECTS,
    STORE_RERUNS,
    STORE_UNKNOWN_COMMITS,
)

RERUNS = 12  # of a transaction that met another; after that it is refused
LOCKED_FROM = 3  # the rerun from which a serializable transaction keeps others from changing accounts
READER_CONNECTIONS = 2
CANCEL_TIMEOUT = 5.0  # seconds to wait for the node that delivers what is cancelled
ANSWER_POLL = 0.1  # seconds
REQUEST_POLL = 0.5  # seconds
RECONNECT_PAUSE = 1.0  # seconds after a failed connection until the next is tried
SCHEMA_PAUSE = 60.0  # seconds after a failed change of the schema until the next try
WRITER_CLOSING = 5.0  # seconds that a writer may take for what waits when it is closed

_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
# What the server lacks, not the job: resources (53), a lock in time (55), time (57), a working disk (58).
_OF_SERVER = ("53", "55", "57", "58")
_BEGIN = "BEGIN"
_BEGIN_SERIALIZABLE = "BEGIN ISOLATION LEVEL SERIALIZABLE"
# Every write that an account's mail makes ends with its row in `accounts`, so on one that is always being written a
# transaction with an older snapshot never gets its turn. The lock is taken before the snapshot, and waits in line.
_LOCK_ACCOUNTS = "LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE"
_BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_IS_READ_ONLY = "SELECT current_setting('transaction_read_only')"  # of a standby, too
_VERSION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"

log = get_logger("store")


def away(error: Exception | None = None) -> Refused:
    """Why nothing can be read or written: the database does not answer."""
    text = "The database cannot be reached right now. Retry with the same key."
    refusal = Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)
    refusal.__cause__ = error
    return refusal


def unknown(error: Exception) -> Refused:
    """The connection was lost during a commit."""
    text = "The database was lost while this was being stored, so it may be stored or not. Retry with the same key."
    refusal = Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)
    refusal.__cause__ = error
    return refusal


class Link:
    """A connection for one thread at a time, opened when it is first needed and again when it was lost."""

    def __init__(self, url: str, owner: str, statement_timeout: int = STATEMENT_TIMEOUT) -> None:
        self._url, self._owner, self._statement_timeout = url, owner, statement_timeout
        self._connection: PostgresConnection | None = None
        self._failed_at = -RECONNECT_PAUSE
        self._is_stale = self._is_given_up = self._was_open = self._is_away = False
        self.others: list[Link] = []  # to the same database

    def open(self) -> PostgresConnection:
        """The connection. Raises Refused while the database is away."""
        if self._is_stale:
            self._is_stale = False
            self.close()
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._is_given_up or time.monotonic() < self._failed_at + RECONNECT_PAUSE:
            raise away()
        try:
            self._connection = connect(self._url, self._owner, self._statement_timeout)
        except psycopg.Error as error:
            self._failed_at = time.monotonic()
            if not any(link._is_away for link in self.others):
                log.warning("the database cannot be reached", reason=" ".join(str(error).split()))
            self._is_away = True
            raise away(error) from error
        if self._is_away:
            log.info("the database is reached again")
        for link in self.others:
            link._is_away = False
        if self._was_open:
            STORE_RECONNECTS.add("")
        self._was_open = True
        return self._connection

    def leave_server(self) -> None:
        """The server takes no writes any more: look for the one that does, on every link."""
        for link in [self, *self.others]:
            link._is_stale = True

    def give_up(self) -> None:
        """Wait for no answer any more, and connect no more; called by another thread."""
        self._is_given_up = True
        if (connection := self._connection) is not None:
            connection.given_up = True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def _try_to_open(link: Link) -> None:
    with suppress(Refused):
        await trio.to_thread.run_sync(link.open, limiter=_THREADS)


# ---- one batch


def write_batch(link: Link, jobs: list[Job], begin: str) -> None:
    """Write these jobs as one transaction; afterwards each has its result."""
    was_lost = False
    for number in range(RERUNS):
        try:
            connection = link.open()
        except Refused as refused:
            _fail(jobs, refused)
            return
        try:
            begun = partial(_begin, connection, begin, locked=number >= LOCKED_FROM)
            if not _transact(connection, jobs, begun):
                _transact_each(connection, jobs, begun)
            return
        except _AGAIN:
            STORE_RERUNS.add("")
            _roll_back(link)
            time.sleep(random.uniform(0, 0.002 * (number + 1)))  # noqa: S311 - nothing secret
        except Exception as error:
            if connection.closed:  # before COMMIT, so that nothing was written
                if was_lost:
                    _fail(jobs, away(error))
                    return
                was_lost = True
                continue
            _roll_back(link)
            if isinstance(error, errors.ReadOnlySqlTransaction):
                link.leave_server()
                link.close()
                _fail(jobs, away(error))
            elif _is_of_server(error):
                log.warning("a transaction failed", reason=" ".join(str(error).split()))
                _fail(jobs, busy())
            else:
                raise
            return
    _fail(jobs, busy())


def _is_of_server(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_OF_SERVER)


def _ends_batch(connection: PostgresConnection, error: Exception) -> bool:
    """Whether it is not for one job alone."""
    again = isinstance(error, (*_AGAIN, errors.ReadOnlySqlTransaction))
    return again or connection.closed or _is_of_server(error)


def _was_overtaken(error: BaseException) -> bool:
    """Whether a function found that another has changed what it had read: it is run once more."""
    return isinstance(error, Refused) and error.code is Code.TEMPORARY_FAILURE


def _begin(connection: PostgresConnection, begin: str, *, locked: bool) -> None:
    command(connection, begin)
    if locked and begin == _BEGIN_SERIALIZABLE:
        command(connection, _LOCK_ACCOUNTS)


def _transact(connection: PostgresConnection, jobs: list[Job], begin: Callable[[], None]) -> bool:
    """Run and commit all; False, with nothing written, when one failed after it had written something."""
    begin()
    for several in together(jobs):
        tx = PostgresTx(connection)
        try:
            run_jobs(tx, several)
        except Exception as error:
            if _ends_batch(connection, error):
                raise
            if isinstance(error, psycopg.Error) or tx.wrote or len(several) > 1 or _was_overtaken(error):
                command(connection, "ROLLBACK")
                return False
            several[0].result = outcome.Error(error)
    _commit(connection, jobs)
    return True


def _transact_each(connection: PostgresConnection, jobs: list[Job], begin: Callable[[], None]) -> None:
    """The same, each with a savepoint, so that one that fails leaves nothing behind."""
    begin()
    for job in jobs:
        for _ in range(RERUNS):
            command(connection, "SAVEPOINT job")
            try:
                run_jobs(PostgresTx(connection), [job])
            except Exception as error:
                if _ends_batch(connection, error):
                    raise
                command(connection, "ROLLBACK TO job")
                job.result = outcome.Error(error)
            command(connection, "RELEASE job")
            if not (isinstance(job.result, outcome.Error) and _was_overtaken(job.result.error)):
                break
    _commit(connection, jobs)


def _commit(connection: PostgresConnection, jobs: list[Job]) -> None:
    try:
        command(connection, "COMMIT")
    except _AGAIN:
        raise
    except psycopg.Error as error:
        STORE_UNKNOWN_COMMITS.add("")
        connection.close()
        _fail(jobs, unknown(error))


def _roll_back(link: Link) -> None:
    try:
        connection = link.open()
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            command(connection, "ROLLBACK")
    except (psycopg.Error, Refused):
        link.close()


def _fail(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        job.result = outcome.Error(error)


# ---- writers


def _not_any_more(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class Writer:
    """A thread that writes everything that waits when it has ended the last transaction."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._trio = trio.lowlevel.current_trio_token()
        self._locking: deque[Job] = deque()
        self._others: deque[Job] = deque()
        self._others_next = False
        self._idle, self._closing = True, False
        self._became_idle = trio.lowlevel.ParkingLot()
        self._for_thread: queue.SimpleQueue[tuple[list[Job], str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name)
        self._thread.start()

    async def write(self, work: Callable[..., Any], item: Any, *, large: bool, locks: bool) -> Any:
        """Run `work` as part of the next transaction. Cancellation counts only before that: commit or nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise busy()
        waiting = self._locking if locks else self._others
        waiting.append(Job(work, item, large, trio.lowlevel.current_task()))
        if self._idle:
            self._idle = False
            self._trio.run_sync_soon(self._next_batch)
        return await trio.lowlevel.wait_task_rescheduled(_not_any_more)

    async def close(self) -> None:
        """Finish what waits, unless the database does not answer; end the thread, close the connection."""
        self._closing = True
        with trio.CancelScope(shield=True):
            with trio.move_on_after(WRITER_CLOSING):
                await self._until_idle()
            self._link.give_up()
            await self._until_idle()
            self._for_thread.put(None)
            await trio.to_thread.run_sync(self._thread.join, limiter=_THREADS)

    async def _until_idle(self) -> None:
        if not self._idle:
            await self._became_idle.park()

    def _next_batch(self) -> None:
        first, second = (self._others, self._locking) if self._others_next else (self._locking, self._others)
        waiting = first or second
        if not waiting:
            self._idle = True
            self._became_idle.unpark_all()
            return
        self._others_next = waiting is self._locking
        jobs = [waiting.popleft() for _ in range(min(len(waiting), JOBS_PER_COMMIT))]
        self._for_thread.put((jobs, _BEGIN if waiting is self._locking else _BEGIN_SERIALIZABLE))

    def _answer(self, jobs: list[Job], seconds: float) -> None:
        COMMIT_SECONDS.add(seconds)  # here, on the loop: they have no lock, and each writer is a thread
        COMMIT_BATCH.add(len(jobs))
        for job in jobs:
            trio.lowlevel.reschedule(job.task, job.take_result())
        self._trio.run_sync_soon(self._next_batch)

    def _serve(self) -> None:
        while self._serve_next():
            pass
        self._link.close()

    def _serve_next(self) -> bool:
        """Write one batch, in a frame of its own: nothing of it is kept while the next is awaited."""
        task = self._for_thread.get()
        if task is None:
            return False
        jobs, begin = task
        began = perf_counter()
        try:
            write_batch(self._link, jobs, begin)
        except BaseException as error:  # a bug of ours must not leave the waiters without an answer
            log.exception("a transaction failed", error)
            self._link.close()
            _fail(jobs, busy())
        self._trio.run_sync_soon(self._answer, jobs, perf_counter() - began)
        return True


# ---- readers


class Readers:
    """Threads that read, each with a connection of its own."""

    def __init__(self, links: list[Link]) -> None:
        self._free = links
        self._limiter = trio.CapacityLimiter(len(links))

    async def read(self, work: Work[T], *, snapshot: bool) -> T:
        async with self._limiter:
            link = self._free.pop()
            try:
                return await trio.to_thread.run_sync(_read, link, work, snapshot, limiter=_THREADS)
            finally:
                self._free.append(link)

    async def run(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        """Run `work` on a connection, whatever it does; it commits by itself."""
        async with self._limiter:
            link = self._free.pop()
            try:
                return await trio.to_thread.run_sync(_run, link, work, limiter=_THREADS)
            finally:
                self._free.append(link)

    def close(self) -> None:
        for link in self._free:
            link.close()


_THREADS = trio.CapacityLimiter(1_000)  # `Readers` has a limit of its own


def _run(link: Link, work: Callable[[psycopg.Connection[Row]], T]) -> T:
    try:
        return work(link.open())
    except (psycopg.OperationalError, errors.ReadOnlySqlTransaction) as error:
        if isinstance(error, errors.ReadOnlySqlTransaction):
            link.leave_server()
        link.close()
        raise away(error) from error


def _read(link: Link, work: Work[T], snapshot: bool) -> T:
    """Read, once more on a new connection if the old one was lost meanwhile: reading does no harm."""
    for _ in range(2):
        connection = link.open()
        try:
            if not snapshot:
                return work(PostgresTx(connection))
            command(connection, _BEGIN_SNAPSHOT)
            try:
                return work(PostgresTx(connection))
            finally:
                if not connection.closed:
                    command(connection, "ROLLBACK")
        except psycopg.Error as error:
            lost: Exception = error
            if connection.closed:
                continue
            if _is_of_server(error):  # no better on another connection
                break
            raise
    raise away(lost) from lost


def _refuse_read_only(tx: Tx) -> None:
    if rows(tx, _IS_READ_ONLY, {}) != [("off",)]:
        raise errors.ReadOnlySqlTransaction("the database takes no writes")


def _advance(link: Link) -> bool:
    """Change the schema; False if that failed for a reason that stays for a while."""
    try:
        if advance(link.open(), time.time_ns() // 1_000):
            log.info("the schema was changed", schema=newest_known())
    except psycopg.Error as error:
        log.warning("the schema cannot be changed", schema=newest_known(), reason=" ".join(str(error).split()))
        return False
    finally:
        link.close()
    return True


async def prepare(
    url: str,
    now: int,
    check_key: Callable[[str | None], None] | None = None,
    identify: Callable[[], NodeIdentity] | None = None,
    home: str = "",
) -> Membership | None:
    """Bring the database to this version's schema, and join its nodes if this is one.

    `home` is that of a node which has run before. Raises DatabaseRefused or NewerDatabase, with nothing written, nor
    `identify` called.
    """

    def prepared() -> Membership | None:
        with closing(connect(url, statement_timeout=MIGRATION_TIMEOUT)) as connection:
            migrate(connection, now, check_key, home=home)
            if identify is None:
                return None
            make_first(connection, now)
            member = Membership(identify())
            member.join(connection)
            return member

    with refusals(url):
        return await trio.to_thread.run_sync(prepared, limiter=_THREADS)


class PostgresEngine(Engine):
    """Three writers, some readers, and one for what takes longer."""

    is_shared = True

    def __init__(
        self, url: str, membership: Membership | None = None, *, statement_timeout: int = STATEMENT_TIMEOUT
    ) -> None:
        owner = "" if membership is None else membership.identity.owner
        self._url = url
        self._membership = membership  # None: a command, which delivers nothing
        self.node = "" if membership is None else membership.identity.name
        quick = [Link(url, owner, statement_timeout) for _ in range(4 + READER_CONNECTIONS)]
        large, for_scans = [Link(url, owner, LONG_STATEMENT_TIMEOUT) for _ in range(2)]
        urgent, ordinary, beats, asking, *for_reading = quick
        self._links = [*quick, large, for_scans]
        for link in self._links:
            link.others = self._links
        self._urgent = Writer(urgent, "store-urgent")
        self._ordinary = Writer(ordinary, "store-writer")
        self._large = Writer(large, "store-large")
        self._readers = Readers(for_reading)
        self._scanner = Readers([for_scans])
        self._beats = Readers([beats])
        self._asking = Readers([asking])
        self._failures = nodes.SharedFailures()
        self._turns = FairQueue(1, patience=float("inf"), rest=0)
        self.partitions = TimePartitions(self._run_on_thread)

    async def connect(self) -> None:
        """Open every connection before it is needed: then there may be no descriptor for it, and it takes its time."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(_try_to_open, link)

    async def write(
        self, work: Work[T], *, urgent: bool = False, large: bool = False, bulk: bool = False, locks: bool = False
    ) -> T:
        result: T = await self._writer(urgent, large or bulk).write(work, ALONE, large=large or bulk, locks=locks)
        return result

    async def write_item(self, work: JointWork[Item, T], item: Item, *, urgent: bool = False, large: bool = False) -> T:
        result: T = await self._writer(urgent, large).write(work, item, large=large, locks=True)
        return result

    def _writer(self, urgent: bool, large: bool) -> Writer:
        return self._urgent if urgent else self._large if large else self._ordinary

    async def check_writable(self) -> None:
        await self.write(_refuse_read_only)

    async def read(self, work: Work[T]) -> T:
        return await self._readers.read(work, snapshot=False)

    async def snapshot(self, work: Work[T]) -> T:
        return await self._readers.read(work, snapshot=True)

    async def scan(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        async with self._turns.take(owner):
            return await self._scanner.read(work, snapshot=True)

    async def _run_on_thread(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        async with self._turns.take(SERVER_WORK):
            return await self._scanner.run(work)

    async def version(self) -> int:
        ((version,),) = await self.read(lambda tx: rows(tx, _VERSION, {}))
        return int(version)

    # ---- one of several nodes

    def holds_lease(self) -> bool:
        return self._membership is None or self._membership.holds()

    def live_nodes(self) -> int:
        return 1 if self._membership is None else self._membership.live

    def others(self) -> OtherNodes:
        return NO_OTHERS if self._membership is None else self._membership.others

    async def has_chore(self, name: str) -> bool:
        member = self._membership
        return member is None or await self._beats.run(lambda connection: member.has_chore(connection, name))

    async def keep_lease(
        self, in_flight: Callable[[], int], drain: Callable[[], None], addresses: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Renew the lease, and take over what no node owns. Raises Fenced."""
        member = self._membership
        if member is None:
            return
        warned = False
        while True:
            began = trio.current_time()
            with suppress(Refused):  # the database is away, and without it nothing is delivered
                await self._beats.run(partial(member.beat, in_flight=in_flight(), addresses=addresses()))
                while taken := await self._beats.run(member.adopt):
                    log.info("took over what another node has left", rows=taken)
                    await trio.lowlevel.checkpoint()
                    if trio.current_time() > began + BEAT / 2:
                        break
            if (abs(member.skew) >= WARN_SKEW) is not warned:
                warned = not warned
                if warned:
                    log.warning("this clock differs from the database's", seconds=round(member.skew / 1_000_000, 1))
            if member.draining:
                drain()
            await trio.sleep(max(0.0, began + BEAT - trio.current_time()))

    async def finish_upgrade(self) -> None:
        if self._membership is None:
            return
        link, told = Link(self._url, self._membership.identity.owner, MIGRATION_TIMEOUT), list[str]()
        link.others = [*self._links, link]
        try:
            while True:
                went_well = True
                with suppress(Refused):
                    planned = await self._beats.run(plan)
                    if not planned.due and not planned.waiting:
                        return
                    if planned.older != told and (told := planned.older):
                        log.info("a change of the schema waits for older nodes", schema=newest_known(), nodes=told)
                    if planned.due and await self.has_chore("schema"):
                        went_well = await trio.to_thread.run_sync(
                            _advance, link, abandon_on_cancel=True, limiter=_THREADS
                        )
                await trio.sleep(BEAT if went_well else SCHEMA_PAUSE)
        finally:
            link.give_up()

    async def nodes(self) -> list[NodeState]:
        return await self._asking.run(nodes.states)

    async def drain(self, name: str) -> bool:
        return await self._asking.run(lambda connection: nodes.drain(connection, name))

    async def share_failures(self, failures: Sequence[LoginFailure]) -> list[LoginFailure]:
        now = time.time_ns() // 1_000
        return await self._asking.run(lambda connection: self._failures.exchange(connection, failures, now))

    async def cancel_elsewhere(self, message_id: str, account_id: str | None, reason: str) -> list[CancelAnswer]:
        """Ask, and wait for the answers for CANCEL_TIMEOUT; Refused if one does not come."""
        others = await self._asking.run(lambda connection: cancellations.owners(connection, message_id))
        if not others:
            return []
        asked = {secrets.token_hex(16): owner for owner in others}
        ids, now = list(asked), time.time_ns() // 1_000

        def ask(connection: psycopg.Connection[Row]) -> None:
            for number, owner in asked.items():
                cancellations.ask(connection, owner, CancelRequest(number, message_id, account_id, reason), now)

        await self._asking.run(ask)
        given: list[CancelAnswer] = []
        try:
            with trio.move_on_after(CANCEL_TIMEOUT):
                answered = partial(cancellations.answered, ids=ids)
                while await self._asking.run(answered) < len(ids):  # noqa: ASYNC110 - by another process
                    await trio.sleep(ANSWER_POLL)
        finally:
            with trio.CancelScope(shield=True), suppress(Refused):
                given = await self._asking.run(lambda connection: cancellations.withdraw(connection, ids))
        if len(given) == len(ids):
            return given
        text = "The node that delivers this message does not answer. Retry in some seconds."
        raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=5)

    async def answer_cancellations(self, cancel: Callable[[CancelRequest, RecordAnswer], Awaitable[None]]) -> None:
        if self._membership is None:
            return
        while True:
            requests: list[CancelRequest] = []
            with suppress(Refused):
                requests = await self._asking.run(cancellations.asked)
            for request in requests:
                with suppress(Refused):  # withdrawn; or the database is away, and it is asked for again
                    await cancel(request, partial(cancellations.answer, request.id))
            await trio.sleep(REQUEST_POLL)

    async def leave(self) -> None:
        """Let the other nodes have at once what is left of this one's."""
        if (member := self._membership) is not None:
            with suppress(Refused):
                await self._beats.run(member.leave)

    async def close(self) -> None:
        async with trio.open_nursery() as nursery:
            for writer in (self._ordinary, self._large, self._urgent):
                nursery.start_soon(writer.close)
        await self.leave()  # last: what was delivered is on record
        self._beats.close()
        self._asking.close()
        self._readers.close()
        self._scanner.close()
