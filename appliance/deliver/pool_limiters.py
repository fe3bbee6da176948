"""The gates of all pools: made when needed, forgotten at rest, held when they must be, told to other processes.

Which gate a transaction passes is decided by its first server. A name is enough to be limited by a provider's pool, and
never enough to limit it:
- a server that is proved to be a provider's (`proofs.py`) passes the gate of that provider's pool;
- one that is only named like a provider's host passes a gate of its own, under its host name. It has few slots at
  first, and waits whenever the provider's pool is slowed or held; nothing it does or says touches that pool;
- every other server passes the gate of its organisation, the owner of its name.

A pool that is held because its servers refuse us is probed: after a while one message goes, later and later, until one
is delivered. A probe that is refused is not bounced for it. Holds of the operator end only by the operator.
"""

from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field, replace

import trio

from appliance.deliver.pool_limiter import Gate, Sender
from appliance.deliver.proofs import Proofs
from appliance.deliver.route import Route
from appliance.errors import Refused
from appliance.model.queue import PoolHold, PoolState, SlowedAccount
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused
STATE_EVERY = 1.0  # seconds between two words to the shell about the pools
DESTINATIONS_KEPT = 50_000  # domains whose pool is remembered
UNPROVED_SLOTS = 2  # of a host that is only named like a provider's, until it delivers
FIRST_PROBE = 15 * 60 * SECOND  # after a hold began
LONGEST_PROBE = 4 * 3600 * SECOND  # between two probes; each waits twice as long as the one before
PROBE_AGAIN = 60 * SECOND  # after a probe that reached no server of the pool
ACCOUNTS_EVERY = 10.0  # seconds between two looks whether there is more than one account

ACCOUNTS_TOLD = 100  # of one pool, whose mail waits

UNROUTED = ""  # in the place of a pool, for domains whose pool we do not know yet

log = get_logger("deliver")


@dataclass(slots=True)
class Probe:
    """How the probing of a held pool stands."""

    hold: PoolHold
    under_way: bool = False
    failed_for: str = ""  # the account whose mail was the last probe, and reached no server of the pool


@dataclass(slots=True)
class Slot:
    """A transaction's place in the pool of the server it talks to; goes with it from server to server."""

    gates: "Gates"
    gate: Gate  # where it was taken
    account: str
    domain: str
    probes: str | None = None  # the held pool that it probes
    answers: Gate | None = None  # the gate of the last server that said something
    told: list[Gate] = field(default_factory=list)  # the gates of all servers that did
    delivered: bool = False
    dialled: bool = False

    def move(self, route: Route, host: str, address: str) -> bool:
        """Take the slot to the gate of this server; False: that one has none for us now.

        The first server's was waited for; a later one may be anybody's, and must not be flooded by way of others.
        """
        if not self.dialled:
            self.dialled = True
            return True
        gate = self.gates.at(route, host, address)
        if gate is self.gate:
            return True
        held = self.gates.is_held(gate.pool) and self.probes != (gate.provider or gate.pool)
        if held or not self.gates.has_slot(gate, self.account):
            return False
        self.gate.go_elsewhere(self.account)
        gate.enter(self.account, self.gates.outside.now())
        self.gate = gate
        return True

    def leave(self) -> None:
        """It is over; what came of it is still to be recorded."""
        self.gate.leave(self.account)

    def hear(self, gate: Gate, *, delivered: bool) -> None:
        """A server said something, or took the message; its gate is about to be told."""
        self.answers, self.delivered = gate, delivered
        if gate not in self.told:
            self.told.append(gate)

    @property
    def sender(self) -> Sender:
        """Whose mail is judged."""
        return Sender(self.account, self.domain, self.gates.one_account)

    @property
    def has_news(self) -> bool:
        """Whether a hold is to begin, or may be over."""
        return self.probes is not None or any(gate.hold_reason is not None for gate in self.told)


