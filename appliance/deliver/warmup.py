"""The warm-up of the addresses that mail leaves from: limits the recipients that each source may send to a pool.

Mail with a source of the settings leaves from that. Otherwise the routing table selects the address by the dialled one:
mostly one for IPv4 and one for IPv6, each with its own reputation. So an attempt has a permit for its source. If no
server replies there, the attempt continues from another source only if that one may send as much; otherwise the
envelope is queued again, and no attempt counts. Addresses that did not reply are skipped for a while, so that the
envelope gets a permit for the right source.
"""

from collections.abc import Callable

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.settings import WarmupSettings
from appliance.deliver.observation import NAMED_POOLS
from appliance.deliver.route import Route
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.sources import limits_name
from appliance.model.warmup import WarmupPace, WarmupStatus, applies_to, begin, hourly_limit, statuses
from appliance.net.address_policy import Address
from appliance.net.local_addresses import source_address
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import WARMUP_STATUSES

SOURCE_FRESH = 10.0  # seconds for which the source of an address is cached
DEAD_FOR = 300.0  # seconds for which an address that did not reply is skipped
WARMUP_ENTRIES = 10_000  # entries of each cache
UNLIMITED = 1_000_000_000

log = get_logger("deliver")


class Permit(Struct):
    """Allows `count` recipients to a pool, from one source at a time."""

    pool: str
    count: int
    addresses: frozenset[Address] | None = None  # to dial; None: any, and nothing is counted
    source: str | None = None
    taken_at: int = 0
    low: int = 0  # 1: for mail with low priority, which leaves some to other mail
    is_short: bool = False  # an address was skipped because its source may send no more for now
    route: Route | None = None  # if its source decides the address


