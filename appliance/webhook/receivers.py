"""Decides which receiver gets the next post, and how many it may have. No I/O.

- A receiver that answers well gets several posts at once. One that keeps failing gets one at a time, and after more
  failures a few per second, so that a long queue costs next to nothing. The first success lifts both limits.
- Receivers share the slots in turn. A receiver that hangs holds its slot until the attempt times out, so troubled ones
  get a quarter of the slots at most and unknown ones half. All receivers may hang at once, so a post that takes longer
  than `LATE_AFTER` gives its slot back and continues without one; at most as many posts are late as there are slots.
"""

from collections import deque
from enum import StrEnum
from math import inf

from msgspec import Struct, field

from appliance.concurrency.fair_share import Shares, TurnQueue
from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus

POSTS_PER_RECEIVER = 8  # in flight at once
FAILING_AFTER = 3  # failures in a row; then one post at a time
DEAD_AFTER = 20  # failures in a row; then DEAD_INTERVAL between two posts
DEAD_INTERVAL = 0.1  # seconds
SLOW_MS = 1_000  # a receiver that takes longer to answer is troubled


class ReceiverHealth(StrEnum):
    """How the next post to a receiver is likely to go."""

    GOOD = "good"  # it answers in time
    UNKNOWN = "unknown"  # it has never answered in time
    TROUBLED = "troubled"  # it is slow, or keeps failing


class ReceiverQueue(Struct, eq=False):
    """The posts of one lane in memory, and the state of its receiver."""

    lane: Lane
    proven: bool = False  # the receiver has answered in time, in this process or an earlier one
    waiting: deque[DuePost] = field(default_factory=deque)
    loaded: set[str] = field(default_factory=set)  # ids of all posts in memory; for the store they are still due
    in_flight: int = 0
    failures: int = 0  # in a row
    slow: bool = False
    not_before: float = 0.0  # Trio's clock: no post starts earlier
    queued_as: ReceiverHealth | None = None  # while it waits for a slot: the health that it is queued under
    more_due: bool = True  # the store may have more due posts
    recorded: set[str] | None = None  # posts recorded while due posts are being read

    @property
    def health(self) -> ReceiverHealth:
        if self.slow or self.failures >= FAILING_AFTER:
            return ReceiverHealth.TROUBLED
        return ReceiverHealth.GOOD if self.proven else ReceiverHealth.UNKNOWN

    @property
    def dead(self) -> bool:
        return self.failures >= DEAD_AFTER

    @property
    def idle(self) -> bool:
        return not self.loaded and not self.in_flight and self.queued_as is None

    @property
    def in_flight_limit(self) -> int:
        """Posts that may be in flight at once; one until the receiver has answered in time."""
        return POSTS_PER_RECEIVER if self.proven and self.failures < FAILING_AFTER else 1

    def room(self, limit: int) -> int:
        return 0 if len(self.waiting) > limit // 8 else max(0, limit - len(self.loaded))

    def load(self, posts: list[DuePost]) -> None:
        self.waiting.extend(posts)
        self.loaded.update([post.id for post in posts])

    def unload(self, post_id: str) -> None:
        self.loaded.discard(post_id)
        if self.recorded is not None:
            self.recorded.add(post_id)

    def start(self, now: float, dead_interval: float = DEAD_INTERVAL) -> DuePost:
        self.in_flight += 1
        if self.dead:
            self.not_before = now + dead_interval
        return self.waiting.popleft()

    def finish(self, post: DuePost, result: PostResult | None) -> None:
        """End a post in flight. It stays loaded until its result is recorded; without one it was not attempted."""
        self.in_flight -= 1
        if result is None:
            self.loaded.discard(post.id)
        else:
            self.failures = 0 if result.status is PostStatus.SUCCESS else self.failures + 1
            self.slow = result.duration_ms > SLOW_MS
            self.proven = self.proven or (self.failures == 0 and not self.slow)

    def pause(self, until: float) -> None:
        """Start no post before then, and read the due ones again."""
        self.not_before, self.more_due = until, True

    def drop(self) -> None:
        self.loaded.difference_update([post.id for post in self.waiting])
        self.waiting.clear()
        self.more_due = False


