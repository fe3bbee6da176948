"""Runs transactions on a file: group commit for writers, lock-free reads.

A writer hands over a function, or an item for a function that writes many. All that wait run in one transaction and
are committed together, with one sync; one that fails rolls back alone. The functions run on the event loop's thread,
and only the commit goes to a thread: statements on another thread would compete with the loop for the interpreter lock
(a sixth of its work). Large work, or work that waits for another process, does go to the thread.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import apsw
import outcome
import trio

from appliance.concurrency.fair_share import SERVER_WORK, FairQueue
from appliance.errors import StorageFault
from appliance.store.audit import write_noted
from appliance.store.engine import (
    ALONE,
    JOBS_PER_COMMIT,
    CommitUnknown,
    Engine,
    Item,
    Job,
    JointWork,
    OnFault,
    T,
    Work,
    busy,
    rows,
    run_jobs,
    together,
)
from appliance.store.sqlite.connection import (
    BUSY_TIMEOUT,
    Connection,
    ReservedIndex,
    open_reader,
    open_writer,
    set_sync,
)
from appliance.store.sqlite.faults import found_no_room, heard_by, translated
from appliance.store.sqlite.file_care import CHECK_FILES_EVERY, Checkpoints, FileWatch
from appliance.telemetry.metrics import COMMIT_BATCH, COMMIT_SECONDS

# ---- one batch

Step = Callable[[Connection, list[Job]], None]


def run_batch(connection: Connection, jobs: list[Job]) -> None:
    """Run every job in one transaction. Raises CommitUnknown when the commit may or may not be on disk."""
    if all(job.durable for job in jobs):
        _run_batch(connection, jobs)
        return
    set_sync(connection, "NORMAL")
    try:
        _run_batch(connection, jobs)
    finally:
        set_sync(connection, "FULL")


def _run_batch(connection: Connection, jobs: list[Job]) -> None:
    connection.set_busy_timeout(BUSY_TIMEOUT)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.Error as error:
        _fail(jobs, error)
    else:
        perform(connection, jobs)
        commit(connection, jobs)


def try_begin(connection: Connection) -> bool:
    connection.set_busy_timeout(0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.Error:
        return False  # the thread meets the same error and reports it
    return True


def perform(connection: Connection, jobs: list[Job]) -> None:
    """Run all jobs. Savepoints copy every page, so only a second run uses them, after a failure half-way."""
    try:
        if not _perform_plainly(connection, jobs):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.set_busy_timeout(BUSY_TIMEOUT)  # another process may have taken the lock in between
            connection.execute("BEGIN IMMEDIATE")
            _perform_in_savepoints(connection, jobs)
    except apsw.Error as error:
        # A full or failing disk: SQLite may have rolled back by itself, including successful jobs.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        _fail(jobs, error)


def _perform_plainly(connection: Connection, jobs: list[Job]) -> bool:
    """Run all jobs; False when one failed after it had written something, or several failed together."""
    for several in together(jobs):
        before = connection.total_changes()
        try:
            run_jobs(connection, several)
        except Exception as error:
            if len(several) > 1 or connection.total_changes() != before or not connection.in_transaction:
                return False
            several[0].result = outcome.Error(translated(error))
    return True


def _perform_in_savepoints(connection: Connection, jobs: list[Job]) -> None:
    for job in jobs:
        connection.execute("SAVEPOINT job")
        try:
            run_jobs(connection, [job])
        except Exception as error:
            if not connection.in_transaction:
                raise  # a full or failing disk: SQLite has rolled back everything, savepoints too
            connection.execute("ROLLBACK TO job")
            job.result = outcome.Error(translated(error))
        connection.execute("RELEASE job")


def commit(connection: Connection, jobs: list[Job]) -> None:
    if not connection.in_transaction:
        return  # it has failed already
    try:
        connection.execute("COMMIT")
    except apsw.Error as error:
        if not isinstance(error, apsw.BusyError) and not found_no_room(connection, error):
            _fail(jobs, error)
            raise CommitUnknown(f"the disk failed during a commit: {error}") from error
        # Neither wrote a commit record, so this is a plain "no".
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        _fail(jobs, error)


def _fail(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        job.result = outcome.Error(translated(error))


# ---- group commit
def _not_cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class GroupCommit:
    """Commits all waiting jobs together once the last commit has ended."""

    def __init__(self, path: Path, on_failure: OnFault) -> None:
        self._on_failure = on_failure  # called on the Trio thread
        self._trio = trio.lowlevel.current_trio_token()
        self._urgent: deque[Job] = deque()
        self._ordinary: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._bulk_next = False  # whether other jobs had a commit since the last bulk job
        self._idle = True
        self._closing = False
        self._became_idle = trio.lowlevel.ParkingLot()
        self._broken: StorageFault | None = None
        self._connection = open_writer(path)
        self._checkpoints = Checkpoints(path)
        self._connection.set_wal_hook(self._checkpoints.committed)
        self._index = ReservedIndex(path)
        self._files = FileWatch(path)
        self._hearing = ExitStack()
        self._hearing.enter_context(heard_by(lambda fault: self._trio.run_sync_soon(self._fail, fault)))
        self._for_thread: queue.SimpleQueue[tuple[Step, list[Job]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="store-writer")
        self._thread.start()

    async def write(
        self, work: Callable[..., Any], item: Any, *, urgent: bool, large: bool, bulk: bool, durable: bool = True
    ) -> Any:
        """Run `work` in the next commit; not cancellable from here on."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing or self._broken is not None:
            raise busy()
        waiting = self._bulk if bulk else self._urgent if urgent else self._ordinary
        waiting.append(Job(work, item, large or bulk, trio.lowlevel.current_task(), durable))
        if self._idle:
            self._idle = False
            # Not at once: tasks about to run may have a write for the same commit.
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._next_batch()
        return await trio.lowlevel.wait_task_rescheduled(_not_cancelled)

    def _fail(self, fault: StorageFault) -> None:
        """Refuse further writes. Report only the first fault: the others follow from it."""
        if self._broken is None:
            self._broken = fault
            self._on_failure(fault)

    async def close(self) -> None:
        self._closing = True
        with trio.CancelScope(shield=True):
            if not self._idle:
                await self._became_idle.park()
            self._for_thread.put(None)
            await trio.to_thread.run_sync(self._thread.join)
            await trio.to_thread.run_sync(self._checkpoints.close)
        self._hearing.close()
        self._connection.close()
        self._index.close()

    # ---- on the event loop

    def _next_batch(self) -> None:
        jobs = self._take()
        if not jobs:
            self._rest()
        elif self._broken is not None:
            self._trio.run_sync_soon(self._answer, jobs, self._broken)
        elif any(job.large for job in jobs) or not try_begin(self._connection):
            self._for_thread.put((run_batch, jobs))
        else:
            try:
                perform(self._connection, jobs)
            except Exception as error:  # the rollback failed, too; no caller catches this
                failure = CommitUnknown(f"the disk failed during a transaction: {error}")
                failure.__cause__ = error
                self._trio.run_sync_soon(self._answer, jobs, failure)
            else:
                self._for_thread.put((commit, jobs))

    def _rest(self) -> None:
        self._idle = True
        self._became_idle.unpark_all()

    def _take(self) -> list[Job]:
        """Take the next jobs, delivery outcomes first. Bulk work is committed alone, at most every second time."""
        if self._bulk and (self._bulk_next or not (self._urgent or self._ordinary)):
            self._bulk_next = False
            return [self._bulk.popleft()]
        self._bulk_next = True
        jobs: list[Job] = []
        for waiting in (self._urgent, self._ordinary):
            while waiting and len(jobs) < JOBS_PER_COMMIT:
                jobs.append(waiting.popleft())
        return jobs

    def _check_files(self) -> None:
        if self._idle and not self._closing and self._broken is None and not self._files.in_place():
            self._idle = False
            self._for_thread.put((self._stop, []))

    def _stop(self, connection: Connection, _: list[Job]) -> None:
        raise self._files.stop(connection)

    def _answer(self, jobs: list[Job], failure: StorageFault | None) -> None:
        if failure is None and self._broken is None and not self._files.in_place():
            self._for_thread.put((self._stop, jobs))  # none of these writes is acknowledged
            return
        if failure is not None:
            self._fail(failure)
        for job in jobs:
            result = job.take_result()
            trio.lowlevel.reschedule(job.task, outcome.Error(busy()) if failure else result)
        if self._urgent or self._ordinary or self._bulk:  # soon: these tasks may have a write for the same commit
            self._trio.run_sync_soon(self._next_batch)
        else:
            self._rest()

    # ---- on the thread

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Write one batch, in a frame of its own, which keeps no reference to it afterwards."""
        try:
            task = self._for_thread.get(timeout=CHECK_FILES_EVERY)
        except queue.Empty:
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._check_files)
            return True
        if task is None:
            return False
        step, jobs = task
        failure = None
        began = perf_counter()
        try:
            step(self._connection, jobs)
        except StorageFault as error:
            failure = error
        except Exception as error:  # even after a bug, waiting tasks need an answer
            failure = CommitUnknown(repr(error))
            failure.__cause__ = error
        COMMIT_SECONDS.add(perf_counter() - began)
        COMMIT_BATCH.add(len(jobs))
        self._trio.run_sync_soon(self._answer, jobs, failure)
        return True


class Inline:
    """One commit per function, on the caller's thread: for commands and virtual-clock tests."""

    def __init__(self, path: Path) -> None:
        self._connection = open_writer(path)

    async def write(
        self, work: Callable[..., Any], item: Any, *, urgent: bool, large: bool, bulk: bool, durable: bool = True
    ) -> Any:
        await trio.lowlevel.checkpoint()
        job = Job(work, item, large, trio.lowlevel.current_task(), durable)
        run_batch(self._connection, [job])
        return job.result.unwrap()

    async def close(self) -> None:
        self._connection.close()


