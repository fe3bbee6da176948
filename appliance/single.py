"""In charge of there being one server on a data directory: two would deliver the same mail twice."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_NAME = "appliance.lock"


class AlreadyRunning(Exception):
    """Another server works on this data directory."""


@contextmanager
def only_server(data_dir: Path) -> Iterator[None]:
    """Hold the directory's lock; the system lets go of it when the process ends, however it ends."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"{data_dir}: another server runs on this data directory; stop it first") from None
        yield
    finally:
        os.close(descriptor)
