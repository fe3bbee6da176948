"""Runs delivery: takes due mail from the store, has it prepared, starts its SMTP sessions and records the outcomes.

    due_mail → Envelope → preparing → Ready → a session of its pool → attempt → Outcomes → recorded, many per commit

The stages return values; this module alone decides what happens next, owns what is pending (`pending.py`) and starts
all tasks. Only the attempt holds a session: neither signing before it nor the commit after it keeps a server waiting.
New mail is handed over in memory; everything else that is due is found by polling the store (`next_poll`). All state
is in the store, so a restart continues where the last process ended. On shutdown no session starts, running ones get
`grace` seconds, and what they achieved is recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import NamedTuple

import trio

from appliance.concurrency.batch_writer import STORAGE_PAUSE, BatchWriter
from appliance.concurrency.wake import SLEEP_LIMIT, ClockJumps
from appliance.deliver.attempt import ActiveAttempt, Deliverer
from appliance.deliver.due_mail import DueMail, Envelope, envelopes, may_take
from appliance.deliver.in_flight import InFlight
from appliance.deliver.outcome import observe
from appliance.deliver.pending import Pending
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import UNROUTED, PoolLimiters
from appliance.deliver.preparing import DeliveryPath, NotPrepared, Preparing, Ready, worth_keeping
from appliance.deliver.warmup import Warmup
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.mail import Outcome
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.store import Store
from appliance.store.queue import NewMail, due_recipients
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import OPEN_CONNECTIONS

# ---- when the store is polled

POLL_AT_ONCE = 0.005  # seconds: what comes in within them is read by one poll
POLL_SOON = 0.1  # seconds: there is enough to do, but it may all be for one slow pool


class Poll(Enum):
    ALL = auto()  # everything due, and the holds of pools
    NEW = auto()  # what has become due since the last poll
    LIMITERS = auto()  # no mail: the holds of pools, so that what is ready may go


@dataclass(slots=True)
class PollState:
    """What the time of the next poll depends on; times on Trio's clock."""

    polled_at: float = -inf
    polled_all_at: float = -inf
    checked_at: float = -inf  # limiters; apart from the above, for it must not put off what only a poll finds
    asked: bool = True
    room: bool = False  # a pool has room for mail that was left in the store
    due_in: float = inf  # seconds until the next recipient is due
    few: bool = True  # few envelopes are pending
    left: bool = False  # due mail was left in the store
    waiting: bool = False  # ready mail waits for a session


def next_poll(state: PollState, now: float, all_every: float) -> tuple[float, Poll]:
    """In how many seconds something is to be read, and what; 0: now. Pure.

    The earliest row whose condition holds decides. A poll reads everything due if the last one that did is `all_every`
    seconds ago, else only what has become due since.

    | condition                                             | time                                                |
    |-------------------------------------------------------|-----------------------------------------------------|
    | a poll is asked for, or a recipient is due; and few   | `POLL_AT_ONCE` after the last poll                  |
    | envelopes are pending, or a pool has room             |                                                     |
    | the same, with enough envelopes pending               | `POLL_SOON` after it, or once `all_every` is over   |
    | due mail was left in the store: its pool was full or  | `all_every` after everything was read               |
    | held, or one poll could not read it all               |                                                     |
    | ready mail waits for a session: limiters open with    | no poll; limiters are checked `all_every` after the |
    | time, and holds end                                   | last check                                          |
    | always                                                | `SLEEP_LIMIT` after the last poll                   |
    """
    all_at = state.polled_all_at + all_every
    soonest = min(state.polled_at + (POLL_AT_ONCE if state.few or state.room else POLL_SOON), all_at)
    at = min(
        soonest if state.asked else inf,
        max(now + state.due_in, soonest),
        all_at if state.left else inf,
        state.polled_at + SLEEP_LIMIT,
    )
    seconds = max(0.0, at - now)
    until_check = max(0.0, state.checked_at + all_every - now)
    if state.waiting and until_check < seconds:
        return until_check, Poll.LIMITERS
    return seconds, Poll.ALL if now + seconds >= all_at else Poll.NEW


