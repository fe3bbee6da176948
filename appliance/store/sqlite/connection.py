"""Opens the database file with its settings and permissions, and reserves space for the index of the log.

SQLite grows that index (`-shm`) only after it has synced a commit to the log. If the disk is full at that moment, it is
unknown whether the commit succeeded, and the process must end. Therefore the space is reserved in advance.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

import appliance.store.sqlite.faults  # noqa: F401 - it has to listen before anything is opened
from appliance.store.engine import HAS_ANY_OWNER, IS_OWNED, VALUE, Bindings, Bulk, Row

BUSY_TIMEOUT = 5_000  # milliseconds another process (the shell's commands) may hold the write lock
JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024  # bytes the write-ahead log keeps on disk after a checkpoint
CHECKPOINT_PAGES = 8_000  # 32 MiB of log before a checkpoint: fewer and cheaper checkpoints than the default

_SETTINGS = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT}",
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    # Savepoints journal every page they touch; in a temporary file that doubled the writes of a message.
    "PRAGMA temp_store = MEMORY",
)
# Lets retention release space, a few pages at a time. Works only in an empty file.
_SHRINKABLE = "PRAGMA auto_vacuum = INCREMENTAL"
_WRITER_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # NORMAL would sync nothing at commit under WAL
    f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT}",
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
)


class Buffers(NamedTuple):
    """Memory of each connection."""

    cache_kib: int  # for pages
    pieces: int  # of _PIECE bytes, for SQLite's small, short-lived values
    statements: int  # prepared ones that the writer keeps: a bulk statement needs one per number of rows


_PIECE = 1_200
# The inner pages of every index at a million messages; what prepared statements keep; and APSW's maximum of them. With
# SQLite's default of a hundred pieces, values come from the system's allocator, which costs a tenth of storing mail.
_SERVER = Buffers(16 * 1024, 2_400, 512)
_LITTLE = Buffers(512, 200, 100)


def _configure(buffers: Buffers) -> Buffers:
    """Set what holds for the whole process, while SQLite is shut down. Counting allocated bytes would take a lock."""
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)
    apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, _PIECE, buffers.pieces)
    apsw.initialize()
    return buffers


_buffers = _configure(_SERVER)


def use_little_memory() -> None:
    """Spare 10 MB at rest, and 32 MB with ten thousand messages, for a tenth more CPU. Before a database is opened."""
    global _buffers
    if not apsw.connections():
        _buffers = _configure(_LITTLE)


def _settings() -> tuple[str, ...]:
    return f"PRAGMA cache_size = -{_buffers.cache_kib}", *_SETTINGS


MOST_ROWS = 16  # per statement; more gain nothing
# Every short length, but few long ones: each length needs its own prepared statement.
_LENGTHS = (*range(1, 9), MOST_ROWS)
_LONGEST = [max((length for length in _LENGTHS if length <= left), default=0) for left in range(MOST_ROWS + 1)]

_gathered = msgspec.json.Decoder(list[Row])
_texts: dict[Bulk, dict[int, str]] = {}  # by the number of rows


class Connection(apsw.Connection):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for function in (IS_OWNED, HAS_ANY_OWNER):  # the only node owns every row
            self.create_scalar_function(function, lambda *_: 1, 1, deterministic=True)

    def many(self, statement: Bulk, values: Sequence[Row], /) -> list[Row]:
        results: list[Row] = []
        texts, done = _texts.get(statement) or _texts_of(statement), 0
        while left := len(values) - done:
            length = _LONGEST[min(left, MOST_ROWS)]
            flat = tuple(chain.from_iterable(values[done : done + length]))
            results += self.execute(texts[length], flat).fetchall()
            done += length
        return results

    def count_many(self, statement: Bulk, values: Sequence[Row], /) -> int:
        before = self.total_changes()
        self.many(statement, values)
        return self.total_changes() - before

    def gather(self, sql: str, columns: str, bindings: Bindings, /) -> list[Row]:
        """In one step, as JSON: a thread takes the interpreter lock at every row."""
        query = f"SELECT json_group_array(json_array({columns})) FROM ({sql})"
        ((selected,),) = self.execute(query, bindings).fetchall()
        return _gathered.decode(str(selected))

    def lock(self, statement: Bulk, values: Sequence[Row], /) -> None:
        """Nothing to do: a transaction that writes is alone."""


def _texts_of(statement: Bulk) -> dict[int, str]:
    row = VALUE.sub("?", statement.row)
    texts = {length: statement.before + ", ".join([row] * length) + statement.after for length in _LENGTHS}
    return _texts.setdefault(statement, texts)


def open_writer(path: Path) -> Connection:
    """Open (or create) the database for writing, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives the log and its index the permissions of the main file, so creating that one 0600 settles all three.
    # Only when it is missing: closing a descriptor of a file drops every lock this process has on it (POSIX).
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=_buffers.statements)
    new = (_SHRINKABLE,) if path.stat().st_size == 0 else ()
    for setting in _settings() + new + _WRITER_SETTINGS:
        _apply(connection, setting)
    return connection


