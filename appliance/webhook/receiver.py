"""The posts of one receiver that are in memory, and how many of them may be in flight. No I/O.

A lane's posts are started in order. A receiver that answers well gets several at once. One that keeps failing gets one
at a time, and after more failures only a few in a second: a long queue then costs next to nothing, and the first
success lifts both limits.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus

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
