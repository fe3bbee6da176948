"""Which of the ready envelopes may start an SMTP session now, and the sessions that are running.

No I/O, and no tasks: the scheduler starts what `enter` returns, and cancels what `making_room` and `giving_way` return.

Sessions are shared between accounts, and within an account between the pools known to answer and all others (`Holder`):
each of these holders may take one more session while it has fewer than four times as many as are free. Slow pools come
last: a pool that keeps a session waiting, and a further session to a pool that has not answered yet, need twice as many
free. So some sessions are free for other mail whatever servers do. If a holder has no room nevertheless, mail to a
pool that is not slow takes the place of a session that waits for a slow server (`making_room`). That uses up no attempt
of the message, which waits for a session again. No session is ended after the final dot: only the server's answer tells
whether it has the message. After a shortage of this machine fewer sessions run, growing again with time.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.attempt import ActiveAttempt, Holder
from appliance.deliver.due_mail import SHARE_OF_FREE, SPARE_SHARE, Shares
from appliance.deliver.pending import PoolQueue
from appliance.deliver.pool_limiter import PoolLimiter
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
SLOW_CHECK = 0.1  # seconds between two searches for slow sessions
POOLS_KEPT = 10_000  # whether they answer, or are slow
POOLS_KEPT_FOR = 3_600.0  # seconds
STALLED_CHECK = 1.0  # seconds between two searches for sessions that should give way
STALLED = 15.0  # seconds without progress after which a session gives way to another account's mail
STALLED_LONG = 60.0  # the same for mail of its own account
TOLD_AFTER = 2.0  # seconds of a session after which the shell is told of it; most are over by then
RECIPIENTS_TOLD = 1_000
QUEUES_AT_ONCE = 200  # that are looked at before other tasks run
NOT_TRIED_PAUSE = 10.0  # seconds until mail for a domain is tried again of which no server could be tried
DOMAINS_PAUSED = 10_000  # remembered; more of them are tried as often as all others
RECOVERY = 10  # after a shortage the sessions grow by this fraction of themselves each second
LARGE_SLOT = "a slot for large messages"  # what an envelope may lack; or its pool, if that is full; or "", any slot

log = get_logger("deliver")


@dataclass(slots=True)
class InFlight:
    """Running sessions, at most `sessions` and `large` of them with large messages; and who may have the next."""

    limiters: PoolLimiters
    warmup: Warmup
    sessions: int
    large: int
    stopping: bool = False  # nothing starts any more
    others_wait: bool = False  # a slot is free that other pools than its last may have waited for
    urgent: Ready | None = None  # what was the last to find no slot, and may take the place of a slow session
    slots: Shares = field(init=False)  # by holder
    _active: set[ActiveAttempt] = field(default_factory=set)
    _large: Shares = field(init=False)  # of them with large messages; by account
    _answers: TtlCache[str, bool] = field(
        default_factory=lambda: TtlCache(POOLS_KEPT, POOLS_KEPT_FOR)
    )  # False: slow pools
    _slow: list[ActiveAttempt] = field(default_factory=list)  # sessions to end for other mail, the first of them last
    _slow_at: float = float("-inf")  # when they were found
    _in_vain: set[tuple[Holder, bool]] = field(default_factory=set)  # whom none of them makes room for
    _promised: set[str] = field(default_factory=set)  # pools whose mail takes the place of a session that is ending
    # Who waits for a slot though their pool is open, with the share of the free ones that they may have.
    _blocked: set[tuple[Holder, int]] = field(default_factory=set)
    _blocked_large: set[str] = field(default_factory=set)  # accounts that wait for a slot for a large message
    _paused: dict[str, float] = field(default_factory=dict)  # domains of which nothing starts before then
    _checked_at: float = float("-inf")  # Trio's clock
    _short_at: float | None = None  # when a shortage of this machine was met last, while its effects last
    _grown_at: float = 0.0  # until when the growth of sessions after it has been counted

    def __post_init__(self) -> None:
        self.slots, self._large = Shares(self.sessions), Shares(self.large)

    def told(self) -> list[OutgoingSession]:
        """The sessions that have taken a while, for each recipient."""
        latest, told = trio.current_time() - TOLD_AFTER, []
        for active in self._active:
            progress, started_at = active.progress, active.started_at
            if active.began > latest or progress.host is None or progress.address is None:
                continue
            since = started_at + round((progress.moved_at - active.began) * 1_000_000)
            at = progress.host, progress.address, started_at, progress.awaits, since
            told += [OutgoingSession(recipient.id, *at) for recipient in active.ready.routed.envelope.recipients]
            if len(told) >= RECIPIENTS_TOLD:
                break
        return told[:RECIPIENTS_TOLD]

    async def waits(self, queues: Iterable[PoolQueue]) -> dict[str, list[SlowedAccount]]:
        """By pool, the accounts whose mail waits for a session though the pool has a slot for it."""
        held, slow = Counter[str](), Counter[str]()
        latest = trio.current_time() - SLOW
        for active in self._active:
            held[active.holder.account] += 1
            slow[active.holder.account] += active.progress.moved_at <= latest
        waits: dict[str, list[SlowedAccount]] = {}
        for number, queue in enumerate(queues, 1):
            for ready in queue.heads():
                account, lack = ready.routed.envelope.account_id, self._lack(ready)
                if lack in ("", LARGE_SLOT):
                    reason = self._session_wait(ready, lack, held[account], slow[account])
                    waits.setdefault(queue.limiter.pool, []).append(SlowedAccount(account, 0, reason, 0))
            if number % QUEUES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return waits

    def _session_wait(self, ready: Ready, lack: str, held: int, slow: int) -> str:
        large = f"; {self._large.used} of {self.large} sessions for large messages are in use" if lack else ""
        _, share = self._claim(ready.routed)
        first = "; its servers are slow, so mail to others goes first" if share == SPARE_SHARE else ""
        return (
            f"this account has {held} of {self.slots.slots} sessions, {slow} of them waiting for slow servers"
            f"{large}{first}"
        )

    # ---- slots

    def is_open(self, limiter: PoolLimiter) -> bool:
        """Whether a pool may have one more transaction, of an account that has nothing against it."""
        return not self.stopping and limiter.is_open(self.limiters.env.now())

    def may_start(self, ready: Ready) -> bool:
        """Whether there is a slot for an envelope of an open pool."""
        routed = ready.routed
        account = routed.envelope.account_id
        if self._paused and trio.current_time() < self._paused.get(routed.envelope.domain, 0.0):
            return False
        if not self.limiters.is_open(routed.limiter, account):
            return False
        if not self.warmup.may_start(routed.limiter.pool, routed.route):
            return False
        holder, share = self._claim(routed)
        if not self.slots.have_room(holder, share):
            self._blocked.add((holder, share))
        elif routed.large and not self._large.have_room(account):
            self._blocked_large.add(account)
        else:
            return True
        if share == SHARE_OF_FREE:
            self.urgent = ready
        return False

    def _claim(self, routed: Routed) -> tuple[Holder, int]:
        """Who would have the session of an envelope, and the share of the free slots that this one may have."""
        account, limiter = routed.envelope.account_id, routed.limiter
        answers = self._answers.get(limiter.pool)
        if answers:
            return Holder(account, True), SHARE_OF_FREE
        is_first = answers is None and limiter.in_use == 0
        return Holder(account, False), SHARE_OF_FREE if is_first else SPARE_SHARE

    def enter(self, ready: Ready, permit: Permit) -> ActiveAttempt:
        routed, account = ready.routed, ready.routed.envelope.account_id
        holder, _ = self._claim(routed)
        self.slots.take(holder)
        if routed.large:
            self._large.take(account)
        slot = self.limiters.slot(routed.limiter, account, routed.envelope.domain)
        now, began = self.limiters.env.now(), trio.current_time()
        active = ActiveAttempt(
            ready, slot, permit, holder=holder, started_at=now, began=began, progress=Progress(began)
        )
        self._active.add(active)
        return active

    def leave(self, active: ActiveAttempt) -> bool:
        """Give its slots back; whether accounts that were blocked can use them, so that all pools are to be served."""
        routed, account = active.ready.routed, active.slot.account
        self._active.discard(active)
        self._judge(active)
        self.slots.give_back(active.holder)
        if routed.large:
            self._large.give_back(account)
        active.slot.limiter.leave(account)
        usable = any(self.slots.have_room(holder, share) for holder, share in self._blocked) or (
            routed.large and any(self._large.have_room(blocked) for blocked in self._blocked_large)
        )
        self.others_wait = self.others_wait or usable
        return usable

    def serve_all(self) -> None:
        """All pools are about to be served."""
        self.others_wait = False
        self.recover()
        self._blocked.clear()
        self._blocked_large.clear()

    def pause_domain(self, domain: str) -> None:
        """Start nothing of a domain for a while: the next attempt would end as this one, and cost as much."""
        if len(self._paused) >= DOMAINS_PAUSED:
            self._paused.clear()
        self._paused[domain] = trio.current_time() + NOT_TRIED_PAUSE

    # ---- slow servers

    def _judge(self, active: ActiveAttempt) -> None:
        """Note at the end of a session whether its pool answers."""
        pool, progress, now = active.ready.routed.limiter.pool, active.progress, trio.current_time()
        if active.successor is not None:
            self._promised.discard(active.successor)
        elif now >= progress.moved_at + PROMPT:
            self._answers.put(pool, False)
        elif now < active.began + PROMPT and progress.awaits != CONNECTION and not self._answers.get(pool):
            self._answers.put(pool, True)

    def making_room(self) -> ActiveAttempt | None:
        """A session that waits for a slow server, to end for the envelope that has just found no slot."""
        ready, self.urgent = self.urgent, None
        if ready is None or ready.routed.limiter.pool in self._promised:
            return None
        self._find_slow(trio.current_time())
        holder, _ = self._claim(ready.routed)
        needs_large = ready.routed.large and self.slots.have_room(holder)
        if (holder, needs_large) in self._in_vain:  # else each pool of an account would search all of them
            return None
        for index in range(len(self._slow) - 1, -1, -1):
            active = self._slow[index]
            if active not in self._active or active.gives_way or active.progress.handed_over:
                del self._slow[index]
            elif self._makes_room(active, holder, needs_large=needs_large):
                del self._slow[index]
                active.successor = ready.routed.limiter.pool
                self._promised.add(active.successor)
                return active
        self._in_vain.add((holder, needs_large))
        return None

    def _makes_room(self, active: ActiveAttempt, holder: Holder, *, needs_large: bool) -> bool:
        if needs_large:
            large, account = active.ready.routed.large, active.holder.account
            return large and (account == holder.account or self._large.of(account) > self._large.of(holder.account))
        return active.holder == holder or self.slots.of(active.holder) > self.slots.of(holder)

    def _find_slow(self, now: float) -> None:
        """Find the sessions that wait for slow servers: of those with several the further ones first, then by time."""
        if now < self._slow_at + SLOW_CHECK:
            return
        self._slow_at = now
        self._in_vain.clear()
        for active in self._active:
            if not active.slow and now >= active.progress.moved_at + (PROMPT if active.holder.answers else SLOW):
                self._mark_slow(active)
        idle = [active for active in self._active if active.slow and now >= active.progress.moved_at + SLOW]
        slow = [active for active in idle if not active.progress.handed_over]
        slow.sort(key=lambda active: (active.slot.limiter.in_use == 1, active.progress.moved_at), reverse=True)
        self._slow = slow

    def _mark_slow(self, active: ActiveAttempt) -> None:
        active.slow = True
        self._answers.put(active.ready.routed.limiter.pool, False)
        self.slots.give_back(active.holder)
        active.holder = active.holder._replace(answers=False)
        self.slots.take(active.holder)

    # ---- sessions that make no progress

    def giving_way(self, queues: Iterable[PoolQueue]) -> list[ActiveAttempt]:
        """Sessions whose servers do nothing, to end where others wait for what they hold; the longest idle first."""
        now = trio.current_time()
        if now < self._checked_at + STALLED_CHECK:
            return []
        self._checked_at = now
        idle = [active for active in self._active if now >= active.progress.moved_at + STALLED]
        stalled = [active for active in idle if not active.progress.handed_over]
        stalled.sort(key=lambda active: active.progress.moved_at)
        ended: list[ActiveAttempt] = []
        in_vain: set[tuple[str, str]] = set()  # accounts, and what they wait for, that none of these can help
        for ready in chain.from_iterable(queue.heads() for queue in queues) if stalled else ():
            account, lack = ready.routed.envelope.account_id, self._lack(ready)
            if lack is None or now < ready.routed.since + STALLED_CHECK or (account, lack) in in_vain:
                continue
            active = next((each for each in stalled if self._gives_way(each, ready, lack, now)), None)
            if active is None:
                in_vain.add((account, lack))
            else:
                stalled.remove(active)
                ended.append(active)
        return ended

    def _lack(self, ready: Ready) -> str | None:
        """What an envelope waits for that another session could give up: a slot of its pool, or one of all slots."""
        limiter, account, now = ready.routed.limiter, ready.routed.envelope.account_id, self.limiters.env.now()
        if self.limiters.is_held(limiter.pool) or not limiter.lets_pass(account, now):
            return None
        if limiter.in_use >= limiter.slots:
            return limiter.pool
        if not limiter.is_open(now):  # for a reason of its own, such as a server that asked for less
            return None
        if ready.routed.large and not self._large.have_room(account):
            return LARGE_SLOT
        return None if self.slots.have_room(*self._claim(ready.routed)) else ""

    def _gives_way(self, active: ActiveAttempt, ready: Ready, lack: str, now: float) -> bool:
        routed, account = ready.routed, ready.routed.envelope.account_id
        own = active.slot.account == account
        if routed.limiter.in_use >= routed.limiter.slots:
            # The next message would find the same server no better.
            same = any(active.progress.address in host.dialled for host in routed.route.hosts)
            return active.slot.limiter is routed.limiter and not own and not same
        if lack and not active.ready.routed.large:
            return False
        if own:
            return now >= active.progress.moved_at + STALLED_LONG
        if lack:
            return self._large.of(active.slot.account) > self._large.of(account)
        return self.slots.of(active.holder) > self.slots.of(self._claim(routed)[0])

    # ---- a shortage of this machine

    def met_shortage(self, shortage: Shortage) -> None:
        if self._short_at is None:
            log.warning("mail waits: this machine is short", of=str(shortage), sessions=self.slots.used)
        self._short_at = self._grown_at = trio.current_time()
        self.slots.slots = max(1, min(self.slots.slots, self.slots.used))

    @property
    def pauses(self) -> bool:
        """Whether a shortage was met a moment ago, so that nothing starts but in the place of what has ended."""
        return self._short_at is not None and trio.current_time() < self._short_at + SHORTAGE_PAUSE

    def recover(self) -> None:
        """Let the sessions grow again after a shortage, by the time that has passed, however often this is called."""
        if self._short_at is None:
            return
        steps = int((trio.current_time() - self._grown_at) / SHORTAGE_PAUSE)
        self._grown_at += steps * SHORTAGE_PAUSE
        for _ in range(steps):
            if self.slots.slots >= self.sessions:
                break
            self.slots.slots = min(self.sessions, self.slots.slots + max(1, self.slots.slots // RECOVERY))
        if self.slots.slots == self.sessions and not self.pauses:
            self._short_at = None
            log.info("mail goes on: this machine is short of nothing any more")