# ---- the scheduler

SESSIONS = 500  # SMTP transactions at once, in all pools, unless the operator says otherwise
LARGE_SESSIONS = 16  # of them with large messages, each of which is in memory until it is over
GRACE = 10.0  # seconds that running sessions may still take on shutdown
PENDING_PER_POOL = 100  # envelopes of one pool, or for domains not routed yet
PENDING_OF_NEW = 1_000  # envelopes in all up to which new mail is taken from memory: it need not be found later
PENDING_WITH_RETRIES = 2_000  # envelopes in all up to which retries are taken: they go before what is pending
PENDING_OF_ONE = 5  # envelopes of one account for one pool that are taken whatever the others have pending
UNROUTED_NEW = "*new"  # as UNROUTED, for mail taken from memory: older mail that is being routed must not delay it
FEW_PENDING = 50  # envelopes, in all or of one pool, below which a poll for more is worth it at any time
BUG_PAUSE = 10.0  # seconds after an error that is logged with its traceback, and may come again each time
NOT_PUBLISHED = "the state of delivery cannot be published"

log = get_logger("deliver")


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between what is done again and again."""

    poll_all: float = 1.0  # polls for everything due while some of it was left in the store
    publish: float = 1.0  # the state of pools and sessions, for the commands of the shell
    close_idle: float = 1.0  # idle connections
    save_warmup: float = 1.0  # as much may be sent twice after a crash
    check_clock: float = 600.0  # for mail that a wrong clock put off


class AttemptResult(NamedTuple):
    envelope: Envelope
    outcomes: list[Outcome]
    limiter: PoolLimiter | None = None  # of the pool that has a result less on disk until then


def recording(store: Store) -> BatchWriter[AttemptResult]:
    """Records results in batches."""

    async def write(batch: list[AttemptResult]) -> None:
        if outcomes := [outcome for result in batch for outcome in result.outcomes]:
            await store.queue.record(outcomes)

    def named(result: AttemptResult) -> dict[str, str]:
        return {"message_id": result.envelope.message_id, "domain": result.envelope.domain}

    return BatchWriter("deliver", write, named)


@dataclass(slots=True, kw_only=True)
class Scheduler:
    store: Store
    env: Environment
    new_mail: NewMail
    due_mail: DueMail
    preparing: Preparing
    limiters: PoolLimiters
    deliverer: Deliverer
    warmup: Warmup
    sessions: int = SESSIONS
    large_sessions: int = LARGE_SESSIONS
    grace: float = GRACE
    stop_by: Callable[[], float] = lambda: inf  # Trio's clock: when the process ends, whatever is running
    intervals: Intervals = field(default_factory=Intervals)
    _pending: Pending = field(default_factory=Pending)
    _in_flight: InFlight = field(init=False)
    _recording: BatchWriter[AttemptResult] = field(init=False)
    _tasks: trio.Nursery = field(init=False)  # of what is cancelled on shutdown
    _attempts: trio.Nursery = field(init=False)  # of sessions, which then have their grace
    _stopping: trio.Event = field(default_factory=trio.Event)
    _grace: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    _polls: PollState = field(default_factory=PollState)
    _due_at: int | None = None  # when the next recipient will be due, as far as it is known
    _left: dict[str, set[str]] = field(default_factory=dict)  # by pool: accounts whose due mail was left in the store

    def in_flight(self) -> int:
        """How many recipients are in SMTP sessions."""
        return self.store.under_delivery.count()

    async def run(self) -> None:
        self._in_flight = InFlight(self.limiters, self.warmup, sessions=self.sessions, large=self.large_sessions)
        self._recording = recording(self.store)
        OPEN_CONNECTIONS["deliver"] = lambda: self._in_flight.slots.used
        async with trio.open_nursery() as self._tasks:
            self._tasks.start_soon(self._stop_when_cancelled)  # first: it may be cancelled before all has started
            await self._tasks.start(self._hold_attempts)
            self._tasks.start_soon(self._recording.run, self._recorded)
            for work in (self._publish, self._close_idle, self._check_clock):
                self._tasks.start_soon(work)
            self._tasks.start_soon(self.deliverer.watch.run)
            self._tasks.start_soon(self.warmup.keep_saved, self.intervals.save_warmup)
            for _ in range(self.preparing.signer.threads):
                self._tasks.start_soon(self._sign)
            while True:
                try:
                    seconds = await self._next_turn()
                except StorageUnavailable as refused:  # the storage is away
                    log.warning("delivery waits for the storage", reason=refused.text)
                    self._polls.asked, seconds = True, STORAGE_PAUSE
                    await trio.sleep(seconds)
                    continue
                await self.new_mail.wait(seconds)

    async def _next_turn(self) -> float:
        """Take what is new and what is due; seconds until the next turn."""
        await self._take_new()
        seconds, poll = self._next_poll()
        if seconds <= 0:
            await self._poll(poll)
            seconds, _ = self._next_poll()
        elif self._in_flight.others_wait:
            self._start_all()
        return seconds

    # ---- tasks beside the loop

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._grace.deadline = min(trio.current_time() + self.grace, self.stop_by())
            self._in_flight.stopping = True
            self._stopping.set()

    async def _hold_attempts(self, task_status: trio.TaskStatus[None]) -> None:
        with self._grace:
            async with trio.open_nursery() as self._attempts:
                task_status.started()
                await self._stopping.wait()
        self._recording.close()
        with trio.CancelScope(shield=True):
            await self.warmup.save()
            try:
                await self.limiters.publish(self._pending, [])  # no session is under way
            except Exception:
                log.exception(NOT_PUBLISHED)

    async def _sign(self) -> None:
        while True:
            self._prepared(await self.preparing.signed())

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(self.intervals.close_idle)
            await self.deliverer.connections.close_idle()

    async def _publish(self) -> None:
        """Tell the commands of the shell, in other processes, how delivery stands; and notice what they did.

        Mail does not depend on it, so an error is logged, and delivery goes on.
        """
        version: int | None = None
        while True:
            pause = self.intervals.publish
            try:
                newer = await self.store.queue_control.version()
                if version not in (None, newer):
                    self.new_mail.request_poll()
                    self.store.new_simulated_mail.set()
                version = newer
                waits = await self._in_flight.waits(list(self._pending.queues.values()))
                await self.limiters.publish(self._pending, self._in_flight.told(), waits)
            except StorageUnavailable:
                pass  # the storage is away: the next time
            except Exception:
                log.exception(NOT_PUBLISHED)
                pause = BUG_PAUSE
            await trio.sleep(pause)

    async def _check_clock(self) -> None:
        """Bring back what was put off while the clock was ahead: no wait of the schedule is that long."""
        clock = ClockJumps(self.env)
        while True:
            beyond = self.env.now() + self.deliverer.retries.longest
            try:
                if count := await self.store.queue_control.bring_forward(beyond):
                    log.warning("mail was put off by a clock that was ahead, and is due now", recipients=count)
                    self.new_mail.request_poll()
            except StorageUnavailable as refused:
                log.warning("mail put off by a wrong clock waits for the storage", reason=refused.text)
            if by := await clock.wait(self.intervals.check_clock):
                log.warning("the clock was set", seconds=round(by))
                self.new_mail.request_poll()

    # ---- what is taken

    async def _take_new(self) -> None:
        """Take what has just been accepted, unless older mail waits for the same; the rest is found in the store.

        Behind a backlog a pool without pending mail of the account is still served: rounds of the store visit the
        domains one after the other, and a message to a healthy one must not wait for thousands of others.
        """
        fresh = self.new_mail.take()
        if not fresh:
            return
        if self.due_mail.behind:
            self._polls.asked = True
        mimes = {each.message.id: each.message.mime for each in fresh}
        for envelope in envelopes(recipient for each in fresh for recipient in due_recipients(each)):
            if envelope.recipients[0].id in self.due_mail.taken:
                continue
            account, pool = envelope.account_id, self.limiters.pool_of(envelope.domain) or UNROUTED_NEW
            has_older = self.due_mail.behind or account in self._left.get(pool, ())
            if has_older and pool != UNROUTED_NEW and self._pending.of(pool, account) > 0:
                continue  # not before mail of the same account that has waited longer
            most = PENDING_OF_NEW if self._pending.total < PENDING_OF_NEW else PENDING_PER_POOL
            if self._has_place(account, pool, most):
                await self._take(envelope, pool, mimes[envelope.message_id])

    def _wants(self, account: str, domain: str) -> bool:
        return self._has_place(account, self.limiters.pool_of(domain))

    def _has_place(self, account: str, pool: str, most: int = PENDING_PER_POOL) -> bool:
        """Whether more of an account's envelopes for a pool should be taken; its first ones always.

        Accounts take turns only among what is pending: one account must not fill all of that.
        """
        own = self._pending.of(pool, account)
        if pool in (UNROUTED, UNROUTED_NEW):
            # It waits for the domain's own name servers: one account's mail must not take all the room.
            room = may_take(own, most - self._pending[pool])
        else:
            room = self._pending[pool] < min(most, self.warmup.pending_limit(pool))
        room = room or own < PENDING_OF_ONE
        if room and not self.limiters.is_held(pool):
            return True
        if not self._pending[pool] and self.limiters.may_probe(pool, account):
            return True
        self._left.setdefault(UNROUTED if pool == UNROUTED_NEW else pool, set()).add(account)
        return False

    # ---- polls of the store

    def _next_poll(self) -> tuple[float, Poll]:
        state = self._polls
        state.asked = self.new_mail.poll_requested() or state.asked
        state.few = self._pending.total < FEW_PENDING
        state.left = bool(self._left) or self.due_mail.behind
        state.waiting = bool(self._pending.queues)
        state.due_in = inf if self._due_at is None else (self._due_at - self.env.now()) / 1_000_000
        return next_poll(state, trio.current_time(), self.intervals.poll_all)

    async def _poll(self, poll: Poll) -> None:
        if poll is not Poll.NEW:
            self._polls.checked_at = trio.current_time()
            await self.limiters.read_holds()
            await self.warmup.load_missing()
        if poll is not Poll.LIMITERS:
            await self._take_due(poll is Poll.ALL)
        self._start_all()

    async def _take_due(self, everything: bool) -> None:
        state, now = self._polls, trio.current_time()
        room = state.room and not self.due_mail.behind  # behind a backlog every poll reads what was left
        state.asked, state.room, state.polled_at = False, False, now
        # Asked for before the poll, so that what becomes due meanwhile is not missed by both.
        self._due_at = await self.store.queue.next_due(simulated=False)
        if everything:
            state.polled_all_at = now
            self._left.clear()
        finds = [self.due_mail.all if everything else self.due_mail.new]
        if room:
            finds.append(self.due_mail.left)
        for find in finds:
            for envelope in await find(self._wants):
                pool = self.limiters.pool_of(envelope.domain)
                few = envelope.is_retry and self._pending.total < PENDING_WITH_RETRIES
                if self._has_place(envelope.account_id, pool, PENDING_WITH_RETRIES if few else PENDING_PER_POOL):
                    await self._take(envelope, pool)

    # ---- one envelope: taken, prepared

    async def _take(self, envelope: Envelope, pool: str, mime: bytes | None = None) -> None:
        self.due_mail.take(envelope)
        self._pending.add(pool, envelope.account_id)
        path = self.preparing.known(envelope)
        if path is None:
            self._tasks.start_soon(self._find_path, envelope, pool, worth_keeping(mime, self._pending.total))
        else:
            await self._prepare(envelope, pool, path, mime, trio.current_time())

    async def _find_path(self, envelope: Envelope, pool: str, mime: bytes | None) -> None:
        started_at, since = self.env.now(), trio.current_time()
        while True:
            try:
                path = await self.preparing.find(envelope)
                break
            except Shortage as shortage:
                self._met_shortage(shortage)
                await trio.sleep(SHORTAGE_PAUSE)
            except Exception as reason:
                self._not_prepared(NotPrepared(envelope, pool, reason), started_at)
                return
        await self._prepare(envelope, pool, path, mime, since)

    async def _prepare(
        self, envelope: Envelope, pool: str, path: DeliveryPath, mime: bytes | None, since: float
    ) -> None:
        limiter, total = self.limiters.of_route(path.route), self._pending.total
        self._pending.move(pool, limiter.pool, envelope.account_id)
        try:
            await self.warmup.load(limiter.pool, path.route)
        except StorageUnavailable as refused:
            self._not_prepared(NotPrepared(envelope, limiter.pool, refused), self.env.now())
            return
        prepared = await self.preparing.prepare(envelope, path, limiter, mime=mime, since=since, pending=total)
        if isinstance(prepared, Ready | NotPrepared):  # else it is to be signed
            self._prepared([prepared])

    def _prepared(self, batch: list[Ready | NotPrepared]) -> None:
        self._in_flight.recover()
        waited, pools = bool(self._pending.queues), {}
        for prepared in batch:
            if isinstance(prepared, NotPrepared):
                self._not_prepared(prepared, self.env.now())
            else:
                self._pending.enqueue(prepared)
                pools[prepared.routed.limiter.pool] = True
        for pool in pools:
            self._start_pool(pool)
        self._wake_if_waiting(waited)

    def _not_prepared(self, failed: NotPrepared, started_at: int) -> None:
        self._pending.remove(failed.pool, failed.envelope.account_id)
        if isinstance(failed.reason, StorageUnavailable):  # the storage is away: no attempt, and it is found again
            self.due_mail.release(failed.envelope)
            left_for = UNROUTED if failed.pool == UNROUTED_NEW else failed.pool
            self._left.setdefault(left_for, set()).add(failed.envelope.account_id)
            return
        outcomes = self.deliverer.not_attempted(failed.envelope, failed.reason, started_at)
        self._recording.add(AttemptResult(failed.envelope, outcomes))

    # ---- sessions

    def _wake_if_waiting(self, waited: bool) -> None:
        """Have the loop check the limiters from now on, if mail has begun to wait for a session."""
        if self._pending.queues and not waited:
            self.new_mail.wake()

    def _start_all(self) -> None:
        """Start what is ready and may go, pool by pool; and end stalled sessions where others wait for their slot."""
        self._in_flight.serve_all()
        for pool in list(self._pending.queues):
            self._start_pool(pool)
        for active in self._in_flight.giving_way(self._pending.queues.values()) if self._pending.queues else ():
            active.give_way()

    def _start_pool(self, pool: str) -> None:
        if self._in_flight.pauses:
            return
        started, self._in_flight.urgent = False, None
        while (active := self._next_of(pool)) is not None:
            self._attempts.start_soon(self._run_session, active)
            started = True
        if started:
            self._pending.end_turn(pool)
        if (slow := self._in_flight.making_room()) is not None:
            slow.give_way()

    def _next_of(self, pool: str) -> ActiveAttempt | None:
        """The next attempt of a pool; of its recipients as many as the warm-up permits, the others wait on.

        With a return path each recipient has a sender's address, and so a transaction, of its own.
        """
        queue = self._pending.queues.get(pool)
        if queue is None or not self._in_flight.is_open(queue.limiter):
            return None
        ready = self._pending.next(pool, self._in_flight.may_start)
        if ready is None:
            return None
        routed, recipients = ready.routed, ready.routed.envelope.recipients
        most = len(recipients) if routed.return_path is None else 1
        permit = self.warmup.permit(pool, routed.route, most)
        if permit.count < len(recipients):
            self._pending.put_back(ready._replace(routed=routed.of(recipients[permit.count :])))
            ready = ready._replace(routed=routed.of(recipients[: permit.count]))
        return self._in_flight.enter(ready, permit)

    async def _run_session(self, first: ActiveAttempt) -> None:
        """Attempt an envelope, and then the next of its pool for as long as there is one that may go.

        One scope serves for all attempts until one gives way.
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
                        if self._in_flight.leave(active):
                            self.new_mail.wake()
                    gave_way = active.gives_way  # too late for this attempt, and not meant for the next
                    active = self._next_after(active, outcomes, limiter)
            if scope.cancelled_caught and active is not None:
                if active.successor is None:
                    active = self._next_after(active, self.deliverer.gave_way(active), limiter)
                else:
                    self._attempted(active, None)
                    self._start_pool(active.successor)
                    active = None

    def _next_after(
        self, active: ActiveAttempt, outcomes: list[Outcome] | Shortage | None, limiter: PoolLimiter
    ) -> ActiveAttempt | None:
        """Deal with the outcomes of an attempt; the next one of its session."""
        self._attempted(active, outcomes)
        if isinstance(outcomes, Shortage):
            return None
        if self.limiters.has_moved(limiter, active.ready.routed.route):
            self._pending.reassign(limiter.pool, lambda ready: self.limiters.of_route(ready.routed.route))
            self._start_all()
        if self.deliverer.connections.to_quit:  # not waited for: a result must not wait for a QUIT
            self._attempts.start_soon(self.deliverer.connections.quit_ended)
        return None if self._in_flight.others_wait else self._next_of(limiter.pool)

    def _attempted(self, active: ActiveAttempt, outcomes: list[Outcome] | Shortage | None) -> None:
        envelope = active.ready.routed.envelope
        if active.slot.affects_hold:
            self._attempts.start_soon(self.limiters.update_holds, active.slot)
        if isinstance(outcomes, list):
            self._recording.add(AttemptResult(envelope, outcomes, active.slot.limiter))
            return
        if isinstance(outcomes, Shortage):
            self._met_shortage(outcomes)
        elif active.successor is None:
            self._in_flight.pause_domain(envelope.domain)
        # The envelope waits as if no attempt had started.
        active.slot.limiter.undo()
        self.store.under_delivery.end(recipient.id for recipient in envelope.recipients)
        self.warmup.use_only(active.permit, 0)
        waited = bool(self._pending.queues)
        if active.successor is None:
            self._pending.put_back(active.ready)
        else:
            self._pending.add(active.ready.routed.limiter.pool, envelope.account_id)
            self._pending.enqueue(active.ready)
        self._wake_if_waiting(waited)

    def _met_shortage(self, shortage: Shortage) -> None:
        self._in_flight.met_shortage(shortage)
        if not self._stopping.is_set():
            self._attempts.start_soon(self.deliverer.connections.drop_idle)

    # ---- recorded

    def _recorded(self, results: list[AttemptResult], on_disk: bool) -> None:
        """What of an envelope is due again will be found again; if its outcomes could not be recorded, never."""
        pools = {}
        for result in results:
            if result.limiter is not None:
                result.limiter.unrecorded -= 1
                pools[result.limiter.pool] = True
        for pool in pools:
            self._start_pool(pool)
        for result in results if on_disk else ():
            self._settled(result)

    def _settled(self, result: AttemptResult) -> None:
        self.store.under_delivery.end([recipient.id for recipient in result.envelope.recipients])
        observe(result.outcomes)
        self.due_mail.release(result.envelope)
        for outcome in result.outcomes:
            again = outcome.next_attempt_at
            if again is not None and (self._due_at is None or again < self._due_at):
                self._due_at = again
                self.new_mail.wake()
        pool, account = self.limiters.pool_of(result.envelope.domain), result.envelope.account_id
        # Of this pool, not of all: what is pending may be for a server that answers nothing.
        behind = self.due_mail.behind and self._pending[pool] < FEW_PENDING
        if behind or (self._left and (self._has_room(pool, account) or self._has_room(UNROUTED, account))):
            self._polls.asked = self._polls.room = True
            self.new_mail.wake()

    def _has_room(self, pool: str, account: str) -> bool:
        """Whether mail was left that there is room for: little of its pool is pending, or of this account there."""
        left = self._left.get(pool)
        if left is None or self.limiters.is_held(pool):
            return False
        few_of_account = account in left and self._pending.of(pool, account) < PENDING_OF_ONE
        return self._pending[pool] < FEW_PENDING or few_of_account
