"""In charge of transactions: group commit for writers, lock-free reads beside them.

A writer hands over a plain function. One thread takes *all* functions that wait, runs each in its own savepoint and
commits once, with a sync; then every waiter is answered. So a hundred senders share one disk sync, and one that fails
rolls back alone.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw
import outcome
import trio

from appliance.errors import Code, Refused
from appliance.store.connection import open_reader, open_writer

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

BATCH = 512  # functions in one commit: bounds how long the first of them waits for the last


class CommitUnknown(Exception):
    """A commit failed in the disk's hands: the rows may or may not be there, so the process must not go on."""


class Writer(Protocol):
    """What runs writing functions: the group-commit thread, or the caller's own thread."""

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run one function as a transaction; return once it is on disk."""
        ...

    async def close(self) -> None:
        """Finish what waits and close the connection."""
        ...


@dataclass(slots=True)
class _Job:
    work: Work[Any]
    task: trio.lowlevel.Task | None
    result: outcome.Outcome[Any] | None = None


def statement(sql: str, bindings: dict[str, Any]) -> Work[None]:
    """A function of one statement that returns nothing."""

    def work(connection: apsw.Connection) -> None:
        connection.execute(sql, bindings)

    return work


# ---- one batch, on whatever thread runs it


def run_batch(connection: apsw.Connection, jobs: list[_Job]) -> None:
    """Run every job and commit them together; afterwards each has its result.

    Raises CommitUnknown when nobody can say whether the commit landed.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        # Savepoints copy every page they touch, and nearly every job that fails does so before it has written
        # anything. So all run without; should one fail half-way, all is rolled back and run again, one savepoint each.
        if not _run_plainly(connection, jobs):
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            _run_in_savepoints(connection, jobs)
    except apsw.Error as error:
        # A full or failing disk, or a lock held by somebody else: SQLite may have rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return _fail(jobs, error)
    return _commit(connection, jobs)


def _run_plainly(connection: apsw.Connection, jobs: list[_Job]) -> bool:
    """Run all jobs; False when one failed after it had written something."""
    for job in jobs:
        before = connection.total_changes()
        try:
            job.result = outcome.Value(job.work(connection))
        except Exception as error:
            if connection.total_changes() != before or not connection.in_transaction:
                return False
            job.result = outcome.Error(_translated(error))
    return True


def _run_in_savepoints(connection: apsw.Connection, jobs: list[_Job]) -> None:
    for job in jobs:
        connection.execute("SAVEPOINT job")
        try:
            job.result = outcome.Value(job.work(connection))
        except Exception as error:
            connection.execute("ROLLBACK TO job")
            job.result = outcome.Error(_translated(error))
        connection.execute("RELEASE job")


def _commit(connection: apsw.Connection, jobs: list[_Job]) -> None:
    try:
        connection.execute("COMMIT")
    except (apsw.FullError, apsw.BusyError) as error:
        # Neither wrote a commit record, so this is a plain "no".
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        _fail(jobs, error)
    except apsw.Error as error:
        _fail(jobs, error)
        raise CommitUnknown(f"the disk failed during a commit: {error}") from error


def _fail(jobs: list[_Job], error: BaseException | None) -> None:
    for job in jobs:
        job.result = outcome.Error(_translated(error) if isinstance(error, Exception) else _busy())


def _translated(error: Exception) -> Exception:
    """SQLite's own refusals in our words; everything else as it is."""
    if not isinstance(error, (apsw.BusyError, apsw.FullError, apsw.IOError, apsw.LockedError)):
        return error
    refusal = _busy()
    refusal.__cause__ = error
    return refusal


def _busy() -> Refused:
    return Refused(
        Code.TEMPORARY_FAILURE, "The storage cannot take writes right now. Retry with the same key.", retry_after=2
    )


# ---- the two ways to run batches


class GroupCommit:
    """One writer thread; whatever waits when it becomes free goes into its next commit."""

    def __init__(self, path: Path, on_failure: Callable[[CommitUnknown], None]) -> None:
        self._path = path
        self._on_failure = on_failure  # called on the Trio thread
        self._trio = trio.lowlevel.current_trio_token()
        self._urgent: deque[_Job] = deque()
        self._ordinary: deque[_Job] = deque()
        self._signal: queue.SimpleQueue[None] = queue.SimpleQueue()  # one entry a job: the thread sleeps on it
        self._closing = False
        self._broken: CommitUnknown | None = None
        self._connection = open_writer(path)
        self._thread = threading.Thread(target=self._serve, name="store-writer")
        self._thread.start()

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run `work` as part of the next commit. Cancellation counts only before that: commit or nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing or self._broken is not None:
            raise _busy()
        job = _Job(work, trio.lowlevel.current_task())
        (self._urgent if urgent else self._ordinary).append(job)
        self._signal.put(None)
        result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return result

    async def close(self) -> None:
        """Finish what waits, end the thread, close the file."""
        self._closing = True
        self._signal.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
        self._connection.close()

    def _serve(self) -> None:
        while True:
            self._signal.get()
            jobs = self._take()
            if jobs:
                self._run(jobs)
            elif self._closing:
                return

    def _take(self) -> list[_Job]:
        """All that wait, outcomes of deliveries first: what a remote server has taken must not be repeated."""
        jobs: list[_Job] = []
        for waiting in (self._urgent, self._ordinary):
            while waiting and len(jobs) < BATCH:
                jobs.append(waiting.popleft())
        return jobs

    def _run(self, jobs: list[_Job]) -> None:
        try:
            if self._broken is not None:
                _fail(jobs, None)
            else:
                run_batch(self._connection, jobs)
        except CommitUnknown as error:
            self._broken = error
            self._trio.run_sync_soon(self._on_failure, error)
        self._trio.run_sync_soon(_answer, jobs)


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.task is not None and job.result is not None:  # always, by now: both are filled before
            trio.lowlevel.reschedule(job.task, job.result)


class Inline:
    """Each function its own commit on the caller's thread: for the shell's commands and for virtual-clock tests."""

    def __init__(self, path: Path) -> None:
        self._connection = open_writer(path)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run and commit `work` at once."""
        await trio.lowlevel.checkpoint()
        job = _Job(work, None)
        run_batch(self._connection, [job])
        assert job.result is not None  # noqa: S101 - filled by run_batch
        result: T = job.result.unwrap()
        return result

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


class Engine:
    """One writer and one reader on the same file."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self._writer = writer
        self._reader = open_reader(path)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run `work` as one durable transaction."""
        return await self._writer.write(work, urgent=urgent)

    def read(self, work: Work[T]) -> T:
        """Run `work` on the reader, on this thread: for look-ups by index, which cost less than a thread hop."""
        return work(self._reader)

    def snapshot(self, work: Work[T]) -> T:
        """Like `read`, with all of its statements seeing one state."""
        self._reader.execute("BEGIN")
        try:
            return work(self._reader)
        finally:
            self._reader.execute("COMMIT")

    async def close(self) -> None:
        """Close both connections, the writer's work finished first."""
        self._reader.close()
        await self._writer.close()
