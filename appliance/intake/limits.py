"""Credentials, and the limits of intake: request rate per credential, stored bytes per account, and free disk space.

`Quota` enforces `limits.stored_bytes_per_account`. A percentage applies to the space that mail may fill: free space
plus the database, down to the watermark below which all mail is refused. So one account cannot reach the watermark.
"""

import hmac
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from msgspec import Struct

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.values import MIB, Share
from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.model.accounts import Caller, KeyPrincipal
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.times import SECOND, rfc3339

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

    def take(self, credential: str, cost: int = 1, paid: int = 0) -> None:
        """Take `cost` tokens, less those already `paid`. A cost above the burst is that of a full bucket."""
        if self.per_second == 0:
            return
        rate, now = self.per_second / self.nodes(), self.env.now()
        burst = max(1.0, 2.0 * rate if self.burst is None else self.burst)
        tokens, then = self._buckets.pop(credential, (burst, now))
        tokens = min(burst, tokens + max(0, now - then) / 1_000_000 * rate)
        needed = min(cost, burst) - paid
        allowed = tokens >= needed
        self._buckets[credential] = (tokens - needed if allowed else tokens, now)
        if len(self._buckets) > self.remembered:
            del self._buckets[next(iter(self._buckets))]
        if not allowed:
            seconds = math.ceil((needed + paid - tokens) / rate)
            raise Refused(Code.RATE_LIMITED, self.refusal.format(rate=self.per_second), retry_after=seconds)


class FreeSpace(Struct):
    directory: Path
    min_bytes: int  # 0: the watermark is off
    min_percent: float
    env: Environment
    _checked_at: int = -SPACE_CHECK_INTERVAL
    _low: bool = False
    _low_since: int = 0

    def low(self) -> bool:
        if self.min_bytes == 0 and not self._low:
            return False
        now = self.env.now()
        if 0 <= now - self._checked_at < SPACE_CHECK_INTERVAL:
            return self._low
        self._checked_at = now
        free, needed = self.free_and_needed()
        before, self._low = self._low, free < needed
        fields = {"directory": str(self.directory), "free_bytes": free, "needed_bytes": needed}
        if self._low and not before:
            self._low_since = now
            log.warning("low on disk space: new mail is refused", **fields)
        elif before and not self._low:
            seconds = max(0, now - self._low_since) // SECOND
            log.info("enough disk space again: new mail is accepted", **fields, seconds=seconds)
        return self._low

    def free_and_needed(self) -> tuple[int, int]:
        facts = os.statvfs(self.directory)
        free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
        return free, max(self.min_bytes, int(total * self.min_percent / 100)) if self.min_bytes else 0


@dataclass(slots=True)
class Quota:
    setting: Share
    free_space: FreeSpace
    _computed_at: int = field(default=-SHARE_KEPT)
    _share: int = 0

    def bytes(self) -> int | None:
        if not self.setting.percent:
            return self.setting.bytes or None
        now = self.free_space.env.now()
        if not 0 <= now - self._computed_at < SHARE_KEPT:
            self._computed_at = now
            free, watermark = self.free_space.free_and_needed()
            used = sum(_size(self.free_space.directory / name) for name in DATABASE_FILES)
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


# ---- credentials

CACHED_FOR = 500_000  # microseconds; the server sees a change from the shell within a second
CACHED = 10_000  # callers

WRONG_CREDENTIAL = "This credential is not valid. Check it, or create a new one."


@dataclass(slots=True)
class Credentials:
    """Turns an SMTP username and the SHA-256 of its password, or that of an API key, into a caller."""

    store: Store
    env: Environment
    guesses: LoginThrottle
    _cached: TtlCache[str | bytes, tuple[Caller, bytes]] = field(init=False)
    _used: dict[str, tuple[int, str]] = field(default_factory=dict)  # last time and address by scope, not yet stored

    def __post_init__(self) -> None:
        self._cached = TtlCache(CACHED, CACHED_FOR, self.env.now)

    async def look_up(self, username: str, password_sha256: bytes) -> Caller | None:
        stored = await self.store.access.caller_by_credential(username) if "\0" not in username else None
        if stored is None or not hmac.compare_digest(password_sha256, stored[1]):
            return None
        self.note_use(stored[0])
        return stored[0]

    async def caller(self, username: str | None, password_sha256: bytes, address: str = "") -> Caller | None:
        """Look up the caller of an SMTP session, and cache it for `known_caller`. No username: an API key."""
        if username is not None:
            caller = await self.look_up(username, password_sha256)
        else:
            caller = await self.store.access.caller_by_key_hash(password_sha256)
        if caller is None:
            return None
        kept = self.kept_for(caller.key)
        if caller.key is not None:
            if not caller.may_send:
                raise Refused(Code.UNAUTHORIZED, "This API key may only read messages, not send them.")
            self.note_use(caller, address)
        self._cached.put(username or password_sha256, (caller, password_sha256), kept)
        return caller

    def kept_for(self, key: KeyPrincipal | None) -> int:
        """How long to cache a caller, in microseconds. Refuses an expired key."""
        if key is None or key.expires_at is None:
            return CACHED_FOR
        if (left := key.expires_at - self.env.now()) > 0:
            return min(CACHED_FOR, left)
        ended, instead = rfc3339(key.expires_at), "Create a new key."
        if key.replaced:
            ended, instead = f"{ended} because it was rolled", "Use the new key."
        raise Refused(Code.UNAUTHORIZED, f"This API key expired at {ended}. {instead}")

    def known_caller(self, username: str | None, password_sha256: bytes) -> Caller | None:
        known = self._cached.get(username or password_sha256)
        return known[0] if known is not None and hmac.compare_digest(password_sha256, known[1]) else None

    def forget(self) -> None:
        self._cached.clear()

    # ---- last use: noted when the store is read, stored in batches

    def note_use(self, caller: Caller, address: str = "") -> None:
        self._used[caller.idempotency_scope] = self.env.now(), address

    async def record_uses(self) -> None:
        if not self._used:
            return
        used, self._used = self._used, {}
        try:
            await self.store.access.record_uses(used)
        except StorageUnavailable:
            self._used = used | self._used
            raise

    async def wrong_guess(self, address: str) -> Refused:
        """Count a failed login and return its refusal after a delay.

        The code is always `unauthorized`: `rate_limited` would make a client with a revoked key retry.
        """
        wait = self.guesses.wrong_secret(address)  # count before the first checkpoint
        await trio.sleep(FAILURE_DELAY)
        return Refused(Code.UNAUTHORIZED, WRONG_CREDENTIAL, retry_after=wait)
