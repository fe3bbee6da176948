"""In charge of what is under way: which of the parcels that are ready goes next, and how one is carried.

A pool's slots are given out in turns of the accounts, and the slots there are in all in turns of the pools. No account
gets all of these (see `shares`), so that some are free for the others whatever its servers do; and where others wait,
a session whose server does nothing gives way, unless the final dot was sent. Once it is to end, nothing takes off any
more, and what is in the air has some time to land.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from appliance.deliver.attempt import Courier, Parcel
from appliance.deliver.pending_counts import InHand
from appliance.deliver.pool_limiter import Gate
from appliance.deliver.pool_limiters import Gates, Slot
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.shares import Shares
from appliance.deliver.smtp.progress import Progress
from appliance.deliver.waiting import Waiting
from appliance.deliver.warmups import Warmups
from appliance.model.mail import Outcome
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.shortage import SHORTAGE_PAUSE, Shortage
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import OPEN_CONNECTIONS

SESSIONS = 500  # SMTP transactions at once, in all pools, unless the operator says otherwise
LARGE_SESSIONS = 16  # of them with large messages, each of which is in memory until it is over
GRACE = 10.0  # seconds that transactions in flight may still take at the end
LONG_WAIT = 1.0  # seconds in hand after which it is asked whether a parcel is still wanted
LOOK_EVERY = 1.0  # seconds between two looks for sessions that should give way
STALLED = 15.0  # seconds without progress after which a session gives way to another account's mail
STALLED_LONG = 60.0  # the same for mail of its own account
LARGE = "a slot for large messages"  # what a parcel may lack; or its pool, if that is full; or "", any slot
NOT_TRIED_PAUSE = 10.0  # seconds until a domain of which no server could be tried is looked at again
DOMAINS_PAUSED = 10_000  # remembered; more of them are looked at as often as anything else
RECOVERY = 10  # after a shortage the sessions grow by this fraction of themselves each second

log = get_logger("deliver")


class _NotTried(Exception):
    """No server of a parcel's route could be asked now: by the warm-up, or because its pool is held."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One parcel under way."""

    ready: Ready
    slot: Slot
    started_at: int
    progress: Progress
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def account(self) -> str:
        """Whose it is."""
        return self.ready.routed.parcel.account_id


