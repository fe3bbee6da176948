"""In charge of copies of a database that others write to meanwhile: one moment of it, whole, and nobody waits.

A copy is made page by page out of one read transaction, so what is committed meanwhile is not in it, and cannot make it
begin anew. While it lasts the write-ahead log only grows; what has piled up there is copied home by us afterwards and
not by the server's writer, whose senders would have to wait for it.
"""

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from appliance.store.connection import open_reader, open_writer
from appliance.store.embedded_db import new_inside

STEP = 256  # pages, a MiB, between two words about progress

_HOLD_THE_MOMENT = "SELECT count(*) FROM sqlite_master"
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # waits for nobody, and nobody for it

Progress = Callable[[int, int], None]  # pages done, of so many


def copy_inside(path: Path, target: Path, begin: int, on_progress: Progress) -> None:
    """Copy the database of `path` into `target`, from its byte `begin` on; not synced."""
    with new_inside(target, begin) as copy:
        _copy(path, copy, on_progress)


def copy_beside(path: Path, target: Path) -> None:
    """Copy the database of `path` to a new file, synced."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    copy_inside(path, target, 0, lambda _done, _all: None)
    sync(target)


def relieve(path: Path) -> None:
    """Copy home what has piled up in the log, beside whoever writes."""
    connection = open_writer(path)
    try:
        copy_home(connection)
    finally:
        connection.close()


def copy_home(connection: apsw.Connection) -> None:
    """The same on a connection that is there; not the writer's own."""
    connection.execute(_CHECKPOINT).fetchall()


def sync(path: Path) -> None:
    """Have a file or a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(path: Path, copy: apsw.Connection, on_progress: Progress) -> None:
    source = open_reader(path)
    try:
        source.execute("BEGIN")
        source.execute(_HOLD_THE_MOMENT).fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(STEP)
                on_progress(backup.page_count - backup.remaining, backup.page_count)
        source.execute("COMMIT")
    finally:
        source.close()
