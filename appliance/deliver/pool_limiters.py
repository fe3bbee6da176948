"""The limiters of all pools: made when needed, forgotten at rest, held when they must be, told to other processes.

Which limiter a transaction passes is decided by its first server. A name is enough to be limited by a provider's pool,
and never enough to limit it:
- a server that is proved to be a provider's (`Proofs`) passes the limiter of that provider's pool;
- one that is only named like a provider's host passes a limiter of its own, under its host name. It has few slots at
  first, and waits whenever the provider's pool is slowed or held; nothing it does or says touches that pool;
- every other server passes the limiter of its organisation, the owner of its name.

A pool that is held because its servers refuse us is probed: after a while one message goes, later and later, until one
is delivered. A probe that is refused is not bounced for it. Holds of the operator end only by the operator. Of several
nodes each holds its own mail and probes by itself, since servers judge the address that mail comes from; the operator's
holds are for all.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import MappingProxyType

import trio

from appliance.concurrency.batch_writer import STORAGE_PAUSE
from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.pool_limiter import JudgedSender, PoolLimiter
from appliance.deliver.providers import Pool, ProviderPools
from appliance.deliver.route import Route
from appliance.deliver.smtp.protocol import Stage, Verdict
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver, host_addresses, records_of
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.mail import OutgoingSession
from appliance.model.queue import PoolHold, PoolState, SlowedAccount
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.telemetry.log import get_logger
from appliance.times import DAY, SECOND

# ---- whose server it is

PROVED_FOR = 6 * 3600.0  # seconds
ASKED_EVERY = 3600.0  # seconds until an address without a proof is looked up again
TROUBLED_EVERY = 60.0  # the same when the DNS could not tell
LOOKUP_LIMIT = 20.0  # seconds that one look-up may take in all
PROOF_LOOKUPS = 8  # at once
PROOFS_WAITING = 1_000  # addresses that wait to be looked up; more are looked up when they answer again
NAMES = 3  # reverse names of one address that are read
ADDRESSES_KEPT = 20_000
HOSTS_KEPT = 10_000


@dataclass(slots=True)
class Proofs:
    """Which provider a mail server belongs to, by what it can prove and not by what an MX record calls it.

    An address is a provider's if a server answered there and
    - showed a certificate that verifies for its MX host name (by the trust store, or by DANE), and that name is one of
      the provider's mail hosts; or
    - the address has a reverse name (PTR) of the provider's, and that name leads back to the address.

    Reverse names are looked up beside delivery, which never waits for them: until the answer is there, nothing is
    proved. What was proved counts for some hours, and ends when no server answers at the address any more.
    """

    resolver: Resolver
    pools: ProviderPools
    named: dict[str, Pool] = field(init=False)  # of the providers
    _known: dict[str, tuple[str | None, float]] = field(default_factory=dict)  # provider, and until when (Trio's clock)
    _claims: dict[str, Pool] = field(default_factory=dict)  # by host, since many suffixes have to be tried
    _wanted: "trio.MemorySendChannel[tuple[str, str]]" = field(init=False)
    _to_look_up: "trio.MemoryReceiveChannel[tuple[str, str]]" = field(init=False)

    def __post_init__(self) -> None:
        self.named = {pool.name: pool for pool in self.pools.providers.values()}
        self._wanted, self._to_look_up = trio.open_memory_channel[tuple[str, str]](PROOFS_WAITING)

    def claim(self, host: str) -> Pool:
        if (pool := self._claims.get(host)) is None:
            if len(self._claims) >= HOSTS_KEPT:
                self._claims.clear()
            pool = self._claims[host] = self.pools.of(host)
        return pool

    def known_as(self, pool: str) -> str:
        """The pool as operators know it: of a limiter under the name of a host that claims to be a provider's."""
        return pool if pool in self.named or not pool else self.claim(pool).name

    def provider_at(self, address: str) -> str | None:
        """The provider whose server answers at an address, as far as that is proved."""
        provider, until = self._known.get(address, (None, 0.0))
        return provider if trio.current_time() < until else None

    def answered(self, host: str, address: str, *, verified: bool) -> None:
        """A server took a connection; `verified`: its certificate is good for the name of the host."""
        claim, now = self.claim(host), trio.current_time()
        if verified and claim.proof:
            self._remember(address, claim.name, now + PROVED_FOR)
            return
        provider, until = self._known.get(address, (None, 0.0))
        if now < until - (PROVED_FOR / 2 if provider else 0.0):
            return
        self._remember(address, provider, max(until, now + ASKED_EVERY))  # asked once, and not by all who come next
        if verified:
            return  # its name is its own organisation's: no reverse name need say more
        try:
            self._wanted.send_nowait((host, address))
        except trio.WouldBlock:
            self._remember(address, provider, until)

    def silent(self, address: str) -> None:
        self._known.pop(address, None)

    async def run(self) -> None:
        """Look up reverse names until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(PROOF_LOOKUPS):
                nursery.start_soon(self._look_up_all)

    async def _look_up_all(self) -> None:
        async for host, address in self._to_look_up:
            try:
                with trio.fail_after(LOOKUP_LIMIT):
                    provider, lasts = await self._by_reverse_name(host, address), PROVED_FOR
            except (trio.TooSlowError, LookupFailed):
                provider, lasts = None, TROUBLED_EVERY
            if provider is None:
                lasts = min(lasts, ASKED_EVERY)
            self._remember(address, provider, trio.current_time() + lasts)

    async def _by_reverse_name(self, host: str, address: str) -> str | None:
        """The provider that both the address's reverse name and that name's addresses speak for."""
        for name in (await records_of(self.resolver.ptr, ip_address(address).reverse_pointer))[:NAMES]:
            provider = self.pools.by_reverse_name(name, self.claim(host).name)
            if provider is None:
                continue
            try:
                if ip_address(address) in (await host_addresses(self.resolver, name))[0]:
                    return provider
            except LookupFailed as failed:
                if failed.fault is DnsFault.TEMPORARY:
                    raise
        return None

    def _remember(self, address: str, provider: str | None, until: float) -> None:
        if len(self._known) >= ADDRESSES_KEPT and address not in self._known:
            del self._known[next(iter(self._known))]
        self._known[address] = provider, until


# ---- the limiters

DESTINATIONS_KEPT = 50_000  # domains whose pool is remembered
UNPROVED_SLOTS = 2  # of a host that is only named like a provider's, until it delivers
FIRST_PROBE = 15 * 60 * SECOND  # after a hold began
LONGEST_PROBE = 4 * 3600 * SECOND  # between two probes; each waits twice as long as the one before
PROBE_AGAIN = 60 * SECOND  # after a probe that reached no server of the pool
ACCOUNTS_EVERY = 10.0  # seconds between two checks whether there is more than one account
ACCOUNTS_TOLD = 100  # of one pool, whose mail waits
ACCEPTED_KEPT = 20_000  # recipients that a server accepted, of all pools; the last ones
ACCEPTED_FOR = 7 * 24 * 3600.0  # seconds; longer ago says nothing of today
UNROUTED = ""  # in the place of a pool, for domains whose pool we do not know yet

log = get_logger("deliver")


@dataclass(slots=True)
class Probe:
    hold: PoolHold
    under_way: bool = False
    failed_for: str = ""  # the account whose mail was the last probe, and reached no server of the pool


@dataclass(slots=True)
class PoolSlot:
    """A transaction's place in the pool of the server it talks to; goes with it from server to server."""

    limiter: PoolLimiter  # where it was taken
    account: str
    domain: str
    probes: str | None = None  # the held pool that it probes
    answers: PoolLimiter | None = None  # the limiter of the last server that said something
    told: list[PoolLimiter] = field(default_factory=list)  # the limiters of all servers that did
    delivered: bool = False
    dialled: bool = False

    def hear(self, limiter: PoolLimiter, *, delivered: bool) -> None:
        """A server said something, or took the message; its limiter is about to be told."""
        self.answers, self.delivered = limiter, delivered
        if limiter not in self.told:
            self.told.append(limiter)

    @property
    def has_news(self) -> bool:
        """Whether a hold is to begin, or may be over."""
        return self.probes is not None or any(limiter.hold_reason is not None for limiter in self.told)


