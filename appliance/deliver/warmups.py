"""In charge of the warm-up of the addresses mail leaves from: which parcels may go now, and from where.

Which address a parcel leaves from is the routing table's choice, by the address that is dialled: mostly one for IPv4
and one for IPv6, each with a reputation of its own. So a flight has a permit for its source. Should no server answer
there, it goes on from another source only if that one may send as much; else the parcel goes back to wait, without an
attempt. What did not answer is passed over for a while, so that such a parcel waits for the right source.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from appliance.config.settings import WarmupSettings
from appliance.deliver.metrics import has_name
from appliance.deliver.route import Route
from appliance.errors import Refused
from appliance.model.warmup import WarmupPace, WarmupStatus, applies_to, begin, hourly_limit, statuses
from appliance.net.address_policy import Address
from appliance.net.local_addresses import source_address
from appliance.outside import Outside
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import WARMUP_STATUSES

KEEP_EVERY = 1.0  # seconds between two words to the store: as much may be sent twice after a crash
SOURCE_KEPT = 10.0  # seconds for which the routing table is not asked again
DEAD_FOR = 300.0  # seconds for which an address that did not answer is passed over
KEPT = 10_000  # of everything remembered here
UNLIMITED = 1_000_000_000

log = get_logger("deliver")


@dataclass(slots=True)
class Warmups:
    """What every source may send to every pool, as far as it is known; the store has the rest."""

    settings: WarmupSettings
    store: Store
    outside: Outside
    known_as: Callable[[str], str] = str  # the pool as operators know it, of one under a host's name
    source_of: Callable[[Address], Address | None] = source_address
    _paces: dict[tuple[str, str], WarmupPace] = field(default_factory=dict)
    _unsaved: set[tuple[str, str]] = field(default_factory=set)
    _in_hand: dict[str, int] = field(default_factory=dict)  # by pool
    _sources: dict[Address, tuple[str | None, float]] = field(default_factory=dict)  # with until when
    _dead: dict[Address, float] = field(default_factory=dict)  # until when; Trio's clock, here and above

    # ---- what may go

    def lets_go(self, pool: str, route: Route) -> bool:
        """Whether anything may go there now."""
        return self._choice(pool, route)[1] > 0

    def permit(self, pool: str, route: Route, count: int) -> "Permit | None":
        """Leave for as many of `count` recipients as may go, to be asked for when some may; None: none is needed."""
        if route.relay is not None:
            return None
        source, room = self._choice(pool, route)
        room = max(1, room)  # the clock may have been set back since it was asked
        made = Permit(self, pool, frozenset(self._alive(route)), source, min(count, room), self.outside.now())
        self.take(pool, source, made.count)
        self._remember_room(pool, source)
        return made

    def in_hand(self, pool: str) -> int:
        """How many parcels of a pool are worth preparing: those of half an hour, lest their routes grow old."""
        return self._in_hand.get(pool, max(1, self.settings.first_hour // 2)) if pool else UNLIMITED

    def room(self, pool: str, source: str | None) -> int:
        """How many recipients a source may hand to a pool now; without a source, nothing can leave at all."""
        if source is None or not applies_to(self.settings, source):
            return UNLIMITED
        room = self._pace(pool, source).room(self.settings, self.outside.now())
        return UNLIMITED if room is None else room

    def take(self, pool: str, source: str | None, count: int) -> None:
        """So many go; nobody counts any more when it is over."""
        if source is not None and applies_to(self.settings, source):
            pace = self._pace(pool, source)
            if hourly_limit(self.settings, pace.day) is not None:
                self._put(pace.take(self.settings, self.outside.now(), count))

    def give_back(self, pool: str, source: str | None, taken_at: int, count: int) -> None:
        """So many of them did not go."""
        if source is not None and applies_to(self.settings, source):
            self._put(self._pace(pool, source).give_back(self.settings, taken_at, count))

    def source(self, address: Address) -> str | None:
        """Where what is sent to an address leaves from; None: there is no way to it."""
        known = self._sources.get(address)
        if known is not None and trio.current_time() < known[1]:
            return known[0]
        found = self.source_of(address)
        source = None if found is None else str(found)
        _bound(self._sources)
        self._sources[address] = source, trio.current_time() + SOURCE_KEPT
        return source

    def is_dead(self, address: Address) -> None:
        """Nobody answered there."""
        _bound(self._dead)
        self._dead[address] = trio.current_time() + DEAD_FOR

    def _choice(self, pool: str, route: Route) -> tuple[str | None, int]:
        """The source of the first address of a route from which something may go, and how much."""
        if route.relay is not None:  # whose reputation is its own
            return None, UNLIMITED
        sources = list(dict.fromkeys(map(self.source, self._alive(route))))
        for source in sources:
            if source is not None and (room := self.room(pool, source)) > 0:
                return source, room
        return None, UNLIMITED if sources == [None] else 0

    def _alive(self, route: Route) -> list[Address]:
        """The addresses of a route without those that did not answer a while ago, unless that is all of them."""
        now = trio.current_time()
        every = [address for host in route.hosts for address in host.addresses]
        return [address for address in every if self._dead.get(address, 0.0) <= now] or every

    def _remember_room(self, pool: str, source: str | None) -> None:
        _bound(self._in_hand)
        most = None
        if source is not None and applies_to(self.settings, source):
            most = hourly_limit(self.settings, self._pace(pool, source).day)
        self._in_hand[pool] = UNLIMITED if most is None else max(1, most // 2)

    def _pace(self, pool: str, source: str) -> WarmupPace:
        pace, now = self._paces.get((pool, source)), self.outside.now()
        if pace is None:
            pace = self.store.warmups.of(pool, source) or self._as_at_its_provider(pool, source, now)
            self._paces[pool, source] = pace
        if (current := pace.at(now)) is not pace:
            self._put(current)
        return current

    def _as_at_its_provider(self, pool: str, source: str, now: int) -> WarmupPace:
        """A new warm-up; at a host that is only named like a provider's, on the day that this one has come to."""
        known, pace = self.known_as(pool), begin(pool, source, now)
        return pace if known == pool else replace(pace, day=self._pace(known, source).day)

    def _put(self, pace: WarmupPace) -> None:
        key = pace.pool, pace.source
        self._paces[key] = pace
        self._unsaved.add(key)

    # ---- what is kept and told

    async def keep(self) -> None:
        """Write down what has changed, every moment, for ever; and let it be measured."""
        WARMUP_STATUSES["deliver"] = self._told
        while True:
            await trio.sleep(KEEP_EVERY)
            await self.save()

    async def save(self) -> None:
        """Write down what has changed."""
        if not self._unsaved:
            return
        keys, self._unsaved = self._unsaved, set()
        try:
            await self.store.warmups.keep([self._paces[key] for key in keys])
        except Refused as refused:
            self._unsaved |= keys
            log.warning("how far the warm-up has come waits for the storage", reason=refused.text)
            return
        if len(self._paces) > KEPT:
            self._paces = {key: self._paces[key] for key in self._unsaved}

    def _told(self) -> list[WarmupStatus]:
        paces = [pace for pace in self._paces.values() if has_name(pace.pool)]
        return list(statuses(self.settings, paces, self.outside.now()))


