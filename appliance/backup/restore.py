"""Restores a backup: verified first, put in place last, with all delivery paused.

Mail that was due when the backup was made may have been sent since, so nothing is sent before the operator resumes.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from appliance.backup import archive
from appliance.backup.archive import Verified, verify
from appliance.backup.make import NO_HARD_LINKS
from appliance.backup.unfinished import BEFORE, DECIDED, STAGING, complete
from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE
from appliance.model.queue import AllWaiting
from appliance.store import FILE_NAME as DATABASE
from appliance.store import MISSED, NO_SPACE_ERRNOS, DiskFault, DiskFull, failed_writing, open_store
from appliance.store.pools import EVERY, RESTORED
from appliance.system.data_directory import become_owner, only_server, sync

VERIFYING = 0.7  # share of the work
# SQLite recreates -shm.
REPLACED_FILES = (*(f"{DATABASE}{end}" for end in ("", "-wal", MISSED)), KEY_FILE)


class NotRestored(Exception):
    """Nothing was changed; the text says why."""


class Restored(Struct, frozen=True):
    verified: Verified
    waiting: AllWaiting
    kept: Path | None


async def restore(path: Path, data_dir: Path, env: Environment, on: archive.FractionDone, *, force: bool) -> Restored:
    """Put a backup into a data directory; with `force` also where there is a database, which is moved aside."""
    with path.open("rb") as source:  # by root, if that restores it: the owner of the directory need not be able to
        verified = verify(path, lambda done: on(VERIFYING * done))
        become_owner(data_dir)
        return await _restore(source, verified, data_dir, env, on, force=force)


async def _restore(
    source: BinaryIO, verified: Verified, data_dir: Path, env: Environment, on: archive.FractionDone, *, force: bool
) -> Restored:
    with only_server(data_dir):
        complete(data_dir)
        there = _there(data_dir)
        if there and not force:
            how = "use --force to put it aside; it is kept in a directory before-restore-…"
            raise NotRestored(f"there is {there[0]} in {data_dir} already: {how}")
        with _errors(data_dir), _staging(data_dir) as staging:
            waiting = await _stage(source, verified, staging, env, on)
            if there:
                _keep(data_dir, there, staging / BEFORE)
            # From here on any start of the program completes it.
            os.rename(staging, data_dir / f"{DECIDED}{env.now()}")
            sync(data_dir)
            kept = complete(data_dir)
    return Restored(verified, waiting, kept)


def _there(data_dir: Path) -> list[str]:
    return [name for name in REPLACED_FILES if os.path.lexists(data_dir / name)]


@contextmanager
def _staging(data_dir: Path) -> Iterator[Path]:
    """A directory to work in; those of restores that were killed are removed, since the lock excludes running ones."""
    for left in data_dir.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=STAGING, dir=data_dir))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _errors(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except (*DiskFault, OSError) as error:
        no_room = isinstance(error, OSError) and error.errno in NO_SPACE_ERRNOS
        if not no_room and not isinstance(error, DiskFull) and not failed_writing(error):
            raise
        text = f"no space left for it, or no quota: make room where {data_dir} lies, then restore it again"
        raise NotRestored(text) from None


async def _stage(
    source: BinaryIO, verified: Verified, staging: Path, env: Environment, on: archive.FractionDone
) -> AllWaiting:
    _write(staging / KEY_FILE, 0o400, [verified.key])
    source.seek(archive.BEGIN)
    more = archive.share(on, VERIFYING, 1.0, verified.size)
    _write(staging / DATABASE, 0o600, archive.chunks(source, verified.size, more))
    made = verified.manifest.created_at[:16].replace("T", " ")
    async with open_store(staging, env, inline=True) as store:
        await store.pools.release(EVERY)  # an earlier pause has another reason and time
        await store.pools.hold(EVERY, f"{RESTORED} from a backup of {made} UTC")
        waiting = await store.queue_control.totals()
    for file in (staging / DATABASE, staging / KEY_FILE, staging):
        sync(file)
    return waiting


def _write(path: Path, mode: int, chunks: Iterable[bytes]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.writelines(chunks)


def _keep(data_dir: Path, there: list[str], kept: Path) -> None:
    """Link the present files into one directory; copy them where there are no hard links."""
    kept.mkdir(mode=0o700)
    for name in there:
        try:
            os.link(data_dir / name, kept / name)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            shutil.copy2(data_dir / name, kept / name)
            sync(kept / name)
    sync(kept)
    sync(kept.parent)
