"""Opens databases that lie inside another file, from some byte of it on: so a backup needs no second copy."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from appliance.store.sqlite.connection import Connection

_VFS = "appliance-inside"


class _Part(apsw.VFSFile):
    """The file from its `begin`-th byte on, `size` bytes of it if that is known: then only to be read."""

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
        return False  # hints for the file as a whole


class _Inside(apsw.VFS):
    """A file system whose one file begins somewhere inside another."""

    def __init__(self, begin: int, size: int | None) -> None:
        super().__init__(_VFS, "")
        self._begin, self._size = begin, size

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return apsw.VFSFile("", name, flags)  # what SQLite keeps aside, such as a sorter's temporary file
        return _Part(name, flags, self._begin, self._size)


@contextmanager
def new_inside(path: Path, begin: int) -> Iterator[Connection]:
    """An empty database to be filled, in a file that has `begin` bytes already."""
    with _opened(str(path), begin, None, apsw.SQLITE_OPEN_READWRITE) as connection:
        # The contents count only once the whole file has been synced and given its name.
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
