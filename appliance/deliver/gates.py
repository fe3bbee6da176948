"""In charge of the gates of all pools: made when needed, forgotten at rest, held when it must be, told to the shell."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import trio

from appliance.deliver.gate import Gate
from appliance.deliver.providers import Pool, Pools
from appliance.deliver.route import Route
from appliance.errors import Refused
from appliance.log import get_logger
from appliance.model import PoolHold, PoolState
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.pools import EVERY

STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused
STATE_EVERY = 1.0  # seconds between two words to the shell about the pools
DESTINATIONS_KEPT = 50_000  # domains whose pool is remembered
HOSTS_KEPT = 1_000  # the same for mail servers

UNROUTED = ""  # in the place of a pool, for domains whose pool we do not know yet

log = get_logger("deliver")


class _Everything:
    """In the place of the names of pools that are held: all there are."""

    def __contains__(self, _: object) -> bool:
        return True


@dataclass(slots=True)
class Gates:
    """A gate for each pool that has mail or something to remember."""

    store: Store
    outside: Outside
    pools: Pools
    held: Container[str] = frozenset()
    _gates: dict[str, Gate] = field(default_factory=dict)
    _pool_of: dict[str, str] = field(default_factory=dict)  # by domain, as last routed
    _pool_at: dict[str, Pool] = field(default_factory=dict)  # by host, since many suffixes have to be tried
    _learnt: dict[str, str] = field(default_factory=dict)  # domains to tell the shell about
    _being_held: set[str] = field(default_factory=set)  # pools whose hold is not on record yet
    _pause: PoolHold | None = None  # the hold of all of them

    def __len__(self) -> int:
        return len(self._gates)

    def pool_of(self, domain: str) -> str:
        """The pool a domain's mail went through last."""
        return self._pool_of.get(domain, UNROUTED)

    def of_pool(self, pool: str) -> Gate:
        """The gate of a pool that has mail in hand."""
        return self._gates[pool]

    def of_route(self, route: Route) -> Gate:
        """The gate of the pool a route leads through; which one that is, is remembered for the domain."""
        pool = self._pool(route.hosts[0].name)
        if self._pool_of.get(route.domain) != pool.name:
            if len(self._pool_of) >= DESTINATIONS_KEPT:
                self._pool_of.clear()
            self._pool_of[route.domain] = self._learnt[route.domain] = pool.name
        if (gate := self._gates.get(pool.name)) is None:
            gate = self._gates[pool.name] = Gate(pool.name, pool.limits)
        return gate

    def _pool(self, host: str) -> Pool:
        if (pool := self._pool_at.get(host)) is None:
            if len(self._pool_at) >= HOSTS_KEPT:
                self._pool_at.clear()
            pool = self._pool_at[host] = self.pools.of(host)
        return pool

    # ---- holds

    def read_holds(self) -> None:
        """See which pools are held by now, by the operator or by us."""
        holds = self.store.pools.holds()
        pause = holds.get(EVERY)
        if pause != self._pause:
            self._pause = pause
            _tell_of(pause)
        self.held = frozenset(holds) | self._being_held if pause is None else _Everything()

    async def hold(self, gate: Gate) -> None:
        """Hold a pool from this moment on, and put it on record; who releases it finds the gate open."""
        pool, reason = gate.pool, gate.hold_reason or ""
        gate.reopen()
        if pool in self.held:
            return
        self._being_held.add(pool)
        self.read_holds()
        log.error("a pool is held: its servers refuse us as a sender", pool=pool, reason=reason)
        while True:
            try:
                await self.store.pools.hold(pool, reason)
                break
            except Refused as refused:
                log.warning("a hold waits for the storage", pool=pool, reason=refused.text)
                await trio.sleep(STORAGE_PAUSE)
        self._being_held.discard(pool)

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
            states = [_state(gate) for gate in self._gates.values()]
            if states != said or self._learnt:
                learnt, self._learnt = self._learnt, {}
                try:
                    await self.store.pools.say(states, learnt)
                    said = states
                except Refused as refused:
                    self._learnt = learnt | self._learnt
                    log.warning("the state of pools waits for the storage", reason=refused.text)
            await trio.sleep(STATE_EVERY)

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


def _state(gate: Gate) -> PoolState:
    return PoolState(gate.pool, gate.in_use, gate.slots, gate.slowed_until or None, gate.slowed_by, 0)
