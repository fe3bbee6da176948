"""In charge of noticing a disk that fills up, before a write has to fail."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from appliance.outside import Outside
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

LOOK_EVERY = SECOND  # a look costs a system call, and disks do not fill up faster than this margin

log = get_logger("disk")


@dataclass(slots=True)
class FreeSpace:
    """The free space where the database lies, against the operator's watermark."""

    directory: Path
    min_bytes: int  # 0: the watermark is off
    min_percent: float
    outside: Outside
    _looked_at: int = field(default=-LOOK_EVERY)
    _low: bool = field(default=False)

    def low(self) -> bool:
        """Whether new mail has to be refused for now; the log has a line when that begins and when it ends."""
        if self.min_bytes == 0 and not self._low:
            return False
        now = self.outside.now()
        if not 0 <= now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            self._look()
        return self._low

    def _look(self) -> None:
        facts = os.statvfs(self.directory)
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        needed = max(self.min_bytes, int(total * self.min_percent / 100)) if self.min_bytes else 0
        low = free < needed
        if low == self._low:
            return
        self._low = low
        say = log.warning if low else log.info
        event = "low on disk space: new mail is refused" if low else "enough disk space again: new mail is accepted"
        say(event, directory=str(self.directory), free_bytes=free, needed_bytes=needed)
