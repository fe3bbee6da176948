"""Pending envelopes: taken from the store, but in no SMTP session yet. Each is being prepared or is ready.

Counts them by pool and by account within a pool. Ready envelopes wait in one queue per pool. There accounts take turns,
an account's retries go before its untried mail, and a large message blocks no small one. No I/O.
"""

from collections.abc import Callable

from appliance.concurrency.fair_share import TurnQueue
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Ready


class PoolQueue:
    """Two queues, of small and of large messages, which take turns."""

    def __init__(self, limiter: PoolLimiter) -> None:
        self.limiter = limiter
        self._queues = TurnQueue[str, Ready](), TurnQueue[str, Ready]()  # by account; large messages in the second
        self._turn = 0  # the queue that is next

    def __len__(self) -> int:
        return len(self._queues[0]) + len(self._queues[1])

    def add(self, ready: Ready) -> None:
        """Add an envelope; a retry goes before the untried mail of its account."""
        envelope = ready.routed.envelope
        ahead_of = _is_untried if envelope.is_retry else None
        self._queues[ready.routed.large].add(envelope.account_id, ready, ahead_of)

    def put_back(self, ready: Ready) -> None:
        """Make an envelope the next one of its account and size."""
        self._queues[ready.routed.large].put_back(ready.routed.envelope.account_id, ready)

    def next_that(self, may_go: Callable[[Ready], bool]) -> Ready | None:
        for size in (self._turn, 1 - self._turn):
            if self._queues[size] and (ready := self._queues[size].next_that(may_go)) is not None:
                if size == self._turn and self._queues[1 - size]:
                    self._turn = 1 - size
                return ready
        return None

    def heads(self) -> list[Ready]:
        """The first envelope of every account and size."""
        return self._queues[self._turn].heads() + self._queues[1 - self._turn].heads()

    def drain(self) -> list[Ready]:
        return self._queues[self._turn].drain() + self._queues[1 - self._turn].drain()


def _is_untried(ready: Ready) -> bool:
    return not ready.routed.envelope.is_retry


class Pending:
    """Counts and queues. `pool in pending`: whether an envelope of the pool is pending."""

    def __init__(self) -> None:
        self.total = 0
        self.queues: dict[str, PoolQueue] = {}  # by pool, without empty ones; the pool whose turn is next comes first
        self._by_pool: dict[str, int] = {}  # no zeros, here and below
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
        if count := self._by_pool.pop(pool) - 1:
            self._by_pool[pool] = count
        if count := self._by_account.pop((pool, account)) - 1:
            self._by_account[pool, account] = count

    def move(self, pool: str, to: str, account: str) -> None:
        """Count an envelope under another pool, once its route is known."""
        if pool != to:
            self.remove(pool, account)
            self.add(to, account)

    # ---- ready envelopes

    def enqueue(self, ready: Ready) -> None:
        """Queue an envelope that is counted already."""
        self._queue(ready.routed.limiter).add(ready)

    def put_back(self, ready: Ready) -> None:
        """Count and queue an envelope again, as the next one of its account."""
        limiter = ready.routed.limiter
        self.add(limiter.pool, ready.routed.envelope.account_id)
        self._queue(limiter).put_back(ready)

    def next(self, pool: str, may_go: Callable[[Ready], bool]) -> Ready | None:
        """Remove and return the next envelope of a pool that may go."""
        queue = self.queues.get(pool)
        ready = None if queue is None else queue.next_that(may_go)
        if ready is not None:
            self.remove(pool, ready.routed.envelope.account_id)
            if not queue:
                del self.queues[pool]
        return ready

    def end_turn(self, pool: str) -> None:
        """Serve the other pools before this one."""
        if (queue := self.queues.pop(pool, None)) is not None:
            self.queues[pool] = queue

    def reassign(self, pool: str, limiter_of: Callable[[Ready], PoolLimiter]) -> None:
        """Move all ready envelopes of a pool to the pools that they belong to now."""
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
