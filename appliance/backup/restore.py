"""In charge of restoring a backup: verified first, put in place last, with all delivery paused.

What was due when the backup was made may have been sent since, so nothing goes out before somebody has looked.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.backup import archive
from appliance.backup.make import NO_LINKS
from appliance.backup.unfinished import BEFORE, DECIDED, STAGING, complete
from appliance.backup.verify import Verified, verify
from appliance.keys.keyfile import KEY_FILE as KEY
from appliance.model.queue import AllWaiting
from appliance.outside import Outside
from appliance.store import FILE_NAME as DATABASE
from appliance.store import open_store
from appliance.store.copying import sync
from appliance.store.faults import NO_ROOM, DiskFault, DiskFull, failed_writing
from appliance.store.file_watch import RESCUED
from appliance.store.pools import EVERY
from appliance.system.instance_lock import only_server

Fraction = Callable[[float], None]  # how much is done, from 0 to 1

VERIFYING = 0.7  # share of the work
KEPT = (DATABASE, f"{DATABASE}-wal", KEY, f"{DATABASE}{RESCUED}")  # not the log's index, which is made anew


class NotRestored(Exception):
    """Nothing was changed; the text says why."""


@dataclass(frozen=True, slots=True)
class Restored:
    """An installation as it was, and where what stood in its place has been put."""

    verified: Verified
    waiting: AllWaiting
    kept: Path | None


async def restore(path: Path, data_dir: Path, outside: Outside, on: Fraction, *, force: bool) -> Restored:
    """Put a backup into a data directory; with `force` also where there is a database, which is kept aside."""
    verified = verify(path, lambda done: on(VERIFYING * done))
    with only_server(data_dir):
        complete(data_dir)
        there = _there(data_dir)
        if there and not force:
            raise NotRestored(
                f"there is {there[0]} in {data_dir} already: use --force to put it aside, or name another data_dir"
            )
        with _worded(data_dir), _staging(data_dir) as staging:
            waiting = await _stage(path, verified, staging, outside, on)
            if there:
                _keep(data_dir, there, staging / BEFORE)
            os.rename(staging, data_dir / f"{DECIDED}{outside.now()}")  # from here on it is completed, whoever does it
            sync(data_dir)
            kept = complete(data_dir)
    return Restored(verified, waiting, kept)


@contextmanager
def _staging(data_dir: Path) -> Iterator[Path]:
    """A directory to work in, and none that another restore was killed over: the lock says that none is at work."""
    for left in data_dir.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=STAGING, dir=data_dir))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _worded(data_dir: Path) -> Iterator[None]:
    """Say which disk it is that has no room."""
    try:
        yield
    except DiskFault as error:
        if not isinstance(error, DiskFull) and not failed_writing(error):
            raise
        raise NotRestored(_no_room(data_dir)) from None
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise NotRestored(_no_room(data_dir)) from None


def _no_room(data_dir: Path) -> str:
    return f"no space left for it, or no quota: make room where {data_dir} lies, then restore it again"


def _there(data_dir: Path) -> list[str]:
    return [name for name in KEPT if os.path.lexists(data_dir / name)]


async def _stage(path: Path, verified: Verified, staging: Path, outside: Outside, on: Fraction) -> AllWaiting:
    """Everything in a directory of its own: the key, and the database, brought up to date and paused."""
    _write(staging / KEY, 0o400, verified.key)
    _extract(path, verified.size, staging / DATABASE, on)
    made = verified.manifest.created_at[:16].replace("T", " ")
    async with open_store(staging, outside, inline=True) as store:
        await store.pools.release(EVERY)  # a pause from before the backup has another reason, and an earlier time
        await store.pools.hold(EVERY, f"restored from a backup of {made} UTC")
        waiting = store.queue_control.totals()
    for file in (staging / DATABASE, staging / KEY, staging):
        sync(file)
    return waiting


def _write(path: Path, mode: int, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)


def _extract(path: Path, size: int, target: Path, on: Fraction) -> None:
    _write(target, 0o600, b"")
    with path.open("rb") as source, target.open("wb") as copy:
        source.seek(archive.BEGIN)
        left = size
        while left and (chunk := source.read(min(archive.CHUNK, left))):
            copy.write(chunk)
            left -= len(chunk)
            on(1 - (1 - VERIFYING) * left / size)


def _keep(data_dir: Path, there: list[str], kept: Path) -> None:
    """Have all of it in one directory, too; where a file cannot have two names it is copied."""
    kept.mkdir(mode=0o700)
    for name in there:
        try:
            os.link(data_dir / name, kept / name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copy2(data_dir / name, kept / name)
            sync(kept / name)
    for directory in (kept, kept.parent):
        sync(directory)
