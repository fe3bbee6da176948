"""The warm-up of the addresses that mail leaves from: how much each source may send to a pool now.

Which source an envelope leaves from is the routing table's choice, by the address that is dialled: mostly one for IPv4
and one for IPv6, each with a reputation of its own. So an attempt has a permit for its source. If no server answers
there, it goes on from another source only if that one may send as much; else the envelope waits again, without an
attempt. An address that did not answer is skipped for a while, so that such an envelope waits for the right source.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.settings import WarmupSettings
from appliance.deliver.outcome import NAMED_POOLS
from appliance.deliver.route import Route
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.warmup import WarmupPace, WarmupStatus, applies_to, begin, hourly_limit, statuses
from appliance.net.address_policy import Address
from appliance.net.local_addresses import source_address
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import WARMUP_STATUSES

SOURCE_FRESH = 10.0  # seconds for which the routing table is not asked again
DEAD_FOR = 300.0  # seconds for which an address that did not answer is skipped
WARMUP_ENTRIES = 10_000  # entries of each cache
UNLIMITED = 1_000_000_000

log = get_logger("deliver")


@dataclass(slots=True)
class Permit:
    """So many recipients may be handed to a pool, from one source at a time."""

    pool: str
    count: int
    addresses: frozenset[Address] | None = None  # worth dialling; None: any, and nothing is counted
    source: str | None = None
    taken_at: int = 0
    is_short: bool = False  # an address was skipped because its source may send no more for now


@dataclass(slots=True)
class Warmup:
    """What every source may send to every pool, as far as it is known; the store has the rest.

    If it is off by the settings, everything is allowed, and no permit counts anything.
    """

    settings: WarmupSettings
    store: Store
    env: Environment
    known_as: Callable[[str], str] = str  # the pool as operators know it, of one under a host's name
    source_of: Callable[[Address], Address | None] = source_address
    _paces: dict[tuple[str, str], WarmupPace] = field(default_factory=dict)
    _unsaved: set[tuple[str, str]] = field(default_factory=set)
    _missing: set[tuple[str, str]] = field(default_factory=set)  # asked for, but not in memory
    _pending_limits: dict[str, int] = field(default_factory=dict)  # by pool
    _sources: TtlCache[Address, str] = field(default_factory=lambda: TtlCache(WARMUP_ENTRIES, SOURCE_FRESH))  # or ""
    _dead: TtlCache[Address, bool] = field(default_factory=lambda: TtlCache(WARMUP_ENTRIES, DEAD_FOR))

    # ---- what may go

    def may_start(self, pool: str, route: Route) -> bool:
        """Whether anything may go there now."""
        return not self.settings.enabled or self._choice(pool, route)[1] > 0

    def permit(self, pool: str, route: Route, count: int) -> Permit:
        """A permit for as many of `count` recipients as may go, to be asked for when some may."""
        if not self.settings.enabled or route.relay is not None:
            return Permit(pool, count)
        source, room = self._choice(pool, route)
        room = max(1, room)  # the clock may have been set back since `may_start`
        made = Permit(pool, min(count, room), frozenset(self._alive(route)), source, self.env.now())
        self._take(pool, source, made.count)
        if len(self._pending_limits) >= WARMUP_ENTRIES:
            self._pending_limits.clear()
        most = None
        if source is not None and applies_to(self.settings, source):
            pace = self._pace(pool, source)
            most = None if pace is None else hourly_limit(self.settings, pace.day)
        self._pending_limits[pool] = UNLIMITED if most is None else max(1, most // 2)
        return made

    def pending_limit(self, pool: str) -> int:
        """How many envelopes of a pool are worth preparing."""
        if not (self.settings.enabled and pool):
            return UNLIMITED
        return self._pending_limits.get(pool, max(1, self.settings.first_hour // 2))

    async def may_dial(self, permit: Permit, address: Address, pool: str) -> bool:
        """Whether to try an address. If it is another pool's, or has another source, the permit changes to that one."""
        if permit.addresses is None:
            return True
        source = self.source(address)
        await self.load_source(pool, source)
        same = pool == permit.pool and source == permit.source
        if address not in permit.addresses or same or source is None:
            return address in permit.addresses
        if self._room(pool, source) < permit.count:
            permit.is_short = True
            return False
        self._use(permit, pool, source)
        return True

    def reached(self, permit: Permit, pool: str) -> None:
        """The server is this pool's, as it has proved: what it gets is counted for that, even beyond the room."""
        if permit.addresses is not None and pool != permit.pool:
            self._use(permit, pool, permit.source)

    def did_not_answer(self, permit: Permit, address: Address) -> None:
        if permit.addresses is not None:
            self._dead.put(address, True)

    def use_only(self, permit: Permit, count: int) -> None:
        """Give back what will not be needed."""
        self._give_back(permit, permit.count - count)
        permit.count = count

    def source(self, address: Address) -> str | None:
        """The source of mail to an address; None: there is no way to it."""
        if (source := self._sources.get(address)) is None:
            source = str(self.source_of(address) or "")
            self._sources.put(address, source)
        return source or None

    def _use(self, permit: Permit, pool: str, source: str | None) -> None:
        self._give_back(permit, permit.count)
        permit.pool, permit.source, permit.taken_at = pool, source, self.env.now()
        self._take(pool, source, permit.count)

    def _room(self, pool: str, source: str | None) -> int:
        """How many recipients a source may hand to a pool now; without a source, nothing can leave at all."""
        if source is None or not applies_to(self.settings, source):
            return UNLIMITED
        if (pace := self._pace(pool, source)) is None:
            return 0
        room = pace.room(self.settings, self.env.now())
        return UNLIMITED if room is None else room

    def _take(self, pool: str, source: str | None, count: int) -> None:
        """Count what goes; once the warm-up of a source is over, nothing is counted."""
        if source is not None and applies_to(self.settings, source):
            pace = self._pace(pool, source)
            if pace is not None and hourly_limit(self.settings, pace.day) is not None:
                self._put(pace.take(self.settings, self.env.now(), count))

    def _give_back(self, permit: Permit, count: int) -> None:
        pool, source = permit.pool, permit.source
        if source is None or not applies_to(self.settings, source):
            return
        if (pace := self._pace(pool, source)) is not None:
            self._put(pace.give_back(self.settings, permit.taken_at, count))

    def _choice(self, pool: str, route: Route) -> tuple[str | None, int]:
        """The source of the first address of a route from which something may go, and how much."""
        if route.relay is not None:  # whose reputation is its own
            return None, UNLIMITED
        sources = list(dict.fromkeys(map(self.source, self._alive(route))))
        for source in sources:
            if source is not None and (room := self._room(pool, source)) > 0:
                return source, room
        return None, UNLIMITED if sources == [None] else 0

    def _alive(self, route: Route) -> list[Address]:
        """The addresses of a route without those that did not answer a while ago, unless that is all of them."""
        every = [address for host in route.hosts for address in host.addresses]
        return [address for address in every if address not in self._dead] or every

    def _pace(self, pool: str, source: str) -> WarmupPace | None:
        """How far a warm-up has come; None: it is not in memory, and will be loaded."""
        pace = self._paces.get((pool, source))
        if pace is None:
            self._missing.add((pool, source))
            return None
        if (current := pace.at(self.env.now())) is not pace:
            self._put(current)
        return current

    # ---- from the store, and back

    async def load(self, pool: str, route: Route) -> None:
        """Have in memory what concerns mail to a pool by a route."""
        if self.settings.enabled and route.relay is None:
            for source in {self.source(address) for address in self._alive(route)}:
                await self.load_source(pool, source)

    async def load_source(self, pool: str, source: str | None) -> None:
        if source is None or (pool, source) in self._paces or not applies_to(self.settings, source):
            return
        pace, known = await self.store.warmups.of(pool, source), self.known_as(pool)
        if known != pool:  # a host that is named like a provider's, and may prove to be one
            await self.load_source(known, source)
        if pace is None:
            pace = begin(pool, source, self.env.now())
            if known != pool:  # one that is only named so begins on the day that the provider's has come to
                pace = replace(pace, day=self._paces[known, source].day)
        self._paces.setdefault((pool, source), pace)  # another task may have loaded and used it meanwhile

    async def load_missing(self) -> None:
        """Load what was asked for after it had been dropped from memory."""
        missing, self._missing = self._missing, set()
        for pool, source in missing:
            await self.load_source(pool, source)

    def _put(self, pace: WarmupPace) -> None:
        key = pace.pool, pace.source
        self._paces[key] = pace
        self._unsaved.add(key)

    async def save(self) -> None:
        if not self._unsaved:
            return
        keys, self._unsaved = self._unsaved, set()
        try:
            await self.store.warmups.keep([self._paces[key] for key in keys])
        except StorageUnavailable as refused:
            self._unsaved |= keys
            log.warning("how far the warm-up has come waits for the storage", reason=refused.text)
            return
        if len(self._paces) > WARMUP_ENTRIES:
            self._paces = {key: self._paces[key] for key in self._unsaved}

    async def keep_saved(self, every: float) -> None:
        """Save what has changed every so many seconds, until cancelled."""
        if not self.settings.enabled:
            return

        def told() -> list[WarmupStatus]:
            paces = [pace for pace in self._paces.values() if pace.pool in NAMED_POOLS]
            return list(statuses(self.settings, paces, self.env.now()))

        WARMUP_STATUSES["deliver"] = told
        while True:
            await trio.sleep(every)
            await self.save()
