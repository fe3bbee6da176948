"""State that HTTP and SMTP share: credentials, throttles, rates and limits, so that limits apply across both."""

import hmac
from dataclasses import dataclass, field

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.settings import Config, DeliveryMode, LimitSettings
from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.feedback.return_path import ReturnPaths
from appliance.feedback.unsubscribe import UnsubscribeLinks
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import READS_PER_WRITE, READS_REFUSED, FreeSpace, Quota, RequestRate
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.model.accounts import Caller
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store

CACHED_FOR = 500_000  # microseconds; the server sees a change from the shell within a second
CACHED = 10_000  # callers

WRONG_CREDENTIAL = "This credential is not valid. Check it, or create a new one."


@dataclass(slots=True)
class Credentials:
    """Turns an SMTP username and the SHA-256 of its password into a caller."""

    store: Store
    env: Environment
    guesses: LoginThrottle
    _cached: TtlCache[str, tuple[Caller, bytes]] = field(init=False)
    _used: dict[str, tuple[int, str]] = field(default_factory=dict)  # last time and address by scope, not yet stored

    def __post_init__(self) -> None:
        self._cached = TtlCache(CACHED, CACHED_FOR, self.env.now)

    async def look_up(self, username: str, password_sha256: bytes) -> Caller | None:
        stored = await self.store.access.caller_by_credential(username) if "\0" not in username else None
        if stored is None or not hmac.compare_digest(password_sha256, stored[1]):
            return None
        self.note_use(stored[0])
        return stored[0]

    async def caller(self, username: str, password_sha256: bytes) -> Caller | None:
        """Look up a caller, and cache it for `known_caller`."""
        caller = await self.look_up(username, password_sha256)
        if caller is not None:
            self._cached.put(username, (caller, password_sha256))
        return caller

    def known_caller(self, username: str, password_sha256: bytes) -> Caller | None:
        """Return a cached caller: a session asks for every message."""
        known = self._cached.get(username)
        return known[0] if known is not None and hmac.compare_digest(password_sha256, known[1]) else None

    def forget(self) -> None:
        """Drop the cache after this process has changed a caller."""
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


@dataclass(frozen=True, slots=True)
class IntakeServices:
    intake: MessageIntake
    credentials: Credentials
    guesses: LoginThrottle
    rate: RequestRate
    read_rate: RequestRate  # of GET under /v1
    known: KnownNetworks = field(default_factory=KnownNetworks)

    def adopt(self, limits: LimitSettings) -> None:
        self.rate.per_second = limits.requests_per_second
        self.read_rate.per_second = READS_PER_WRITE * limits.requests_per_second
        self.intake.free_space.min_bytes = limits.min_free_disk
        self.intake.free_space.min_percent = limits.min_free_disk_percent
        self.intake.quota.adopt(limits.stored_bytes_per_account)


def build_services(config: Config, env: Environment, store: Store, key: bytes) -> IntakeServices:
    limits = config.limits
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, env)
    guesses = LoginThrottle(env)
    intake = MessageIntake(
        store,
        env,
        free_space,
        Quota(limits.stored_bytes_per_account, free_space),
        sandbox=config.delivery.mode is DeliveryMode.SANDBOX,
        hostname=config.server.hostname,
        text_from_html=config.http.text_from_html,
        links=UnsubscribeLinks(key, config.http.base_url),
        return_paths=ReturnPaths(key) if config.inbound.bind else None,
    )
    rate = RequestRate(limits.requests_per_second, env, nodes=store.engine.live_nodes)
    reads = READS_PER_WRITE * limits.requests_per_second
    read_rate = RequestRate(reads, env, refusal=READS_REFUSED, nodes=store.engine.live_nodes)
    return IntakeServices(intake, Credentials(store, env, guesses), guesses, rate, read_rate)
