"""The limiters of all pools: created on demand, dropped at rest, held when servers refuse this sender, and published
for other processes.

The first server of a route selects the limiter of a transaction:
- a server at an address where a provider's server has answered: the provider's pool;
- a host with a provider's name where no server has answered yet: a limiter of its own, under the host's name. It starts
  with few slots and obeys the slow-downs and holds of the provider's pool, but nothing there affects that pool;
- every other server: the pool of its organisation, the owner of its name.
Mail from a source has limiters of its own, which start with the same limits: servers judge the address.

An automatic hold is probed: after a while one message goes, then at growing intervals, until one is delivered. A
refused probe is not bounced. Only the operator ends the operator's holds. Servers judge the address that mail comes
from, so each node holds and probes its own mail; the operator's holds apply to all nodes.
"""

from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from types import MappingProxyType

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import TtlCache
from appliance.concurrency.wake import until_stored
from appliance.deliver.pool_limiter import JudgedSender, PoolLimiter
from appliance.deliver.providers import Pool, ProviderPools
from appliance.deliver.route import Route
from appliance.deliver.smtp.protocol import Stage, Verdict
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.mail import OutgoingSession
from appliance.model.queue import PoolHold, PoolState, SlowedAccount
from appliance.model.ramp import Via
from appliance.model.sources import limits_name, pool_and_source
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.telemetry.log import get_logger
from appliance.times import DAY, SECOND

DESTINATIONS_KEPT = 50_000  # domains whose pool is remembered
UNANSWERED_SLOTS = 2  # of a host with a provider's name where no server has answered yet
FIRST_PROBE = 15 * 60 * SECOND  # after a hold began
LONGEST_PROBE = 4 * 3600 * SECOND  # between two probes; each interval is twice the one before
PROBE_AGAIN = 60 * SECOND  # after a probe that reached no server of the pool
ACCOUNTS_EVERY = 10.0  # seconds between two checks whether there is more than one account
ACCOUNTS_PUBLISHED = 100  # slowed accounts of one pool
ACCEPTED_KEPT = 20_000  # recipients that a server accepted most recently, of all pools
ACCEPTED_FOR = 7 * 24 * 3600.0  # seconds; an older delivery says nothing about today
ANSWER_COUNTS_FOR = 6 * 3600.0  # seconds, of a provider's server at an address
ADDRESSES_KEPT = 20_000
HOSTS_KEPT = 10_000
NOT_SAVED = "pool hold not saved"
UNROUTED = ""  # instead of a pool, for domains whose pool is not known yet

log = get_logger("deliver")


class ProviderServers:
    """The addresses at which a provider's server has answered, and the pools for host names, cached."""

    def __init__(self, pools: ProviderPools) -> None:
        self.pools = pools
        self.by_name = {pool.name: pool for pool in pools.providers.values()}
        self._by_host: dict[str, Pool] = {}
        # By address: the provider, and the time of its last answer. Mail to a held pool goes to no server.
        self._providers: TtlCache[str, tuple[str, float]] = TtlCache(ADDRESSES_KEPT, inf)

    def pool_of(self, host: str) -> Pool:
        if (pool := self._by_host.get(host)) is None:
            if len(self._by_host) >= HOSTS_KEPT:
                self._by_host.clear()
            pool = self._by_host[host] = self.pools.of(host)
        return pool

    def known_as(self, pool: str) -> str:
        """The pool's name for operators: a limiter that has the name of a provider's host is shown as the provider."""
        if pool in self.by_name or not pool:
            return pool
        base, source = pool_and_source(pool)
        return limits_name(base if base in self.by_name else self.pool_of(base).name, source)

    def provider_at(self, address: str, held: Container[str] = (), source: str = "") -> str | None:
        """The provider whose server answered at this address lately, or before its pool was `held`."""
        if (known := self._providers.get(address)) is None:
            return None
        provider, answered_at = known
        is_recent = trio.current_time() < answered_at + ANSWER_COUNTS_FOR
        return provider if is_recent or limits_name(provider, source) in held else None

    def answered(self, host: str, address: str) -> None:
        """The server at this address of a host completed its opening."""
        if (pool := self.pool_of(host)).is_provider:
            self._providers.put(address, (pool.name, trio.current_time()))

    def silent(self, address: str) -> None:
        self._providers.discard(address)


