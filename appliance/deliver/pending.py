"""What was taken from the store and is in no SMTP session yet: being prepared, or ready and waiting for a session.

Counted by pool, and by account within a pool; every change of the counts is made here. Ready envelopes wait in a queue
for each pool, in which accounts take turns, retries of an account go before its untried mail, and a large message
blocks no small one. No I/O.
"""

from collections.abc import Callable

from appliance.deliver.due_mail import AccountQueue
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Ready


class PoolQueue:
    """Two queues, of small and of large messages, which take turns where both could go."""

    def __init__(self, limiter: PoolLimiter) -> None:
        self.limiter = limiter
        self._queues: tuple[AccountQueue[Ready], AccountQueue[Ready]] = AccountQueue(), AccountQueue()  # large: second
        self._turn = 0  # whose is next

    def __len__(self) -> int:
        return len(self._queues[0]) + len(self._queues[1])

    def add(self, ready: Ready) -> None:
        """Let an envelope wait; a retry goes before the untried mail of its account."""
        envelope = ready.routed.envelope
        ahead_of = _is_untried if envelope.is_retry else None
        self._queues[ready.routed.large].add(envelope.account_id, ready, ahead_of)

    def put_back(self, ready: Ready) -> None:
        """Make it the next of its account and size."""
        self._queues[ready.routed.large].put_back(ready.routed.envelope.account_id, ready)

    def next_that(self, may_go: Callable[[Ready], bool]) -> Ready | None:
        for size in (self._turn, 1 - self._turn):
            if self._queues[size] and (ready := self._queues[size].next_that(may_go)) is not None:
                if size == self._turn and self._queues[1 - size]:
                    self._turn = 1 - size
                return ready
        return None

    def heads(self) -> list[Ready]:
        """The first of every account and size."""
        return self._queues[self._turn].heads() + self._queues[1 - self._turn].heads()

    def drain(self) -> list[Ready]:
        return self._queues[self._turn].drain() + self._queues[1 - self._turn].drain()


def _is_untried(ready: Ready) -> bool:
    return not ready.routed.envelope.is_retry


class Pending:
    """The counts, and the queues of what is ready. `pool in pending`: whether any envelope of a pool is pending."""

    def __init__(self) -> None:
        self.total = 0
        self.queues: dict[str, PoolQueue] = {}  # by pool; none empty; the pool whose turn is next stands first
        self._by_pool: dict[str, int] = {}  # none of 0, here and below
        self._by_account: dict[tuple[str, str], int] = {}

    def __contains__(self, pool: object) -> bool:
        return pool in self._by_pool

    def __getitem__(self, pool: str) -> int:
        return self._by_pool.get(pool, 0)

    def of(self, pool: str, account: str) -> int:
        return self._by_account.get((pool, account), 0)

    def add(self, pool: str, account: str) -> None:
        self.total += 1
        self._by_pool[pool] = self._by_pool.get(pool, 0) + 1
        self._by_account[pool, account] = self._by_account.get((pool, account), 0) + 1

    def remove(self, pool: str, account: str) -> None:
        self.total -= 1
        if left := self._by_pool.pop(pool) - 1:
            self._by_pool[pool] = left
        if left := self._by_account.pop((pool, account)) - 1:
            self._by_account[pool, account] = left

    def move(self, pool: str, to: str, account: str) -> None:
        """An envelope belongs to another pool than was thought."""
        if pool != to:
            self.remove(pool, account)
            self.add(to, account)

    # ---- ready envelopes

    def enqueue(self, ready: Ready) -> None:
        """Let an envelope, counted already, wait for a session."""
        self._queue(ready.routed.limiter).add(ready)

    def put_back(self, ready: Ready) -> None:
        """An envelope that `next` returned waits again, as the next of its account."""
        limiter = ready.routed.limiter
        self.add(limiter.pool, ready.routed.envelope.account_id)
        self._queue(limiter).put_back(ready)

    def next(self, pool: str, may_go: Callable[[Ready], bool]) -> Ready | None:
        """The next envelope of a pool that may go; it is pending no more."""
        queue = self.queues.get(pool)
        ready = None if queue is None else queue.next_that(may_go)
        if ready is not None:
            self.remove(pool, ready.routed.envelope.account_id)
            if not queue:
                del self.queues[pool]
        return ready

    def end_turn(self, pool: str) -> None:
        """Let the other pools be served before this one."""
        if (queue := self.queues.pop(pool, None)) is not None:
            self.queues[pool] = queue

    def reassign(self, pool: str, limiter_of: Callable[[Ready], PoolLimiter]) -> None:
        """Let all ready envelopes of a pool wait in the pools that they belong to now."""
        queue = self.queues.pop(pool, None)
        for ready in () if queue is None else queue.drain():
            routed = ready.routed._replace(limiter=limiter_of(ready))
            self.move(pool, routed.limiter.pool, routed.envelope.account_id)
            self.enqueue(ready._replace(routed=routed))

    def _queue(self, limiter: PoolLimiter) -> PoolQueue:
        queue = self.queues.get(limiter.pool)
        if queue is None:
            queue = self.queues[limiter.pool] = PoolQueue(limiter)
        return queue
