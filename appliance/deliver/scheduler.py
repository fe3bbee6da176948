"""In charge of delivery as a whole: finds what is due, has it prepared, carried and recorded.

A parcel is taken into hand, routed and signed (`Preparing`), waits for a slot of its pool and is carried (`Flights`),
and recorded (`Recorder`). Only carrying it takes a slot: neither the signing before nor the commit after it keeps a
server waiting. New mail comes through the inbox; the store is looked at for whatever else is due.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.deliver.attempt import Courier, Parcel
from appliance.deliver.due_mail import Selection, in_turn, parcels
from appliance.deliver.in_flight import GRACE, SESSIONS, Flights
from appliance.deliver.metrics import observe
from appliance.deliver.pending_counts import InHand
from appliance.deliver.pool_limiters import UNROUTED, Gates
from appliance.deliver.preparing import Preparing
from appliance.deliver.recorder import Recorder, Result
from appliance.deliver.route_cache import SharedRoutes
from appliance.deliver.shares import may_take
from appliance.deliver.signer import Signer
from appliance.deliver.warmups import Warmups
from appliance.errors import Refused
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.new_mail import Inbox, due_recipients
from appliance.system.clock_jumps import ClockJumps
from appliance.telemetry.log import get_logger

IN_HAND = 100  # parcels of one pool, or for domains not routed yet, that are being prepared or wait for a slot
FRESH_IN_HAND = 1_000  # parcels in all up to which mail that has just come in is taken: it need not be looked for later
OF_ONE = 5  # parcels of one account for one pool that are taken whatever the others have in hand
FEW = 50  # parcels in hand, in all or of one pool, below which a look for more is worth its while at any time
CLOSE_EVERY = 1.0  # seconds between two looks for connections that nobody needs
MIND_EVERY = 600.0  # seconds between two looks for mail that a wrong clock put off
AT_ONCE = 0.005  # seconds between two looks for more when there are few: what comes in within them is one look
SOON = 0.1  # seconds between two looks for more while there is enough in hand: it may all be for one slow pool
FULL_LOOK = 1.0  # seconds between two looks at everything while something due could not go

log = get_logger("deliver")


@dataclass(slots=True)
class Dispatch:
    """The loop, and what it remembers between two looks."""

    store: Store
    outside: Outside
    inbox: Inbox
    routes: SharedRoutes
    gates: Gates
    signer: Signer
    courier: Courier
    selection: Selection
    sessions: int = SESSIONS
    grace: float = GRACE
    warmups: Warmups | None = None
    stop_by: Callable[[], float] = lambda: inf  # on Trio's clock: when the process ends, whatever is in flight
    _recorder: Recorder = field(init=False)
    _in_hand: InHand = field(default_factory=InHand)
    _preparing: Preparing = field(init=False)
    _flights: Flights = field(init=False)
    _ground: trio.Nursery = field(init=False)  # of what is cancelled at the end
    _due_at: int | None = None  # when the next recipient will be due, as far as we know
    _looked_at: float = -FULL_LOOK  # Trio's clock
    _looked_at_all: float = -FULL_LOOK
    _looked_at_gates: float = -FULL_LOOK  # apart from the above: it must not put off what only a look at all finds
    _late: bool = True  # the store is to be looked at, as soon as it is time
    _passed_over: dict[str, set[str]] = field(default_factory=dict)  # by pool: whose due mail was left where it is
    _refill: bool = False  # one of those has room again
    _hungry: bool = False  # a pool has little in hand, and there is more in the store than was looked at

    async def run(self) -> None:
        """Deliver whatever is due, for ever. State is in the store, so a restart simply goes on."""
        self._put_together()
        async with trio.open_nursery() as self._ground:
            self._ground.start_soon(self._notice_the_end)  # first: the end may come before the beginning is over
            await self._ground.start(self._fly)
            self._ground.start_soon(self._recorder.run, self._recorded)
            self._ground.start_soon(self.gates.keep_told, self._in_hand, self.inbox.ring)
            self._ground.start_soon(self._close_idle)
            self._ground.start_soon(self._mind_the_clock)
            if self.warmups is not None:
                self._ground.start_soon(self.warmups.keep)
            self._ground.start_soon(self.courier.watch.run)
            self._ground.start_soon(self.gates.proofs.run)
            for _ in range(self.signer.threads):
                self._ground.start_soon(self._preparing.sign)
            while True:
                self._take_fresh()
                self._look()
                await self.inbox.wait(self._seconds_until_look())

    def _put_together(self) -> None:
        recorder = self._recorder = Recorder(self.store)
        flights = self._flights = Flights(
            self.store,
            self.outside,
            self.gates,
            self.courier,
            self._in_hand,
            recorder.add,
            self.inbox.stir,
            self.sessions,
            self.grace,
            self.warmups,
        )
        self._preparing = Preparing(
            self.store,
            self.outside,
            self.routes,
            self.gates,
            self.signer,
            self.courier,
            self._in_hand,
            flights.add,
            recorder.add,
            flights.met_shortage,
        )

    async def _fly(self, task_status: trio.TaskStatus[None]) -> None:
        await self._flights.run(task_status)
        self._recorder.close()
        if self.warmups is not None:
            with trio.CancelScope(shield=True):
                await self.warmups.save()

    async def _notice_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._flights.end(self.stop_by())

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(CLOSE_EVERY)
            await self.courier.connections.close_idle()

    async def _mind_the_clock(self) -> None:
        """Bring back what was put off while the clock was ahead: no wait of the schedule is that long."""
        clock = ClockJumps(self.outside)
        while True:
            beyond = self.outside.now() + self.courier.retries.longest
            try:
                if count := await self.store.queue_control.bring_forward(beyond):
                    log.warning("mail was put off by a clock that was ahead, and is due now", recipients=count)
                    self.inbox.ring()
            except Refused as refused:
                log.warning("mail put off by a wrong clock waits for the storage", reason=refused.text)
            if by := await clock.wait(MIND_EVERY):
                log.warning("the clock was set", seconds=round(by))
                self.inbox.ring()

    # ---- what is taken into hand

    def _take_fresh(self) -> None:
        """Take what has just come in, unless older mail waits for the same; the rest is found in the store."""
        fresh = self.inbox.take()
        if not fresh:
            return
        if self.selection.behind:
            self._late = True
            return
        mimes = {each.message.id: each.message.mime for each in fresh}
        for parcel in in_turn(parcels(recipient for each in fresh for recipient in due_recipients(each))):
            if parcel.recipients[0].id not in self.selection.taken and self._wants_fresh(parcel):
                self._take(parcel, mimes[parcel.message_id])

    def _wants_fresh(self, parcel: Parcel) -> bool:
        """Not past mail of the same account that has waited longer."""
        pool = self.gates.pool_of(parcel.domain)
        passed_over = parcel.account_id in self._passed_over.get(pool, ())
        waited = passed_over and self._in_hand.of(pool, parcel.account_id) > 0
        most = FRESH_IN_HAND if self._in_hand.total < FRESH_IN_HAND else IN_HAND
        return not waited and self._wants(parcel.account_id, parcel.domain, most)

    def _wants(self, account: str, domain: str, most: int = IN_HAND) -> bool:
        """Whether more of an account's parcels for a domain should be taken into hand; its first ones always.

        For in hand the accounts take turns; if one of them could fill it, the others would wait before the door.
        """
        pool = self.gates.pool_of(domain)
        if self.warmups is not None:
            most = min(most, self.warmups.in_hand(pool))
        free, own = most - self._in_hand[pool], self._in_hand.of(pool, account)
        # What is being routed waits for the domain's own name servers: one account's must not take all the room.
        room = own < OF_ONE or (may_take(own, free) if pool == UNROUTED else free > 0)
        if room and not self.gates.is_held(pool):
            return True
        if not self._in_hand[pool] and self.gates.may_probe(pool, account):
            return True
        self._passed_over.setdefault(pool, set()).add(account)
        return False

    def _take(self, parcel: Parcel, mime: bytes | None = None) -> None:
        self.selection.take(parcel)
        self._preparing.take(parcel, mime, self._ground)

    def _recorded(self, result: Result, on_disk: bool) -> None:
        """A result is on disk: whatever of the parcel is due again will be found again. If it is not, never."""
        if result.gate is not None:
            self._flights.recorded(result.gate)
        if not on_disk:
            return
        self.store.queue_control.on_the_way.arrived(recipient.id for recipient in result.parcel.recipients)
        observe(result.outcomes)
        for outcome in result.outcomes:
            again = outcome.next_attempt_at
            if again is not None and (self._due_at is None or again < self._due_at):
                self._due_at = again
                self.inbox.stir()
        self.selection.release(result.parcel)
        pool, account = self.gates.pool_of(result.parcel.domain), result.parcel.account_id
        if self._passed_over and (self._has_room(pool, account) or self._has_room(UNROUTED, account)):
            self._refill = True
        # Of this pool, not of all: those in hand may be for a server that answers nothing.
        self._hungry = self._hungry or (self.selection.behind and self._in_hand[pool] < FEW)
        if self._refill or self._hungry:
            self._late = True
            self.inbox.stir()

    def _has_room(self, pool: str, account: str) -> bool:
        """Whether a pool of which something was left has little in hand by now, or one whose mail that was has."""
        passed_over = self._passed_over.get(pool)
        if passed_over is None or self.gates.is_held(pool):
            return False
        return self._in_hand[pool] < FEW or (account in passed_over and self._in_hand.of(pool, account) < OF_ONE)

    # ---- looks into the store

    def _look(self) -> None:
        """Look into the store for more, if there is a reason and it is time."""
        now = trio.current_time()
        full = now >= self._looked_at_all + FULL_LOOK
        overdue = self._due_at is not None and self.outside.now() >= self._due_at
        old = now >= self._looked_at + SLEEP_LIMIT
        more = full and (bool(self._passed_over) or self.selection.behind)
        self._late = self.inbox.was_rung() or self._late or overdue or old or more
        if self._late and (full or now >= self._looked_at + self._pause()):
            self._look_now(now, full)
            self._flights.let_go()
        elif self._flights.some_wait and now >= self._looked_at_gates + FULL_LOOK:  # they open with time, holds end
            self._looked_at_gates = now
            self.gates.read_holds()
            self._flights.let_go()
        else:
            self._flights.use_room()

    def _look_now(self, now: float, full: bool) -> None:
        self._late, self._hungry, self._looked_at = False, False, now
        # Asked for before the look, so that what becomes due meanwhile is not missed by both.
        self._due_at = self.store.queue.next_due(simulated=False)
        if full:
            self._looked_at_all = self._looked_at_gates = now
            self._passed_over.clear()
            self.gates.read_holds()
        self._take_all(self.selection.all(self._wants) if full else self.selection.news(self._wants))
        if self._refill:
            self._refill = False
            self._take_all(self.selection.waiting(self._wants))

    def _take_all(self, found: list[Parcel]) -> None:
        for parcel in found:
            if self._wants(parcel.account_id, parcel.domain):
                self._take(parcel)

    def _pause(self) -> float:
        return AT_ONCE if self._refill or self._hungry or self._in_hand.total < FEW else SOON

    def _seconds_until_look(self) -> float:
        if self._late:
            return max(0.0, self._looked_at + self._pause() - trio.current_time())
        if self._passed_over:  # something due waits for a hold to end, or for room in hand
            return max(0.0, self._looked_at_all + FULL_LOOK - trio.current_time())
        if self._flights.some_wait:
            return max(0.0, self._looked_at_gates + FULL_LOOK - trio.current_time())
        return SLEEP_LIMIT if self._due_at is None else max(0.0, (self._due_at - self.outside.now()) / 1_000_000)
