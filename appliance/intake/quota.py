"""How many bytes one account may keep: `limits.stored_bytes_per_account`, which accepting a message asks for.

A share is one of all that mail may fill: what is free on the file system of the database, with what the database takes
already, down to the watermark below which all mail is refused. So one account alone never brings the disk to it.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config.values import MIB, Share
from appliance.system.free_space import FreeSpace

LOOK_EVERY = 10_000_000  # microseconds; a look costs three system calls
DATABASE = ("appliance.db", "appliance.db-wal")  # what counts as free, though it is not
LEAST = 64 * MIB  # a share is never less: on a disk that small the watermark has to do


@dataclass(slots=True)
class Quota:
    """The quota of every account."""

    setting: Share
    free_space: FreeSpace
    _looked_at: int = field(default=-LOOK_EVERY)
    _share: int = 0

    def bytes(self) -> int | None:
        """What an account may keep now; None: any amount."""
        if not self.setting.percent:
            return self.setting.bytes or None
        now = self.free_space.outside.now()
        if not 0 <= now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            self._share = share_of(self.setting.percent, self._fillable())
        return self._share

    def adopt(self, setting: Share) -> None:
        """Work by this setting from now on."""
        self.setting, self._looked_at = setting, -LOOK_EVERY

    def _fillable(self) -> int:
        facts, space = os.statvfs(self.free_space.directory), self.free_space
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        watermark = max(space.min_bytes, int(total * space.min_percent) // 100) if space.min_bytes else 0
        return free + sum(_size(space.directory / name) for name in DATABASE) - watermark


def share_of(percent: int, fillable: int) -> int:
    """So much of what mail may fill. PURE."""
    return max(LEAST, fillable * percent // 100)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
