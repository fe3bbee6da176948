"""In charge of the slots for posts: lines take turns, and those likely to take long have half of them at most. PURE."""

from collections import deque
from dataclasses import dataclass, field

from appliance.webhook.line import Line

SLOTS = 200  # posts at once, to all receivers together


@dataclass(slots=True)
class Turns:
    """Lines that could begin a post, and the slots in use."""

    slots: int = SLOTS
    _well: deque[Line] = field(default_factory=deque)
    _troubled: deque[Line] = field(default_factory=deque)
    _in_use: int = 0
    _by_troubled: int = 0  # of those

    def add(self, line: Line) -> None:
        """Let a line wait for its turn."""
        if not line.in_turn:
            line.in_turn = True
            (self._troubled if line.troubled else self._well).append(line)

    def next(self) -> Line | None:
        """The line whose turn it is, if there is a slot for it."""
        while self._well and self._in_use < self.slots:
            line = self._well.popleft()
            if not line.troubled:
                line.in_turn = False
                return line
            self._troubled.append(line)  # it has become so while it waited
        if self._troubled and self._has_slot_for_troubled():
            line = self._troubled.popleft()
            line.in_turn = False
            return line
        return None

    def take_slot(self, line: Line) -> bool:
        """Take a slot for one post of this line; to be given back with what is returned."""
        self._in_use += 1
        self._by_troubled += line.troubled
        return line.troubled

    def give_back(self, troubled: bool) -> None:
        """The post has ended."""
        self._in_use -= 1
        self._by_troubled -= troubled

    def may_go_on(self, line: Line) -> bool:
        """Whether a line may use a slot that is free without having to wait: nobody else wants it."""
        if line.troubled:
            return self._has_slot_for_troubled() and not self._troubled
        return self._in_use < self.slots and (self._in_use + 1 < self.slots or not self._well)

    def _has_slot_for_troubled(self) -> bool:
        return self._by_troubled < self.slots // 2 and self._in_use < self.slots
