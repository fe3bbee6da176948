"""The posts of one receiver that are in memory, and how many of them, and of all receivers', may be in flight. No I/O.

A lane's posts are started in order. A receiver that answers well gets several at once. One that keeps failing gets one
at a time, and after more failures only a few in a second: a long queue then costs next to nothing, and the first
success lifts both limits.

A receiver that hangs holds its slot until the attempt times out. So troubled receivers have a quarter of the slots at
most, unknown ones half, and the rest is for those that answer. Receivers can begin to hang all at once, so a post that
takes longer than LATE_AFTER gives its slot back and goes on without one; of such posts there are at most as many as
there are slots.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus

# ---- one receiver

POSTS_PER_RECEIVER = 8  # in flight at once
FAILING_AFTER = 3  # failures in a row; then one post at a time
DEAD_AFTER = 20  # failures in a row; then DEAD_INTERVAL between two posts
DEAD_INTERVAL = 0.1  # seconds
SLOW_MS = 1_000  # an answer that takes longer makes the receiver one of the troubled


class ReceiverHealth(StrEnum):
    """How the next post to a receiver is likely to go."""

    GOOD = "good"  # it has been answering in time
    UNKNOWN = "unknown"  # it has never answered in time
    TROUBLED = "troubled"  # it is slow, or keeps failing


@dataclass(slots=True, eq=False)
class ReceiverQueue:
    """The posts of one lane in memory, and what is known of its receiver."""

    lane: Lane
    proven: bool = False  # it has answered in time, in this process or by what the store says
    waiting: deque[DuePost] = field(default_factory=deque)
    loaded: set[str] = field(default_factory=set)  # ids of all posts in memory; for the store they are still due
    in_flight: int = 0
    failures: int = 0  # in a row
    slow: bool = False
    not_before: float = 0.0  # Trio's clock: no post is started earlier
    queued: bool = False  # it waits for a slot
    more_due: bool = True  # the store may have more posts that are due

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
        """Whether none of its posts are in memory."""
        return not self.loaded and not self.in_flight and not self.queued

    @property
    def in_flight_limit(self) -> int:
        """How many posts may be in flight at once; one, until an answer has come in time."""
        return POSTS_PER_RECEIVER if self.proven and self.failures < FAILING_AFTER else 1

    def room(self, limit: int) -> int:
        """How many more posts may be loaded, with so many in memory at most; none while enough of them wait."""
        return 0 if len(self.waiting) > limit // 8 else max(0, limit - len(self.loaded))

    def load(self, posts: list[DuePost]) -> None:
        self.waiting.extend(posts)
        self.loaded.update([post.id for post in posts])

    def start(self, now: float, dead_interval: float = DEAD_INTERVAL) -> DuePost:
        """The next post, which is in flight from now on."""
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

    def drop(self) -> None:
        """Forget the waiting posts, and that the store may have more."""
        self.loaded.difference_update([post.id for post in self.waiting])
        self.waiting.clear()
        self.more_due = False


# ---- slots of all receivers

POST_SLOTS = 200  # posts in flight to all receivers together; and as many that are late
SHARE_OF_SLOTS = {ReceiverHealth.GOOD: 1, ReceiverHealth.UNKNOWN: 2, ReceiverHealth.TROUBLED: 4}  # one slot in so many
LATE_AFTER = 1.0  # seconds within which a post should be answered


@dataclass(slots=True, eq=False)
class PostSlot:
    health: ReceiverHealth  # of its receiver, when the post was started
    since: float  # Trio's clock
    late: bool = False  # the slot was given back


@dataclass(slots=True)
class Slots:
    """The queues that wait for a slot, by the health of their receivers, and the slots in use by each."""

    count: int = POST_SLOTS
    _waiting: dict[ReceiverHealth, deque[ReceiverQueue]] = field(
        default_factory=lambda: {each: deque() for each in ReceiverHealth}
    )
    _in_use: dict[ReceiverHealth, int] = field(default_factory=lambda: dict.fromkeys(ReceiverHealth, 0))
    _in_time: dict[PostSlot, None] = field(default_factory=dict)  # slots in use, the oldest first
    _late: int = 0  # posts without a slot
    _first: ReceiverHealth = ReceiverHealth.UNKNOWN  # these two alternate
    _second: ReceiverHealth = ReceiverHealth.GOOD

    def add(self, queue: ReceiverQueue) -> None:
        """Let a queue wait for a slot, behind the others of its health."""
        if not queue.queued:
            queue.queued = True
            self._waiting[queue.health].append(queue)

    def next(self, now: float = 0.0) -> ReceiverQueue | None:
        """The next queue, if there is a slot for it; troubled ones come after all others."""
        while self._in_time and self._late < self.count:
            oldest = next(iter(self._in_time))
            if oldest.since + LATE_AFTER > now:
                break
            self._free(oldest)
            oldest.late = True
            self._late += 1
        self._first, self._second = self._second, self._first
        for health in (self._first, self._second, ReceiverHealth.TROUBLED):
            waiting = self._waiting[health]
            while waiting and self._has_free(health):
                queue = waiting.popleft()
                if queue.health is health:
                    queue.queued = False
                    return queue
                self._waiting[queue.health].append(queue)  # its health changed while it waited
        return None

    def take(self, queue: ReceiverQueue, now: float = 0.0) -> PostSlot:
        slot = PostSlot(queue.health, now)
        self._in_use[slot.health] += 1
        self._in_time[slot] = None
        return slot

    def give_back(self, slot: PostSlot) -> None:
        if slot.late:
            self._late -= 1
        else:
            self._free(slot)

    def seconds_until_late(self, now: float) -> float:
        """Seconds until a slot may become free because its post is late; infinite when no queue waits for one."""
        if not any(self._waiting.values()) or not self._in_time or self._late >= self.count:
            return inf
        return next(iter(self._in_time)).since + LATE_AFTER - now

    def may_continue(self, queue: ReceiverQueue) -> bool:
        """Whether a queue may start another post without waiting: there is a slot that no other queue waits for."""
        health = queue.health
        before = ReceiverHealth if health is ReceiverHealth.TROUBLED else (ReceiverHealth.GOOD, ReceiverHealth.UNKNOWN)
        wanted = any(self._waiting[other] and self._has_free(other) for other in before)
        return self._has_free(health) and (not wanted or self._has_free(health, 2))

    def _free(self, slot: PostSlot) -> None:
        del self._in_time[slot]
        self._in_use[slot.health] -= 1

    def _has_free(self, health: ReceiverHealth, count: int = 1) -> bool:
        """Whether so many slots are free for receivers of this health."""
        limit = max(1, self.count // SHARE_OF_SLOTS[health])
        return sum(self._in_use.values()) + count <= self.count and self._in_use[health] + count <= limit
