"""Free disk space against a watermark, so that new mail is refused before writes begin to fail."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from appliance.outside import Outside
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

SPACE_CHECK_INTERVAL = SECOND  # a check costs a system call; the watermark leaves room for what a second brings

log = get_logger("disk")


@dataclass(slots=True)
class FreeSpace:
    """The free space of the database's file system, against the operator's watermark."""

    directory: Path
    min_bytes: int  # 0: the watermark is off
    min_percent: float
    outside: Outside
    _checked_at: int = field(default=-SPACE_CHECK_INTERVAL)
    _low: bool = field(default=False)

    def low(self) -> bool:
        """Whether new mail has to be refused; the log says when that begins and ends."""
        if self.min_bytes == 0 and not self._low:
            return False
        now = self.outside.now()
        if not 0 <= now - self._checked_at < SPACE_CHECK_INTERVAL:
            self._checked_at = now
            self._check()
        return self._low

    def _check(self) -> None:
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