class Warmup(Struct):
    """The paces of sources and pools in use; the store has the others. Disabled by the settings, it counts nothing."""

    settings: WarmupSettings
    store: Store
    env: Environment
    known_as: Callable[[str], str] = str  # the provider's pool of a limiter under a host's name
    source_of: Callable[[Address], Address | None] = source_address
    _paces: dict[tuple[str, str], WarmupPace] = field(default_factory=dict)
    _unsaved: set[tuple[str, str]] = field(default_factory=set)
    _missing: set[tuple[str, str]] = field(default_factory=set)  # needed, but not in memory
    _pending_limits: dict[str, int] = field(default_factory=dict)  # by pool
    _sources: TtlCache[Address, str] = field(default_factory=lambda: TtlCache(WARMUP_ENTRIES, SOURCE_FRESH))  # or ""
    _dead: TtlCache[Address, bool] = field(default_factory=lambda: TtlCache(WARMUP_ENTRIES, DEAD_FOR))

    # ---- permits

    def may_start(self, pool: str, route: Route, low: int = 0) -> bool:
        return not self.settings.enabled or self._choice(pool, route, low)[1] > 0

    def permit(self, pool: str, route: Route, count: int, low: int = 0) -> Permit:
        """Take a permit for up to `count` recipients; call it only if `may_start`."""
        if not self.settings.enabled or route.relay is not None:
            return Permit(pool, count)
        source, room = self._choice(pool, route, low)
        room = max(1, room)  # the clock may have been set back since `may_start`
        alive = frozenset(self._alive(route))
        permit = Permit(pool, min(count, room), alive, source, self.env.now(), low, route=route)
        self._take(pool, source, permit.count)
        if len(self._pending_limits) >= WARMUP_ENTRIES:
            self._pending_limits.clear()
        pace = self._limited_pace(pool, source)
        most = None if pace is None else hourly_limit(self.settings, pace.day)
        limits = pool if route.source is None else limits_name(pool, route.source.name)
        self._pending_limits[limits] = UNLIMITED if most is None else max(1, most // 2)
        return permit

    def pending_limit(self, pool: str) -> int:
        """The number of envelopes of a pool, for one source, that are worth preparing."""
        if not (self.settings.enabled and pool):
            return UNLIMITED
        return self._pending_limits.get(pool, max(1, self.settings.first_hour // 2))

    async def may_dial(self, permit: Permit, address: Address, pool: str) -> bool:
        """Whether to try an address; the permit changes to its pool and source."""
        if permit.addresses is None:
            return True
        source = self.source(address, permit.route)
        await self.load_source(pool, source)
        same = pool == permit.pool and source == permit.source
        if address not in permit.addresses or same or source is None:
            return address in permit.addresses
        if self._room(pool, source, permit.low) < permit.count:
            permit.is_short = True
            return False
        self._use(permit, pool, source)
        return True

    def reached(self, permit: Permit, pool: str) -> None:
        """Count the mail for the pool that the server has proved to belong to, even beyond its room."""
        if permit.addresses is not None and pool != permit.pool:
            self._use(permit, pool, permit.source)

    def did_not_answer(self, permit: Permit, address: Address) -> None:
        if permit.addresses is not None:
            self._dead.put(address, True)

    def use_only(self, permit: Permit, count: int) -> None:
        self._give_back(permit, permit.count - count)
        permit.count = count

    def source(self, address: Address, route: Route | None = None) -> str | None:
        """The address that mail to an address leaves from; None: no route."""
        if route is not None and route.source is not None:
            return str(route.source.address(address.version))
        if (source := self._sources.get(address)) is None:
            source = str(self.source_of(address) or "")
            self._sources.put(address, source)
        return source or None

    def _use(self, permit: Permit, pool: str, source: str | None) -> None:
        self._give_back(permit, permit.count)
        permit.pool, permit.source, permit.taken_at = pool, source, self.env.now()
        self._take(pool, source, permit.count)

    def _room(self, pool: str, source: str | None, low: int) -> int:
        """The number of recipients that a source may send to a pool now."""
        if source is None or not applies_to(self.settings, source):
            return UNLIMITED
        if (pace := self._pace(pool, source)) is None:
            return 0
        room = pace.room(self.settings, self.env.now(), low)
        return UNLIMITED if room is None else room

    def _limited_pace(self, pool: str, source: str | None) -> WarmupPace | None:
        return self._pace(pool, source) if source is not None and applies_to(self.settings, source) else None

    def _take(self, pool: str, source: str | None, count: int) -> None:
        """Count recipients, unless the warm-up of the source is over."""
        pace = self._limited_pace(pool, source)
        if pace is not None and hourly_limit(self.settings, pace.day) is not None:
            self._put(pace.take(self.settings, self.env.now(), count))

    def _give_back(self, permit: Permit, count: int) -> None:
        if (pace := self._limited_pace(permit.pool, permit.source)) is not None:
            self._put(pace.give_back(self.settings, permit.taken_at, count))

    def _choice(self, pool: str, route: Route, low: int) -> tuple[str | None, int]:
        """The source of the first address of a route that has room, and its room."""
        if route.relay is not None:  # the relay has its own reputation
            return None, UNLIMITED
        sources = list(dict.fromkeys(self.source(address, route) for address in self._alive(route)))
        for source in sources:
            if source is not None and (room := self._room(pool, source, low)) > 0:
                return source, room
        return None, UNLIMITED if sources == [None] else 0

    def _alive(self, route: Route) -> list[Address]:
        """The addresses of a route without dead ones, unless all are dead."""
        every = [address for host in route.hosts for address in host.addresses]
        return [address for address in every if address not in self._dead] or every

    def _pace(self, pool: str, source: str) -> WarmupPace | None:
        """The current pace of a warm-up; None: it is not in memory, and will be loaded."""
        pace = self._paces.get((pool, source))
        if pace is None:
            self._missing.add((pool, source))
            return None
        if (current := pace.at(self.env.now())) is not pace:
            self._put(current)
        return current

    # ---- the store

    async def load(self, pool: str, route: Route) -> None:
        if self.settings.enabled and route.relay is None:
            for source in {self.source(address, route) for address in self._alive(route)}:
                await self.load_source(pool, source)

    async def load_source(self, pool: str, source: str | None) -> None:
        if source is None or (pool, source) in self._paces or not applies_to(self.settings, source):
            return
        pace, known = await self.store.warmups.of(pool, source), self.known_as(pool)
        if known != pool:  # a host with a provider's name, which may prove to be the provider's
            await self.load_source(known, source)
        if pace is None:
            pace = begin(pool, source, self.env.now())
            if known != pool:  # until then it has the provider's day
                pace = replace(pace, day=self._paces[known, source].day)
        self._paces.setdefault((pool, source), pace)  # another task may have loaded and used it meanwhile

    async def load_missing(self) -> None:
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
            log.warning("warm-up progress not saved: storage unavailable", reason=refused.text)
            return
        if len(self._paces) > WARMUP_ENTRIES:
            self._paces = {key: self._paces[key] for key in self._unsaved}

    async def keep_saved(self, every: float) -> None:
        if not self.settings.enabled:
            return

        def named() -> list[WarmupStatus]:
            paces = [pace for pace in self._paces.values() if pace.pool in NAMED_POOLS]
            return list(statuses(self.settings, paces, self.env.now()))

        WARMUP_STATUSES["deliver"] = named
        while True:
            await trio.sleep(every)
            await self.save()