@dataclass(slots=True)
class Gates:
    """A gate for each pool that has mail or something to remember."""

    store: Store
    outside: Outside
    proofs: Proofs
    _holds: dict[str, PoolHold] = field(default_factory=dict)
    _gates: dict[str, Gate] = field(default_factory=dict)
    _pool_of: dict[str, str] = field(default_factory=dict)  # by domain, as last routed
    _learnt: dict[str, str] = field(default_factory=dict)  # domains to tell the shell about
    _being_held: dict[str, PoolHold] = field(default_factory=dict)  # pools whose hold is not on record yet
    _probes: dict[str, Probe] = field(default_factory=dict)  # by pool
    _pause: PoolHold | None = None  # the hold of all of them
    _only: bool = False  # there is but one account
    _only_at: float = -ACCOUNTS_EVERY  # Trio's clock

    def __len__(self) -> int:
        return len(self._gates)

    def pool_of(self, domain: str) -> str:
        """The pool a domain's mail went through last."""
        return self._pool_of.get(domain, UNROUTED)

    def of_route(self, route: Route) -> Gate:
        """The gate a route leads through; which one that is, is remembered for the domain."""
        host = route.hosts[0]
        gate = self.at(route, host.name, host.dialled[0])
        if self._pool_of.get(route.domain) != gate.pool:
            if len(self._pool_of) >= DESTINATIONS_KEPT:
                self._pool_of.clear()
            self._pool_of[route.domain] = gate.pool
            self._learnt[route.domain] = gate.provider or gate.pool
        return gate

    def has_moved(self, gate: Gate, route: Route) -> bool:
        """Whether a gate was a host's own, and the host has proved to be its provider's since."""
        return gate.provider is not None and self.at(route, route.hosts[0].name, route.hosts[0].dialled[0]) is not gate

    def at(self, route: Route, host: str, address: str) -> Gate:
        """The gate of one server of a route."""
        claim = self.proofs.claim(host)
        proved = None if route.relay is not None else self.proofs.provider_at(address)
        if proved is not None:
            claim = self.proofs.named(proved)
        elif claim.proof and route.relay is None:  # a relay was named by the operator, who is believed
            return self._gates.get(host) or self._add(
                Gate(host, claim.limits, start=UNPROVED_SLOTS, provider=claim.name)
            )
        return self._gates.get(claim.name) or self._add(Gate(claim.name, claim.limits, claim.proof))

    def _add(self, gate: Gate) -> Gate:
        self._gates[gate.pool] = gate
        return gate

    # ---- what may pass

    def is_open(self, gate: Gate, account: str) -> bool:
        """Whether an account's transaction may begin at a gate, as a probe if the pool is held."""
        may_go = not self.is_held(gate.pool) or self.may_probe(gate.pool, account)
        return may_go and self.has_slot(gate, account)

    def has_slot(self, gate: Gate, account: str) -> bool:
        """Whether neither the gate nor the pool that it obeys keeps an account's transaction waiting."""
        now = self.outside.now()
        if not gate.is_open(now) or not gate.lets_pass(account, now):
            return False
        provider = None if gate.provider is None else self._gates.get(gate.provider)
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
        now, at = self.outside.now(), probe.hold.probe_at
        if probe.failed_for == account and now < at + PROBE_AGAIN:  # others first
            at += PROBE_AGAIN
        return not now < at <= now + LONGEST_PROBE  # if it were later, the clock was set back

    def slot(self, gate: Gate, account: str, domain: str) -> Slot:
        """Take a slot for a transaction that may begin."""
        gate.enter(account, self.outside.now())
        probes = None
        if self.is_held(gate.pool) and (probe := self._probes.get(gate.provider or gate.pool)) is not None:
            probes, probe.under_way = gate.provider or gate.pool, True
        return Slot(self, gate, account, domain, probes)

    @property
    def one_account(self) -> bool:
        """Whether there is but one account; found out again every few seconds."""
        if (now := trio.current_time()) >= self._only_at + ACCOUNTS_EVERY:
            self._only, self._only_at = self.store.accounts.is_only_one(), now
        return self._only

    # ---- holds

    def read_holds(self) -> None:
        """See which pools are held by now, by the operator or by us."""
        holds = self.store.pools.holds()
        pause = holds.pop(EVERY, None)
        if pause != self._pause:
            self._pause = pause
            _tell_of(pause)
        self._holds = holds | self._being_held
        known = self._probes
        self._probes = {pool: known.get(pool, Probe(hold)) for pool, hold in self._holds.items() if hold.probe_at}
        for pool, probe in self._probes.items():
            probe.hold = self._holds[pool]

    async def write_down(self, slot: Slot) -> None:
        """Begin the hold that a server gave reason for, and note what came of a probe."""
        if slot.probes is not None:
            await self._end_probe(slot.probes, slot)
        for gate in slot.told:
            if gate.hold_reason is not None:
                await self._hold(gate)

    async def _hold(self, gate: Gate) -> None:
        """Hold a pool from this moment on, and put it on record; who releases it finds the gate open.

        A host that is only named like a provider's is not held, but gets one message every now and then.
        """
        pool, reason, now = gate.pool, gate.hold_reason or "", self.outside.now()
        gate.reopen()
        if gate.provider is not None:
            gate.throttle.shut(now, reason)
            return
        if pool in self._holds:
            return
        self._being_held[pool] = hold = PoolHold(pool, reason, now, now + FIRST_PROBE)
        self.read_holds()
        log.error("a pool is held: its servers refuse us as a sender", pool=pool, reason=reason)
        await self._store(pool, lambda: self.store.pools.hold(pool, reason, hold.probe_at))
        del self._being_held[pool]
        self.read_holds()

    async def _end_probe(self, pool: str, slot: Slot) -> None:
        """Release the pool if the probe was delivered there; else set the time of the next."""
        probe = self._probes.get(pool)
        if probe is None:  # released meanwhile, or held by the operator by now
            return
        reached = any(gate.pool == pool for gate in slot.told)
        if slot.delivered and slot.answers is not None and slot.answers.pool == pool:
            await self._store(pool, lambda: self.store.pools.release(pool, automatic=True))
            log.info("a pool is open again: a probe was delivered", pool=pool)
        else:
            probe.failed_for = "" if reached else slot.account
            count = probe.hold.probes + reached
            wait = min(FIRST_PROBE << min(count, 10), LONGEST_PROBE) if reached else PROBE_AGAIN
            later = replace(probe.hold, probe_at=self.outside.now() + wait, probes=count)
            await self._store(pool, lambda: self.store.pools.probed(later))
        probe.under_way = False
        self.read_holds()

    async def _store(self, pool: str, write: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await write()
                return
            except Refused as refused:
                log.warning("a hold waits for the storage", pool=pool, reason=refused.text)
                await trio.sleep(STORAGE_PAUSE)

    # ---- the shell

    async def keep_told(self, in_hand: Container[str], shell_spoke: Callable[[], None]) -> None:
        """Tell the shell's commands, which run in other processes, what only this one knows; and hear what they did."""
        said: list[PoolState] | None = None  # nothing yet: what an earlier process said holds no more
        version = self.store.queue_control.version()
        while True:
            if (newer := self.store.queue_control.version()) != version:
                version = newer
                shell_spoke()
            self._forget_those_at_rest(in_hand)
            states = self._states()
            if states != said or self._learnt:
                learnt, self._learnt = self._learnt, {}
                try:
                    await self.store.pools.say(states, learnt)
                    said = states
                except Refused as refused:
                    self._learnt = learnt | self._learnt
                    log.warning("the state of pools waits for the storage", reason=refused.text)
            await trio.sleep(STATE_EVERY)

    def _states(self) -> list[PoolState]:
        """Each pool as operators know it; hosts that prove nothing are told of only where their provider's is not."""
        now, told = self.outside.now(), {}
        for gate in self._gates.values():
            if gate.provider is None:
                told[gate.pool] = _state(gate.pool, gate, now)
            elif gate.provider not in self._gates:
                told[gate.provider] = _state(gate.provider, gate, now)
        return list(told.values())

    def _forget_those_at_rest(self, in_hand: Container[str]) -> None:
        """There may be a pool for every domain of the world; those with nothing to remember are made anew."""
        now = self.outside.now()
        rested = [pool for pool, gate in self._gates.items() if gate.is_at_rest(now) and pool not in in_hand]
        for pool in rested:
            del self._gates[pool]


def _tell_of(pause: PoolHold | None) -> None:
    if pause is None:
        log.info("delivery is resumed")
    else:
        log.warning("delivery is paused: `appliance resume` lets mail go", reason=pause.reason)


def _state(pool: str, gate: Gate, now: int) -> PoolState:
    throttle = gate.throttle
    waiting = tuple(SlowedAccount(account, *wait) for account, wait in sorted(gate.slowed_accounts(now).items()))
    return PoolState(
        pool, gate.in_use, throttle.slots, throttle.slowed_until or None, throttle.slowed_by, 0, waiting[:ACCOUNTS_TOLD]
    )
