"""Runs transactions on threads: writers and readers, each with a connection of its own.

A writer writes all that waits as one transaction: items that share a function READ COMMITTED, all other functions
SERIALIZABLE, and again when that fails. During an outage requests get a 503. A connection lost during COMMIT leaves it
unknown whether the rows are there; the caller gets that error, and repeats its request with the same key.
"""

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import outcome
import psycopg
import trio
import trio.lowlevel
from psycopg import errors

from appliance.errors import StorageUnavailable
from appliance.store.engine import JOBS_PER_COMMIT, Job, Row, T, Work, busy, run_jobs, together
from appliance.store.postgresql.connection import STATEMENT_TIMEOUT, PostgresConnection, PostgresTx, command, connect
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import (
    COMMIT_BATCH,
    COMMIT_SECONDS,
    STORE_RECONNECTS,
    STORE_RERUNS,
    STORE_UNKNOWN_COMMITS,
)

RERUNS = 12  # of a transaction that met another; after that it is refused
LOCKED_FROM = 3  # the rerun from which a serializable transaction keeps others from changing busy tables
RECONNECT_PAUSE = 1.0  # seconds after a failed connection until the next is tried
WRITER_CLOSING = 5.0  # seconds for the pending writes when a writer is closed

_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
# The server's fault, not the job's: resources (53), locks (55), time (57), the disk (58).
_OF_SERVER = ("53", "55", "57", "58")
_BEGIN = "BEGIN"
_BEGIN_SERIALIZABLE = "BEGIN ISOLATION LEVEL SERIALIZABLE"
# Every write of an account's mail ends with its row in `accounts`, so on a busy account a transaction with an older
# snapshot never succeeds. The lock is taken before the snapshot, and waits in line. Likewise for `feedback_counts`.
_LOCK_BUSY_TABLES = "LOCK TABLE accounts, feedback_counts IN SHARE ROW EXCLUSIVE MODE"
_BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

DATABASE_THREADS = trio.CapacityLimiter(1_000)  # writers and readers have limits of their own

log = get_logger("store")

AWAY = "The database cannot be reached right now. Retry with the same key."
UNKNOWN = "The database was lost while this was being stored, so it may be stored or not. Retry with the same key."


def away(error: Exception | None = None, text: str = AWAY) -> StorageUnavailable:
    refusal = StorageUnavailable(text)
    refusal.__cause__ = error
    return refusal


class Link:
    """A connection for one thread at a time, opened on first use and again when lost."""

    def __init__(self, url: str, owner: str, statement_timeout: int = STATEMENT_TIMEOUT) -> None:
        self._url, self._owner, self._statement_timeout = url, owner, statement_timeout
        self._connection: PostgresConnection | None = None
        self._failed_at = -RECONNECT_PAUSE
        self._is_stale = self._is_given_up = self._was_open = self._is_away = False
        self.others: list[Link] = []  # to the same database

    def open(self) -> PostgresConnection:
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
        """Find the server that takes writes again, on every link: this one no longer does."""
        for link in [self, *self.others]:
            link._is_stale = True

    def give_up(self) -> None:
        """Stop waiting for answers and never connect again; called by another thread."""
        self._is_given_up = True
        if (connection := self._connection) is not None:
            connection.given_up = True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def write_batch(link: Link, jobs: list[Job], begin: str) -> None:
    """Write these jobs as one transaction; each gets its result."""
    was_lost = False
    for number in range(RERUNS):
        try:
            connection = link.open()
        except StorageUnavailable as refused:
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
    again = isinstance(error, (*_AGAIN, errors.ReadOnlySqlTransaction))
    return again or connection.closed or _is_of_server(error)


def _was_overtaken(error: BaseException) -> bool:
    """Whether a function read rows that another transaction has changed since, so that it runs again."""
    return isinstance(error, StorageUnavailable)


