"""The disk: free space against a watermark, so that new mail is refused before writes begin to fail; private files."""

import os
from dataclasses import dataclass
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
    _checked_at: int = -SPACE_CHECK_INTERVAL
    _low: bool = False

    def low(self) -> bool:
        """Whether new mail has to be refused; the log says when that begins and ends."""
        if self.min_bytes == 0 and not self._low:
            return False
        now = self.outside.now()
        if 0 <= now - self._checked_at < SPACE_CHECK_INTERVAL:
            return self._low
        self._checked_at = now
        facts = os.statvfs(self.directory)
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        needed = max(self.min_bytes, int(total * self.min_percent / 100)) if self.min_bytes else 0
        before, self._low = self._low, free < needed
        fields = {"directory": str(self.directory), "free_bytes": free, "needed_bytes": needed}
        if self._low and not before:
            log.warning("low on disk space: new mail is refused", **fields)
        elif before and not self._low:
            log.info("enough disk space again: new mail is accepted", **fields)
        return self._low


def write_private_file(file: Path, content: bytes) -> None:
    """Write a small file that only its owner may read: whole or not at all, and synced to disk."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    draft.rename(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # else a crash could bring the old name back
    finally:
        os.close(directory)
