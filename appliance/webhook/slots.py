"""Shares the slots for posts among receivers: those that hang must not use up the slots of those that answer. No I/O.

A receiver that hangs holds its slot until the attempt times out. So troubled receivers have a quarter of the slots at
most, unknown ones half, and the rest is for those that answer. Receivers can begin to hang all at once, so a post that
takes longer than LATE_AFTER gives its slot back and goes on without one; of such posts there are at most as many as
there are slots.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from appliance.webhook.receiver import ReceiverHealth, ReceiverQueue

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
