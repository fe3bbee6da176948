"""Decides which envelopes may start an SMTP session, and which sessions with slow servers end for other mail. No I/O.

Accounts share the sessions, and within an account so do pools known to answer and all other pools (`Holder`). A holder
may take a session while it has fewer than four times as many as are free. A pool that keeps a session waiting, and a
further session to a pool that has not answered yet, need twice as many free. So sessions stay free for other mail,
whatever servers do.

Mail to a pool that is not slow replaces a session that waits for a slow server (`SlowSessions.replaced`). This uses up
no attempt: the message of that session is queued again. A session without any progress ends for other mail with a
deferral (`stalled`). No session ends after the final dot: only the server's reply says whether it has the message.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from math import inf

import trio
from msgspec import Struct

from appliance.concurrency.fair_share import SHARE_OF_FREE, SPARE_SHARE, Shares
from appliance.concurrency.ttl_cache import TtlCache, trio_clock
from appliance.deliver.attempt import ActiveAttempt, Holder
from appliance.deliver.pending import PoolQueue
from appliance.deliver.pool_limiters import PoolLimiters
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.smtp.connection import CONNECTION, Progress
from appliance.deliver.warmup import Permit, Warmup
from appliance.model.mail import OutgoingSession
from appliance.model.queue import SlowedAccount
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.telemetry.log import get_logger

PROMPT = 10.0  # seconds within which a transaction shows that its pool answers; such a pool may take as long to reply
SLOW = 1.0  # seconds without progress after which a session with any other pool is slow
POOLS_KEPT, POOLS_KEPT_FOR = 10_000, 3_600.0  # pools that answer or are slow; seconds
REPORTED_AFTER, RECIPIENTS_REPORTED = 2.0, 1_000  # seconds until commands show a session, as most end sooner; rows
QUEUES_PER_SLICE = 200  # between two checkpoints
UNTRIED_PAUSE = 10.0  # seconds until mail for a domain is tried again if none of its servers could be tried
DOMAINS_PAUSED = 10_000  # remembered; beyond that, domains are not paused
STARTS_PER_ROUND = 2  # attempts at older mail in one round of the event loop: about 1.5 ms with all that follows
START_PAUSE = 0.003  # seconds between two such attempts while new mail arrives: they use a third of the loop's time
START_LATENESS = 0.001  # seconds: a loop that ends the pause later than this is busy, and the pause is repeated
LONGEST_START_PAUSE = 0.01  # seconds; so a backlog keeps a part of its rate however busy the loop is
POOLS_PER_ROUND = 200  # looked at for such mail
RECOVERY = 10  # after a shortage, sessions grow by a tenth per second

log = get_logger("deliver")


class Lack(Enum):
    """What a ready envelope waits for that another session could give up."""

    POOL_SLOT = auto()
    LARGE_SLOT = auto()
    SESSION = auto()


class ShortageBrake(Struct):
    """Lowers the number of sessions when this machine runs out of a resource, and raises it again with time."""

    slots: Shares[Holder]
    most: int
    _met_at: float | None = None  # the last shortage, until the sessions have recovered
    _grown_at: float = 0.0  # growth has been counted up to then

    def meet(self, shortage: Shortage) -> None:
        if self._met_at is None:
            log.warning("delivery paused: out of local resources", of=str(shortage), sessions=self.slots.used)
        self._met_at = self._grown_at = trio.current_time()
        self.slots.total = max(1, min(self.slots.total, self.slots.used))

    @property
    def is_on(self) -> bool:
        """Whether the last shortage was a moment ago: then a session starts only in the place of another."""
        return self._met_at is not None and trio.current_time() < self._met_at + SHORTAGE_PAUSE

    def release(self) -> None:
        if self._met_at is None:
            return
        steps = int((trio.current_time() - self._grown_at) / SHORTAGE_PAUSE)
        self._grown_at += steps * SHORTAGE_PAUSE
        for _ in range(steps):
            if self.slots.total >= self.most:
                break
            self.slots.total = min(self.most, self.slots.total + max(1, self.slots.total // RECOVERY))
        if self.slots.total == self.most and not self.is_on:
            self._met_at = None
            log.info("resources available again; delivery resumed")


@dataclass(slots=True)
class RoundLimit:
    """Limits how many attempts at older mail start in one round of the event loop.

    A round runs every task that can run, so a backlog whose servers answer at once would make rounds long, and each
    request and each new message takes several rounds. New mail is not limited. While there is some, a backlog starts
    one attempt at intervals, so that new mail meets short rounds and a processor with free time.
    """

    left: int = STARTS_PER_ROUND
    has_new_mail: Callable[[], bool] = lambda: False
    _delayed: dict[str, None] = field(default_factory=dict)  # pools that may start more
    _task: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def delay(self, pool: str) -> None:
        if not self._delayed:
            self._task.unpark_all()
        self._delayed[pool] = None

    async def run(self, start: Callable[[str], None]) -> None:
        while True:
            if not self._delayed:
                await self._task.park()
            if self.has_new_mail():
                await self._pause()
                self.left = 1
            else:
                await trio.lowlevel.checkpoint()  # the next round
                self.left = STARTS_PER_ROUND
            for pool in list(islice(self._delayed, POOLS_PER_ROUND)):
                if self.left <= 0:
                    break
                del self._delayed[pool]
                start(pool)

    async def _pause(self) -> None:
        """Wait for a moment in which the event loop has little to do, within `LONGEST_START_PAUSE`."""
        until, is_late = trio.current_time() + LONGEST_START_PAUSE, True
        while is_late and trio.current_time() < until:
            due = trio.current_time() + START_PAUSE
            await trio.sleep_until(due)
            is_late = trio.current_time() > due + START_LATENESS


@dataclass(slots=True)
class InFlight:
    limiters: PoolLimiters
    warmup: Warmup
    slots: Shares[Holder]
    large_slots: Shares[str]  # by account
    brake: ShortageBrake = field(init=False)
    round_limit: RoundLimit = field(default_factory=RoundLimit)
    active: set[ActiveAttempt] = field(default_factory=set)
    is_stopping: bool = False  # no session starts
    others_wait: bool = False  # a slot is free that pools other than its last may use
    urgent: Ready | None = None  # the last envelope without a slot that may replace a slow session
    _answers: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(POOLS_KEPT, POOLS_KEPT_FOR))  # False: slow
    _blocked: set[tuple[Holder, int]] = field(default_factory=set)  # holders without a slot, and their share
    _blocked_large: set[str] = field(default_factory=set)  # accounts without a slot for a large message
    _paused: dict[str, float] = field(default_factory=dict)  # by domain: no session starts before then
    _clock: Callable[[], float] = field(default_factory=trio_clock)

    def __post_init__(self) -> None:
        self.brake = ShortageBrake(self.slots, self.slots.total)

    async def watch_for_stop(self, is_stopping: trio.Event) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.is_stopping = True
            is_stopping.set()

    def is_open(self, queue: PoolQueue) -> bool:
        """Whether a pool may have one more transaction in this round, before its account is considered."""
        if self.is_stopping or not queue.limiter.is_open(self.limiters.env.now()):
            return False
        if self.round_limit.left > 0:
            return True
        self.round_limit.delay(queue.limiter.pool)
        return queue.new > 0

    def may_start(self, ready: Ready) -> bool:
        routed = ready.routed
        account = routed.envelope.account_id
        if self._paused and trio.current_time() < self._paused.get(routed.envelope.domain, 0.0):
            return False
        if self.round_limit.left <= 0 and not routed.envelope.new:
            return False
        if not self.limiters.is_open(routed.limiter, account):
            return False
        if routed.envelope.low and not routed.limiter.has_spare_token(self.limiters.env.now()):
            return False
        if not self.warmup.may_start(routed.limiter.base, routed.route, routed.envelope.low):
            return False
        holder, share = self.claim(routed)
        if not self.slots.has_room(holder, share):
            self._blocked.add((holder, share))
        elif routed.large and not self.large_slots.has_room(account):
            self._blocked_large.add(account)
        else:
            return True
        if share == SHARE_OF_FREE:
            self.urgent = ready
        return False

    def claim(self, routed: Routed) -> tuple[Holder, int]:
        """The holder of an envelope's session, and the share of the free slots that applies."""
        flow, limiter = routed.envelope.flow, routed.limiter
        answers = self._answers.get(limiter.pool)
        if answers:
            return Holder(*flow, True), SHARE_OF_FREE
        is_first = answers is None and limiter.in_use == 0
        return Holder(*flow, False), SHARE_OF_FREE if is_first else SPARE_SHARE

    def enter(self, ready: Ready, permit: Permit) -> ActiveAttempt:
        routed, account = ready.routed, ready.routed.envelope.account_id
        holder, _ = self.claim(routed)
        self.slots.take(holder)
        self.round_limit.left -= not routed.envelope.new
        if routed.large:
            self.large_slots.take(account)
        slot = self.limiters.slot(routed.limiter, account, routed.envelope.domain)
        now, began = self.limiters.env.now(), self._clock()
        active = ActiveAttempt(
            ready, slot, permit, holder=holder, started_at=now, began=began, progress=Progress(began)
        )
        self.active.add(active)
        return active

    def leave(self, active: ActiveAttempt) -> bool:
        """Give its slots back. Return whether blocked accounts can use them, so that all pools must be served."""
        routed, account = active.ready.routed, active.slot.account
        self.active.discard(active)
        self._note_speed(active)
        self.slots.give_back(active.holder)
        if routed.large:
            self.large_slots.give_back(account)
        active.slot.limiter.leave(account)
        is_usable = any(self.slots.has_room(holder, share) for holder, share in self._blocked) or (
            routed.large and any(self.large_slots.has_room(blocked) for blocked in self._blocked_large)
        )
        self.others_wait = self.others_wait or is_usable
        return is_usable

    def serve_all(self) -> None:
        """Reset the notes about blocked mail: all pools are about to be served."""
        self.others_wait = False
        self.brake.release()
        self._blocked.clear()
        self._blocked_large.clear()

    def pause_domain(self, domain: str) -> None:
        """Start no session for a domain for a while, because none of its servers could be tried."""
        if len(self._paused) >= DOMAINS_PAUSED:
            self._paused.clear()
        self._paused[domain] = trio.current_time() + UNTRIED_PAUSE

    def _note_speed(self, active: ActiveAttempt) -> None:
        """Note at the end of a session whether its pool answers; a session that was replaced shows nothing."""
        pool, progress, now = active.ready.routed.limiter.pool, active.progress, self._clock()
        if active.successor is not None:
            return
        if now >= progress.moved_at + PROMPT:
            self._answers.put(pool, False)
        elif now < active.began + PROMPT and progress.awaits != CONNECTION and not self._answers.get(pool):
            self._answers.put(pool, True)

    def mark_slow(self, active: ActiveAttempt) -> None:
        active.slow = True
        self._answers.put(active.ready.routed.limiter.pool, False)
        self.slots.give_back(active.holder)
        active.holder = active.holder._replace(answers=False)
        self.slots.take(active.holder)

    def lack(self, ready: Ready) -> Lack | None:
        """What an envelope waits for; None: for nothing that a session could give up."""
        limiter, account, now = ready.routed.limiter, ready.routed.envelope.account_id, self.limiters.env.now()
        if self.limiters.is_held(limiter.pool) or not limiter.lets_pass(account, now):
            return None
        if limiter.in_use >= limiter.slots:
            return Lack.POOL_SLOT
        if not limiter.is_open(now):  # its rate, or a server that asked for less
            return None
        if ready.routed.large and not self.large_slots.has_room(account):
            return Lack.LARGE_SLOT
        return None if self.slots.has_room(*self.claim(ready.routed)) else Lack.SESSION

    # ---- reports for commands in other processes

    def sessions(self) -> list[OutgoingSession]:
        """The sessions that have taken a while, one row per recipient."""
        latest, rows = trio.current_time() - REPORTED_AFTER, list[OutgoingSession]()
        for active in self.active:
            progress, started_at = active.progress, active.started_at
            if active.began > latest or progress.host is None or progress.address is None:
                continue
            since = started_at + round((progress.moved_at - active.began) * 1_000_000)
            state = progress.host, progress.address, started_at, progress.awaits, since
            rows += [OutgoingSession(recipient.id, *state) for recipient in active.ready.routed.envelope.recipients]
            if len(rows) >= RECIPIENTS_REPORTED:
                break
        return rows[:RECIPIENTS_REPORTED]

    async def waiting_accounts(self, queues: Iterable[PoolQueue]) -> dict[str, list[SlowedAccount]]:
        """By pool, the accounts without a session for a pool that has a slot for them."""
        held, slow = Counter[str](), Counter[str]()
        latest = trio.current_time() - SLOW
        for active in self.active:
            held[active.holder.account] += 1
            slow[active.holder.account] += active.progress.moved_at <= latest
        waiting: dict[str, list[SlowedAccount]] = {}
        for number, queue in enumerate(queues, 1):
            for ready in queue.heads():
                account, lack = ready.routed.envelope.account_id, self.lack(ready)
                if lack in (Lack.SESSION, Lack.LARGE_SLOT):
                    reason = self._reason(ready, lack, held[account], slow[account])
                    waiting.setdefault(queue.limiter.pool, []).append(SlowedAccount(account, 0, reason, 0))
            if number % QUEUES_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()
        return waiting

    def _reason(self, ready: Ready, lack: Lack | None, held: int, slow: int) -> str:
        reason = f"this account has {held} of {self.slots.total} sessions, {slow} of them waiting for slow servers"
        if lack is Lack.LARGE_SLOT:
            large = self.large_slots
            reason += f"; {large.used} of {large.total} sessions for large messages are in use"
        if self.claim(ready.routed)[1] == SPARE_SHARE:
            reason += "; its servers are slow, so mail to others goes first"
        return reason


