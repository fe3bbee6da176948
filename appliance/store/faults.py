"""In charge of the names by which other floors know what SQLite itself refuses: a damaged, locked or foreign file."""

import apsw

from appliance.store.batch import translated
from appliance.store.disk_faults import NO_ROOM, PagesDamaged
from appliance.store.integrity import Damaged

__all__ = ["NO_ROOM", "DamagedDatabase", "DatabaseFault", "DiskFault", "DiskFull", "failed_writing", "translated"]

DatabaseFault = apsw.Error
DamagedDatabase = (apsw.CorruptError, apsw.NotADBError, Damaged, PagesDamaged)
DiskFull = apsw.FullError
DiskFault = (apsw.FullError, apsw.IOError, apsw.CantOpenError)


def failed_writing(error: Exception) -> bool:
    """Whether it was a file that could not be written, and not one that could not be read."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