def set_sync(connection: apsw.Connection, level: str) -> None:
    """Set when commits sync the log: FULL, each of them; NORMAL, none. Only between transactions."""
    # SQLite sets it while it compiles the statement, so a cached one would change nothing.
    connection.execute(f"PRAGMA synchronous = {level}", can_cache=False)


def open_reader(path: Path) -> Connection:
    """Open an existing database for reading only; under WAL it never waits for the writer."""
    connection = Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for setting in _settings():
        _apply(connection, setting)
    return connection


def open_fixed(path: Path) -> Connection:
    """Open a database to read one unchanging state, while no other process can write."""
    connection = Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for setting in (*_settings(), "BEGIN IMMEDIATE", "PRAGMA query_only = ON"):
            _apply(connection, setting)
    except apsw.Error:
        connection.close()
        raise
    return connection


def _apply(connection: apsw.Connection, setting: str) -> None:
    """Retry while busy: SQLite does not wait for a process that switches a new file to WAL."""
    deadline = time.monotonic() + BUSY_TIMEOUT / 1_000
    while True:
        try:
            connection.execute(setting).fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


# ---- databases that lie inside another file: so a backup needs no second copy

_VFS = "appliance-inside"


class _Part(apsw.VFSFile):
    """A file from byte `begin` on; with `size`, read-only."""

    def __init__(self, name: str | apsw.URIFilename, flags: list[int], begin: int, size: int | None) -> None:
        super().__init__("", name, flags)
        self._begin, self._size = begin, size

    def xRead(self, amount: int, offset: int) -> bytes:
        results = super().xRead(amount, offset + self._begin)
        return results if self._size is None else results[: max(0, self._size - offset)]

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset + self._begin)

    def xFileSize(self) -> int:
        return max(0, super().xFileSize() - self._begin) if self._size is None else self._size

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize + self._begin)

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False  # hints about the whole file


class _Inside(apsw.VFS):
    def __init__(self, begin: int, size: int | None) -> None:
        super().__init__(_VFS, "")
        self._begin, self._size = begin, size

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return apsw.VFSFile("", name, flags)  # SQLite's temporary files
        return _Part(name, flags, self._begin, self._size)


@contextmanager
def new_inside(path: Path, begin: int) -> Iterator[Connection]:
    """An empty database to fill, in a file that already has `begin` bytes."""
    with _opened(str(path), begin, None, apsw.SQLITE_OPEN_READWRITE) as connection:
        # The file counts only once it is synced and has its name.
        connection.execute("PRAGMA journal_mode = OFF").fetchall()
        connection.execute("PRAGMA synchronous = OFF").fetchall()
        yield connection


@contextmanager
def open_inside(path: Path, begin: int, size: int) -> Iterator[Connection]:
    """Open the database in these bytes of a file, read-only; no other file is written."""
    name = f"{path.resolve().as_uri()}?immutable=1"
    with _opened(name, begin, size, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI) as connection:
        connection.execute("PRAGMA trusted_schema = OFF").fetchall()
        connection.execute("PRAGMA cell_size_check = ON").fetchall()
        yield connection


@contextmanager
def _opened(name: str, begin: int, size: int | None, flags: int) -> Iterator[Connection]:
    system = _Inside(begin, size)
    try:
        with closing(Connection(name, flags=flags, vfs=_VFS)) as connection:
            yield connection
    finally:
        system.unregister()


# ---- space for the index of the write-ahead log

# 32 KiB for every 4,096 pages of the log: enough for 64 MiB, twice the size of the log before a checkpoint.
INDEX_BYTES = 4 * 32 * 1024


class ReservedIndex:
    """Reserves the space. Close it last: closing any descriptor of a file drops this process's locks on it (POSIX)."""

    def __init__(self, database: Path) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(f"{database}-shm", os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(self._descriptor).st_size
            # Only beyond the end: others may be writing before it.
            if size < INDEX_BYTES and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, size, INDEX_BYTES - size)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