# ---- sessions that end for other mail

SLOW_CHECK = 0.1  # seconds between two searches for slow sessions
STALLED_CHECK = 1.0  # seconds between two searches for stalled sessions
STALLED, STALLED_LONG = 15.0, 60.0  # seconds without progress until a session ends for another or its own account
STEPS_PER_SLICE = 500  # heads and sessions looked at between two checkpoints: about a millisecond


@dataclass(slots=True)
class SlowSessions:
    in_flight: InFlight
    _slow: list[ActiveAttempt] = field(default_factory=list)  # the next to end is last
    _slow_at: float = -inf  # the time of that search
    _in_vain: set[tuple[Holder, bool]] = field(default_factory=set)  # holders that none of them makes room for
    _promised: set[str] = field(default_factory=set)  # pools whose mail replaces a session that is ending
    _stalled_at: float = -inf  # the time of the last search for stalled sessions

    def replaced(self, ready: Ready) -> ActiveAttempt | None:
        """The session to end for an envelope that has found no slot, if there is one."""
        if ready.routed.limiter.pool in self._promised:
            return None
        self._search(trio.current_time())
        holder, _ = self.in_flight.claim(ready.routed)
        needs_large = ready.routed.large and self.in_flight.slots.has_room(holder)
        if (holder, needs_large) in self._in_vain:  # one search serves all pools of an account
            return None
        for index in range(len(self._slow) - 1, -1, -1):
            active = self._slow[index]
            if not self._may_end(active):
                del self._slow[index]
            elif self._makes_room(active, holder, needs_large=needs_large):
                del self._slow[index]
                active.successor = ready.routed.limiter.pool
                self._promised.add(active.successor)
                return active
        self._in_vain.add((holder, needs_large))
        return None

    def ended(self, successor: str) -> None:
        self._promised.discard(successor)

    def _may_end(self, active: ActiveAttempt) -> bool:
        return active in self.in_flight.active and not active.gives_way and not active.progress.handed_over

    def _makes_room(self, active: ActiveAttempt, holder: Holder, *, needs_large: bool) -> bool:
        slots, large_slots = self.in_flight.slots, self.in_flight.large_slots
        if needs_large:
            is_large, account = active.ready.routed.large, active.holder.account
            return is_large and (account == holder.account or large_slots.of(account) > large_slots.of(holder.account))
        return active.holder == holder or slots.of(active.holder) > slots.of(holder)

    def _search(self, now: float) -> None:
        """Order the slow sessions: further ones with the same pool end first, then those idle for longest."""
        if now < self._slow_at + SLOW_CHECK:
            return
        self._slow_at = now
        self._in_vain.clear()
        sessions = self.in_flight.active
        for active in sessions:
            if not active.slow and now >= active.progress.moved_at + (PROMPT if active.holder.answers else SLOW):
                self.in_flight.mark_slow(active)
        slow = [active for active in sessions if active.slow and now >= active.progress.moved_at + SLOW]
        self._slow = [active for active in slow if not active.progress.handed_over]
        self._slow.sort(key=lambda active: (active.slot.limiter.in_use == 1, active.progress.moved_at), reverse=True)

    def stalled(self, queues: Iterable[PoolQueue]) -> Iterator[ActiveAttempt | None]:
        """Sessions without progress to end for waiting mail, the longest idle first; None: let other tasks run."""
        now = trio.current_time()
        if now < self._stalled_at + STALLED_CHECK:
            return
        self._stalled_at = now
        idle = [active for active in self.in_flight.active if now >= active.progress.moved_at + STALLED]
        idle.sort(key=lambda active: active.progress.moved_at)
        by_pool: dict[str, list[ActiveAttempt]] = {}
        for active in idle:
            by_pool.setdefault(active.slot.limiter.pool, []).append(active)
        in_vain: set[tuple[str, Lack, str]] = set()  # accounts and lacks that none of these sessions can help
        steps = 0
        for queue in queues if idle else ():
            for ready in queue.heads():
                if steps >= STEPS_PER_SLICE:
                    steps = 0
                    yield None
                    if not any(head is ready for head in queue.heads()):  # started in the meantime
                        continue
                steps += 1
                account, lack = ready.routed.envelope.account_id, self.in_flight.lack(ready)
                if lack is None or now < ready.routed.since + STALLED_CHECK:
                    continue
                pool = queue.limiter.pool if lack is Lack.POOL_SLOT else ""
                if (account, lack, pool) in in_vain:
                    continue
                sessions = by_pool.get(pool, []) if pool else idle
                steps += len(sessions)
                ending = next((active for active in sessions if self._gives_way(active, ready, lack, now)), None)
                if ending is None:
                    in_vain.add((account, lack, pool))
                else:
                    yield ending

    def _gives_way(self, active: ActiveAttempt, ready: Ready, lack: Lack, now: float) -> bool:
        routed, account = ready.routed, ready.routed.envelope.account_id
        is_own = active.slot.account == account
        # A server may have answered since the search began: it lets other tasks run.
        if not self._may_end(active) or now < active.progress.moved_at + STALLED:
            return False
        if lack is Lack.POOL_SLOT:
            # A message for the same server would fare no better.
            is_same = any(active.progress.address in host.dialled for host in routed.route.hosts)
            return active.slot.limiter is routed.limiter and not is_own and not is_same
        if lack is Lack.LARGE_SLOT and not active.ready.routed.large:
            return False
        if is_own:
            return now >= active.progress.moved_at + STALLED_LONG
        if lack is Lack.LARGE_SLOT:
            return self.in_flight.large_slots.of(active.slot.account) > self.in_flight.large_slots.of(account)
        return self.in_flight.slots.of(active.holder) > self.in_flight.slots.of(self.in_flight.claim(routed)[0])
