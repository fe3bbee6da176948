"""The limits of intake: how fast a credential may call, how many bytes an account may keep, how full the disk may be.

`Quota` is `limits.stored_bytes_per_account`. A share is one of all that mail may fill: what is free on the database's
file system, with what the database takes already, down to the watermark below which all mail is refused. So one account
alone never brings the disk to the watermark.
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

BUCKETS = 10_000  # credentials remembered; the longest unused go first, and those are full again anyway
SHARE_KEPT = 10_000_000  # microseconds; computing the share takes three system calls
DATABASE_FILES = ("appliance.db", "appliance.db-wal")  # what counts as free, though it is not
SHARE_STEP = 64 * MIB  # bytes: the share is told, and is not another with each file that is written
LEAST_SHARE = 64 * MIB  # on a disk that small the watermark has to do

SPACE_CHECK_INTERVAL = SECOND  # a check costs a system call; the watermark leaves room for what a second brings

log = get_logger("disk")


READS_PER_WRITE = 10  # a credential may read this many times as often as it may write
READS_REFUSED = "This credential may read {rate:g} times a second. Slow down and retry."


@dataclass(slots=True)
class RequestRate:
    """Requests a second for each credential, as a token bucket each; 0 turns it off."""

    per_second: float
    env: Environment
    burst: float | None = None  # at once; None: twice the rate
    refusal: str = "This credential may call {rate:g} times a second. Slow down and retry."
    nodes: Callable[[], int] = lambda: 1  # that share the rate: each allows its part
    remembered: int = BUCKETS
    _buckets: dict[str, tuple[float, int]] = field(default_factory=dict)  # tokens left, when that was true

    def take(self, credential: str) -> None:
        """Count one request, or refuse it and say when there is room again."""
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
    """The free space of the database's file system, against the operator's watermark."""

    directory: Path
    min_bytes: int  # 0: the watermark is off
    min_percent: float
    env: Environment
    _checked_at: int = -SPACE_CHECK_INTERVAL
    _low: bool = False
    _low_since: int = 0

    def low(self) -> bool:
        """Whether new mail has to be refused; the log says when that begins and ends."""
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
        """What an account may keep now; None: any amount."""
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
