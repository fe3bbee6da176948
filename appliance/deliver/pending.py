"""Pending envelopes: taken from the store, but in no SMTP session yet. Each is being prepared or is ready.

`Pending` counts them by pool and by flow within a pool. Each pool has a queue of ready envelopes, in which accounts
take turns, an account's new and older mail take turns, its retries go before its untried mail, and a large message
blocks no small one. `Admission` says which due mail becomes pending: no account may fill all the room, each pool and
account always has room for its first few envelopes, and only some new mail passes older mail of the same account and
pool.

`DueMail` reads due mail from the store as envelopes. Usually one poll reads all due mail, in order of time. Behind a
backlog the polls visit accounts in turn, each for a few recipients at a few domains, continuing where the last visit
ended. Retries are read separately as they become due: a greylisting server that would accept them now must not receive
all older untried mail first. Invariant: a recipient that was taken is not read again until it is released.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

import trio
from msgspec import Struct, field

from appliance.concurrency.fair_share import PriorityQueue, may_take
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.pool_limiters import UNROUTED, PoolLimiters
from appliance.deliver.preparing import RECIPIENTS_PER_VISIT, Envelope, Flow, Ready, envelopes
from appliance.deliver.sources import Sources
from appliance.deliver.warmup import Warmup
from appliance.environment import Environment
from appliance.model.mail import DueRecipient
from appliance.model.ramp import RampLane, Via
from appliance.store import Store


class PoolQueue:
    """Two queues, of small and of large messages, which take turns."""

    def __init__(self, limiter: PoolLimiter) -> None:
        self.limiter = limiter
        # By account; large messages in the second.
        self._queues = PriorityQueue[str, Ready](), PriorityQueue[str, Ready]()
        self._turn = 0  # the queue that is next
        self.new = 0  # envelopes that may pass older ones

    def __len__(self) -> int:
        return len(self._queues[0]) + len(self._queues[1])

    def add(self, ready: Ready) -> None:
        envelope = ready.routed.envelope
        ahead_of = (lambda other: not other.routed.envelope.is_retry) if envelope.is_retry else None
        self._queues[ready.routed.large].of(envelope.low).add(envelope.account_id, ready, envelope.new, ahead_of)
        self.new += envelope.new

    def put_back(self, ready: Ready) -> None:
        """Make an envelope the next one of its account, size and age."""
        envelope = ready.routed.envelope
        self._queues[ready.routed.large].of(envelope.low).put_back(envelope.account_id, ready, envelope.new)
        self.new += envelope.new

    def next_that(self, may_go: Callable[[Ready], bool]) -> Ready | None:
        for size in (self._turn, 1 - self._turn):
            if (ready := self._queues[size].next_that(may_go)) is not None:
                self.new -= ready.routed.envelope.new
                if size == self._turn and self._queues[1 - size]:
                    self._turn = 1 - size
                return ready
        return None

    def heads(self) -> list[Ready]:
        return self._queues[self._turn].heads() + self._queues[1 - self._turn].heads()

    def drain(self) -> list[Ready]:
        return self._queues[self._turn].drain() + self._queues[1 - self._turn].drain()


class Pending:
    """Counts and queues. `pool in pending`: whether an envelope of the pool is pending."""

    def __init__(self) -> None:
        self.total = 0
        self.queues: dict[str, PoolQueue] = {}  # by pool, without empty ones; the pool whose turn is next comes first
        self._by_pool: dict[str, list[int]] = {}  # by priority
        self._by_flow: dict[tuple[str, Flow], int] = {}

    def __contains__(self, pool: object) -> bool:
        return pool in self._by_pool

    def __getitem__(self, pool: str) -> int:
        return sum(self._by_pool.get(pool, ()))

    def ahead(self, pool: str, low: int) -> int:
        """The pending envelopes of a pool that take the room of this priority: mail with low priority takes none."""
        return self[pool] if low else self._by_pool[pool][0] if pool in self._by_pool else 0

    def of(self, pool: str, flow: Flow) -> int:
        return self._by_flow.get((pool, flow), 0)

    def add(self, pool: str, flow: Flow) -> None:
        self.total += 1
        self._by_pool.setdefault(pool, [0, 0])[flow.low] += 1
        self._by_flow[pool, flow] = self._by_flow.get((pool, flow), 0) + 1

    def remove(self, pool: str, flow: Flow) -> None:
        self.total -= 1
        self._by_pool[pool][flow.low] -= 1
        if not any(self._by_pool[pool]):
            del self._by_pool[pool]
        self._by_flow[pool, flow] -= 1
        if not self._by_flow[pool, flow]:
            del self._by_flow[pool, flow]

    def move(self, pool: str, to: str, flow: Flow) -> None:
        if pool != to:
            self.remove(pool, flow)
            self.add(to, flow)

    def enqueue(self, ready: Ready) -> None:
        """Queue a ready envelope that is counted already."""
        self._queue(ready.routed.limiter).add(ready)

    def put_back(self, ready: Ready) -> None:
        """Count and queue an envelope again, as the next one of its account."""
        limiter = ready.routed.limiter
        self.add(limiter.pool, ready.routed.envelope.flow)
        self._queue(limiter).put_back(ready)

    def next(self, pool: str, may_go: Callable[[Ready], bool]) -> Ready | None:
        queue = self.queues.get(pool)
        ready = None if queue is None else queue.next_that(may_go)
        if ready is not None:
            self.remove(pool, ready.routed.envelope.flow)
            if not queue:
                del self.queues[pool]
        return ready

    def end_turn(self, pool: str) -> None:
        if (queue := self.queues.pop(pool, None)) is not None:
            self.queues[pool] = queue

    def remove_unusable(self, may_start: Callable[[Ready], bool]) -> list[tuple[str, Envelope]]:
        """Remove ready envelopes that may not start from their source any more; return each with its pool."""
        removed = []
        for pool, queue in list(self.queues.items()):
            if not queue.limiter.source or all(map(may_start, queue.heads())):  # each account's next one
                continue
            del self.queues[pool]
            for ready in queue.drain():
                if may_start(ready):
                    self.enqueue(ready)
                else:
                    self.remove(pool, ready.routed.envelope.flow)
                    removed.append((pool, ready.routed.envelope))
        return removed

    def reassign(self, pool: str, limiter_of: Callable[[Ready], PoolLimiter]) -> None:
        """Move all ready envelopes of a pool to the pools that they belong to now."""
        queue = self.queues.pop(pool, None)
        for ready in () if queue is None else queue.drain():
            routed = ready.routed._replace(limiter=limiter_of(ready))
            self.move(pool, routed.limiter.pool, routed.envelope.flow)
            self.enqueue(ready._replace(routed=routed))

    async def drop(self, is_wrong: Callable[[Iterable[DueRecipient], Via | None], bool]) -> list[Envelope]:
        """Remove and return ready envelopes whose route a new plan of the ramp changed; a poll reads them again."""
        dropped = list[Envelope]()
        for pool in list(self.queues):
            queue = self.queues.pop(pool, None)
            for ready in () if queue is None else queue.drain():
                envelope = ready.routed.envelope
                if is_wrong(envelope.recipients, envelope.via):
                    self.remove(pool, envelope.flow)
                    dropped.append(envelope)
                else:
                    self.enqueue(ready)
            await trio.lowlevel.checkpoint()
        return dropped

    def _queue(self, limiter: PoolLimiter) -> PoolQueue:
        queue = self.queues.get(limiter.pool)
        if queue is None:
            queue = self.queues[limiter.pool] = PoolQueue(limiter)
        return queue


# ---- which mail to take

PENDING_PER_POOL = 100  # envelopes of one pool, or for domains without a known route
PENDING_OF_NEW = 1_000  # envelopes in total up to which new mail is taken from memory, and need not be read later
PENDING_WITH_RETRIES = 2_000  # envelopes in total up to which retries are taken: they go before pending mail
PENDING_OF_ONE = 5  # envelopes of one account for one pool that are always taken
PASSING = 20  # new envelopes of one account for one pool that may pass its older mail, turn by turn
FEW_PENDING = 50  # envelopes, in total or of one pool, below which a poll for more is worth it at any time
UNROUTED_NEW = "*new"  # as UNROUTED, for mail from memory: older mail that is being routed must not delay it


class Admission(Struct):
    pending: Pending
    limiters: PoolLimiters
    warmup: Warmup
    sources: Sources
    left: dict[str, set[Flow]] = field(default_factory=dict)  # by pool: flows whose due mail was left in the store

    def leave(self, pool: str, flow: Flow) -> None:
        self.left.setdefault(UNROUTED if pool == UNROUTED_NEW else pool, set()).add(flow._replace(new=0))

    def may_take(self, flow: Flow, domain: str, via: Via | None = None) -> bool:
        """Whether to read more of a flow's untried mail for a domain, by one route under the ramp."""
        pools = self.sources.limits_of_lane(flow, domain, via, self.limiters.pool_of(domain, via))
        admitted = [pool for pool in pools if self._admits(flow, pool, PENDING_PER_POOL)]  # the others note it
        return bool(admitted)

    def pool_for_due(self, envelope: Envelope) -> str | None:
        """The pool under which an envelope from the store becomes pending; None: it stays in the store."""
        pools = self._pools(envelope)
        is_urgent = envelope.is_retry and self.pending.total < PENDING_WITH_RETRIES
        limit = PENDING_WITH_RETRIES if is_urgent else PENDING_PER_POOL
        return next((pool for pool in pools if self._admits(envelope.flow, pool, limit)), None)

    def _pools(self, envelope: Envelope) -> list[str]:
        """The pools under which an envelope may become pending: one for each source that it may use."""
        pool = self.limiters.pool_of(envelope.domain, envelope.via)
        return self.sources.limits(envelope, pool) or [UNROUTED]  # all sources out: it is postponed

    def has_room_in_warmup(self, limits: str) -> bool:
        """Whether one more envelope for a source's pool is worth preparing."""
        return self.pending[limits] < self.warmup.pending_limit(limits)

    def as_new(self, envelope: Envelope) -> Envelope:
        """Let an envelope that was just accepted pass its account's older mail, unless enough others do."""
        new, pool = envelope._replace(new=1), self._pools(envelope)[0] or UNROUTED_NEW
        return envelope if envelope.low or self.pending.of(pool, new.flow) >= PASSING else new

    def pool_for_new(self, envelope: Envelope, *, is_behind: bool) -> str | None:
        """The same for an envelope that was just accepted; `is_behind`: the store has a backlog of this priority.

        Mail that may pass is taken even if the store has older mail. Of other mail only the first of a flow and pool
        is: the rounds of the store visit one domain after the other, and a message to a healthy domain must not wait
        for thousands of others.
        """
        flow, pool = envelope.flow, self._pools(envelope)[0] or UNROUTED_NEW
        has_older = is_behind or flow in self.left.get(pool, ())
        if has_older and pool != UNROUTED_NEW and not flow.new and self.pending.of(pool, flow) > 0:
            return None
        limit = PENDING_OF_NEW if self.pending.total < PENDING_OF_NEW else PENDING_PER_POOL
        return pool if self._admits(flow, pool, limit) else None

    def _admits(self, flow: Flow, pool: str, limit: int) -> bool:
        pending, own = self.pending.ahead(pool, flow.low), self.pending.of(pool, flow)
        if pool in (UNROUTED, UNROUTED_NEW):
            # These envelopes wait for the name servers of their domains: no account may take all the room.
            has_room = may_take(own, limit - pending)
        else:
            has_room = pending < min(limit, self.warmup.pending_limit(pool))
        if (has_room or own < PENDING_OF_ONE) and not self.limiters.is_held(pool):
            return True
        if pool not in self.pending and self.limiters.may_probe(pool, flow.account):
            return True
        self.leave(pool, flow)
        return False

    def should_poll(self, envelope: Envelope, *, is_behind: bool) -> bool:
        """Whether the end of an envelope made room, in its pool or for unrouted domains, for mail in the store."""
        flow, domain, via = envelope.flow._replace(new=0), envelope.domain, envelope.via
        pools = self.sources.limits_of_lane(flow, domain, via, self.limiters.pool_of(domain, via))
        if is_behind and any(self.pending[pool] < FEW_PENDING for pool in pools):
            return True
        return bool(self.left) and any(self._has_room(pool, flow) for pool in (*pools, UNROUTED))

    def _has_room(self, pool: str, flow: Flow) -> bool:
        flows = self.left.get(pool)
        if flows is None or self.limiters.is_held(pool):
            return False
        has_few = flow in flows and self.pending.of(pool, flow) < PENDING_OF_ONE
        return has_few or self.pending[pool] < FEW_PENDING