def _begin(connection: PostgresConnection, begin: str, *, locked: bool) -> None:
    command(connection, begin)
    if locked and begin == _BEGIN_SERIALIZABLE:
        command(connection, _LOCK_BUSY_TABLES)


def _transact(connection: PostgresConnection, jobs: list[Job], begin: Callable[[], None]) -> bool:
    """Run and commit all jobs; False, with nothing written, if one failed after a write."""
    begin()
    for several in together(jobs):
        tx = PostgresTx(connection)
        try:
            run_jobs(tx, several)
        except Exception as error:
            if _ends_batch(connection, error):
                raise
            if isinstance(error, psycopg.Error) or tx.total_changes() or len(several) > 1 or _was_overtaken(error):
                command(connection, "ROLLBACK")
                return False
            several[0].result = outcome.Error(error)
    _commit(connection, jobs)
    return True


def _transact_each(connection: PostgresConnection, jobs: list[Job], begin: Callable[[], None]) -> None:
    """Run the jobs in one transaction, each in a savepoint, so that a failed job writes nothing."""
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
        _fail(jobs, away(error, UNKNOWN))


def _roll_back(link: Link) -> None:
    try:
        connection = link.open()
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            command(connection, "ROLLBACK")
    except (psycopg.Error, StorageUnavailable):
        link.close()


def _fail(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        job.result = outcome.Error(error)


class Writer:
    """A thread that writes all waiting jobs once the last transaction has ended."""

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
        """Run `work` in the next transaction. Cancellable only before that: commit or nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise busy()
        waiting = self._locking if locks else self._others
        waiting.append(Job(work, item, large, trio.lowlevel.current_task()))
        if self._idle:
            self._idle = False
            self._trio.run_sync_soon(self._next_batch)
        return await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    async def close(self) -> None:
        """Finish pending writes, unless the database does not respond; then end the thread and close."""
        self._closing = True
        with trio.CancelScope(shield=True):
            with trio.move_on_after(WRITER_CLOSING):
                await self._until_idle()
            self._link.give_up()
            await self._until_idle()
            self._for_thread.put(None)
            await trio.to_thread.run_sync(self._thread.join, limiter=DATABASE_THREADS)

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
        """Write one batch, in a frame of its own, so that no reference to it stays while waiting for the next."""
        task = self._for_thread.get()
        if task is None:
            return False
        jobs, begin = task
        began = perf_counter()
        try:
            write_batch(self._link, jobs, begin)
        except BaseException as error:  # even after a bug, waiting tasks need an answer
            log.exception("a transaction failed", error)
            self._link.close()
            _fail(jobs, busy())
        self._trio.run_sync_soon(self._answer, jobs, perf_counter() - began)
        return True


class Readers:
    def __init__(self, links: list[Link]) -> None:
        self._free = links
        self._limiter = trio.CapacityLimiter(len(links))

    async def read(self, work: Work[T], *, snapshot: bool) -> T:
        return await self._on_thread(lambda link: _read(link, work, snapshot))

    async def run(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        """Run `work` on a connection; it must commit."""
        return await self._on_thread(lambda link: _run(link, work))

    async def _on_thread(self, work: Callable[[Link], T]) -> T:
        async with self._limiter:
            link = self._free.pop()
            try:
                return await trio.to_thread.run_sync(work, link, limiter=DATABASE_THREADS)
            finally:
                self._free.append(link)

    def close(self) -> None:
        for link in self._free:
            link.close()


def _run(link: Link, work: Callable[[psycopg.Connection[Row]], T]) -> T:
    try:
        return work(link.open())
    except (psycopg.OperationalError, errors.ReadOnlySqlTransaction) as error:
        if isinstance(error, errors.ReadOnlySqlTransaction):
            link.leave_server()
        link.close()
        raise away(error) from error


def _read(link: Link, work: Work[T], snapshot: bool) -> T:
    """Read; if the connection was lost, read again on a new one, which is harmless."""
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