class Probe(Struct):
    hold: PoolHold
    under_way: bool = False
    failed_for: str = ""  # the account of the last probe, if that reached no server of the pool


class PoolSlot(Struct):
    """A transaction's slot in the pool of the server it talks to; it moves with the transaction between servers."""

    limiter: PoolLimiter
    account: str
    domain: str
    probes: str | None = None  # the held pool that this transaction probes
    answered: list[PoolLimiter] = field(default_factory=list)  # the limiters of the servers that replied
    last_answered: PoolLimiter | None = None
    delivered: bool = False
    dialled: bool = False

    def note_reply(self, limiter: PoolLimiter, *, delivered: bool) -> None:
        """A server of this limiter replied; `delivered`: it accepted the message."""
        self.last_answered, self.delivered = limiter, delivered
        if limiter not in self.answered:
            self.answered.append(limiter)

    @property
    def affects_hold(self) -> bool:
        return self.probes is not None or any(limiter.hold_reason is not None for limiter in self.answered)


class PoolLimiters(Struct):
    store: Store
    env: Environment
    servers: ProviderServers
    sources_out: set[str] = field(default_factory=set)  # no session can bind to them
    _holds: dict[str, PoolHold] = field(default_factory=dict)
    _limiters: dict[str, PoolLimiter] = field(default_factory=dict)
    _pool_of: dict[tuple[str, Via | None], str] = field(default_factory=dict)  # by domain and route, as last routed
    _unpublished: dict[str, str] = field(default_factory=dict)  # pools to publish, by domain
    _published_on: dict[str, int] = field(default_factory=dict)  # by domain, the day of its last publication
    _being_held: dict[str, PoolHold] = field(default_factory=dict)  # holds not stored yet, by pool
    _probes: dict[str, Probe] = field(default_factory=dict)  # by pool
    _probed: set[str] = field(default_factory=set)  # pools that a delivered probe opens
    _pause: PoolHold | None = None  # of all mail
    _accepted: TtlCache[int, bool] = field(default_factory=lambda: TtlCache(ACCEPTED_KEPT, ACCEPTED_FOR))
    _resumed: dict[str, int] | None = None  # pools that the operator resumed, as last read; None: not read yet
    _readings: int = 0  # reads of the stored holds, started
    _read: int = 0  # the number of the newest finished read
    _published: tuple[list[PoolState], list[OutgoingSession]] | None = None  # None: only by an earlier process
    _only: bool = False  # the installation has one account
    _only_at: float = -ACCOUNTS_EVERY  # Trio's clock

    def pool_of(self, domain: str, via: Via | None = None) -> str:
        """The pool that a domain's mail used last, whatever its source; under the ramp by this route."""
        return self._pool_of.get((domain, via), UNROUTED)

    def of_route(self, route: Route) -> PoolLimiter:
        """The limiter of a route's first server; remember it for the domain."""
        host = route.hosts[0]
        limiter = self.at(route, host.name, host.dialled[0])
        key = route.domain, route.via
        if self._pool_of.get(key) != (base := limiter.base):
            if len(self._pool_of) >= DESTINATIONS_KEPT:
                self._pool_of.clear()
            self._pool_of[key] = base
            self._published_on.pop(route.domain, None)
        if route.via is not Via.RELAY:  # under the ramp the domain's provider is published
            self.publish_pool(route.domain, pool_and_source(limiter.provider)[0] if limiter.provider else base)
        return limiter

    def publish_pool(self, domain: str, pool: str) -> None:
        """Publish a domain's pool, again every day: retention deletes those that are not published any more."""
        if self._published_on.get(domain) != (today := self.env.now() // DAY):
            if len(self._published_on) >= DESTINATIONS_KEPT:
                self._published_on.clear()
            self._published_on[domain] = today
            self._unpublished[domain] = pool

    def has_moved(self, limiter: PoolLimiter, route: Route) -> bool:
        """Whether this is a host's own limiter, and the provider's server has answered there since."""
        host = route.hosts[0]
        return limiter.provider is not None and self.at(route, host.name, host.dialled[0]) is not limiter

    def at(self, route: Route, host: str, address: str) -> PoolLimiter:
        pool, is_relay = self.servers.pool_of(host), route.relay is not None
        source = "" if route.source is None else route.source.name
        provider = None if is_relay else self.servers.provider_at(address, self._holds, source)
        if provider is not None:
            pool = self.servers.by_name[provider]
        is_unanswered = provider is None and pool.is_provider and not is_relay
        name = host if is_unanswered else pool.name
        name = limits_name(name, source) if source else name
        if (limiter := self._limiters.get(name)) is None:
            limiter = self._limiters[name] = PoolLimiter(
                name,
                pool.limits,
                shared=pool.is_provider and not is_unanswered,
                start=UNANSWERED_SLOTS if is_unanswered else None,
                provider=limits_name(pool.name, source) if is_unanswered else None,
                nodes=self.store.engine.live_nodes if self.store.engine.is_shared else None,
            )
        return limiter

    # ---- may a transaction begin

    def is_open(self, limiter: PoolLimiter, account: str) -> bool:
        """Whether an account's transaction may begin at a limiter, as a probe if the pool is held."""
        may_go = not self.is_held(limiter.pool) or self.may_probe(limiter.pool, account)
        return may_go and self.has_slot(limiter, account)

    def has_slot(self, limiter: PoolLimiter, account: str) -> bool:
        """Whether the limiter, and the provider's pool that it obeys, have room for an account's transaction."""
        now = self.env.now()
        if not limiter.is_open(now) or not limiter.lets_pass(account, now):
            return False
        provider = None if limiter.provider is None else self._limiters.get(limiter.provider)
        return provider is None or (not provider.throttle.is_slowed(now) and provider.lets_pass(account, now))

    def is_held(self, pool: str) -> bool:
        if self._pause is not None or (self.sources_out and pool_and_source(pool)[1] in self.sources_out):
            return True
        if not self._holds:
            return False
        return pool in self._holds or self.servers.known_as(pool) in self._holds or self._is_held_by_operator(pool)

    def is_closing(self, pool: str) -> bool:
        """Whether a server's verdict holds a pool, and the hold is not stored yet."""
        limiter = self._limiters.get(pool)
        return limiter is not None and limiter.hold_reason is not None

    def _is_held_by_operator(self, pool: str) -> bool:
        """Whether the operator holds the pool for all sources. An automatic hold is for one source, or for none."""
        base, source = pool_and_source(self.servers.known_as(pool))
        hold = self._holds.get(base)
        return hold is not None and (not source or hold.probe_at is None)

    def may_probe(self, pool: str, account: str) -> bool:
        """Whether a message of this account may go to a held pool as a probe."""
        probe = self._probe_of(pool)
        if self._pause is not None or probe is None or probe.under_way or probe.hold.probe_at is None:
            return False
        source = pool_and_source(pool)[1]
        if source and (source in self.sources_out or self._is_held_by_operator(pool)):
            return False
        now, at = self.env.now(), probe.hold.probe_at
        if probe.failed_for == account and now < at + PROBE_AGAIN:  # others first
            at += PROBE_AGAIN
        return not now < at <= now + LONGEST_PROBE  # a later time means that the clock was set back

    def _probe_of(self, pool: str) -> Probe | None:
        """The probe of a held pool, or of a host's own limiter that a source's mail is held at."""
        return self._probes.get(pool) or self._probes.get(self.servers.known_as(pool))

    def slot(self, limiter: PoolLimiter, account: str, domain: str) -> PoolSlot:
        limiter.enter(account, self.env.now())
        probes = None
        if self.is_held(limiter.pool) and (probe := self._probe_of(limiter.pool)) is not None:
            probes, probe.under_way = probe.hold.pool, True
        return PoolSlot(limiter, account, domain, probes)

    def move(self, slot: PoolSlot, route: Route, host: str, address: str) -> bool:
        """Move a slot to the limiter of this server; False: that has no free slot, even if the first server is dead."""
        if not slot.dialled:
            slot.dialled = True
            return True
        limiter = self.at(route, host, address)
        if limiter is slot.limiter:
            return True
        held = self.is_held(limiter.pool) and slot.probes not in (limiter.pool, limiter.provider or limiter.pool)
        if held or not self.has_slot(limiter, slot.account):
            return False
        slot.limiter.leave_unused(slot.account)
        limiter.enter(slot.account, self.env.now())
        slot.limiter = limiter
        return True

    async def sender(self, slot: PoolSlot) -> JudgedSender:
        """Whose mail a server judged; checks every few seconds whether the installation has one account."""
        if (now := trio.current_time()) >= self._only_at + ACCOUNTS_EVERY:
            self._only_at = now
            with suppress(StorageUnavailable):  # keep the last result
                self._only = await self.store.accounts.is_only_one()
        return JudgedSender(slot.account, slot.domain, self._only)

    def note_accepted(self, limiter: PoolLimiter, account: str, address: str) -> None:
        self._accepted.put(hash((limiter.pool, account, address)), True)

    def repeated(self, limiter: PoolLimiter, account: str, verdicts: list[tuple[str, Verdict]]) -> list[Verdict]:
        """Of verdicts without a reason, those met repeatedly by recipients that were accepted before."""
        met = [
            (key, verdict)
            for address, verdict in verdicts
            if (key := hash((limiter.pool, account, address))) in self._accepted
        ]
        if len(met) > 1 and met[0][1].stage is not Stage.RCPT:
            met = [(hash(frozenset(key for key, _ in met)), met[0][1])]
        now = self.env.now()
        return [verdict for key, verdict in met if limiter.repeats(now, account, (verdict.code, verdict.enhanced), key)]

    # ---- holds

    async def read_holds(self) -> None:
        self._readings += 1
        number = self._readings
        holds, resumed = await self.store.pools.holds(), await self.store.pools.resumed()
        if number < self._read:
            return  # a newer read has finished
        self._read = number
        self._lift(resumed)
        pause = holds.pop(EVERY, None)
        if pause != self._pause:
            self._pause = pause
            if pause is None:
                log.info("delivery resumed")
            else:
                log.warning("delivery paused: run `appliance resume` to resume it", reason=pause.reason)
        before, self._holds = self._holds, holds | self._being_held
        if number > 1:  # the first read returns holds that an earlier process logged
            self._log_holds(before)
        known = self._probes
        self._probes = {pool: known.get(pool, Probe(hold)) for pool, hold in self._holds.items() if hold.probe_at}
        for pool, probe in self._probes.items():
            probe.hold = self._holds[pool]

    def _lift(self, resumed: dict[str, int]) -> None:
        """Lift the slow-downs of the pools that the operator resumed since the last read."""
        before, self._resumed = self._resumed, resumed
        if before is None or before == resumed:
            return
        pools = {pool for pool, number in resumed.items() if number != before.get(pool)}
        for limiter in self._limiters.values():
            if limiter.pool in pools or limiter.provider in pools or limiter.base in pools:
                limiter.lift()
                log.info("pool resumed: slow-downs lifted", pool=limiter.pool)

    def _log_holds(self, before: dict[str, PoolHold]) -> None:
        for pool in self._holds.keys() - before.keys():
            if self._holds[pool].probe_at is None:
                log.warning("pool held by the operator", pool=pool, reason=self._holds[pool].reason)
        for pool in before.keys() - self._holds.keys():
            how = "probe delivered" if pool in self._probed else "resumed by the operator"
            self._probed.discard(pool)
            seconds = max(0, self.env.now() - before[pool].held_at) // SECOND
            log.info(f"pool open again: {how}", pool=pool, seconds=seconds)

    async def update_holds(self, slot: PoolSlot) -> None:
        """Store the result of a probe, and begin the holds that the servers' refusals require."""
        if slot.probes is not None:
            await self._end_probe(slot.probes, slot)
        for limiter in slot.answered:
            if limiter.hold_reason is not None:
                await self._hold(limiter)

    async def _hold(self, limiter: PoolLimiter) -> None:
        """Hold a pool at once and store the hold; the limiter is open again when the hold ends.

        A host with a provider's name where no server has answered is not held; it gets one message at long intervals.
        """
        pool, reason, now = limiter.pool, limiter.hold_reason or "", self.env.now()
        limiter.reopen()
        if limiter.provider is not None and not limiter.source:
            limiter.throttle.shut(now, reason)
            return
        if pool in self._holds:
            return
        hold = PoolHold(pool, reason, now, now + FIRST_PROBE, node=self.store.engine.node)
        self._holds[pool] = self._being_held[pool] = hold
        saved = partial(until_stored, log=log, failure=NOT_SAVED, pool=pool)
        await saved(self.read_holds)
        if limiter.source:
            log.error("source taken out: servers refuse its mail", source=limiter.source, pool=pool, reason=reason)
        else:
            log.error("pool held: its servers refuse mail from this server", pool=pool, reason=reason)
        await saved(lambda: self.store.pools.hold(pool, reason, hold.probe_at))
        try:
            await saved(self.read_holds)
        finally:
            del self._being_held[pool]  # not before: a read that started earlier does not return it

    async def _end_probe(self, pool: str, slot: PoolSlot) -> None:
        """Release the pool if the probe was delivered there; otherwise schedule the next."""
        probe = self._probes.get(pool)
        if probe is None:  # released, or held by the operator, meanwhile
            return
        saved = partial(until_stored, log=log, failure=NOT_SAVED, pool=pool)
        reached = any(limiter.pool == pool for limiter in slot.answered)
        last = None if slot.last_answered is None else slot.last_answered.pool
        # A host's own limiter is no longer used after the provider's server has answered there.
        if slot.delivered and last in (pool, self.servers.known_as(pool)):
            self._probed.add(pool)
            await saved(lambda: self.store.pools.release(pool, automatic=True))
        else:
            probe.failed_for = "" if reached else slot.account
            count = probe.hold.probes + reached
            wait = min(FIRST_PROBE << min(count, 10), LONGEST_PROBE) if reached else PROBE_AGAIN
            later = replace(probe.hold, probe_at=self.env.now() + wait, probes=count)
            await saved(lambda: self.store.pools.probed(later))
        try:
            await saved(self.read_holds)
        finally:
            probe.under_way = False  # not before: until then the stored time is that of this probe

    # ---- for other processes

    async def publish(
        self,
        pending: Container[str],
        sessions: list[OutgoingSession],
        waits: Mapping[str, list[SlowedAccount]] = MappingProxyType({}),
    ) -> None:
        """Store the state of pools and sessions for the command line and the API, if it changed.

        Drops limiters at rest without `pending` mail: there may be one for every domain. `waits` has the accounts whose
        mail is waiting for a session, by pool.
        """
        now = self.env.now()
        for pool in [name for name, known in self._limiters.items() if known.is_at_rest(now) and name not in pending]:
            del self._limiters[pool]
        by_name = {}  # operators see a host's own limiter as its provider's, unless that has one
        for limiter in self._limiters.values():
            if limiter.provider is None or limiter.provider not in self._limiters:
                name = limiter.provider or limiter.pool
                by_name[name] = _state(name, limiter, now, waits.get(limiter.pool, ()))
        states = list(by_name.values()), sessions
        if states == self._published and not self._unpublished:
            return
        domains, self._unpublished = self._unpublished, {}
        try:
            await self.store.pools.say(states[0], domains, states[1])
            domains, self._published = {}, states
        except StorageUnavailable as refused:
            log.warning("pool states not saved: storage unavailable", reason=refused.text)
        finally:
            self._unpublished = domains | self._unpublished


def _state(pool: str, limiter: PoolLimiter, now: int, waits: Iterable[SlowedAccount]) -> PoolState:
    throttle, rate = limiter.throttle, limiter.rate
    return PoolState(
        pool=pool,
        in_use=limiter.in_use,
        allowed=limiter.slots,
        slowed_until=throttle.slowed_until or None,
        slowed_by=throttle.slowed_by,
        updated_at=0,
        rate=None if rate is None or limiter.has_token(now) else max(1, round(rate)),
        slowed_accounts=(*limiter.slowed_accounts(now), *waits)[:ACCOUNTS_PUBLISHED],
    )
