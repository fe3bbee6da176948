"""Allows only one server on a data directory: two would deliver the same mail twice.

The lock is on the directory itself, because a deleted lock file would lock nothing. The lock file is locked as well,
for earlier versions and for file systems that cannot lock directories.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOCK_FILE = "appliance.lock"
NO_DIRECTORY_LOCKS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.EOPNOTSUPP)  # NFS and others
LOCK_TRIES = 4  # `is_running` holds the lock for microseconds, and must not look like a server
LOCK_PAUSE = 0.05  # seconds between two tries


class AlreadyRunning(Exception):
    """Another server runs on this data directory."""


@contextmanager
def only_server(data_dir: Path) -> Iterator[None]:
    """Hold the directory's locks; the system releases them when the process ends."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as locks:
        for path, flags in ((data_dir, os.O_RDONLY), (data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT)):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            locks.callback(os.close, descriptor)
            for _ in range(LOCK_TRIES):
                if _try(descriptor, fcntl.LOCK_EX):
                    break
                time.sleep(LOCK_PAUSE)
            else:
                how = "stop it first, for the service with `systemctl stop appliance`"
                raise AlreadyRunning(f"{data_dir}: another server runs on this data directory; {how}")
        yield


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_DIRECTORY_LOCKS:
            raise
    return True


def is_running(data_dir: Path) -> bool:
    """Whether a server runs on this directory now; creates nothing."""
    for path in (data_dir, data_dir / LOCK_FILE):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if not _try(descriptor, fcntl.LOCK_SH):
                return True
        finally:
            os.close(descriptor)
    return False
