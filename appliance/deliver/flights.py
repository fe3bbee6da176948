"""In charge of what is under way: which of the parcels that are ready goes next, and how one is carried.

A pool's slots are given out in turns of the accounts, and the slots there are in all in turns of the pools. Once it is
to end, nothing takes off any more, and what is in the air has some time to land.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from appliance.deliver.courier import Courier, Parcel
from appliance.deliver.gate import Gate
from appliance.deliver.gates import Gates, Slot
from appliance.deliver.in_hand import InHand
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.selection import Turns
from appliance.deliver.warmups import Warmups
from appliance.measures import OPEN
from appliance.model import Outcome
from appliance.outside import Outside
from appliance.store import Store

SESSIONS = 500  # SMTP transactions at once, in all pools, unless the operator says otherwise
LARGE_SESSIONS = 16  # of them with large messages, each of which is in memory until it is over
GRACE = 10.0  # seconds that transactions in flight may still take at the end
LONG_WAIT = 1.0  # seconds in hand after which it is asked whether a parcel is still wanted


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
    _ready: dict[str, Turns[Ready]] = field(default_factory=dict)  # by pool; none empty
    _flying: int = 0  # transactions that run
    _large: int = 0  # of them with large messages
    _has_room: bool = False  # a slot is free that other pools than its last may have waited for
    _air: trio.Nursery = field(init=False)
    _landing: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    _ending: trio.Event = field(default_factory=trio.Event)

    @property
    def some_wait(self) -> bool:
        """Whether anything waits for a slot."""
        return bool(self._ready)

    # ---- beginning and end

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the nursery of what is in flight, to its end; cancelling it does not end it, but `end` does."""
        OPEN["deliver"] = lambda: self._flying
        with self._landing:
            async with trio.open_nursery() as self._air:
                task_status.started()
                await self._ending.wait()

    def end(self) -> None:
        """Begin nothing more, and give what is in flight its time."""
        self._landing.deadline = trio.current_time() + self.grace
        self._ending.set()

    # ---- slots

    def add(self, ready: Ready) -> None:
        """Let it go, now or when it is its turn."""
        gate = ready.routed.gate
        if gate.pool not in self._ready and self.warmups is None and self._may_go(ready):
            self._take_off(ready)
        else:
            account = ready.routed.parcel.account_id
            self._ready.setdefault(gate.pool, Turns()).add(account, ready)
            self._let_go(gate.pool)
            if gate.pool in self._ready and not gate.lets_pass(account, self.outside.now()):
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
        for pool in list(self._ready):
            self._let_go(pool)

    def use_room(self) -> None:
        """Give away the slots that all pools waited for, if there are any."""
        if self._has_room:
            self.let_go()

    def _let_go(self, pool: str) -> None:
        turns = self._ready[pool]
        waiting = len(turns)
        while turns and (account := self._whose_turn(turns)) is not None:
            self._take_off(self._next(turns, account))
        if not turns:
            del self._ready[pool]
        elif len(turns) < waiting:
            self._ready[pool] = self._ready.pop(pool)  # now it is the other pools' turn

    def _whose_turn(self, turns: Turns[Ready]) -> str | None:
        """The account whose parcel goes next, if the gate is open to anybody's."""
        if self._flying >= self.sessions or not turns.peek().routed.gate.is_open(self.outside.now()):
            return None
        return turns.first(self._may_go)

    def _may_go(self, ready: Ready) -> bool:
        gate = ready.routed.gate
        busy = self._ending.is_set() or self._flying >= self.sessions
        if ready.routed.large and self._large >= LARGE_SESSIONS:
            busy = True
        if busy or not self.gates.is_open(gate, ready.routed.parcel.account_id):
            return False
        return self.warmups is None or self.warmups.lets_go(gate.pool, ready.routed.route)

    def _next(self, turns: Turns[Ready], account: str) -> Ready:
        """An account's next; of its recipients only as many as the warm-up allows, the others stay in line."""
        ready = turns.next(account)
        if self.warmups is None:
            return ready
        routed, parcel = ready.routed, ready.routed.parcel
        permit = self.warmups.permit(routed.gate.pool, routed.route, len(parcel.recipients))
        if permit is not None and permit.count < len(parcel.recipients):
            first, rest = parcel.recipients[: permit.count], parcel.recipients[permit.count :]
            turns.put_back(parcel.account_id, Ready(routed.of(rest), ready.signature))
            self.in_hand.add(routed.gate.pool, parcel.account_id)
            routed = routed.of(first)
        return Ready(routed, ready.signature, permit)

    def _take_off(self, ready: Ready) -> None:
        self._air.start_soon(self._carry, ready, self._enter(ready.routed))

    def _enter(self, routed: Routed) -> Slot:
        parcel = routed.parcel
        self.in_hand.remove(routed.gate.pool, parcel.account_id)
        self._flying += 1
        self._large += routed.large
        return self.gates.slot(routed.gate, parcel.account_id, parcel.domain)

    def _leave(self, routed: Routed, slot: Slot) -> None:
        if self._ready and (self._flying >= self.sessions or self._large >= LARGE_SESSIONS):
            self._has_room = True
            self.on_room()
        self._flying -= 1
        self._large -= routed.large
        slot.leave()

    def _next_of(self, gate: Gate) -> tuple[Ready, Slot] | None:
        """The next parcel of a pool, with its slot."""
        turns = self._ready.get(gate.pool)
        if turns is None or self._has_room or (account := self._whose_turn(turns)) is None:
            return None
        ready = self._next(turns, account)
        if not turns:
            del self._ready[gate.pool]
        return ready, self._enter(ready.routed)

    def _sort_anew(self, gate: Gate) -> None:
        """What waits at the gate of a host that has proved to be a provider's waits at that one's from now on."""
        if (turns := self._ready.pop(gate.pool, None)) is None:
            return
        for account, ready in turns.drain():
            routed = ready.routed._replace(gate=self.gates.of_route(ready.routed.route))
            self.in_hand.move(gate.pool, routed.gate.pool, account)
            self._ready.setdefault(routed.gate.pool, Turns()).add(account, ready._replace(routed=routed))
        self.let_go()

    # ---- on the way

    async def _carry(self, first: Ready, slot: Slot) -> None:
        """Deliver a parcel, and then the next of its pool for as long as there is one that may go."""
        following: tuple[Ready, Slot] | None = first, slot
        gate = first.routed.gate
        while following is not None:
            ready, slot = following
            try:
                outcomes = await self._deliver(ready, slot)
            finally:
                self._leave(ready.routed, slot)
            self.on_landed(ready.routed.parcel, outcomes, slot.gate)
            if slot.has_news:
                self._air.start_soon(self.gates.write_down, slot)
            if self.gates.has_moved(gate, ready.routed.route):
                self._sort_anew(gate)
            if self.courier.connections.some_leave:  # not waited for: nobody's result is to wait for a goodbye
                self._air.start_soon(self.courier.connections.take_leave)
            following = self._next_of(gate)
        self._mind(gate)

    async def _deliver(self, ready: Ready, slot: Slot) -> list[Outcome]:
        """Its failure is its own: it is tried again like any other deferral."""
        routed = ready.routed
        parcel = self._still_wanted(routed)
        if ready.permit is not None:
            ready.permit.keep_only(0 if parcel is None else len(parcel.recipients))
        if parcel is None:
            return []
        self.store.queue_control.on_the_way.set_out([recipient.id for recipient in parcel.recipients])
        try:
            return await self.courier.deliver(parcel, routed.route, slot, ready.signature, routed.mime, ready.permit)
        except Exception as error:
            return self.courier.failed(parcel, error)

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
