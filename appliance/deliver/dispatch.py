"""In charge of delivery as a whole: takes due parcels, lets them through their pool, records what came of them."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from appliance.deliver.courier import Courier, Parcel
from appliance.deliver.gate import Gate
from appliance.deliver.providers import Pools
from appliance.deliver.route import NoRoute, Route, Router
from appliance.deliver.selection import Selection, Turns
from appliance.errors import Refused
from appliance.joint import Joint
from appliance.log import get_logger
from appliance.model import Outcome, PoolState
from appliance.outside import SLEEP_LIMIT, Outside, Wake
from appliance.store import Store

SESSIONS = 500  # SMTP transactions at once, in all pools, unless the operator says otherwise
IN_HAND = 100  # parcels of one pool, or for domains not routed yet, that are being prepared or wait for a slot
FEW = 50  # parcels in hand in all, below which a look for more is worth its while at any time
STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused
STATE_EVERY = 1.0  # seconds between two words to the shell about the pools
CLOSE_EVERY = 1.0  # seconds between two looks for connections that nobody needs
AT_ONCE = 0.005  # seconds between two looks for more when there are few: what comes in within them is one look
SOON = 0.1  # seconds between two looks for more while there is enough in hand: it may all be for one slow pool
FULL_LOOK = 1.0  # seconds between two looks at everything while something due could not go
GRACE = 10.0  # seconds that transactions in flight may still take at the end, unless the operator says otherwise
ROUTE_FRESH = 1.0  # seconds for which parcels for one domain share a route
ROUTES_KEPT = 1_000
LONG_WAIT = 1.0  # seconds in hand after which it is asked whether a parcel is still wanted
DESTINATIONS_KEPT = 50_000  # domains whose pool is remembered

UNROUTED = ""  # in the place of a pool, for domains whose pool we do not know yet

log = get_logger("deliver")


@dataclass(frozen=True, slots=True)
class _Ready:
    """A parcel that is routed and signed, and waits for a slot."""

    parcel: Parcel
    route: Route
    signature: bytes
    since: float  # taken into hand, Trio's clock


@dataclass(slots=True)
class Dispatch:
    """The loop, and what it remembers between two looks.

    A parcel is taken into hand, routed and signed, waits for a slot of its pool, is carried, and recorded. Only the
    carrying takes a slot: neither the signing before it nor the commit after it keeps a server waiting. At the end no
    more are carried, and those under way have some time to come to theirs.
    """

    store: Store
    outside: Outside
    wake: Wake
    router: Router
    pools: Pools
    courier: Courier
    selection: Selection
    sessions: int = SESSIONS
    grace: float = GRACE
    _gates: dict[str, Gate] = field(default_factory=dict)
    _pool_of: dict[str, str] = field(default_factory=dict)  # by domain, as last routed
    _in_hand: Counter[str] = field(default_factory=Counter)  # parcels by pool, until their slot; none of 0
    _in_hand_total: int = 0
    _ready: dict[str, Turns[_Ready]] = field(default_factory=dict)  # by pool; none empty
    _held: frozenset[str] = frozenset()
    _being_held: set[str] = field(default_factory=set)  # pools whose hold is not on record yet
    _flights: set[trio.CancelScope] = field(default_factory=set)  # one for each transaction that runs
    _ending: bool = False
    _looked_at: float = -FULL_LOOK  # Trio's clock
    _looked_at_all: float = -FULL_LOOK
    _late: bool = False  # somebody asked for a look, and there will be one in a moment
    _passed_over: bool = False  # something due was left where it is, because its pool has enough in hand
    _learnt: dict[str, str] = field(default_factory=dict)  # domains to tell the shell about
    _routes: dict[str, tuple[Route, float]] = field(default_factory=dict)  # by domain, with when it was found
    _routing: Joint[str, Route | NoRoute] = field(default_factory=Joint)

    async def run(self) -> None:
        """Deliver whatever is due, for ever. State is in the store, so a restart simply goes on."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._land_at_the_end)
            nursery.start_soon(self._say_how_pools_stand)
            nursery.start_soon(self._close_idle)
            while True:
                # Asked for before the look, so that what becomes due meanwhile is not missed by both.
                due_at = self.store.queue.next_due(simulated=False)
                self._look(nursery)
                await self.wake.wait(self._seconds_until_look(due_at))

    # ---- who may go

    def _look(self, nursery: trio.Nursery) -> None:
        """Take more parcels into hand, if it is time to, and let those go whose gate has opened."""
        now = trio.current_time()
        full = now >= self._looked_at_all + FULL_LOOK
        self._late = not full and now < self._looked_at + self._pause()
        if full:
            self._looked_at_all = now
            self._held = frozenset(self.store.pools.holds()) | self._being_held
            self._passed_over = False
        if not self._late:
            self._looked_at = now
            look = self.selection.all if full else self.selection.news
            for parcel in look(self._wants):
                if self._wants(parcel.domain):
                    self._take(parcel, nursery)
        for pool in list(self._ready):
            self._let_go(pool, nursery)

    def _pause(self) -> float:
        return AT_ONCE if self._in_hand_total < FEW else SOON

    def _wants(self, domain: str) -> bool:
        """Whether more parcels for this domain should be taken into hand."""
        pool = self._pool_of.get(domain, UNROUTED)
        wanted = pool not in self._held and self._in_hand[pool] < IN_HAND
        self._passed_over = self._passed_over or not wanted
        return wanted

    def _take(self, parcel: Parcel, nursery: trio.Nursery) -> None:
        self.selection.take(parcel)
        pool = self._pool_of.get(parcel.domain, UNROUTED)
        self._count(pool, 1)
        nursery.start_soon(self._prepare, parcel, pool, nursery)

    def _release(self, parcel: Parcel) -> None:
        self.selection.release(parcel)
        if self._in_hand_total < FEW:
            self.wake.set()

    def _count(self, pool: str, change: int) -> None:
        """So many parcels more, or fewer, are in hand."""
        self._in_hand_total += change
        self._in_hand[pool] += change
        if not self._in_hand[pool]:
            del self._in_hand[pool]

    def _let_go(self, pool: str, nursery: trio.Nursery) -> None:
        """Start what is ready for a pool as far as its gate lets it through."""
        ready, gate = self._ready.get(pool), self._gates[pool]
        while ready and self._may_go(gate):
            nursery.start_soon(self._carry, ready.next(), gate, self._take_off(gate), nursery)
        if ready is not None and not ready:
            del self._ready[pool]

    def _take_off(self, gate: Gate) -> trio.CancelScope:
        """Take a slot for a parcel in hand."""
        self._count(gate.pool, -1)
        gate.enter(self.outside.now())
        flight = trio.CancelScope(shield=True)
        self._flights.add(flight)
        return flight

    def _may_go(self, gate: Gate) -> bool:
        busy = self._ending or len(self._flights) >= self.sessions
        return not busy and gate.pool not in self._held and gate.is_open(self.outside.now())

    # ---- one parcel

    async def _prepare(self, parcel: Parcel, pool: str, nursery: trio.Nursery) -> None:
        """Route and sign one parcel, and put it where its pool's slots are given out."""
        started_at, since = self.outside.now(), trio.current_time()
        try:
            route = await self._route(parcel.domain)
            mime, signature = await self.courier.sign(parcel)
        except NoRoute as reason:
            outcomes = self.courier.no_route(parcel, reason, started_at)
        except Exception as error:
            outcomes = self._failed(parcel, error)
        else:
            gate, ready = self._gate(route), _Ready(parcel, route, signature, since)
            self._count(pool, -1)
            self._count(gate.pool, 1)
            if gate.pool not in self._ready and self._may_go(gate):
                await self._carry(ready, gate, self._take_off(gate), nursery, mime)
            else:  # and read the message again then: what waits for a slot must not fill the memory
                self._ready.setdefault(gate.pool, Turns()).add(parcel.account_id, ready)
                self._let_go(gate.pool, nursery)
            return
        self._count(pool, -1)
        if await self._record(parcel, outcomes):
            self._release(parcel)

    async def _route(self, domain: str) -> Route:
        """The way to a domain, found once for all its parcels of this moment; raises `NoRoute`."""
        route, found_at = self._routes.get(domain, (None, 0.0))
        if route is not None and trio.current_time() < found_at + ROUTE_FRESH:
            return route
        found = await self._routing.run(domain, partial(self._find_route, domain))
        if isinstance(found, NoRoute):
            raise NoRoute(found.status, found.text)
        return found

    async def _find_route(self, domain: str) -> Route | NoRoute:
        try:
            route = await self.router.route(domain)
        except NoRoute as reason:
            return reason
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[domain] = route, trio.current_time()
        return route

    async def _carry(
        self,
        ready: _Ready,
        gate: Gate,
        flight: trio.CancelScope,
        nursery: trio.Nursery,
        mime: bytes | None = None,
    ) -> None:
        """Deliver one parcel and record it. Its failure is its own: it is tried again like any other deferral."""
        outcomes: list[Outcome] = []
        try:
            with flight:
                if parcel := self._still_wanted(ready):
                    outcomes = await self.courier.deliver(parcel, ready.route, gate, ready.signature, mime)
        except Exception as error:
            outcomes = self._failed(ready.parcel, error)
        finally:
            self._land(gate, flight, nursery)
        recorded = await self._record(ready.parcel, outcomes)
        if gate.hold_reason is not None:
            await self._hold(gate)
        if recorded:
            self._release(ready.parcel)
        await self.courier.connections.take_leave()

    def _land(self, gate: Gate, flight: trio.CancelScope, nursery: trio.Nursery) -> None:
        """Give the slot to the next of the pool, or of another if it was one of all slots that was waited for."""
        if len(self._flights) >= self.sessions:
            self.wake.set()
        self._flights.discard(flight)
        gate.leave()
        self._let_go(gate.pool, nursery)

    def _still_wanted(self, ready: _Ready) -> Parcel | None:
        """The parcel without what was cancelled while it waited for its slot; a pool may have been held for days."""
        parcel = ready.parcel
        if trio.current_time() < ready.since + LONG_WAIT:
            return parcel
        waiting = self.store.queue_control.waiting(parcel.message_id)
        left = tuple(recipient for recipient in parcel.recipients if recipient.id in waiting)
        return replace(parcel, recipients=left) if left else None

    def _gate(self, route: Route) -> Gate:
        """The gate of the pool a route leads through; which one that is, is remembered for the domain."""
        pool = self.pools.of(route.hosts[0].name)
        if self._pool_of.get(route.domain) != pool.name:
            if len(self._pool_of) >= DESTINATIONS_KEPT:
                self._pool_of.clear()
            self._pool_of[route.domain] = self._learnt[route.domain] = pool.name
        if (gate := self._gates.get(pool.name)) is None:
            gate = self._gates[pool.name] = Gate(pool.name, pool.limits)
        return gate

    async def _hold(self, gate: Gate) -> None:
        """Hold a pool from this moment on, and put it on record; who releases it finds the gate open."""
        pool, reason = gate.pool, gate.hold_reason or ""
        gate.reopen()
        if pool in self._held:
            return
        self._being_held.add(pool)
        self._held |= {pool}
        log.error("a pool is held: its servers refuse us as a sender", pool=pool, reason=reason)
        while True:
            try:
                await self.store.pools.hold(pool, reason)
                break
            except Refused as refused:
                log.warning("a hold waits for the storage", pool=pool, reason=refused.text)
                await trio.sleep(STORAGE_PAUSE)
        self._being_held.discard(pool)

    def _failed(self, parcel: Parcel, error: Exception) -> list[Outcome]:
        """A bug, or trouble of this machine: temporary, as every unknown error is."""
        log.exception("delivery failed", message_id=parcel.message_id, domain=parcel.domain)
        reason = NoRoute("4.3.0", f"an error on our side ({type(error).__name__}); the log has the details")
        return self.courier.no_route(parcel, reason, self.outside.now())

    async def _record(self, parcel: Parcel, outcomes: list[Outcome]) -> bool:
        """Write it down, whatever else is going on: what a server has taken must not be sent again.

        False when it cannot be, and then the parcel stays in hand: better not tried until a restart than sent for ever.
        """
        while outcomes:
            try:
                with trio.CancelScope(shield=True):
                    await self.store.queue.record(outcomes)
                break
            except Refused as refused:
                log.warning("results wait for the storage", reason=refused.text)
            except Exception:
                log.exception("a result cannot be recorded", message_id=parcel.message_id, domain=parcel.domain)
                return False
            await trio.sleep(STORAGE_PAUSE)
        return True

    # ---- beside the parcels

    def _seconds_until_look(self, due_at: int | None) -> float:
        if self._late:
            return max(0.0, self._looked_at + self._pause() - trio.current_time())
        if self._passed_over or self._ready:
            return FULL_LOOK
        return SLEEP_LIMIT if due_at is None else max(0.0, (due_at - self.outside.now()) / 1_000_000)

    async def _land_at_the_end(self) -> None:
        """Once this is cancelled, begin nothing more, and give what is in flight its time."""
        try:
            await trio.sleep_forever()
        finally:
            self._ending = True
            for flight in self._flights:
                flight.deadline = trio.current_time() + self.grace

    async def _say_how_pools_stand(self) -> None:
        """Tell the shell's commands, which run in other processes, what only this one knows; and hear what they did."""
        said: list[PoolState] | None = None  # nothing yet: what an earlier process said holds no more
        version = self.store.queue_control.version()
        while True:
            if (newer := self.store.queue_control.version()) != version:
                version = newer
                self.wake.set()
            self._forget_gates_at_rest()
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

    def _forget_gates_at_rest(self) -> None:
        """There may be a pool for every domain of the world; those with nothing to remember are made anew."""
        now = self.outside.now()
        rested = [pool for pool, gate in self._gates.items() if gate.is_at_rest(now) and pool not in self._in_hand]
        for pool in rested:
            del self._gates[pool]

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(CLOSE_EVERY)
            await self.courier.connections.close_idle()


def _state(gate: Gate) -> PoolState:
    return PoolState(gate.pool, gate.in_use, gate.slots, gate.slowed_until or None, gate.slowed_by, 0)
