"""Cares for the files of the open database: copies, checkpoints, space, and files that lose their place.

- A copy is one read transaction, page by page; afterwards the log is checkpointed here, not by the server's writer.
- `Checkpoints` copies the log into the database on its own thread: a commit that does so takes 50 to 150 ms. The
  writer copies only at `CHECKPOINT_PAGES`, because the log restarts only after a checkpoint without writes.
- SQLite keeps writing to files that have lost their names, and those commits are lost with the process. So the server
  checks the files before it acknowledges, and every second; when one is not in its place, it ends.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import apsw
from msgspec import Struct

from appliance.errors import StorageFault
from appliance.store.engine import Engine, Slice, Tx, rows, timed
from appliance.store.sqlite.connection import (
    BUSY_TIMEOUT,
    CHECKPOINT_PAGES,
    Connection,
    new_inside,
    open_reader,
    open_writer,
)
from appliance.store.sqlite.faults import found_no_room
from appliance.system.data_directory import sync
from appliance.telemetry.log import get_logger

log = get_logger("store")

# ---- copies

COPY_STEP = 256  # pages (1 MiB) between two progress reports

_HOLD_THE_MOMENT = "SELECT count(*) FROM sqlite_master"
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # it blocks no writer and no reader

CopyProgress = Callable[[int, int], None]  # copied pages, all pages


def copy_inside(path: Path, target: Path, begin: int, on_progress: CopyProgress) -> None:
    """Copy the database into `target` from byte `begin` on; not synced."""
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


def checkpoint_file(path: Path) -> None:
    with closing(open_writer(path)) as connection:
        checkpoint(connection)


def checkpoint(connection: apsw.Connection) -> None:
    connection.execute(_CHECKPOINT).fetchall()


# ---- checkpoints

COPIED_AFTER_PAGES = 1_000  # pages in the log since the last copy: 4 MiB


class Checkpoints:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._at = 0  # pages in the log at the last request to copy
        self._copying = False
        self._failing = False  # the last copy failed
        self._thread: threading.Thread | None = None  # started when first needed

    def committed(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """Called after a commit, on its thread, with the pages in the log."""
        if pages >= CHECKPOINT_PAGES:
            self._copy(connection)
            self._at = 0
        elif pages < self._at:  # the log restarted
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
                self._copy(connection)
            self._copying = False
        if connection is not None:
            connection.close()

    def _copy(self, connection: apsw.Connection) -> None:
        """Copy the log; log a failure once, because the log then grows. A full disk is logged elsewhere."""
        try:
            checkpoint(connection)
        except apsw.Error as error:
            if not self._failing and isinstance(error, apsw.IOError) and not found_no_room(connection, error):
                self._failing = True
                log.error("the database's log cannot be copied into the database, and grows", reason=str(error))
        else:
            if self._failing:
                self._failing = False
                log.info("the database's log is copied into the database again")


# ---- space

FREE_SHARE = 0.2  # of the file may be free, and
FREE_BYTES = 64 * 1024 * 1024  # at least this much, before pages are released
LEFT_SHARE = 0.05  # of the file stays free for new rows

_USAGE = ("PRAGMA page_size", "PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA auto_vacuum")
_INCREMENTAL = 2


class Usage(Struct, frozen=True):
    page_size: int
    pages: int
    free_pages: int
    can_shrink: bool

    def to_give_back(self, *, at_once: bool) -> int:
        """Pages to release: none while few are free; `at_once`: all free pages."""
        if not self.can_shrink:
            return 0
        if at_once:
            return self.free_pages
        few = max(self.pages * FREE_SHARE, FREE_BYTES / self.page_size)
        return self.free_pages - int(self.pages * LEFT_SHARE) if self.free_pages > few else 0


def usage(tx: Tx) -> Usage:
    size, pages, free, mode = (int(rows(tx, query, {})[0][0]) for query in _USAGE)
    return Usage(size, pages, free, mode == _INCREMENTAL)


class Space:
    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._beside: Connection | None = None  # opened when first needed

    async def usage(self) -> Usage:
        return await self._engine.read(usage)

    async def give_back(self, pages: int) -> Slice:
        """Release free pages at the end; the next `settle` shortens the file."""

        def work(tx: Tx) -> int:
            before = usage(tx).pages
            rows(tx, f"PRAGMA incremental_vacuum({pages:d})", {})
            return before - usage(tx).pages

        result, seconds = await self._engine.write(timed(work), large=True)
        return Slice(result, seconds, more=result > 0)

    def settle(self) -> None:
        """Copy the log into the database, on a thread. On failure the log keeps everything."""
        with suppress(apsw.Error):
            self._beside = self._beside or open_writer(self._path)
            checkpoint(self._beside)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()


# ---- files that lose their place

MISSED = ".missed"  # suffix of the file with the identities of missed files
CHECK_FILES_EVERY = 1.0  # seconds, while there are no commits
CHECK_PAUSE = 0.02  # seconds between two checks at most; one before every commit took 3 % of accepting

Identity = tuple[int, ...]  # device and inode


class FilesMoved(StorageFault):
    """Files of the database are no longer in place; the text says which, and what to do."""


class FilesMissed(Exception):
    """A server stopped because database files were gone, and they are still missing; the text says what to do."""


class _Names(NamedTuple):
    directory: Identity | None
    database: Identity | None
    log: Identity | None
    shared: Identity | None


class FileWatch:
    """The files of a database since it was opened; later ones since they were first seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = _names(path)
        self._next_check = 0.0  # by the monotonic clock

    def in_place(self) -> bool:
        now = time.monotonic()
        if now < self._next_check:
            return True
        self._next_check = now + CHECK_PAUSE
        names = _names(self._path)
        self._opened = _Names(*(before or after for before, after in zip(self._opened, names, strict=True)))
        return names == self._opened

    def stop(self, connection: Connection) -> FilesMoved:
        """Copy the log into the database if that is safe, otherwise touch no file; return the fault."""
        now = _names(self._path)
        if now.directory != self._opened.directory:
            _leave_alone(connection)
            where = self._path.parent
            return FilesMoved(f"{where} was moved or replaced while the server ran: put it back, then start")
        what = f"{self._missing(now)} while the server ran"
        if now.database == self._opened.database and now.log == self._opened.log:
            _leave_alone(connection)  # a restart makes a new index from the log
            return FilesMoved(f"{what}; nothing is lost: start it again")
        if self._can_checkpoint(now) and _checkpointed(connection):
            return FilesMoved(f"{what}; what it held was saved: start it again")
        _leave_alone(connection)
        with suppress(OSError):
            _note(self._path).write_text(_identities(self._opened))
            sync(self._path.parent)
        return FilesMoved(f"{what}: put the files back, or restore the last backup")

    def _missing(self, now: _Names) -> str:
        results = zip(("", "-wal", "-shm"), self._opened[1:], now[1:], strict=True)
        names = [f"{self._path}{end}" for end, before, after in results if before != after]
        return f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} deleted or replaced"

    def _can_checkpoint(self, now: _Names) -> bool:
        """Whether no other process has created a log or an index."""
        is_ours = now.database == self._opened.database and now.shared in (self._opened.shared, None)
        return is_ours and _facts(f"{self._path}-wal", "st_size") in (None, (0,))


