"""In charge of making a backup of an installation that may be running."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from appliance import __version__
from appliance.backup import archive
from appliance.keys.keyfile import KEY_FILE as KEY
from appliance.keys.keyfile import load_or_create
from appliance.outside import Outside
from appliance.store import FILE_NAME
from appliance.store.copying import Progress, copy_inside, relieve, sync
from appliance.store.faults import DiskFault, DiskFull, failed_writing
from appliance.store.integrity import has_secrets, schema_inside
from appliance.times import rfc3339

Fraction = Callable[[float], None]  # how much is done, from 0 to 1

SYNCED_TOGETHER = 2_048  # pages, 8 MiB
COPYING = 0.7  # share of the work; the rest is reading it again for the seal
UNFINISHED = ".unfinished"
ABANDONED = 60.0  # seconds after which a file nobody holds a lock on is taken for one
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class NotMade(Exception):
    """There is no backup; the text says why."""


def make(data_dir: Path, hostname: str, target: Path, outside: Outside, on: Fraction) -> archive.Manifest:
    """Write the backup; the file has its name only once it is whole and on disk, and never replaces another."""
    _refuse_existing(target)
    _refuse_without_key(data_dir)
    unfinished = target.with_name(f".backup.{os.getpid()}.{os.urandom(4).hex()}{UNFINISHED}")
    with _worded(unfinished, target):
        _sweep(target.parent)
        try:
            manifest = _write(data_dir, hostname, unfinished, outside, on)
            _name(unfinished, target)
            sync(target.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    relieve(data_dir / FILE_NAME)
    return manifest


def _refuse_without_key(data_dir: Path) -> None:
    """A new key in the place of a lost one opens nothing: such a backup could never be restored."""
    key = data_dir / KEY
    if not os.path.lexists(key) and has_secrets(data_dir / FILE_NAME):
        raise NotMade(
            f"{key} is missing, and without it the secrets in the database are lost: put it back from the last backup"
        )


@contextmanager
def _worded(unfinished: Path, target: Path) -> Iterator[None]:
    """Say of the backup's own file what goes wrong with it; only this one is written to, so it is what lacks room."""
    try:
        yield
    except DiskFull:
        raise NotMade(f"{target} cannot be written: no space left on its disk") from None
    except DiskFault as error:
        if not failed_writing(error):
            raise
        raise NotMade(f"{target} cannot be written: its disk refuses") from None
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(unfinished):
            raise
        raise NotMade(f"{target} cannot be written: {(error.strerror or str(error)).lower()}") from None


def _sweep(directory: Path) -> None:
    """Remove what others were killed over: whoever still writes holds a lock on it, a moment after making it."""
    for left in directory.glob(f".backup.*{UNFINISHED}"):
        with suppress(OSError):
            if time.time() < left.lstat().st_mtime + ABANDONED:
                continue
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(descriptor)


def _name(unfinished: Path, target: Path) -> None:
    """Give the file its name, unless another has that."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        _refuse_existing(target)
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # A memory stick or a share, whose files cannot have two names.
        _refuse_existing(target)
        unfinished.rename(target)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise NotMade(f"{target} is there already: a backup never replaces a file")


def _write(data_dir: Path, hostname: str, path: Path, outside: Outside, on: Fraction) -> archive.Manifest:
    key = load_or_create(data_dir)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        file.write(b"\0" * archive.BEGIN)
        file.flush()
        now = outside.now()
        copy_inside(data_dir / FILE_NAME, path, archive.BEGIN, _copying(file.fileno(), on))
        size = os.fstat(file.fileno()).st_size - archive.BEGIN
        schema = schema_inside(path, archive.BEGIN, size)
        made: list[archive.Manifest] = []

        def manifest(parts: dict[str, archive.Part]) -> archive.Manifest:
            made.append(archive.Manifest(archive.FORMAT, rfc3339(now), hostname, __version__, schema, parts))
            return made[0]

        archive.finish(file, key, manifest, now // 1_000_000, _share(on, COPYING, size))
        file.flush()
        os.fsync(file.fileno())
    return made[0]


def _copying(descriptor: int, on: Fraction) -> Progress:
    """Tell how far it is, and have what is written on disk every now and then.

    Left to the end, the sync of a whole database keeps every commit of the server waiting, for file systems write in
    order (measured: a quarter of a second for 300 MiB).
    """
    synced = 0

    def progress(done: int, pages: int) -> None:
        nonlocal synced
        if done >= synced + SYNCED_TOGETHER:
            os.fdatasync(descriptor)
            synced = done
        on(COPYING * done / max(1, pages))

    return progress


def _share(on: Fraction, begin: float, size: int) -> archive.Bytes:
    """Bytes as the rest of the work."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        on(begin + (1 - begin) * min(1.0, done / max(1, size)))

    return more
