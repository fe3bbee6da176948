"""Restores that were killed: one that was decided is completed by the next start of anything, one before that is told.

A restore works in a directory of its own, inside the data directory. It holds everything that is to be put in place,
and links to everything that stands there now. Renaming it is the decision: before that nothing was changed, and after
it each step that is left can be repeated by the next command or server. So database and log are together at every
moment: in their place, or in what is kept.
"""

import os
import shutil
from pathlib import Path

from appliance.keys.keyfile import KEY_FILE as KEY
from appliance.store import FILE_NAME as DATABASE
from appliance.store.copying import sync
from appliance.store.file_watch import RESCUED
from appliance.system.instance_lock import only_server

STAGING = "restoring-"  # how directories begin in which a backup is made ready
DECIDED = "replacing-"  # those whose content is being put in place
ASIDE = "before-restore-"  # and those in which what stood in its place is kept
BEFORE = "before"  # the last of these, while it is inside the second

# A stale log would spoil another database. The database is first: without it there is no installation.
REMOVED = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}{RESCUED}")


class Interrupted(Exception):
    """A restore into a new data directory was killed before its database was in place."""


def settle(data_dir: Path) -> None:
    """Complete a restore that was killed half-way; raises Interrupted if it was killed before there was a database."""
    if any(data_dir.glob(f"{DECIDED}*")):
        with only_server(data_dir):
            complete(data_dir)
    if not (data_dir / DATABASE).exists() and any(data_dir.glob(f"{STAGING}*")):
        raise Interrupted(
            f"a restore into {data_dir} was interrupted: run `appliance restore --force` with the backup again"
        )


def complete(data_dir: Path) -> Path | None:
    """Put in place what was decided, by a caller that has the data directory for itself; where the rest is kept."""
    kept = None
    for decided in sorted(data_dir.glob(f"{DECIDED}*")):
        kept = _complete(data_dir, decided)
    return kept


def _complete(data_dir: Path, decided: Path) -> Path | None:
    if (decided / DATABASE).exists():  # else it is in its place already
        for name in REMOVED:
            (data_dir / name).unlink(missing_ok=True)
        sync(data_dir)  # the old log must not come back beside the new database
        if (decided / KEY).exists():
            os.rename(decided / KEY, data_dir / KEY)
        os.rename(decided / DATABASE, data_dir / DATABASE)
        sync(data_dir)
    kept = data_dir / f"{ASIDE}{decided.name.removeprefix(DECIDED)}"
    if (decided / BEFORE).exists():
        os.rename(decided / BEFORE, kept)
    shutil.rmtree(decided)
    sync(data_dir)
    return kept if kept.exists() else None
