"""Copies pages while others write: a whole database as of one moment, and the write-ahead log into its database.

A copy of a database is made page by page out of one read transaction, so later commits are not in it and cannot make it
begin anew. While it lasts the log only grows; afterwards it is copied into the database here, and not by the server's
writer, whose senders would have to wait for it.

`Checkpoints` copies the log on a thread and a connection of its own. A commit that finds the log long would otherwise
copy all of it, with two syncs, while every writer waits: 32 MiB took 50 to 150 ms. Here the writer copies only at
`LONGEST_LOG_PAGES`, and finds most of them copied. It has to do it then, since only a copy without a writer beside it
lets the log begin anew from its start.
"""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import apsw

from appliance.store.connection import CHECKPOINT_PAGES, open_reader, open_writer
from appliance.store.embedded_db import new_inside

COPY_STEP = 256  # pages, a MiB, between two words about progress

_HOLD_THE_MOMENT = "SELECT count(*) FROM sqlite_master"
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # no writer and no reader waits for it

Progress = Callable[[int, int], None]  # pages done, of so many


def copy_inside(path: Path, target: Path, begin: int, on_progress: Progress) -> None:
    """Copy the database of `path` into `target`, from its byte `begin` on; not synced."""
    with new_inside(target, begin) as copy, closing(open_reader(path)) as source:
        source.execute("BEGIN")
        source.execute(_HOLD_THE_MOMENT).fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(COPY_STEP)
                on_progress(backup.page_count - backup.remaining, backup.page_count)
        source.execute("COMMIT")


def copy_beside(path: Path, target: Path) -> None:
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    copy_inside(path, target, 0, lambda _done, _all: None)
    sync(target)


def checkpoint_beside(path: Path) -> None:
    """Copy the pages in the log into the database, beside its writer."""
    with closing(open_writer(path)) as connection:
        checkpoint(connection)


def checkpoint(connection: apsw.Connection) -> None:
    """The same on an open connection, not the writer's own."""
    connection.execute(_CHECKPOINT).fetchall()


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- checkpoints beside the writer

COPIED_AFTER_PAGES = 1_000  # pages that have come into the log since the last copy until the next: 4 MiB
LONGEST_LOG_PAGES = CHECKPOINT_PAGES


class Checkpoints:
    """The copying, for one writer; `committed` is its hook."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._at = 0  # pages in the log when copying was last asked for
        self._copying = False
        self._thread: threading.Thread | None = None  # begun when first needed

    def committed(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """After a commit, on the thread that made it: so many pages are in the log."""
        if pages >= LONGEST_LOG_PAGES:
            with suppress(apsw.Error):  # as in Space.settle: it all stays in the log
                checkpoint(connection)
            self._at = 0
        elif pages < self._at:  # it began anew
            self._at = 0
        if pages - self._at >= COPIED_AFTER_PAGES and not self._copying:
            self._at, self._copying = pages, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="store-checkpoints")
                self._thread.start()
            self._asked.put(True)
        return apsw.SQLITE_OK

    def close(self) -> None:
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join()

    def _serve(self) -> None:
        connection = None
        while self._asked.get():
            with suppress(apsw.Error):
                connection = connection or open_writer(self._path)
                checkpoint(connection)
            self._copying = False
        if connection is not None:
            connection.close()
