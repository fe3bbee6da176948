"""In charge of how one receiver is treated: how many posts at once, and how fast, by how it has been answering. PURE.

A lane's posts are begun in order. A receiver that answers well may be given several at once. One that keeps failing is
given one at a time, and soon only a few in a second: however much waits for it, trying costs next to nothing, and the
first success lets everything through again.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus

AT_ONCE = 8  # posts to one receiver
FAILING = 3  # failures in a row from which a receiver gets one post at a time
DEAD = 20  # failures in a row from which it gets them at a measured pace
PACE = 0.1  # seconds between two posts to one that is dead
SLOW = 1_000  # milliseconds; who takes longer shares a part of all slots with others like it


class Standing(StrEnum):
    """How a receiver's posts are likely to go."""

    GOOD = "good"  # it has been answering
    UNKNOWN = "unknown"  # it has never been seen to
    TROUBLED = "troubled"  # it is slow, or keeps failing


@dataclass(slots=True, eq=False)
class Line:
    """The posts of one lane that are in hand, and how its receiver is doing."""

    lane: Lane
    proven: bool = (
        False  # it has answered in time, here or by the record; what it does when asked need not be tried out
    )
    waiting: deque[DuePost] = field(default_factory=deque)
    taken: set[str] = field(default_factory=set)  # all that are in hand: still due, as far as the store knows
    flying: int = 0
    failures: int = 0  # in a row
    slow: bool = False
    may_begin_at: float = 0.0  # Trio's clock
    in_turn: bool = False  # it waits for its turn
    perhaps_more: bool = True  # the store may have more that is due

    @property
    def standing(self) -> Standing:
        """How its posts are likely to go."""
        if self.slow or self.failures >= FAILING:
            return Standing.TROUBLED
        return Standing.GOOD if self.proven else Standing.UNKNOWN

    @property
    def idle(self) -> bool:
        """Whether nothing of it is in hand."""
        return not self.taken and not self.flying and not self.in_turn

    @property
    def allowed(self) -> int:
        """How many posts may be on their way at once; one, until it is known that they are answered."""
        return AT_ONCE if self.proven and self.failures < FAILING else 1

    def room(self, most: int) -> int:
        """How many more posts may be taken into hand, of so many at most; none while enough of them wait."""
        return 0 if len(self.waiting) > most // 8 else max(0, most - len(self.taken))

    def take(self, posts: list[DuePost]) -> None:
        """Take posts into hand."""
        self.waiting.extend(posts)
        self.taken.update([post.id for post in posts])

    @property
    def dead(self) -> bool:
        """Whether nothing has gone well for a long time."""
        return self.failures >= DEAD

    def begin(self, now: float, pace: float = PACE) -> DuePost:
        """The next post, which is on its way from now on."""
        self.flying += 1
        if self.dead:
            self.may_begin_at = now + pace
        return self.waiting.popleft()

    def ended(self, post: DuePost, result: PostResult | None) -> None:
        """A post has ended; with a result it is in hand until that is recorded, without one it was not tried."""
        self.flying -= 1
        if result is None:
            self.taken.discard(post.id)
        else:
            self.failures = 0 if result.status is PostStatus.SUCCESS else self.failures + 1
            self.slow = result.duration_ms > SLOW
            self.proven = self.proven or (self.failures == 0 and not self.slow)

    def wait_until(self, time: float) -> None:
        """Begin nothing before then; what was not tried is still due."""
        self.may_begin_at, self.perhaps_more = time, True

    def drop(self) -> None:
        """Forget what waits, here and in the store."""
        self.taken.difference_update([post.id for post in self.waiting])
        self.waiting.clear()
        self.perhaps_more = False
