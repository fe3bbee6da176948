"""Makes a backup of an installation that may be running.

The file gets its name only once it is whole and on disk, and never replaces another.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from appliance import __version__, store
from appliance.backup import archive
from appliance.environment import Environment
from appliance.errors import error_text
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store import FILE_NAME, CopyProgress, DiskFault, DiskFull
from appliance.system.data_directory import sync, system_user
from appliance.times import SECOND, rfc3339

PAGES_PER_SYNC = 2_048  # 8 MiB
COPYING = 0.7  # share of the work; the rest is reading it again for the seal
UNFINISHED = ".unfinished"
ABANDONED_AFTER = 60.0  # seconds without a lock on an unfinished file
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class NotMade(Exception):
    """There is no backup; the text says why."""


def make(data_dir: Path, hostname: str, target: Path, env: Environment, on: archive.FractionDone) -> archive.Manifest:
    _refuse_existing(target)
    key = data_dir / KEY_FILE
    if not os.path.lexists(key) and store.has_secrets(data_dir / FILE_NAME):
        # A new key in the place of a lost one opens nothing: such a backup could never be restored.
        why = "is missing, and without it the secrets in the database are lost: put it back from the last backup"
        raise NotMade(f"{key} {why}")
    unfinished = target.with_name(f".backup.{os.getpid()}.{os.urandom(4).hex()}{UNFINISHED}")
    with _errors(unfinished, target):
        _remove_abandoned(target.parent)
        try:
            manifest = _write(data_dir, hostname, unfinished, env, on)
            _name(unfinished, target)
            sync(target.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    store.checkpoint_file(data_dir / FILE_NAME)
    return manifest


@contextmanager
def _errors(unfinished: Path, target: Path) -> Iterator[None]:
    """Turn errors of writing into NotMade: only the backup file is written to, so they are about it."""
    try:
        yield
    except DiskFull:
        raise NotMade(f"{target} cannot be written: no space left on its disk") from None
    except DiskFault as error:
        if not store.failed_writing(error):
            raise
        raise NotMade(f"{target} cannot be written: its disk refuses") from None
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(unfinished):
            raise
        why = error_text(error)
        if isinstance(error, PermissionError):
            user = system_user(os.geteuid())
            why = f"{user} may not write to {target.parent}; name a file in a directory of {user}"
        raise NotMade(f"{target} cannot be written: {why}") from None


def _remove_abandoned(directory: Path) -> None:
    """Remove the files of backups that were killed; a backup that still runs holds a lock on its file."""
    for left in directory.glob(f".backup.*{UNFINISHED}"):
        with suppress(OSError):
            if time.time() < left.lstat().st_mtime + ABANDONED_AFTER:
                continue
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(descriptor)


def _name(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)
    except FileExistsError:
        _refuse_existing(target)
        raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # A file system without hard links, such as a memory stick or a share.
        _refuse_existing(target)
        unfinished.rename(target)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise NotMade(f"{target} is there already: a backup never replaces a file")


def _write(data_dir: Path, hostname: str, path: Path, env: Environment, on: archive.FractionDone) -> archive.Manifest:
    key = load_or_create(data_dir)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        file.write(b"\0" * archive.BEGIN)
        file.flush()
        now = env.now()
        store.copy_inside(data_dir / FILE_NAME, path, archive.BEGIN, _copying(file.fileno(), on))
        size = os.fstat(file.fileno()).st_size - archive.BEGIN
        schema = store.schema_inside(path, archive.BEGIN, size)
        manifest = partial(archive.Manifest, archive.FORMAT, rfc3339(now), hostname, __version__, schema)
        made = archive.finish(file, key, manifest, now // SECOND, archive.share(on, COPYING, 1.0, size))
        file.flush()
        os.fsync(file.fileno())
    return made


def _copying(descriptor: int, on: archive.FractionDone) -> CopyProgress:
    """Report progress, and sync every few megabytes: one sync at the end would delay the server's commits (250 ms)."""
    synced = 0

    def progress(done: int, pages: int) -> None:
        nonlocal synced
        if done >= synced + PAGES_PER_SYNC:
            os.fdatasync(descriptor)
            synced = done
        on(COPYING * done / max(1, pages))

    return progress
