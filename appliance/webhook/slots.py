"""The slots for posts: lines take turns, and receivers that may hang cannot take the slots of those that answer. PURE.

A receiver that hangs holds its slot for the whole time of an attempt. So receivers that are slow or keep failing have a
quarter of the slots at most, those that nobody has seen answering yet half, and the rest is for those that answer.
Receivers can begin to hang all at once, so a post that takes longer than LATE gives its slot back and goes on without
one; of such posts there are no more than there are slots.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from appliance.webhook.receiver import Line, Standing

SLOTS = 200  # posts at once, to all receivers together; and as many that are late
LATE = 1.0  # seconds after which a post should have been answered


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one post."""

    standing: Standing
    since: float  # Trio's clock
    late: bool = False


@dataclass(slots=True)
class Turns:
    """Lines that could begin a post, by the standing of their receivers, and the slots in use by each."""

    slots: int = SLOTS
    _waiting: dict[Standing, deque[Line]] = field(default_factory=lambda: {each: deque() for each in Standing})
    _in_use: dict[Standing, int] = field(default_factory=lambda: dict.fromkeys(Standing, 0))
    _in_time: dict[Slot, None] = field(default_factory=dict)  # taken slots, the oldest first
    _late: int = 0  # posts without a slot
    _first: Standing = Standing.UNKNOWN  # these two take turns
    _second: Standing = Standing.GOOD

    def add(self, line: Line) -> None:
        """Let a line wait for its turn."""
        if not line.in_turn:
            line.in_turn = True
            self._waiting[line.standing].append(line)

    def next(self, now: float = 0.0) -> Line | None:
        """The line whose turn it is, if there is a slot for it; those likely to take long come after all others."""
        self._free_late(now)
        self._first, self._second = self._second, self._first
        for standing in (self._first, self._second, Standing.TROUBLED):
            waiting = self._waiting[standing]
            while waiting and self._has_slot(standing):
                line = waiting.popleft()
                if line.standing is standing:
                    line.in_turn = False
                    return line
                self._waiting[line.standing].append(line)  # it has become so while it waited
        return None

    def take_slot(self, line: Line, now: float = 0.0) -> Slot:
        """Take a slot for one post of this line; to be given back with what is returned."""
        slot = Slot(line.standing, now)
        self._in_use[slot.standing] += 1
        self._in_time[slot] = None
        return slot

    def give_back(self, slot: Slot) -> None:
        """The post has ended."""
        if slot.late:
            self._late -= 1
        else:
            self._free(slot)

    def wait(self, now: float) -> float:
        """Seconds until a slot may become free because its post is late; for ever when no line waits for one."""
        if not any(self._waiting.values()) or not self._in_time or self._late >= self.slots:
            return inf
        return next(iter(self._in_time)).since + LATE - now

    def _free_late(self, now: float) -> None:
        while self._in_time and self._late < self.slots and (oldest := next(iter(self._in_time))).since + LATE <= now:
            self._free(oldest)
            oldest.late = True
            self._late += 1

    def _free(self, slot: Slot) -> None:
        del self._in_time[slot]
        self._in_use[slot.standing] -= 1

    def may_go_on(self, line: Line) -> bool:
        """Whether a line may use a slot that is free without having to wait: nobody else wants it."""
        standing = line.standing
        before = Standing if standing is Standing.TROUBLED else (Standing.GOOD, Standing.UNKNOWN)
        wanted = any(self._waiting[other] and self._has_slot(other) for other in before)
        return self._has_slot(standing) and (not wanted or self._has_slot(standing, 2))

    def _has_slot(self, standing: Standing, count: int = 1) -> bool:
        """Whether so many slots are free for receivers of this standing."""
        free_in_all = sum(self._in_use.values()) + count <= self.slots
        return free_in_all and self._in_use[standing] + count <= self._most(standing)

    def _most(self, standing: Standing) -> int:
        if standing is Standing.GOOD:
            return self.slots
        return max(1, self.slots // (4 if standing is Standing.TROUBLED else 2))