POST_SLOTS = 200  # posts in flight to all receivers, and as many that are late
SHARE_OF_SLOTS = {ReceiverHealth.GOOD: 1, ReceiverHealth.UNKNOWN: 2, ReceiverHealth.TROUBLED: 4}  # one slot in N
LATE_AFTER = 1.0  # seconds within which a post should be answered


class PostSlot(Struct, eq=False):
    health: ReceiverHealth  # of its receiver, when the post started
    since: float  # Trio's clock
    late: bool = False  # the slot was given back


class Slots:
    """The slots in use, and the queues that wait for one: both by the health of their receivers.

    Each health has a fixed part of the slots, not a part of the free ones: hanging receivers must never get more than
    theirs, even while all others are idle.
    """

    def __init__(self, count: int = POST_SLOTS) -> None:
        self._shares = Shares[ReceiverHealth](count)
        self._waiting = TurnQueue[ReceiverHealth, ReceiverQueue]()
        self._troubled = TurnQueue[ReceiverHealth, ReceiverQueue]()  # served after all others
        self._in_time: dict[PostSlot, None] = {}  # slots in use, the oldest first
        self._late = 0  # posts without a slot

    def add(self, queue: ReceiverQueue) -> None:
        """Let a queue wait for a slot, behind the others of its health."""
        if queue.queued_as is None:
            queue.queued_as = queue.health
            self._queue_of(queue.health).add(queue.health, queue)

    def next(self, now: float = 0.0) -> ReceiverQueue | None:
        """Remove and return the next queue, if there is a slot for it."""
        while self._in_time and self._late < self._shares.total:
            oldest = next(iter(self._in_time))
            if oldest.since + LATE_AFTER > now:
                break
            self._free(oldest)
            oldest.late = True
            self._late += 1
        for waiting in (self._waiting, self._troubled):
            while (queue := waiting.next_that(self._may_start)) is not None:
                health, queue.queued_as = queue.queued_as, None
                if queue.health is health:
                    return queue
                self.add(queue)  # its health changed while it waited
        return None

    def take(self, queue: ReceiverQueue, now: float = 0.0) -> PostSlot:
        slot = PostSlot(queue.health, now)
        self._shares.take(slot.health)
        self._in_time[slot] = None
        return slot

    def give_back(self, slot: PostSlot) -> None:
        if slot.late:
            self._late -= 1
        else:
            self._free(slot)

    def seconds_until_late(self, now: float) -> float:
        """Seconds until a late post may give back its slot; infinite when no queue waits for one."""
        if not (self._waiting or self._troubled) or not self._in_time or self._late >= self._shares.total:
            return inf
        return next(iter(self._in_time)).since + LATE_AFTER - now

    def may_continue(self, queue: ReceiverQueue) -> bool:
        """Whether a queue may start another post at once: there is a slot that no other queue waits for."""
        health = queue.health
        competitors = list(self._waiting.owners())
        if health is ReceiverHealth.TROUBLED:
            competitors += self._troubled.owners()
        is_contested = any(self.has_free(competitor) for competitor in competitors)
        return self.has_free(health, 2 if is_contested else 1)

    def has_free(self, health: ReceiverHealth, count: int = 1) -> bool:
        limit = max(1, self._shares.total // SHARE_OF_SLOTS[health])
        return self._shares.free >= count and self._shares.of(health) + count <= limit

    def _may_start(self, queue: ReceiverQueue) -> bool:
        return queue.queued_as is not None and self.has_free(queue.queued_as)

    def _queue_of(self, health: ReceiverHealth) -> TurnQueue[ReceiverHealth, ReceiverQueue]:
        return self._troubled if health is ReceiverHealth.TROUBLED else self._waiting

    def _free(self, slot: PostSlot) -> None:
        del self._in_time[slot]
        self._shares.give_back(slot.health)
