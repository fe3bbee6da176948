"""In charge of hearing that the disk has failed, on whichever connection and thread: SQLite says it in its log.

Its callers are not told of everything. When a checkpoint cannot be synced, the commit around it succeeds all the same;
and a damaged page is an error of the one statement that met it. To us both mean that the process must not go on.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

UNSYNCED = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
DAMAGED = (apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk, within the user's quota, in one file

_PLACE_IN_SQLITE = re.compile(r"^os_unix\.c:\d+: \(\d+\) | - $")


class StorageFault(Exception):
    """Nobody can say any more what is on disk, so the process must not go on."""


class Unsynced(StorageFault):
    """A sync failed. The system then forgets what it could not write, so trying again would prove nothing."""


class PagesDamaged(StorageFault):
    """A page of the database is not what was written there."""


def found_no_room(connection: apsw.Connection, error: apsw.Error) -> bool:
    """Whether this last error of the connection is a write that found no room: a plain "no", to be tried again later.

    SQLite calls only ENOSPC "full"; a quota that is used up is an I/O error of a write to it. Either way the frame that
    would have made the commit valid is not in the log.
    """
    if isinstance(error, apsw.FullError):
        return True
    is_write = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
    return is_write and connection.system_errno in NO_ROOM


OnFault = Callable[[StorageFault], None]

_listeners: list[OnFault] = []


@contextmanager
def heard_by(on_fault: OnFault) -> Iterator[None]:
    """Have faults told as long as this lasts: at once, on the thread that met them, so do little and do not wait."""
    _listeners.append(on_fault)
    try:
        yield
    finally:
        _listeners.remove(on_fault)


def _hear(code: int, text: str) -> None:
    fault = _fault(code, text)
    if fault is not None:
        for on_fault in list(_listeners):
            on_fault(fault)


def _fault(code: int, text: str) -> StorageFault | None:
    if code in UNSYNCED:
        return Unsynced(f"the database could not be synced: {_PLACE_IN_SQLITE.sub('', text)} failed")
    if code & 0xFF in DAMAGED:
        return PagesDamaged(f"the database is damaged: {text}")
    return None


apsw.config(apsw.SQLITE_CONFIG_LOG, _hear)  # for the whole process, and only possible before SQLite is first used
