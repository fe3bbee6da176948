"""In charge of room for the index of the write-ahead log, taken before a full disk could deny it.

SQLite lets that file grow as the log does, and only after a commit is in the log and synced. Without room for it then,
nobody knows whether the commit counts, and the process would have to end where "no" was the right answer.
"""

import os
from contextlib import suppress
from pathlib import Path

# 32 KiB for every 4,096 pages of the log: enough for 64 MiB of it, twice of what is there before a checkpoint.
BYTES = 4 * 32 * 1024


class IndexRoom:
    """The room beside an open database. A disk that is full already may well be full of other things: then it is less.

    To be closed after every connection to the database, because closing any descriptor of a file drops all locks that
    this process has on it (POSIX).
    """

    def __init__(self, database: Path) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(f"{database}-shm", os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(self._descriptor).st_size
            # Only what lies beyond the end: what is before it, others may be writing.
            if size < BYTES and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, size, BYTES - size)

    def close(self) -> None:
        """Let the file go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