@dataclass(slots=True)
class Permit:
    """Leave for one flight: so many recipients, from one source at a time."""

    warmups: Warmups
    pool: str
    addresses: frozenset[Address]  # worth dialling
    source: str | None
    count: int
    taken_at: int
    is_short: bool = False  # an address was left out because its source may send no more for now

    def dials(self, address: Address, pool: str) -> bool:
        """Whether to try an address of a pool; if it is another pool's, or mail leaves for it from another source,
        the permit is for that one from now on.
        """
        source = self.warmups.source(address)
        same = pool == self.pool and source == self.source
        if address not in self.addresses or same or source is None:
            return address in self.addresses
        if self.warmups.room(pool, source) < self.count:
            self.is_short = True
            return False
        self._use(pool, source)
        return True

    def reached(self, pool: str) -> None:
        """The server is this pool's, as it has proved: what it gets is counted there, even beyond the room."""
        if pool != self.pool:
            self._use(pool, self.source)

    def _use(self, pool: str, source: str | None) -> None:
        self.warmups.give_back(self.pool, self.source, self.taken_at, self.count)
        self.pool, self.source, self.taken_at = pool, source, self.warmups.outside.now()
        self.warmups.take(pool, source, self.count)

    def failed(self, address: Address) -> None:
        """No server took anything there."""
        self.warmups.is_dead(address)

    def keep_only(self, count: int) -> None:
        """Give back what will not be needed."""
        self.warmups.give_back(self.pool, self.source, self.taken_at, self.count - count)
        self.count = count


def _bound(memory: dict[Any, Any]) -> None:
    """Forget everything when it is too much: all of it can be found out again."""
    if len(memory) >= KEPT:
        memory.clear()
