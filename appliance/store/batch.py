"""Runs the jobs of one batch in one transaction, for the engine: a job that fails leaves nothing behind.

All are run, then committed together; afterwards each has its result, or the reason why it was refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apsw
import outcome
import trio

from appliance.store.connection import BUSY_TIMEOUT
from appliance.store.faults import CommitUnknown, found_no_room, translated

NO_RESULT: outcome.Outcome[Any] = outcome.Error(RuntimeError("this job was not run"))

ALONE: Any = object()  # the item of a function that has none


@dataclass(slots=True)
class Job:
    """A function to be run, alone or with an item, and the task that waits for its result."""

    work: Callable[..., Any]  # Work, or with an item JointWork
    item: Any
    large: bool
    task: trio.lowlevel.Task
    result: outcome.Outcome[Any] = NO_RESULT


Step = Callable[[apsw.Connection, list[Job]], None]


def run_batch(connection: apsw.Connection, jobs: list[Job]) -> None:
    """Run every job in one transaction; afterwards each has its result. May wait for another process's lock.

    Raises CommitUnknown when the commit may or may not be on disk.
    """
    connection.set_busy_timeout(BUSY_TIMEOUT)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.Error as error:
        _fail(jobs, error)
    else:
        perform(connection, jobs)
        commit(connection, jobs)


def try_begin(connection: apsw.Connection) -> bool:
    connection.set_busy_timeout(0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.Error:
        return False  # whatever it is, the thread meets it too, and answers for it
    return True


def perform(connection: apsw.Connection, jobs: list[Job]) -> None:
    """Run all jobs in the open transaction, so that one that fails leaves nothing behind.

    Savepoints copy every page they touch, and nearly every job that fails does so before it has written anything. So
    all run without; should one fail half-way, all is rolled back and run again, this time with a savepoint each.
    """
    try:
        if not _perform_plainly(connection, jobs):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.set_busy_timeout(BUSY_TIMEOUT)  # another process may have come in between
            connection.execute("BEGIN IMMEDIATE")
            _perform_in_savepoints(connection, jobs)
    except apsw.Error as error:
        # A full or failing disk: SQLite may have rolled back by itself, the jobs that went well too.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        _fail(jobs, error)


def _perform_plainly(connection: apsw.Connection, jobs: list[Job]) -> bool:
    """Run all jobs; False when one failed after it had written something, or several failed together."""
    for together in _together(jobs):
        before = connection.total_changes()
        try:
            _run(connection, together)
        except Exception as error:
            if len(together) > 1 or connection.total_changes() != before or not connection.in_transaction:
                return False
            together[0].result = outcome.Error(translated(error))
    return True


def _together(jobs: list[Job]) -> list[list[Job]]:
    """The jobs in their order, those with items for the same work where the first of them stands.

    All of them still wait for their result, so no caller relies on another order. What is large goes by itself:
    SQLite copies what a statement is given, and that should not be a dozen large messages at once.
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


def _run(connection: apsw.Connection, together: list[Job]) -> None:
    first = together[0]
    if first.item is ALONE:
        first.result = outcome.Value(first.work(connection))
        return
    results = first.work(connection, [job.item for job in together])
    for job, result in zip(together, results, strict=True):
        job.result = outcome.Error(result) if isinstance(result, Exception) else outcome.Value(result)


def _perform_in_savepoints(connection: apsw.Connection, jobs: list[Job]) -> None:
    for job in jobs:
        connection.execute("SAVEPOINT job")
        try:
            _run(connection, [job])
        except Exception as error:
            if not connection.in_transaction:
                raise  # a full or failing disk: SQLite has rolled back everything, savepoints too
            connection.execute("ROLLBACK TO job")
            job.result = outcome.Error(translated(error))
        connection.execute("RELEASE job")


def commit(connection: apsw.Connection, jobs: list[Job]) -> None:
    """Make the batch durable, or turn every result into a refusal."""
    if not connection.in_transaction:
        return  # it failed already
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
