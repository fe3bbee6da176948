"""Checks SMTP credentials, for SMTP and HTTP alike, and slows down clients that try wrong ones."""

import hmac
from dataclasses import dataclass, field

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.model.mail import Caller
from appliance.store import Store

CACHED_FOR = 500_000  # microseconds; a change from the shell is seen within a second
CACHED = 10_000  # callers at most

WRONG = "This credential is not valid. Check it, or create a new one."


@dataclass(slots=True)
class Credentials:
    """Turns an SMTP username and the SHA-256 of its password into a caller."""

    store: Store
    env: Environment
    guesses: LoginThrottle
    _found: TtlCache[str, tuple[Caller, bytes]] = field(init=False)
    # By idempotency scope: when and from where, as far as it is not on disk yet.
    _used: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._found = TtlCache(CACHED, CACHED_FOR, self.env.now)

    async def look_up(self, username: str, password_sha256: bytes) -> Caller | None:
        found = await self.store.access.caller_by_credential(username) if "\0" not in username else None
        if found is None or not hmac.compare_digest(password_sha256, found[1]):
            return None
        self.note_use(found[0])
        return found[0]

    async def caller(self, username: str, password_sha256: bytes) -> Caller | None:
        """The same, kept for half a second as `known_caller`."""
        caller = await self.look_up(username, password_sha256)
        if caller is not None:
            self._found.put(username, (caller, password_sha256))
        return caller

    def known_caller(self, username: str, password_sha256: bytes) -> Caller | None:
        """What was found half a second ago at most: for a session that asks for every message."""
        known = self._found.get(username)
        return known[0] if known is not None and hmac.compare_digest(password_sha256, known[1]) else None

    def forget(self) -> None:
        """This process changed something about callers: read the store again."""
        self._found.clear()

    # ---- when each was used last: noted when the store is read, twice a second at most, and written now and then

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
        """Slow, and always "unauthorized": "slow down" would have a client whose key was revoked try it again."""
        wait = self.guesses.wrong_secret(address)  # counted before anything else can happen
        await trio.sleep(FAILURE_DELAY)
        return Refused(Code.UNAUTHORIZED, WRONG, retry_after=wait)
