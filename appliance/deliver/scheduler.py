"""Runs delivery: takes due mail from the store, has it prepared, starts its SMTP sessions and records the outcomes.

    due_mail → Envelope → preparing → Ready → a session of its pool → attempt → Outcomes → recorded, many per commit

Others decide: `polling.py` when to read the store, `pending.py` which mail to take, `in_flight.py` which session starts
or ends. This module calls them in order. New mail arrives in memory; polls of the store read all other due mail. All
state is in the store, so a restart continues where the last process ended. On shutdown no session starts, running ones
get `grace` seconds, and their outcomes are recorded. Only the attempt holds a session: neither signing before it nor
the commit after it keeps a server waiting.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio
from msgspec import Struct

from appliance.concurrency.fair_share import Shares
from appliance.concurrency.wake import STORAGE_PAUSE, BatchWriter
from appliance.deliver.attempt import ActiveAttempt, Deliverer
from appliance.deliver.in_flight import InFlight, SlowSessions
from appliance.deliver.observation import observe
from appliance.deliver.outcome import AttemptResult, recording
from appliance.deliver.pending import FEW_PENDING, Admission, DueMail, Pending
from appliance.deliver.polling import Poll, PollState, next_poll
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import UNROUTED
from appliance.deliver.preparing import DeliveryPath, Envelope, NotPrepared, Preparing, Ready, envelopes, worth_keeping
from appliance.deliver.route import NoRoute
from appliance.deliver.upkeep import Intervals, Upkeep
from appliance.errors import StorageUnavailable
from appliance.model.mail import Outcome
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.store.new_mail import NewMail, due_recipients
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import OPEN_CONNECTIONS

POOLS_PER_SLICE = 200  # pools served between two checkpoints: less than a millisecond
TAKEN_PER_SLICE = 5  # envelopes taken from the store between two checkpoints: the same


class SessionRunner(Struct, kw_only=True):
    pending: Pending
    in_flight: InFlight
    slow: SlowSessions
    deliverer: Deliverer
    results: BatchWriter[AttemptResult]
    new_mail: NewMail  # woken when the scheduler has something to do
    tasks: trio.Nursery

    # ---- starting

    async def start_all(self) -> None:
        """Serve all pools in turn, with checkpoints between slices; then end stalled sessions for waiting mail."""
        self.in_flight.serve_all()
        for number, pool in enumerate(list(self.pending.queues), 1):
            self.start_pool(pool)
            if number % POOLS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()
        for active in self.slow.stalled(list(self.pending.queues.values())) if self.pending.queues else ():
            if active is None:
                await trio.lowlevel.checkpoint()
            else:
                active.give_way()

    def start_pool(self, pool: str) -> None:
        if self.in_flight.brake.is_on:
            return
        has_started, self.in_flight.urgent = False, None
        while (active := self._next_attempt(pool)) is not None:
            self.tasks.start_soon(self._run, active)
            has_started = True
        if has_started:
            self.pending.end_turn(pool)
        self._make_room()

    def _make_room(self) -> None:
        urgent, self.in_flight.urgent = self.in_flight.urgent, None
        if urgent is not None and (replaced := self.slow.replaced(urgent)) is not None:
            replaced.give_way()

    def _next_attempt(self, pool: str) -> ActiveAttempt | None:
        """The next attempt of a pool, for as many recipients as the warm-up permits; with a return path, for one."""
        queue = self.pending.queues.get(pool)
        if queue is None or not self.in_flight.is_open(queue):
            return None
        ready = self.pending.next(pool, self.in_flight.may_start)
        if ready is None:
            return None
        routed, recipients = ready.routed, ready.routed.envelope.recipients
        limit = len(recipients) if routed.return_path is None else 1
        permit = self.deliverer.warmup.permit(routed.limiter.base, routed.route, limit, routed.envelope.low)
        if permit.count < len(recipients):
            self.pending.put_back(ready._replace(routed=routed.of(recipients[permit.count :])))
            ready = ready._replace(routed=routed.of(recipients[: permit.count]))
        return self.in_flight.enter(ready, permit)

    # ---- running

    async def _run(self, first: ActiveAttempt) -> None:
        """Attempt an envelope, then the next ones of its pool, in one scope until it is cancelled for other mail."""
        active: ActiveAttempt | None = first
        limiter = first.ready.routed.limiter
        while active is not None:
            with trio.CancelScope() as scope:
                gave_way = False
                while active is not None and not gave_way:
                    active.scope = scope
                    outcomes: list[Outcome] | Shortage | None
                    try:
                        outcomes = await self.deliverer.attempt(active)
                    except Shortage as shortage:
                        outcomes = shortage
                    finally:
                        if active.successor is not None:
                            self.slow.ended(active.successor)
                        if self.in_flight.leave(active):
                            self.new_mail.wake()
                    gave_way = active.gives_way  # too late for this attempt, and not meant for the next
                    active = self._next_after(active, outcomes, limiter)
            if scope.cancelled_caught and active is not None:
                if active.successor is None:
                    active = self._next_after(active, self.deliverer.gave_way(active), limiter)
                else:
                    self._finish(active, None)
                    self.start_pool(active.successor)
                    active = None

    def _next_after(
        self, active: ActiveAttempt, outcomes: list[Outcome] | Shortage | None, limiter: PoolLimiter
    ) -> ActiveAttempt | None:
        """Finish an attempt; return the next one of its session."""
        self._finish(active, outcomes)
        if isinstance(outcomes, Shortage):
            return None
        limiters, connections = self.deliverer.limiters, self.deliverer.connections
        if limiters.has_moved(limiter, active.ready.routed.route):
            self.pending.reassign(limiter.pool, lambda ready: limiters.of_route(ready.routed.route))
            self.in_flight.others_wait = True  # in their new pools
            self.new_mail.wake()
        if connections.to_quit:  # in a task: a result must not wait for a QUIT
            self.tasks.start_soon(connections.quit_ended)
        return None if self.in_flight.others_wait else self._next_attempt(limiter.pool)

    def _finish(self, active: ActiveAttempt, outcomes: list[Outcome] | Shortage | None) -> None:
        """Record the outcomes; without any, queue the envelope as if no attempt had started."""
        envelope = active.ready.routed.envelope
        if active.slot.affects_hold:
            self.tasks.start_soon(self.deliverer.limiters.update_holds, active.slot)
        if isinstance(outcomes, list):
            limiter = active.slot.limiter
            self.results.add(AttemptResult(envelope, outcomes, limiter), urgent=2 * limiter.unrecorded >= limiter.slots)
            return
        if isinstance(outcomes, Shortage):
            self.meet_shortage(outcomes)
        elif active.successor is None and self.deliverer.sources.may_start(active.ready):
            self.in_flight.pause_domain(envelope.domain)
        active.slot.limiter.undo()
        self.deliverer.store.under_delivery.end(recipient.id for recipient in envelope.recipients)
        self.deliverer.warmup.use_only(active.permit, 0)
        had_ready = bool(self.pending.queues)
        if active.successor is None:
            self.pending.put_back(active.ready)
        else:
            self.pending.add(active.ready.routed.limiter.pool, envelope.flow)
            self.pending.enqueue(active.ready)
        self.wake_if_waiting(had_ready)

    def wake_if_waiting(self, had_ready: bool) -> None:
        """Have the scheduler check the limiters from now on, if mail has started to wait for a session."""
        if self.pending.queues and not had_ready:
            self.new_mail.wake()

    def meet_shortage(self, shortage: Shortage) -> None:
        self.in_flight.brake.meet(shortage)
        if not self.in_flight.is_stopping:
            self.tasks.start_soon(self.deliverer.connections.drop_idle)


# ---- the loop

SESSIONS = 500  # SMTP transactions at once, in all pools, unless the operator sets another number
LARGE_SESSIONS = 16  # transactions with large messages, each of which is in memory until it ends
GRACE = 10.0  # seconds that running sessions may still take on shutdown

log = get_logger("deliver")


@dataclass(slots=True, kw_only=True)
class Scheduler:
    new_mail: NewMail
    due_mail: tuple[DueMail, DueMail]  # with high and with low priority
    preparing: Preparing
    deliverer: Deliverer
    sessions: int = SESSIONS
    large_sessions: int = LARGE_SESSIONS
    grace: float = GRACE
    stop_by: Callable[[], float] = lambda: inf  # Trio's clock: when the process ends, whatever is running
    intervals: Intervals = field(default_factory=Intervals)
    pending: Pending = field(default_factory=Pending)
    runner: SessionRunner = field(init=False)
    _admission: Admission = field(init=False)
    _results: BatchWriter[AttemptResult] = field(init=False)
    _tasks: trio.Nursery = field(init=False)  # cancelled on shutdown, unlike sessions
    _polls: PollState = field(default_factory=PollState)
    _due_at: int | None = None  # when the next recipient will be due, as far as is known

    def in_flight(self) -> int:
        return self.deliverer.store.under_delivery.count()

    async def run(self) -> None:
        limiters, warmup = self.deliverer.limiters, self.deliverer.warmup
        in_flight = InFlight(limiters, warmup, Shares(self.sessions), Shares(self.large_sessions))
        in_flight.round_limit.has_new_mail = self.new_mail.is_sparse
        self._admission = Admission(self.pending, limiters, warmup, self.deliverer.sources)
        self._results = recording(self.deliverer.store)
        OPEN_CONNECTIONS["deliver"] = lambda: in_flight.slots.used
        upkeep = Upkeep(self.deliverer, self.new_mail, self.pending, in_flight, self.intervals)
        await self.deliverer.sources.start()
        async with trio.open_nursery() as self._tasks:
            await self._tasks.start(self._run_sessions, in_flight, upkeep)
            self._tasks.start_soon(self._results.run, self._recorded)
            upkeep.start(self._tasks)
            self._tasks.start_soon(self.deliverer.ramp.run, self._reroute)
            for _ in range(self.preparing.signer.threads):
                self._tasks.start_soon(self._sign)
            while True:
                try:
                    seconds = await self._next_turn()
                except StorageUnavailable as outage:
                    log.warning("delivery paused: storage unavailable", reason=outage.text)
                    self._polls.is_requested = True
                    await trio.sleep(STORAGE_PAUSE)
                    continue
                await self.new_mail.wait(seconds)

    async def _run_sessions(
        self, in_flight: InFlight, upkeep: Upkeep, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Own the session tasks; when this task is cancelled, they have `grace` seconds to finish."""
        with trio.CancelScope(shield=True) as grace:
            async with trio.open_nursery() as tasks:
                self.runner = SessionRunner(
                    pending=self.pending,
                    in_flight=in_flight,
                    slow=SlowSessions(in_flight),
                    deliverer=self.deliverer,
                    results=self._results,
                    new_mail=self.new_mail,
                    tasks=tasks,
                )
                is_stopping = trio.Event()
                self._tasks.start_soon(in_flight.watch_for_stop, is_stopping)
                self._tasks.start_soon(in_flight.round_limit.run, self.runner.start_pool)
                task_status.started()
                await is_stopping.wait()
                grace.deadline = min(trio.current_time() + self.grace, self.stop_by())
        self._results.close()
        await upkeep.stop()

    async def _next_turn(self) -> float:
        await self._take_new()
        seconds, poll = self._next_poll()
        if seconds <= 0:
            await self._poll(poll)
            seconds, _ = self._next_poll()
        elif self.runner.in_flight.others_wait:
            await self.runner.start_all()
        return seconds

    # ---- polls of the store

    async def _take_new(self) -> None:
        """Take mail that was just accepted; a poll reads what is not taken here."""
        messages = self.new_mail.take()
        if not messages:
            return
        mimes = {new.message.id: new.message.mime for new in messages}
        for envelope in envelopes((to for new in messages for to in due_recipients(new)), self.deliverer.ramp.via):
            due_mail = self.due_mail[envelope.low]
            if envelope.recipients[0].id in due_mail.taken:
                continue
            if due_mail.is_behind:
                self._polls.is_requested = True
            envelope = self._admission.as_new(envelope)
            pool = self._admission.pool_for_new(envelope, is_behind=due_mail.is_behind)
            if pool is not None:
                self.preparing.keep_new(envelope.message_id, mimes[envelope.message_id])
                await self._take(envelope, pool, mimes[envelope.message_id])

    def _next_poll(self) -> tuple[float, Poll]:
        state = self._polls
        state.is_requested = self.new_mail.poll_requested() or state.is_requested
        state.is_short = self.pending.total < FEW_PENDING
        state.has_left = bool(self._admission.left) or any(due_mail.is_behind for due_mail in self.due_mail)
        state.has_ready = bool(self.pending.queues)
        state.due_in = inf if self._due_at is None else (self._due_at - self.deliverer.env.now()) / 1_000_000
        return next_poll(state, trio.current_time(), self.intervals.poll_all)

    async def _poll(self, poll: Poll) -> None:
        if poll is not Poll.NEW:
            self._polls.checked_at = trio.current_time()
            await self.deliverer.limiters.read_holds()
            await self.deliverer.warmup.load_missing()
            self._leave_unusable()
        if poll is not Poll.LIMITERS:
            await self._take_due(poll is Poll.ALL)
        await self.runner.start_all()

    async def _take_due(self, read_all: bool) -> None:
        state, now = self._polls, trio.current_time()
        has_room = state.has_room
        state.is_requested, state.has_room, state.polled_at = False, False, now
        # Read before the poll, so that mail that becomes due meanwhile is not missed by both.
        self._due_at = await self.deliverer.store.queue.next_due(simulated=False)
        if read_all:
            state.polled_all_at = now
            self._admission.left.clear()
        for due_mail in self.due_mail:
            reads = [due_mail.all if read_all else due_mail.new]
            if has_room and not due_mail.is_behind:  # behind a backlog every poll reads mail left before
                reads.append(due_mail.left)
            for read in reads:
                for number, envelope in enumerate(await read(self._admission.may_take), 1):
                    if (pool := self._admission.pool_for_due(envelope)) is not None:
                        await self._take(envelope, pool)
                    if number % TAKEN_PER_SLICE == 0:
                        await trio.lowlevel.checkpoint()
                        await self._take_new()

    def _leave_unusable(self) -> None:
        """Return envelopes to the store whose source has been taken out: a poll chooses another source."""
        for pool, envelope in self.pending.remove_unusable(self.deliverer.sources.may_start):
            self._return(envelope, pool)

    def _return(self, envelope: Envelope, pool: str) -> None:  # without an attempt
        self.due_mail[envelope.low].release(envelope)
        self._admission.leave(pool, envelope.flow)

    # ---- preparing

    def _postpone(self, envelope: Envelope) -> None:
        self._results.add(AttemptResult(envelope, [], postponed_until=self.deliverer.sources.postponed_until()))

    async def _take(self, envelope: Envelope, pool: str, mime: bytes | None = None) -> None:
        self.due_mail[envelope.low].take(envelope)
        if not self.deliverer.sources.limits(envelope, UNROUTED):
            self._postpone(envelope)
            return
        self.pending.add(pool, envelope.flow)
        path = self.preparing.known(envelope)
        if path is None:
            self._tasks.start_soon(self._find_path, envelope, pool, worth_keeping(mime, self.pending.total))
        else:
            await self._prepare(envelope, pool, path, mime, trio.current_time())

    async def _find_path(self, envelope: Envelope, pool: str, mime: bytes | None) -> None:
        started_at, since = self.deliverer.env.now(), trio.current_time()
        while True:
            try:
                path = await self.preparing.find(envelope)
                break
            except Shortage as shortage:
                self.runner.meet_shortage(shortage)
                await trio.sleep(SHORTAGE_PAUSE)
            except Exception as reason:
                via = envelope.via and self.deliverer.ramp.via(envelope.recipients[0])  # the provider is known by now
                self._not_prepared(NotPrepared(envelope._replace(via=via), pool, reason), started_at)
                return
        await self._prepare(envelope._replace(via=path.route.via), pool, path, mime, since)

    async def _prepare(
        self, envelope: Envelope, pool: str, path: DeliveryPath, mime: bytes | None, since: float
    ) -> None:
        limiters, total = self.deliverer.limiters, self.pending.total
        try:
            route = self.deliverer.sources.route(envelope, path.route, self._admission.has_room_in_warmup)
            if route is None:
                self.pending.remove(pool, envelope.flow)
                self._postpone(envelope)
                return
            path = path if route is path.route else path._replace(route=route)
            limiter = limiters.of_route(route)
            self.pending.move(pool, pool := limiter.pool, envelope.flow)
            await self.deliverer.warmup.load(limiter.base, route)
        except (NoRoute, StorageUnavailable) as reason:
            self._not_prepared(NotPrepared(envelope, pool, reason), self.deliverer.env.now())
            return
        prepared = await self.preparing.prepare(envelope, path, limiter, mime=mime, since=since, pending=total)
        if isinstance(prepared, Ready | NotPrepared):  # else `_sign` returns it
            self._prepared([prepared])

    async def _sign(self) -> None:
        while True:
            self._prepared(await self.preparing.signed())

    def _prepared(self, batch: list[Ready | NotPrepared]) -> None:
        self.runner.in_flight.brake.release()
        had_ready, pools = bool(self.pending.queues), {}
        for prepared in batch:
            if isinstance(prepared, NotPrepared):
                self._not_prepared(prepared, self.deliverer.env.now())
            else:
                self.pending.enqueue(prepared)
                pools[prepared.routed.limiter.pool] = True
        for pool in pools:
            self.runner.start_pool(pool)
        self.runner.wake_if_waiting(had_ready)

    def _not_prepared(self, failed: NotPrepared, started_at: int) -> None:
        envelope = failed.envelope
        self.pending.remove(failed.pool, envelope.flow)
        if isinstance(failed.reason, StorageUnavailable):
            self._return(envelope, failed.pool)
            return
        self._results.add(AttemptResult(envelope, self.deliverer.not_attempted(envelope, failed.reason, started_at)))

    async def _reroute(self) -> None:
        for envelope in await self.pending.drop(self.deliverer.ramp.is_wrong):
            self._results.add(AttemptResult(envelope, []))

    # ---- recorded results

    def _recorded(self, results: list[AttemptResult], on_disk: bool) -> None:
        """Release recorded envelopes. One whose outcomes cannot be recorded stays taken: it must not be sent twice."""
        pools = {}
        for result in results:
            if result.limiter is not None:
                result.limiter.unrecorded -= 1
                pools[result.limiter.pool] = True
        for pool in pools:
            self.runner.start_pool(pool)
        for result in results if on_disk else ():
            envelope = result.envelope
            self.deliverer.store.under_delivery.end([recipient.id for recipient in envelope.recipients])
            observe(result.outcomes)
            self.deliverer.sources.count(result.outcomes)
            due_mail = self.due_mail[envelope.low]
            due_mail.release(envelope)
            for due_at in (result.postponed_until, *(outcome.next_attempt_at for outcome in result.outcomes)):
                if due_at is not None and (self._due_at is None or due_at < self._due_at):
                    self._due_at = due_at
                    self.new_mail.wake()
            if not result.outcomes:  # cancelled, or its route has changed
                self._admission.leave(self.deliverer.limiters.pool_of(envelope.domain, envelope.via), envelope.flow)
                self.new_mail.wake()
            if self._admission.should_poll(envelope, is_behind=due_mail.is_behind):
                self._polls.is_requested = self._polls.has_room = True
                self.new_mail.wake()