@dataclass(slots=True)
class Flights:
    """Parcels that wait for a slot or have one; `on_landed` gets what came of each, `on_room` a word of a free slot."""

    store: Store
    outside: Outside
    gates: Gates
    courier: Courier
    in_hand: InHand
    on_landed: Callable[[Parcel, list[Outcome], Gate], None]
    on_room: Callable[[], None]
    sessions: int = SESSIONS
    grace: float = GRACE
    warmups: Warmups | None = None
    _ready: dict[str, Waiting] = field(default_factory=dict)  # by pool; none empty
    _under_way: set[_Flight] = field(default_factory=set)
    _slots: Shares = field(init=False)  # by account
    _large: Shares = field(init=False)  # of them with large messages
    _blocked: set[str] = field(default_factory=set)  # accounts that wait for a slot, though their pool is open
    _blocked_large: set[str] = field(default_factory=set)  # the same for one for a large message
    _paused: dict[str, float] = field(default_factory=dict)  # domains of which nothing begins before then
    _has_room: bool = False  # a slot is free that other pools than its last may have waited for
    _looked_at: float = float("-inf")  # Trio's clock
    _short_at: float | None = None  # when a shortage of this machine was met last, while its effects last
    _grown_at: float = 0.0  # when the sessions last grew after it
    _air: trio.Nursery = field(init=False)
    _landing: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    _ending: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        """All slots are free."""
        self._slots, self._large = Shares(self.sessions), Shares(LARGE_SESSIONS)

    @property
    def some_wait(self) -> bool:
        """Whether anything waits for a slot."""
        return bool(self._ready)

    # ---- beginning and end

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the nursery of what is in flight, to its end; cancelling it does not end it, but `end` does."""
        OPEN_CONNECTIONS["deliver"] = lambda: self._slots.used
        with self._landing:
            async with trio.open_nursery() as self._air:
                task_status.started()
                await self._ending.wait()

    def end(self, latest: float) -> None:
        """Begin nothing more, and give what is in flight its time, until `latest` at most."""
        self._landing.deadline = min(trio.current_time() + self.grace, latest)
        self._ending.set()

    # ---- slots

    def add(self, ready: Ready) -> None:
        """Let it go, now or when it is its turn."""
        gate = ready.routed.gate
        at_once = gate.pool not in self._ready and self.warmups is None and not self._pauses
        if at_once and self._is_open(gate) and self._may_go(ready):
            self._take_off(ready)
        else:
            self._waiting_for(gate).add(ready)
            self._let_go(gate.pool)
            if gate.pool in self._ready and not gate.lets_pass(ready.routed.parcel.account_id, self.outside.now()):
                self.on_room()
            self._mind(gate)

    def recorded(self, gate: Gate) -> None:
        """A result of this pool is on disk: another may take its place."""
        gate.recorded()
        if gate.pool in self._ready:
            self._let_go(gate.pool)

    def _mind(self, gate: Gate) -> None:
        """Have it looked at again soon when mail waits at a gate and no transaction there will end to let it go."""
        if not gate.in_use and gate.pool in self._ready:
            self.on_room()

    def let_go(self) -> None:
        """Start whatever is ready and whose gate has opened."""
        self._has_room = False
        self._recover()
        self._blocked.clear()
        self._blocked_large.clear()
        for pool in list(self._ready):
            self._let_go(pool)
        self._make_way()

    def use_room(self) -> None:
        """Give away the slots that all pools waited for, if there are any."""
        if self._has_room:
            self.let_go()

    def _waiting_for(self, gate: Gate) -> Waiting:
        waiting = self._ready.get(gate.pool)
        if waiting is None:
            waiting = self._ready[gate.pool] = Waiting(gate)
        return waiting

    def _let_go(self, pool: str) -> None:
        if self._pauses:
            return
        waiting = self._ready[pool]
        before = len(waiting)
        while (ready := self._next(waiting)) is not None:
            self._take_off(ready)
        if not waiting:
            del self._ready[pool]
        elif len(waiting) < before:
            self._ready[pool] = self._ready.pop(pool)  # now it is the other pools' turn

    def _is_open(self, gate: Gate) -> bool:
        """Whether a pool may have one more transaction, of an account that has nothing against it."""
        return not self._ending.is_set() and gate.is_open(self.outside.now())

    def _may_go(self, ready: Ready) -> bool:
        """Whether there is a slot for a parcel of an open pool."""
        routed = ready.routed
        account = routed.parcel.account_id
        if self._paused and trio.current_time() < self._paused.get(routed.parcel.domain, 0.0):
            return False
        if not self.gates.is_open(routed.gate, account):
            return False
        if not self._slots.have_room(account):
            self._blocked.add(account)
            return False
        if routed.large and not self._large.have_room(account):
            self._blocked_large.add(account)
            return False
        return self.warmups is None or self.warmups.lets_go(routed.gate.pool, routed.route)

    def _next(self, waiting: Waiting) -> Ready | None:
        """The next that may go; of its recipients only as many as the warm-up allows, the others stay in line."""
        if not self._is_open(waiting.gate):
            return None
        ready = waiting.next_that(self._may_go)
        if ready is None or self.warmups is None:
            return ready
        routed, parcel = ready.routed, ready.routed.parcel
        permit = self.warmups.permit(routed.gate.pool, routed.route, len(parcel.recipients))
        if permit is not None and permit.count < len(parcel.recipients):
            first, rest = parcel.recipients[: permit.count], parcel.recipients[permit.count :]
            waiting.put_back(Ready(routed.of(rest), ready.signature))
            self.in_hand.add(routed.gate.pool, parcel.account_id)
            routed = routed.of(first)
        return Ready(routed, ready.signature, permit)

    def _take_off(self, ready: Ready) -> None:
        self._air.start_soon(self._carry, self._enter(ready))

    def _enter(self, ready: Ready) -> _Flight:
        routed, account = ready.routed, ready.routed.parcel.account_id
        self.in_hand.remove(routed.gate.pool, account)
        self._slots.take(account)
        if routed.large:
            self._large.take(account)
        slot = self.gates.slot(routed.gate, account, routed.parcel.domain)
        flight = _Flight(ready, slot, self.outside.now(), Progress(trio.current_time()))
        self._under_way.add(flight)
        return flight

    def _leave(self, flight: _Flight) -> None:
        routed, account = flight.ready.routed, flight.account
        self._under_way.discard(flight)
        self._slots.give_back(account)
        if routed.large:
            self._large.give_back(account)
        flight.slot.leave()
        if self._ready and (
            any(self._slots.have_room(blocked) for blocked in self._blocked)
            or (routed.large and any(self._large.have_room(blocked) for blocked in self._blocked_large))
        ):
            self._has_room = True
            self.on_room()

    def _next_of(self, gate: Gate) -> _Flight | None:
        """The next parcel of a pool, with its slot."""
        waiting = self._ready.get(gate.pool)
        if waiting is None or self._has_room or (ready := self._next(waiting)) is None:
            return None
        if not waiting:
            del self._ready[gate.pool]
        return self._enter(ready)

    def _sort_anew(self, gate: Gate) -> None:
        """What waits at the gate of a host that has proved to be a provider's waits at that one's from now on."""
        if (waiting := self._ready.pop(gate.pool, None)) is None:
            return
        for ready in waiting.drain():
            routed = ready.routed._replace(gate=self.gates.of_route(ready.routed.route))
            self.in_hand.move(gate.pool, routed.gate.pool, routed.parcel.account_id)
            self._waiting_for(routed.gate).add(ready._replace(routed=routed))
        self.let_go()

    # ---- sessions that make no progress

    def _make_way(self) -> None:
        """End sessions whose servers do nothing, where others wait for what they hold; the longest idle first."""
        now = trio.current_time()
        if not self._ready or now < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = now
        stalled = [
            flight
            for flight in self._under_way
            if now >= flight.progress.moved_at + STALLED and not flight.progress.handed_over
        ]
        stalled.sort(key=lambda flight: flight.progress.moved_at)
        in_vain: set[tuple[str, str]] = set()  # accounts, and what they wait for, that none of these can help
        for waiting in self._ready.values() if stalled else ():
            for ready in waiting.heads():
                account, lack = ready.routed.parcel.account_id, self._lack(ready)
                if lack is None or now < ready.routed.since + LOOK_EVERY or (account, lack) in in_vain:
                    continue
                flight = next((each for each in stalled if self._gives_way(each, ready, lack, now)), None)
                if flight is None:
                    in_vain.add((account, lack))
                else:
                    stalled.remove(flight)
                    flight.scope.cancel()

    def _lack(self, ready: Ready) -> str | None:
        """What a parcel waits for that another session could give up: a slot of its pool, or one of all slots."""
        gate, account = ready.routed.gate, ready.routed.parcel.account_id
        if self.gates.is_held(gate.pool) or not gate.lets_pass(account, self.outside.now()):
            return None
        if gate.in_use >= gate.throttle.slots:
            return gate.pool
        if not gate.is_open(self.outside.now()):  # for a reason of its own, such as a server that asked for less
            return None
        if ready.routed.large and not self._large.have_room(account):
            return LARGE
        return None if self._slots.have_room(account) else ""

    def _gives_way(self, flight: _Flight, ready: Ready, lack: str, now: float) -> bool:
        """Whether a stalled session should end for a parcel that waits."""
        routed, account = ready.routed, ready.routed.parcel.account_id
        own = flight.account == account
        if routed.gate.in_use >= routed.gate.throttle.slots:
            # The next message would find the same server no better.
            same = any(flight.progress.address in host.dialled for host in routed.route.hosts)
            return flight.slot.gate is routed.gate and not own and not same
        if lack and not flight.ready.routed.large:
            return False
        if own:
            return now >= flight.progress.moved_at + STALLED_LONG
        shares = self._large if lack else self._slots
        return shares.of(flight.account) > shares.of(account)

    # ---- a machine that is short of something

    def met_shortage(self, shortage: Shortage) -> None:
        """Use fewer sessions for a while, and give up what is only kept for later."""
        if self._short_at is None:
            log.warning("mail waits: this machine is short", of=str(shortage), sessions=self._slots.used)
        self._short_at = trio.current_time()
        self._slots.places = max(1, min(self._slots.places, self._slots.used))
        if not self._ending.is_set():
            self._air.start_soon(self.courier.connections.drop_idle)

    @property
    def _pauses(self) -> bool:
        """Whether a shortage was met a moment ago, so that nothing begins but in the place of what has ended."""
        return self._short_at is not None and trio.current_time() < self._short_at + SHORTAGE_PAUSE

    def _put_back(self, flight: _Flight) -> None:
        """Let a parcel wait in its line as if it had never left."""
        ready = flight.ready
        gate, parcel = ready.routed.gate, ready.routed.parcel
        flight.slot.gate.recorded()
        self._write_down(flight.slot)
        self.store.queue_control.on_the_way.arrived(recipient.id for recipient in parcel.recipients)
        if ready.permit is not None:
            ready.permit.keep_only(0)
        self._waiting_for(gate).put_back(ready._replace(permit=None))
        self.in_hand.add(gate.pool, parcel.account_id)

    def _pause_domain(self, domain: str) -> None:
        """Begin nothing of a domain for a while: the next attempt would end as this one, and cost as much."""
        if len(self._paused) >= DOMAINS_PAUSED:
            self._paused.clear()
        self._paused[domain] = trio.current_time() + NOT_TRIED_PAUSE

    def _recover(self) -> None:
        """Let the sessions grow again after a shortage."""
        if self._short_at is None or self._pauses or trio.current_time() < self._grown_at + SHORTAGE_PAUSE:
            return
        self._grown_at = trio.current_time()
        places = self._slots.places
        self._slots.places = min(self.sessions, places + max(1, places // RECOVERY))
        if self._slots.places == self.sessions:
            self._short_at = None
            log.info("mail goes on: this machine is short of nothing any more")

    # ---- on the way

    async def _carry(self, first: _Flight) -> None:
        """Deliver a parcel, and then the next of its pool for as long as there is one that may go."""
        flight: _Flight | None = first
        gate = first.ready.routed.gate
        while flight is not None:
            shortage: Shortage | None = None
            outcomes: list[Outcome] | None = None
            try:
                outcomes = await self._deliver(flight)
            except Shortage as met:
                shortage = met
            except _NotTried:
                outcomes = None
            finally:
                self._leave(flight)
            if shortage is not None:
                self._put_back(flight)
                self.met_shortage(shortage)
                return
            if outcomes is None:
                self._pause_domain(flight.ready.routed.parcel.domain)
                self._put_back(flight)
            else:
                self.on_landed(flight.ready.routed.parcel, outcomes, flight.slot.gate)
                self._write_down(flight.slot)
            if self.gates.has_moved(gate, flight.ready.routed.route):
                self._sort_anew(gate)
            if self.courier.connections.some_leave:  # not waited for: nobody's result is to wait for a goodbye
                self._air.start_soon(self.courier.connections.take_leave)
            flight = self._next_of(gate)
        self._mind(gate)

    def _write_down(self, slot: Slot) -> None:
        """Have a hold begin that a server gave reason for, and note what came of a probe."""
        if slot.has_news:
            self._air.start_soon(self.gates.write_down, slot)

    async def _deliver(self, flight: _Flight) -> list[Outcome]:
        """Its failure is its own: it is tried again like any other deferral. Raises `Shortage` or `_NotTried`."""
        ready, routed, slot = flight.ready, flight.ready.routed, flight.slot
        parcel = self._still_wanted(routed)
        if ready.permit is not None:
            ready.permit.keep_only(0 if parcel is None else len(parcel.recipients))
        if parcel is None:
            return []
        self.store.queue_control.on_the_way.set_out([recipient.id for recipient in parcel.recipients])
        outcomes: list[Outcome] = []
        try:
            with flight.scope:
                outcomes = await self.courier.deliver(
                    parcel, routed.route, slot, ready.signature, routed.mime, ready.permit, flight.progress
                )
                if not outcomes:
                    raise _NotTried
        except (Shortage, _NotTried):
            raise
        except Exception as error:
            return self.courier.failed(parcel, error)
        if flight.scope.cancelled_caught:
            if ready.permit is not None:
                ready.permit.keep_only(0)
            return self.courier.gave_way(parcel, slot.gate, flight.progress, flight.started_at)
        return outcomes

    def _still_wanted(self, routed: Routed) -> Parcel | None:
        """The parcel without what was cancelled while it waited for its slot; a pool may have been held for days."""
        parcel, on_the_way = routed.parcel, self.store.queue_control.on_the_way
        if trio.current_time() < routed.since + LONG_WAIT and not on_the_way.was_recalled(parcel.message_id):
            return parcel
        if on_the_way.is_being_cancelled(parcel.message_id):
            return None  # should nothing come of that, it is still due, and found by the next look
        waiting = self.store.queue_control.waiting(parcel.message_id)
        left = tuple(recipient for recipient in parcel.recipients if recipient.id in waiting)
        return parcel._replace(recipients=left) if left else None
