"""Chooses the source that an envelope leaves from, and knows which sources can be used.

A message keeps its source for each recipient domain: a hash of both orders the sources of its stream, and the first one
that is in use takes it. So a greylisting server sees the same address again, and all sources get equal shares. A source
is out on this node while no session can bind to it, and out at a pool while the pool is held for it (`PoolLimiters`).
If all sources of an envelope are out, it is postponed without an attempt: it never leaves from another address.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from appliance.concurrency.wake import STORAGE_PAUSE
from appliance.deliver.observation import NAMED_POOLS, OTHER_POOLS
from appliance.deliver.pool_limiters import UNROUTED, PoolLimiters
from appliance.deliver.preparing import Envelope, Flow, Ready
from appliance.deliver.route import Host, NoRoute, Route
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.mail import Attempt, BounceClass, Outcome, RecipientStatus
from appliance.model.ramp import Via
from appliance.model.sources import OutgoingSource, PoolDay, SourceState, SourceTable, limits_name
from appliance.model.streams import Streams
from appliance.net.address_policy import Address
from appliance.net.dial import Shortage
from appliance.net.local_addresses import bind_trouble
from appliance.store import Store
from appliance.store.sources import OwnSources
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import SOURCE_RESULTS, SOURCES_IN_USE
from appliance.times import DAY, SECOND

SOURCE_WAIT = 30 * SECOND  # until mail without a usable source is looked at again
SOURCE_WAIT_EACH = SECOND // 200  # between two recipients: a large backlog returns at a steady rate
REPLY_KEPT = 500  # characters
ABOUT_SOURCE = frozenset((BounceClass.REPUTATION, BounceClass.POLICY))  # servers refuse mail from this source

log = get_logger("deliver")


class Sources(Struct):
    store: Store
    env: Environment
    limiters: PoolLimiters
    table: SourceTable = field(default_factory=SourceTable)
    streams: Streams = field(default_factory=Streams)
    node: str = ""  # this one's name
    # Whether mail for a domain, by this route under the ramp, goes through a relay: that sees the system's choice.
    is_relayed: Callable[[str, Via | None], bool] = lambda domain, via: False
    trouble: Callable[[Address], str | None] = bind_trouble
    _own: OwnSources = field(default_factory=dict)
    _version: str = ""  # of `_own`
    _here: dict[str, OutgoingSource] = field(default_factory=dict)  # with the addresses that sessions can bind to
    _states: dict[str, SourceState] = field(default_factory=dict)
    _said: dict[str, SourceState] | None = None  # None: only by an earlier process
    _days: dict[tuple[str, str, int], PoolDay] = field(default_factory=dict)  # results that are not stored yet
    _last_return: int = 0  # the latest due time of a recipient that was postponed

    # ---- which sources

    def names(self, account: str, stream: str) -> tuple[str, ...]:
        """The sources of an account's stream; none: the system chooses the address."""
        return self.table.used_by(stream, self._own.get(account))

    def in_order(self, envelope: Envelope) -> list[str]:
        """The sources of an envelope, the one to use first; none: the system chooses the address."""
        names = self.names(envelope.account_id, envelope.stream)
        if not names or self.is_relayed(envelope.domain, envelope.via):
            return []
        start = f"{envelope.message_id} {envelope.domain} "
        return sorted(names, key=lambda name: blake2b((start + name).encode(), digest_size=8).digest())

    def limits(self, envelope: Envelope, pool: str) -> list[str]:
        """The names of the limits in a pool that an envelope may use now; none: all of its sources are out."""
        if not (self.table.by_stream or self._own):
            return [pool]
        names = self.in_order(envelope)
        if not names or pool == UNROUTED:
            return [pool] if not names or any(name in self._here for name in names) else []
        every = [limits_name(pool, name) for name in names if name in self._here]
        return [limits for limits in every if self.may_use(limits, envelope.account_id)]

    def limits_of_lane(self, flow: Flow, domain: str, via: Via | None, pool: str) -> list[str]:
        """The names of the limits in a pool that an account's mail with one priority may need."""
        account, low = flow.account, flow.low
        if (not self.table.by_stream and account not in self._own) or self.is_relayed(domain, via):
            return [pool]
        streams = [name for name, stream in self.streams.by_name.items() if stream.is_low == bool(low)]
        names = {name for stream in streams for name in self.names(account, stream) or ("",)}
        return [limits_name(pool, name) for name in sorted(names)] if pool != UNROUTED else [pool]

    def may_use(self, limits: str, account: str) -> bool:
        return not self.limiters.is_held(limits) or self.limiters.may_probe(limits, account)

    def route(self, envelope: Envelope, route: Route, has_room: Callable[[str], bool]) -> Route | None:
        """The route from the envelope's source; None: all of its sources are out.

        A source whose warm-up has no room for more pending mail gets it only if no other source has room.
        """
        if not (self.table.by_stream or self._own) or not (names := self.in_order(envelope)):
            return route
        here = [self._here[name] for name in names if name in self._here]
        routes = [routed for source in here if (routed := _from_source(route, source)) is not None]
        if here and not routes:
            raise NoRoute("4.4.4", f"no source address has the address family of the mail servers of {route.domain}")
        usable: list[Route] = []
        for routed in routes:
            limits = self.limiters.of_route(routed).pool
            if self.may_use(limits, envelope.account_id):
                if has_room(limits):
                    return routed
                usable.append(routed)
        return usable[0] if usable else None

    def may_start(self, ready: Ready) -> bool:
        """Whether a ready envelope may still leave from its source."""
        source, limits = ready.routed.route.source, ready.routed.limiter.pool
        if source is None:
            return True
        return source == self._here.get(source.name) and self.may_use(limits, ready.routed.envelope.account_id)

    def has_other(self, envelope: Envelope, pool: str, source: str) -> bool:
        """Whether another source of an envelope may send to a pool."""
        others = [name for name in self.in_order(envelope) if name != source and name in self._here]
        limits = [limits_name(pool, name) for name in others]
        return any(not (self.limiters.is_held(name) or self.limiters.is_closing(name)) for name in limits)

    def postponed_until(self) -> int:
        """When the next recipient that waits for a source is due again."""
        now = self.env.now()
        if self._last_return > now + DAY:  # the clock was set back
            self._last_return = 0
        self._last_return = max(now + SOURCE_WAIT, self._last_return + SOURCE_WAIT_EACH)
        return self._last_return

    # ---- what this node has

    async def start(self) -> None:
        """Return once the sources of accounts are known: until then no mail may leave."""
        while True:
            try:
                return await self.refresh()
            except StorageUnavailable as outage:
                log.warning("delivery paused: storage unavailable", reason=outage.text)
                await trio.sleep(STORAGE_PAUSE)

    async def refresh(self, *, read: bool = True) -> None:
        """Read the accounts' own sources if they changed, and test every address."""
        if read and (version := await self.store.sources.version()) != self._version:
            self._own, self._version = await self.store.sources.own(), version
        self.look()

    def look(self) -> None:
        for source in self.table.of_node(self.node):
            try:
                self._note(source, {address: self.trouble(address) for address in source.addresses})
            except Shortage:
                return  # the addresses stay as they were

    def note_gone(self, source: OutgoingSource, address: Address) -> None:
        """A session could not bind to an address."""
        known = self._here.get(source.name)
        here = () if known is None else known.addresses
        whole = self.table.by_name.get(source.name, source)
        self._note(
            whole,
            {one: None if one in here and one != address else "is not on this machine" for one in whole.addresses},
        )

    def _note(self, source: OutgoingSource, troubles: Mapping[Address, str | None]) -> None:
        before, name = self._states.get(source.name), source.name
        here = tuple(address for address in source.addresses if troubles[address] is None)
        detail = "; ".join(f"{address} {why}" for address, why in troubles.items() if why is not None)
        if before is not None and before.is_here == bool(here) and before.detail == detail:
            return
        self._states[name] = SourceState(name, self.store.engine.node, bool(here), detail, self.env.now())
        if here:
            self._here[name] = source.only(here)
            self.limiters.sources_out.discard(name)
        else:
            self._here.pop(name, None)
            self.limiters.sources_out.add(name)
        SOURCES_IN_USE[name] = bool(here)
        if not here:
            log.error("source taken out: no session can bind to it", source=name, reason=detail)
        elif detail:
            log.warning("source lacks an address", source=name, reason=detail)
        elif before is not None:
            log.info("source in use again", source=name)

    # ---- results

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """Count the results of attempts. A bounce for another reason says nothing about the source."""
        for outcome in outcomes:
            for attempt in outcome.attempts:
                if attempt.source is not None and (result := _result(outcome)) is not None:
                    self._count(attempt, attempt.source, result)

    def _count(self, attempt: Attempt, source: str, result: str) -> None:
        SOURCE_RESULTS.add((source, result))
        pool = attempt.pool if attempt.pool in NAMED_POOLS else None
        reply: tuple[str | None, int | None] = (None, None)
        if result != "delivered" and attempt.smtp_code is not None:
            reply = (attempt.smtp_response or "")[:REPLY_KEPT], attempt.finished_at
        day = PoolDay(int(result == "delivered"), int(result == "deferred"), int(result == "blocked"), *reply)
        key = source, pool or OTHER_POOLS, attempt.finished_at // DAY
        self._days[key] = self._days.get(key, PoolDay()).plus(day)

    async def publish(self) -> None:
        """Store the states of the sources if they changed, and the results since the last call."""
        if self._states == (self._said or {}) and not self._days and (self._said is not None or not self._states):
            return
        days, self._days, states = self._days, {}, dict(self._states)
        try:
            await self.store.sources.say(states.values(), days)
            self._said = states
        except StorageUnavailable:
            merged = defaultdict(PoolDay, days)
            for key, day in self._days.items():
                merged[key] = merged[key].plus(day)
            self._days = dict(merged)
            raise


def _result(outcome: Outcome) -> str | None:
    if outcome.status is RecipientStatus.DELIVERED:
        return "delivered"
    if outcome.bounce_class in ABOUT_SOURCE:
        return "blocked"
    return "deferred" if outcome.status is RecipientStatus.DEFERRED else None


def _from_source(route: Route, source: OutgoingSource) -> Route | None:
    """The route to the hosts that a source can reach; None: it lacks an address of their family."""
    versions = {address.version for address in source.addresses}
    if len(versions) == 2:
        return replace(route, source=source)
    hosts = [_of_family(host, versions) for host in route.hosts]
    reachable = tuple(host for host in hosts if host.addresses)
    return replace(route, hosts=reachable, source=source) if reachable else None


def _of_family(host: Host, versions: Iterable[int]) -> Host:
    return Host(host.name, tuple(address for address in host.addresses if address.version in versions), host.authentic)
