"""The limits of intake: request rate per credential, stored bytes per account, and free disk space.

`Quota` enforces `limits.stored_bytes_per_account`. A percentage applies to the space that mail may fill: free space
plus the database, down to the watermark below which all mail is refused. So one account cannot reach the watermark.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config.values import MIB, Share
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

BUCKETS = 10_000  # credentials; the least recently used are dropped, whose buckets are full again
SHARE_KEPT = 10_000_000  # microseconds; the share takes three system calls
DATABASE_FILES = ("appliance.db", "appliance.db-wal")  # count as free
SHARE_STEP = 64 * MIB  # bytes: rounding, so that the shown share does not change with every write
LEAST_SHARE = 64 * MIB  # on smaller disks only the watermark applies

SPACE_CHECK_INTERVAL = SECOND  # the watermark leaves room for the mail of a second

log = get_logger("disk")


READS_PER_WRITE = 10  # allowed reads per allowed write
READS_REFUSED = "This credential may read {rate:g} times a second. Slow down and retry."


@dataclass(slots=True)
class RequestRate:
    """Requests per second and credential, as token buckets; 0 turns it off."""

    per_second: float
    env: Environment
    burst: float | None = None  # None: twice the rate
    refusal: str = "This credential may call {rate:g} times a second. Slow down and retry."
    nodes: Callable[[], int] = lambda: 1  # sharing the rate
    remembered: int = BUCKETS
    _buckets: dict[str, tuple[float, int]] = field(default_factory=dict)  # tokens, time

    def take(self, credential: str) -> None:
        """Count one request, or refuse it with the time to retry."""
        if self.per_second == 0:
            return
        rate, now = self.per_second / self.nodes(), self.env.now()
        burst = max(1.0, 2.0 * rate if self.burst is None else self.burst)
        tokens, then = self._buckets.pop(credential, (burst, now))
        tokens = min(burst, tokens + max(0, now - then) / 1_000_000 * rate)
        allowed = tokens >= 1
        self._buckets[credential] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self.remembered:
            del self._buckets[next(iter(self._buckets))]
        if not allowed:
            raise Refused(
                Code.RATE_LIMITED,
                self.refusal.format(rate=self.per_second),
                retry_after=math.ceil((1 - tokens) / rate),
            )


@dataclass(slots=True)
class FreeSpace:
    """Compares the free space of the database's file system with the operator's watermark."""

    directory: Path
    min_bytes: int  # 0: the watermark is off
    min_percent: float
    env: Environment
    _checked_at: int = -SPACE_CHECK_INTERVAL
    _low: bool = False
    _low_since: int = 0

    def low(self) -> bool:
        """Return whether to refuse new mail; logs each change."""
        if self.min_bytes == 0 and not self._low:
            return False
        now = self.env.now()
        if 0 <= now - self._checked_at < SPACE_CHECK_INTERVAL:
            return self._low
        self._checked_at = now
        facts = os.statvfs(self.directory)
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        needed = max(self.min_bytes, int(total * self.min_percent / 100)) if self.min_bytes else 0
        before, self._low = self._low, free < needed
        fields = {"directory": str(self.directory), "free_bytes": free, "needed_bytes": needed}
        if self._low and not before:
            self._low_since = now
            log.warning("low on disk space: new mail is refused", **fields)
        elif before and not self._low:
            seconds = max(0, now - self._low_since) // SECOND
            log.info("enough disk space again: new mail is accepted", **fields, seconds=seconds)
        return self._low


@dataclass(slots=True)
class Quota:
    setting: Share
    free_space: FreeSpace
    _computed_at: int = field(default=-SHARE_KEPT)
    _share: int = 0

    def bytes(self) -> int | None:
        """Return the bytes that an account may store now; None: unlimited."""
        if not self.setting.percent:
            return self.setting.bytes or None
        now = self.free_space.env.now()
        if not 0 <= now - self._computed_at < SHARE_KEPT:
            self._computed_at, space = now, self.free_space
            facts = os.statvfs(space.directory)
            free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
            watermark = max(space.min_bytes, int(total * space.min_percent) // 100) if space.min_bytes else 0
            used = sum(_size(space.directory / name) for name in DATABASE_FILES)
            share = share_of(self.setting.percent, free + used - watermark)
            self._share = share - share % SHARE_STEP if share > SHARE_STEP else share
        return self._share

    def adopt(self, setting: Share) -> None:
        self.setting, self._computed_at = setting, -SHARE_KEPT


def share_of(percent: int, fillable: int) -> int:
    return max(LEAST_SHARE, fillable * percent // 100)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