@dataclass(slots=True)
class PoolLimiters:
    """A limiter for each pool that has mail or something to remember."""

    store: Store
    env: Environment
    proofs: Proofs
    _holds: dict[str, PoolHold] = field(default_factory=dict)
    _limiters: dict[str, PoolLimiter] = field(default_factory=dict)
    _pool_of: dict[str, str] = field(default_factory=dict)  # by domain, as last routed
    _learnt: dict[str, str] = field(default_factory=dict)  # domains to tell the shell about
    _published_on: dict[str, int] = field(default_factory=dict)  # by domain, the day on which it was in `_learnt`
    _being_held: dict[str, PoolHold] = field(default_factory=dict)  # pools whose hold is not on record yet
    _probes: dict[str, Probe] = field(default_factory=dict)  # by pool
    _probed: set[str] = field(default_factory=set)  # pools that a delivered probe opens
    _pause: PoolHold | None = None  # the hold of all of them
    _accepted: TtlCache[int, bool] = field(default_factory=lambda: TtlCache(ACCEPTED_KEPT, ACCEPTED_FOR))
    _resumed: dict[str, int] | None = None  # the pools that the operator resumed, as last read; None: not read yet
    _readings: int = 0  # of the holds in the store, begun so far
    _read: int = 0  # the number of the reading that counts
    # None: nothing yet, and what an earlier process said is outdated.
    _published: tuple[list[PoolState], list[OutgoingSession]] | None = None
    _only: bool = False  # there is but one account
    _only_at: float = -ACCOUNTS_EVERY  # Trio's clock

    def pool_of(self, domain: str) -> str:
        """The pool a domain's mail went through last."""
        return self._pool_of.get(domain, UNROUTED)

    def of_route(self, route: Route) -> PoolLimiter:
        """The limiter a route leads through; which one that is, is remembered for the domain."""
        host = route.hosts[0]
        limiter = self.at(route, host.name, host.dialled[0])
        if self._pool_of.get(route.domain) != limiter.pool:
            if len(self._pool_of) >= DESTINATIONS_KEPT:
                self._pool_of.clear()
            self._pool_of[route.domain] = limiter.pool
            self._published_on.pop(route.domain, None)
        # Once a day even if nothing changed: retention deletes destinations that are no longer in use.
        if self._published_on.get(route.domain) != (today := self.env.now() // DAY):
            if len(self._published_on) >= DESTINATIONS_KEPT:
                self._published_on.clear()
            self._published_on[route.domain] = today
            self._learnt[route.domain] = limiter.provider or limiter.pool
        return limiter

    def has_moved(self, limiter: PoolLimiter, route: Route) -> bool:
        """Whether a limiter was a host's own, and the host has proved to be its provider's since."""
        host = route.hosts[0]
        return limiter.provider is not None and self.at(route, host.name, host.dialled[0]) is not limiter

    def at(self, route: Route, host: str, address: str) -> PoolLimiter:
        claim = self.proofs.claim(host)
        proved = None if route.relay is not None else self.proofs.provider_at(address)
        if proved is not None:
            claim = self.proofs.named[proved]
        own = proved is None and claim.proof and route.relay is None  # a relay was named by the operator: believed
        pool = host if own else claim.name
        if (limiter := self._limiters.get(pool)) is None:
            start, provider = (UNPROVED_SLOTS, claim.name) if own else (None, None)
            limiter = PoolLimiter(
                pool, claim.limits, claim.proof and not own, start, provider, self.store.engine.live_nodes
            )
            self._limiters[pool] = limiter
        return limiter

    # ---- what may pass

    def is_open(self, limiter: PoolLimiter, account: str) -> bool:
        """Whether an account's transaction may begin at a limiter, as a probe if the pool is held."""
        may_go = not self.is_held(limiter.pool) or self.may_probe(limiter.pool, account)
        return may_go and self.has_slot(limiter, account)

    def has_slot(self, limiter: PoolLimiter, account: str) -> bool:
        """Whether neither the limiter nor the pool that it obeys keeps an account's transaction waiting."""
        now = self.env.now()
        if not limiter.is_open(now) or not limiter.lets_pass(account, now):
            return False
        provider = None if limiter.provider is None else self._limiters.get(limiter.provider)
        return provider is None or (not provider.throttle.is_slowed(now) and provider.lets_pass(account, now))

    def is_held(self, pool: str) -> bool:
        """Whether a pool's mail waits for a hold to end, or for that of all mail."""
        if self._pause is not None:
            return True
        return bool(self._holds) and (pool in self._holds or self.proofs.known_as(pool) in self._holds)

    def may_probe(self, pool: str, account: str) -> bool:
        """Whether a message of this account may go to a pool that is held, to see whether it is still refused."""
        probe = self._probes.get(self.proofs.known_as(pool))
        if self._pause is not None or probe is None or probe.under_way or probe.hold.probe_at is None:
            return False
        now, at = self.env.now(), probe.hold.probe_at
        if probe.failed_for == account and now < at + PROBE_AGAIN:  # others first
            at += PROBE_AGAIN
        return not now < at <= now + LONGEST_PROBE  # if it were later, the clock was set back

    def slot(self, limiter: PoolLimiter, account: str, domain: str) -> PoolSlot:
        limiter.enter(account, self.env.now())
        probes = None
        if self.is_held(limiter.pool) and (probe := self._probes.get(limiter.provider or limiter.pool)) is not None:
            probes, probe.under_way = limiter.provider or limiter.pool, True
        return PoolSlot(limiter, account, domain, probes)

    def move(self, slot: PoolSlot, route: Route, host: str, address: str) -> bool:
        """Move a slot to the limiter of this server; False: that one has none for it now.

        The slot of the first server was waited for; a later server may be in any pool, and must not be flooded by mail
        for others.
        """
        if not slot.dialled:
            slot.dialled = True
            return True
        limiter = self.at(route, host, address)
        if limiter is slot.limiter:
            return True
        held = self.is_held(limiter.pool) and slot.probes != (limiter.provider or limiter.pool)
        if held or not self.has_slot(limiter, slot.account):
            return False
        slot.limiter.go_elsewhere(slot.account)
        limiter.enter(slot.account, self.env.now())
        slot.limiter = limiter
        return True

    async def sender(self, slot: PoolSlot) -> JudgedSender:
        """Whose mail a server has judged; that there is but one account is found out again every few seconds."""
        if (now := trio.current_time()) >= self._only_at + ACCOUNTS_EVERY:
            self._only_at = now
            with suppress(StorageUnavailable):  # the storage is away: as it was found last
                self._only = await self.store.accounts.is_only_one()
        return JudgedSender(slot.account, slot.domain, self._only)

    def note_accepted(self, limiter: PoolLimiter, account: str, address: str) -> None:
        """A server of the pool took a message for this recipient."""
        self._accepted.put(hash((limiter.pool, account, address)), True)

    def repeated(self, limiter: PoolLimiter, account: str, told: list[tuple[str, Verdict]]) -> list[Verdict]:
        """Of verdicts without a reason, each with its recipient, those that recipients accepted before met repeatedly.

        A verdict on the whole message counts once, for all its recipients together.
        """
        known = [
            (key, verdict)
            for address, verdict in told
            if (key := hash((limiter.pool, account, address))) in self._accepted
        ]
        if len(known) > 1 and known[0][1].stage is not Stage.RCPT:
            known = [(hash(frozenset(key for key, _ in known)), known[0][1])]
        return [verdict for key, verdict in known if limiter.repeats(account, (verdict.code, verdict.enhanced), key)]

    # ---- holds

    async def read_holds(self) -> None:
        self._readings += 1
        number = self._readings
        holds, resumed = await self.store.pools.holds(), await self.store.pools.resumed()
        if number < self._read:
            return  # a later reading was faster
        self._read = number
        self._lift(resumed)
        pause = holds.pop(EVERY, None)
        if pause != self._pause:
            self._pause = pause
            if pause is None:
                log.info("delivery is resumed")
            else:
                log.warning("delivery is paused: `appliance resume` lets mail go", reason=pause.reason)
        before, self._holds = self._holds, holds | self._being_held
        if number > 1:  # the first reading finds what began, and was told, before this process
            self._tell_holds(before)
        known = self._probes
        self._probes = {pool: known.get(pool, Probe(hold)) for pool, hold in self._holds.items() if hold.probe_at}
        for pool, probe in self._probes.items():
            probe.hold = self._holds[pool]

    def _lift(self, resumed: dict[str, int]) -> None:
        """Lift the slow-downs of the pools that the operator resumed since the last reading."""
        before, self._resumed = self._resumed, resumed
        if before is None or before == resumed:
            return
        pools = {pool for pool, number in resumed.items() if number != before.get(pool)}
        for limiter in self._limiters.values():
            if limiter.pool in pools or limiter.provider in pools:
                limiter.lift()
                log.info("a pool is resumed: slow-downs lifted", pool=limiter.pool)

    def _tell_holds(self, before: dict[str, PoolHold]) -> None:
        """Log each hold once when it begins and once when it ends, also those of the operator."""
        for pool in self._holds.keys() - before.keys():
            if self._holds[pool].probe_at is None:
                log.warning("a pool is held by the operator", pool=pool, reason=self._holds[pool].reason)
        for pool in before.keys() - self._holds.keys():
            how = "a probe was delivered" if pool in self._probed else "it was released"
            self._probed.discard(pool)
            seconds = max(0, self.env.now() - before[pool].held_at) // SECOND
            log.info(f"a pool is open again: {how}", pool=pool, seconds=seconds)

    async def write_down(self, slot: PoolSlot) -> None:
        """Begin the hold that a server gave reason for, and store the result of a probe."""
        if slot.probes is not None:
            await self._end_probe(slot.probes, slot)
        for limiter in slot.told:
            if limiter.hold_reason is not None:
                await self._hold(limiter)

    async def _hold(self, limiter: PoolLimiter) -> None:
        """Hold a pool from this moment on, and put it on record; who releases it finds the limiter open.

        A host that is only named like a provider's is not held, but gets one message every now and then.
        """
        pool, reason, now = limiter.pool, limiter.hold_reason or "", self.env.now()
        limiter.reopen()
        if limiter.provider is not None:
            limiter.throttle.shut(now, reason)
            return
        if pool in self._holds:
            return
        hold = PoolHold(pool, reason, now, now + FIRST_PROBE, node=self.store.engine.node)
        self._holds[pool] = self._being_held[pool] = hold
        await self._store(pool, self.read_holds)
        log.error("a pool is held: its servers refuse us as a sender", pool=pool, reason=reason)
        await self._store(pool, lambda: self.store.pools.hold(pool, reason, hold.probe_at))
        try:
            await self._store(pool, self.read_holds)
        finally:
            del self._being_held[pool]  # not before: a reading that began earlier does not have it

    async def _end_probe(self, pool: str, slot: PoolSlot) -> None:
        """Release the pool if the probe was delivered there; else set the time of the next."""
        probe = self._probes.get(pool)
        if probe is None:  # released meanwhile, or held by the operator by now
            return
        reached = any(limiter.pool == pool for limiter in slot.told)
        if slot.delivered and slot.answers is not None and slot.answers.pool == pool:
            self._probed.add(pool)
            await self._store(pool, lambda: self.store.pools.release(pool, automatic=True))
        else:
            probe.failed_for = "" if reached else slot.account
            count = probe.hold.probes + reached
            wait = min(FIRST_PROBE << min(count, 10), LONGEST_PROBE) if reached else PROBE_AGAIN
            later = replace(probe.hold, probe_at=self.env.now() + wait, probes=count)
            await self._store(pool, lambda: self.store.pools.probed(later))
        try:
            await self._store(pool, self.read_holds)
        finally:
            probe.under_way = False  # not before: the next one would go by the time of this one

    async def _store(self, pool: str, write: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await write()
                return
            except StorageUnavailable as refused:
                log.warning("a hold waits for the storage", pool=pool, reason=refused.text)
                await trio.sleep(STORAGE_PAUSE)

    # ---- what other processes are told

    async def publish(
        self,
        pending: Container[str],
        sessions: list[OutgoingSession],
        waits: Mapping[str, list[SlowedAccount]] = MappingProxyType({}),
    ) -> None:
        """Write to the store, for the commands of the shell, what only this process knows, if that has changed.

        A pool with nothing to remember and nothing `pending` is forgotten: there may be one for every domain there is.
        `waits` has the accounts whose mail waits for a session, by pool.
        """
        now = self.env.now()
        for pool in [each for each, known in self._limiters.items() if known.is_at_rest(now) and each not in pending]:
            del self._limiters[pool]
        told = {}  # by pool as operators know it: hosts that prove nothing only where their provider's is not
        for limiter in self._limiters.values():
            if limiter.provider is None:
                told[limiter.pool] = _state(limiter.pool, limiter, now, waits.get(limiter.pool, ()))
            elif limiter.provider not in self._limiters:
                told[limiter.provider] = _state(limiter.provider, limiter, now, waits.get(limiter.pool, ()))
        states = list(told.values()), sessions
        if states == self._published and not self._learnt:
            return
        learnt, self._learnt = self._learnt, {}
        try:
            await self.store.pools.say(states[0], learnt, states[1])
            learnt, self._published = {}, states
        except StorageUnavailable as refused:
            log.warning("the state of pools waits for the storage", reason=refused.text)
        finally:
            self._learnt = learnt | self._learnt


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
        slowed_accounts=(*limiter.slowed_accounts(now), *waits)[:ACCOUNTS_TOLD],
    )
