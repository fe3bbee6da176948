"""In charge of there being one server on a data directory: two would deliver the same mail twice."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_NAME = "appliance.lock"


TRIES = 4  # a look by `is_running` lasts for microseconds, and must not be taken for a server
PAUSE = 0.05  # seconds between two of them


class AlreadyRunning(Exception):
    """Another server works on this data directory."""


@contextmanager
def only_server(data_dir: Path) -> Iterator[None]:
    """Hold the directory's lock; the system lets go of it when the process ends, however it ends."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor):
            raise AlreadyRunning(f"{data_dir}: another server runs on this data directory; stop it first")
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(PAUSE)
    return False


def is_running(data_dir: Path) -> bool:
    """Whether a server runs on this directory now; nothing is created to find out."""
    try:
        descriptor = os.open(data_dir / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
