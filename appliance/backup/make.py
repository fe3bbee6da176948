"""In charge of making a backup of an installation that may be running."""

import os
from collections.abc import Callable
from pathlib import Path

from appliance import __version__
from appliance.backup import archive
from appliance.events import rfc3339
from appliance.keyfile import load_or_create
from appliance.outside import Outside
from appliance.store import FILE_NAME
from appliance.store.copying import Progress, copy_inside, relieve, sync
from appliance.store.examine import schema_inside

Fraction = Callable[[float], None]  # how much is done, from 0 to 1

SYNCED_TOGETHER = 2_048  # pages, 8 MiB
COPYING = 0.7  # share of the work; the rest is reading it again for the seal


class NotMade(Exception):
    """There is no backup; the text says why."""


def make(data_dir: Path, hostname: str, target: Path, outside: Outside, on: Fraction) -> archive.Manifest:
    """Write the backup; the file has its name only once it is whole and on disk, and never replaces another."""
    _refuse_existing(target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        manifest = _write(data_dir, hostname, unfinished, outside, on)
        try:
            os.link(unfinished, target)
        except FileExistsError:
            _refuse_existing(target)
            raise
        sync(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    relieve(data_dir / FILE_NAME)
    return manifest


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise NotMade(f"{target} is there already: a backup never replaces a file")


def _write(data_dir: Path, hostname: str, path: Path, outside: Outside, on: Fraction) -> archive.Manifest:
    key = load_or_create(data_dir)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
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