def refuse_missed(path: Path) -> None:
    """Raise FilesMissed unless the files that a server missed are back: the log of another database would do harm."""
    note = _note(path)
    if not note.exists():
        return
    if note.read_text() != _identities(_names(path)):
        how = f"put the same files back, or restore the last backup; or delete {note} to start with the present files"
        raise FilesMissed(f"its files were deleted or replaced while a server ran: {how}")
    note.unlink()


def _note(path: Path) -> Path:
    return Path(f"{path}{MISSED}")


def _identities(names: _Names) -> str:
    return repr((names.database, names.log))


def _names(path: Path) -> _Names:
    files = (path.parent, path, f"{path}-wal", f"{path}-shm")
    return _Names(*(_facts(file, "st_dev", "st_ino") for file in files))


def _facts(path: str | Path, *names: str) -> tuple[int, ...] | None:
    """These `os.stat` fields of a file; None if it does not exist."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return tuple(getattr(facts, name) for name in names)


def _leave_alone(connection: Connection) -> None:
    """Keep SQLite from copying the log, and from deleting it by name, on close."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _checkpointed(connection: Connection) -> bool:
    connection.set_busy_timeout(BUSY_TIMEOUT)  # for readers of an earlier state
    try:
        busy, logged, copied = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()[0]
    except apsw.Error:
        return False
    return not busy and logged == copied
