"""Completes restores that were killed after their commit point, and reports those killed before it.

A restore works in a directory inside the data directory, with everything that is to be put in place and links to
everything that is there now. Renaming that directory is the commit point: before it nothing was changed, and after it
each remaining step can be repeated by the next command or server. So database and log are together at every moment: in
place, or in the directory that keeps the old ones.
"""

import os
import shutil
from pathlib import Path

from appliance.keys.keyfile import KEY_FILE
from appliance.store import FILE_NAME as DATABASE
from appliance.store import MISSED
from appliance.system.data_directory import only_server, sync

# Prefixes of directories:
STAGING = "restoring-"  # before the commit point
DECIDED = "replacing-"  # after it, while files are put in place
ASIDE = "before-restore-"  # keeps the replaced files
BEFORE = "before"  # the name of the latter inside the former

# A stale log would corrupt another database. The database goes first: without it there is no installation.
REMOVED = tuple(f"{DATABASE}{end}" for end in ("", "-wal", "-shm", MISSED))


class RestoreInterrupted(Exception):
    """A restore into a new data directory was killed before its database was in place."""


def settle(data_dir: Path) -> None:
    """Complete a restore that was killed half-way; raises RestoreInterrupted if there is no database yet."""
    if any(data_dir.glob(f"{DECIDED}*")):
        with only_server(data_dir):
            complete(data_dir)
    if not (data_dir / DATABASE).exists() and any(data_dir.glob(f"{STAGING}*")):
        what = f"a restore into {data_dir} was interrupted"
        raise RestoreInterrupted(f"{what}: run `appliance restore --force` with the backup again")


def complete(data_dir: Path) -> Path | None:
    """Complete a decided restore, under the instance lock; where the replaced files are kept."""
    kept = None
    for decided in sorted(data_dir.glob(f"{DECIDED}*")):
        kept = _complete(data_dir, decided)
    return kept


def _complete(data_dir: Path, decided: Path) -> Path | None:
    if (decided / DATABASE).exists():  # else it is in its place already
        for name in REMOVED:
            (data_dir / name).unlink(missing_ok=True)
        sync(data_dir)  # the old log must not reappear next to the new database
        if (decided / KEY_FILE).exists():
            os.rename(decided / KEY_FILE, data_dir / KEY_FILE)
        os.rename(decided / DATABASE, data_dir / DATABASE)
        sync(data_dir)
    kept = data_dir / f"{ASIDE}{decided.name.removeprefix(DECIDED)}"
    if (decided / BEFORE).exists():
        os.rename(decided / BEFORE, kept)
    shutil.rmtree(decided)
    sync(data_dir)
    return kept if kept.exists() else None