class Scanner:
    """Runs longer reads on a thread, one at a time. Accounts share its time; one with dozens waiting is refused."""

    def __init__(self, path: Path, *, inline: bool) -> None:
        self._path = path
        self._inline = inline  # on the caller's thread, for tests on a virtual clock
        self._connection: Connection | None = None
        if not inline:
            # Now, with the log: later the server may have no free descriptor. A command may never need it.
            self._connection = open_reader(path)
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._turns = FairQueue(1, patience=inf, rest=0)
        self._thread = trio.CapacityLimiter(1)

    async def read(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        async with self._turns.take(owner):
            if self._inline:
                return self._snapshot(work)
            # A cancelled reader still waits for the thread, which uses the connection.
            return await trio.to_thread.run_sync(self._snapshot, work, limiter=self._thread)

    def _snapshot(self, work: Work[T]) -> T:
        if self._connection is None:
            self._connection = open_reader(self._path)
        self._connection.execute("BEGIN")
        try:
            return work(self._connection)
        finally:
            self._connection.execute("COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class SqliteEngine(Engine):
    """One writer and two readers of one file: one on the event loop, one on a thread for longer reads."""

    reads_at_once = True

    def __init__(self, path: Path, writer: GroupCommit | Inline) -> None:
        self._writer = writer
        self._reader = open_reader(path)
        self._scanner = Scanner(path, inline=isinstance(writer, Inline))

    async def write(
        self, work: Work[T], *, urgent: bool = False, large: bool = False, bulk: bool = False, locks: bool = False
    ) -> T:
        self.ordinary_writes += not bulk
        write = partial(self._writer.write, item=ALONE, urgent=urgent, large=large, bulk=bulk)
        return await write_noted(write, work)

    async def write_ahead(self, work: Work[T]) -> T:
        """The log is synced as a whole, so that the sync of a later commit makes this one durable, too."""
        result: T = await self._writer.write(work, ALONE, urgent=False, large=True, bulk=True, durable=False)
        return result

    async def write_item(self, work: JointWork[Item, T], item: Item, *, urgent: bool = False, large: bool = False) -> T:
        self.ordinary_writes += 1
        result: T = await self._writer.write(work, item, urgent=urgent, large=large, bulk=False)
        return result

    async def read(self, work: Work[T]) -> T:
        """Run `work` here, without a checkpoint: a look-up by index costs less than a thread switch."""
        return work(self._reader)

    async def snapshot(self, work: Work[T]) -> T:
        self._reader.execute("BEGIN")
        try:
            return work(self._reader)
        finally:
            self._reader.execute("COMMIT")

    async def scan(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        return await self._scanner.read(work, owner)

    async def version(self) -> int:
        ((version,),) = rows(self._reader, "PRAGMA data_version", {})
        return int(version)

    async def close(self) -> None:
        self._scanner.close()
        self._reader.close()
        await self._writer.close()
