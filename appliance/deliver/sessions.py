"""Starts SMTP sessions for ready envelopes, runs their attempts and hands over the outcomes to be recorded.

`in_flight.py` decides which envelope may start and `slow_sessions.py` which session ends for other mail; this module
carries it out and owns the session tasks. Only the attempt holds a session: neither signing before it nor the commit
after it keeps a server waiting.
"""

from dataclasses import dataclass
from typing import NamedTuple

import trio

from appliance.concurrency.batch_writer import BatchWriter
from appliance.deliver.attempt import ActiveAttempt, Deliverer
from appliance.deliver.due_mail import Envelope
from appliance.deliver.in_flight import InFlight
from appliance.deliver.pending import Pending
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.slow_sessions import SlowSessions
from appliance.model.mail import Outcome
from appliance.net.dial import Shortage
from appliance.store import Store
from appliance.store.queue import NewMail

POOLS_PER_SLICE = 200  # pools served between two checkpoints: less than a millisecond


class AttemptResult(NamedTuple):
    envelope: Envelope
    outcomes: list[Outcome]
    limiter: PoolLimiter | None = None  # counts the result as unrecorded until it is on disk


def recording(store: Store) -> BatchWriter[AttemptResult]:
    """Records results in batches."""

    async def write(batch: list[AttemptResult]) -> None:
        if outcomes := [outcome for result in batch for outcome in result.outcomes]:
            await store.queue.record(outcomes)

    def fields(result: AttemptResult) -> dict[str, str]:
        return {"message_id": result.envelope.message_id, "domain": result.envelope.domain}

    return BatchWriter("deliver", write, fields)


@dataclass(slots=True, kw_only=True)
class SessionRunner:
    pending: Pending
    in_flight: InFlight
    slow: SlowSessions
    deliverer: Deliverer
    results: BatchWriter[AttemptResult]
    new_mail: NewMail  # woken when the scheduler has something to do
    tasks: trio.Nursery

    # ---- starting

    async def start_all(self) -> None:
        """Serve all pools in turn, then end stalled sessions for waiting mail.

        Thousands of pools may be waiting, so other tasks run after every slice.
        """
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
        """End a slow session for the envelope that has just found no slot."""
        urgent, self.in_flight.urgent = self.in_flight.urgent, None
        if urgent is not None and (replaced := self.slow.replaced(urgent)) is not None:
            replaced.give_way()

    def _next_attempt(self, pool: str) -> ActiveAttempt | None:
        """The next attempt of a pool, for as many of its recipients as the warm-up permits; the others stay queued.

        With a return path, each recipient has its own sender address and so its own transaction.
        """
        queue = self.pending.queues.get(pool)
        if queue is None or not self.in_flight.is_open(queue.limiter):
            return None
        ready = self.pending.next(pool, self.in_flight.may_start)
        if ready is None:
            return None
        routed, recipients = ready.routed, ready.routed.envelope.recipients
        limit = len(recipients) if routed.return_path is None else 1
        permit = self.deliverer.warmup.permit(pool, routed.route, limit)
        if permit.count < len(recipients):
            self.pending.put_back(ready._replace(routed=routed.of(recipients[permit.count :])))
            ready = ready._replace(routed=routed.of(recipients[: permit.count]))
        return self.in_flight.enter(ready, permit)

    # ---- running

    async def _run(self, first: ActiveAttempt) -> None:
        """Attempt an envelope, then the next ones of its pool while they may start.

        All attempts share one scope, until it is cancelled for other mail.
        """
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
            self.results.add(AttemptResult(envelope, outcomes, active.slot.limiter))
            return
        if isinstance(outcomes, Shortage):
            self.meet_shortage(outcomes)
        elif active.successor is None:
            self.in_flight.pause_domain(envelope.domain)
        active.slot.limiter.undo()
        self.deliverer.store.under_delivery.end(recipient.id for recipient in envelope.recipients)
        self.deliverer.warmup.use_only(active.permit, 0)
        had_ready = bool(self.pending.queues)
        if active.successor is None:
            self.pending.put_back(active.ready)
        else:
            self.pending.add(active.ready.routed.limiter.pool, envelope.account_id)
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