# ---- due mail from the store

RECIPIENTS_PER_POLL = 500  # in addition to those already taken
LEAST_PER_ACCOUNT = 5  # recipients per poll, however many accounts have a backlog
DOMAINS_PER_VISIT = 25  # of one account in one round
OVERLAP = 5_000_000  # microseconds that polls for new mail overlap: mail is due from its arrival, before its commit

MayTake = Callable[[Flow, str, Via | None], bool]


class DueMail(Struct):
    """Reads envelopes of one priority. `may_take` decides whether to take more untried mail of a flow for a domain."""

    store: Store
    env: Environment
    new_messages: Container[str] = frozenset()  # handed over in memory, so not to be read here
    low: int = 0
    via_of: Callable[[DueRecipient], Via | None] = lambda _: None  # the route under the ramp
    lanes_of: Callable[[str], Sequence[RampLane | None]] = lambda _: (None,)  # of a domain; None: all its mail
    taken: set[str] = field(default_factory=set)  # pending recipients; for the store they are still due
    is_behind: bool = False  # the last poll read less than was due
    _taken_counts: dict[tuple[str, str], int] = field(default_factory=dict)  # by account and domain
    _released: set[str] | None = None  # recipients released during a poll, which may read them as still due
    _read_until: int = 0  # mail due by then has been read
    _retries_read_until: int = 0  # the same for retries, behind a backlog
    _last_account: str = ""  # visited last
    _last_domains: dict[str, str] = field(default_factory=dict)  # by account: the last domain of its last visit

    def take(self, envelope: Envelope) -> None:
        self.taken.update([recipient.id for recipient in envelope.recipients])
        lane = envelope.account_id, envelope.domain
        self._taken_counts[lane] = self._taken_counts.get(lane, 0) + len(envelope.recipients)

    def release(self, envelope: Envelope) -> None:
        recipients = [recipient.id for recipient in envelope.recipients]
        self.taken.difference_update(recipients)
        if self._released is not None:
            self._released.update(recipients)
        lane = envelope.account_id, envelope.domain
        remaining = self._taken_counts.pop(lane, 0) - len(envelope.recipients)
        if remaining > 0:
            self._taken_counts[lane] = remaining

    async def new(self, may_take: MayTake) -> list[Envelope]:
        """Mail that became due since the last poll; all due mail if the clock was set back."""
        since = self._read_until - OVERLAP
        with self._noting_released():
            return await self._poll(since if self._read_until <= self.env.now() else 0, may_take)

    async def all(self, may_take: MayTake) -> list[Envelope]:
        with self._noting_released():
            return await self._poll(0, may_take)

    async def left(self, may_take: MayTake) -> list[Envelope]:
        """One round of mail left in the store, for pools that have room again."""
        with self._noting_released():
            return envelopes(await self._round(may_take), self.via_of)

    @contextmanager
    def _noting_released(self) -> Iterator[None]:
        self._released = set()
        try:
            yield
        finally:
            self._released = None

    async def _poll(self, since: int, may_take: MayTake) -> list[Envelope]:
        if not self.is_behind:
            now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
            due = await self.store.queue.due(simulated=False, low=self.low, most=limit, since=since)
            if len(due) < limit:
                self._read_until = now
                self._retries_read_until = now
                new = filter(self._is_new, due)
                taken = [
                    row
                    for row in new
                    if row.attempt_count or may_take(Flow(row.account_id, row.low), row.domain, self._via(row))
                ]
                return envelopes(taken, self.via_of)
        retries = await self._retries()
        backlog = await self._round(may_take)
        self.is_behind = len(backlog) >= RECIPIENTS_PER_VISIT  # else it may be over: the next poll is by time again
        known = {row.id for row in retries}
        return envelopes(retries + [row for row in backlog if row.id not in known], self.via_of)

    # ---- behind a backlog

    async def _retries(self) -> list[DueRecipient]:
        """Retries that became due since the last poll; the rounds read those that this query does not return."""
        now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
        since, self._retries_read_until = self._retries_read_until or now, now
        due = await self.store.queue.due(simulated=False, low=self.low, most=limit, since=since, retries=True)
        return [row for row in due if self._is_new(row)]

    async def _round(self, may_take: MayTake) -> list[DueRecipient]:
        backlog: list[DueRecipient] = []
        accounts = await self.store.lanes.accounts(self.low)
        self._last_domains = {account: domain for account, domain in self._last_domains.items() if account in accounts}
        share = max(LEAST_PER_ACCOUNT, RECIPIENTS_PER_POLL // max(1, len(accounts)))
        later = [account for account in accounts if account > self._last_account]
        for account in later + accounts[: len(accounts) - len(later)]:
            if len(backlog) >= RECIPIENTS_PER_POLL:
                break
            backlog += await self._visit(account, share, may_take)
            self._last_account = account
        return backlog

    async def _visit(self, account: str, share: int, may_take: MayTake) -> list[DueRecipient]:
        last = self._last_domains.get(account, "")
        domains = await self.store.lanes.domains(self.low, account, last, DOMAINS_PER_VISIT)
        self._last_domains[account] = ""  # start over, unless there are more
        recipients: list[DueRecipient] = []
        for number, domain in enumerate(domains, 1):
            for lane in self.lanes_of(domain):
                if not may_take(Flow(account, self.low), domain, lane and lane.via):
                    continue
                limit = min(RECIPIENTS_PER_VISIT, share - len(recipients))
                # For the store, recipients already taken are still due, and come first.
                limit_with_taken = limit + self._taken_counts.get((account, domain), 0)
                due = await self.store.lanes.due(self.low, account, domain, limit_with_taken, lane)
                recipients += [recipient for recipient in due if self._is_new(recipient)][:limit]
            if len(recipients) >= share or number == DOMAINS_PER_VISIT:
                self._last_domains[account] = domain
                break
        return recipients

    def _via(self, recipient: DueRecipient) -> Via | None:
        return None if recipient.bucket is None else self.via_of(recipient)

    def _is_new(self, recipient: DueRecipient) -> bool:
        was_released = self._released is not None and recipient.id in self._released
        return not (recipient.id in self.taken or was_released or recipient.message_id in self.new_messages)
