"""Which of the ready envelopes may start an SMTP session now, and the sessions that are running.

No I/O, and no tasks: the scheduler starts what `enter` returns, and cancels what `giving_way` returns. No account gets
all sessions (`fairness.Shares`), so that some are free for the others whatever its servers do; and where others wait, a
session whose server does nothing gives way, unless the final dot was sent: only the server's answer then tells whether
it has the message. After a shortage of this machine fewer sessions run, growing again with time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import trio

from appliance.deliver.attempt import ActiveAttempt
from appliance.deliver.due_mail import Shares
from appliance.deliver.pending import PoolQueue
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import PoolLimiters
from appliance.deliver.preparing import Ready
from appliance.deliver.smtp.connection import Progress
from appliance.deliver.warmup import Permit, Warmup
from appliance.model.mail import OutgoingSession
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.telemetry.log import get_logger

STALLED_CHECK = 1.0  # seconds between two searches for sessions that should give way
STALLED = 15.0  # seconds without progress after which a session gives way to another account's mail
STALLED_LONG = 60.0  # the same for mail of its own account
TOLD_AFTER = 2.0  # seconds of a session after which the shell is told of it; most are over by then
RECIPIENTS_TOLD = 1_000
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
    slots: Shares = field(init=False)  # by account
    _active: set[ActiveAttempt] = field(default_factory=set)
    _large: Shares = field(init=False)  # of them with large messages
    _blocked: set[str] = field(default_factory=set)  # accounts that wait for a slot, though their pool is open
    _blocked_large: set[str] = field(default_factory=set)  # the same for a slot for a large message
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

    # ---- slots

    def is_open(self, limiter: PoolLimiter) -> bool:
        """Whether a pool may have one more transaction, of an account that has nothing against it."""
        return not self.stopping and limiter.is_open(self.limiters.outside.now())

    def may_start(self, ready: Ready) -> bool:
        """Whether there is a slot for an envelope of an open pool."""
        routed = ready.routed
        account = routed.envelope.account_id
        if self._paused and trio.current_time() < self._paused.get(routed.envelope.domain, 0.0):
            return False
        if not self.limiters.is_open(routed.limiter, account):
            return False
        if not self.slots.have_room(account):
            self._blocked.add(account)
            return False
        if routed.large and not self._large.have_room(account):
            self._blocked_large.add(account)
            return False
        return self.warmup.may_start(routed.limiter.pool, routed.route)

    def enter(self, ready: Ready, permit: Permit) -> ActiveAttempt:
        routed, account = ready.routed, ready.routed.envelope.account_id
        self.slots.take(account)
        if routed.large:
            self._large.take(account)
        slot = self.limiters.slot(routed.limiter, account, routed.envelope.domain)
        now, began = self.limiters.outside.now(), trio.current_time()
        active = ActiveAttempt(ready, slot, permit, started_at=now, began=began, progress=Progress(began))
        self._active.add(active)
        return active

    def leave(self, active: ActiveAttempt) -> bool:
        """Give its slots back; whether accounts that were blocked can use them, so that all pools are to be served."""
        routed, account = active.ready.routed, active.slot.account
        self._active.discard(active)
        self.slots.give_back(account)
        if routed.large:
            self._large.give_back(account)
        active.slot.limiter.leave(account)
        usable = any(self.slots.have_room(blocked) for blocked in self._blocked) or (
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
        limiter, account, now = ready.routed.limiter, ready.routed.envelope.account_id, self.limiters.outside.now()
        if self.limiters.is_held(limiter.pool) or not limiter.lets_pass(account, now):
            return None
        if limiter.in_use >= limiter.slots:
            return limiter.pool
        if not limiter.is_open(now):  # for a reason of its own, such as a server that asked for less
            return None
        if ready.routed.large and not self._large.have_room(account):
            return LARGE_SLOT
        return None if self.slots.have_room(account) else ""

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
        shares = self._large if lack else self.slots
        return shares.of(active.slot.account) > shares.of(account)

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
