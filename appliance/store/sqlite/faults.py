"""Faults of storage: SQLite's errors under names for other packages, and the report that the disk has failed.

SQLite tells its log more than its callers. When a checkpoint cannot be synced, the commit around it succeeds all the
same; and a damaged page is an error of the one statement that met it. Both mean that the process must end, on
whichever connection and thread they occur.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from appliance.errors import StorageFault
from appliance.store.engine import OnFault, busy
from appliance.telemetry.log import log_without_traceback

UNSYNCED = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
DAMAGED = (apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB)
NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk, within the user's quota, in one file

_PLACE_IN_SQLITE = re.compile(r"^os_unix\.c:\d+: \(\d+\) | - $")


class Unsynced(StorageFault):
    """A sync failed. The system has forgotten the unwritten data, so a retry would prove nothing."""


class PagesDamaged(StorageFault):
    """A page of the database does not hold the data that was written."""


class Damaged(Exception):
    """The database is damaged or not an appliance's; the text says which."""


# Other packages know SQLite's errors by these names.
DatabaseFault = apsw.Error
DamagedDatabase = (apsw.CorruptError, apsw.NotADBError, Damaged, PagesDamaged)
DiskFull = apsw.FullError
DiskFault = (apsw.FullError, apsw.IOError, apsw.CantOpenError)

# Full, locked, failing or damaged, or no memory: no request is at fault, and none of it is on disk.
_WITHOUT_MEMORY = (MemoryError, apsw.NoMemError)
_BUSY_OR_FAILING = (apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError)
_STORAGE_ERRORS = _WITHOUT_MEMORY + _BUSY_OR_FAILING
log_without_traceback(*_STORAGE_ERRORS)


def translated(error: Exception) -> Exception:
    """Translate SQLite's refusals into one that the API can answer; return other errors unchanged."""
    if not isinstance(error, _STORAGE_ERRORS):
        return error
    refusal = busy()
    refusal.__cause__ = error
    return refusal


def failed_writing(error: Exception) -> bool:
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE


def found_no_room(connection: apsw.Connection, error: apsw.Error) -> bool:
    """Whether a write failed for lack of space (disk or quota): nothing was committed, and a retry is safe."""
    is_full = isinstance(error, apsw.FullError)
    return is_full or (failed_writing(error) and connection.system_errno in NO_SPACE_ERRNOS)


_listeners: list[OnFault] = []


@contextmanager
def heard_by(on_fault: OnFault) -> Iterator[None]:
    """Report faults inside, on the thread that met them: do little, and do not wait."""
    _listeners.append(on_fault)
    try:
        yield
    finally:
        _listeners.remove(on_fault)


def _hear(code: int, text: str) -> None:
    fault: StorageFault
    if code in UNSYNCED:
        fault = Unsynced(f"the database could not be synced: {_PLACE_IN_SQLITE.sub('', text)} failed")
    elif code & 0xFF in DAMAGED:
        fault = PagesDamaged(f"the database is damaged: {text}")
    else:
        return
    for on_fault in list(_listeners):
        on_fault(fault)


apsw.config(apsw.SQLITE_CONFIG_LOG, _hear)  # for the whole process, and only possible before SQLite is first used
