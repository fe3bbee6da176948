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
from appliance.backup.unfinished import ASIDE, STAGING
from appliance.backup.verify import Verified, verify
from appliance.keyfile import FILE_NAME as KEY
from appliance.model import AllWaiting
from appliance.outside import Outside
from appliance.single import only_server
from appliance.store import FILE_NAME as DATABASE
from appliance.store import open_store
from appliance.store.copying import sync
from appliance.store.faults import NO_ROOM, DiskFault, DiskFull, failed_writing
from appliance.store.pools import EVERY

Fraction = Callable[[float], None]  # how much is done, from 0 to 1

VERIFYING = 0.7  # share of the work
REPLACED = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", KEY)  # a stale log would spoil another database


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
        there = _there(data_dir)
        if there and not force:
            raise NotRestored(
                f"there is {there[0]} in {data_dir} already: use --force to put it aside, or name another data_dir"
            )
        _sweep(data_dir)
        with _worded(data_dir), tempfile.TemporaryDirectory(prefix=STAGING, dir=data_dir) as staging:
            waiting = await _stage(path, verified, Path(staging), outside, on)
            kept = _put_aside(data_dir, there, outside) if there else None
            for name in (KEY, DATABASE):  # the database last: without it there is no installation yet
                os.rename(Path(staging) / name, data_dir / name)
            sync(data_dir)
    return Restored(verified, waiting, kept)


def _sweep(data_dir: Path) -> None:
    """Remove what a restore was killed over; nobody else is at work here."""
    for left in data_dir.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


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
    return [name for name in REPLACED if os.path.lexists(data_dir / name)]


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


def _put_aside(data_dir: Path, there: list[str], outside: Outside) -> Path:
    kept = data_dir / f"{ASIDE}{outside.now()}"
    kept.mkdir(mode=0o700)
    for name in there:
        shutil.move(data_dir / name, kept / name)
    return kept
