"""In charge of how much one pool may take at the moment: slots, rate, slowing down when asked, when to stop. PURE.

Rules:
- a transaction takes a slot and, where the pool has a rate, a token;
- as many results as there are slots may wait for the disk, so that a crash repeats no more than two for each slot;
- a server that asks for less (421, 4.7.x) halves the slots and closes the gate for a while, twice as long each time;
- every delivery opens it a little: one slot more for each full round of slots, and the next closing starts small again
  once all slots are back;
- SENDER_FAULTS refusals of us as a sender in a row, with no delivery between them, are a reason to hold the pool, and
  nothing passes until somebody has seen to that.
"""

from dataclasses import dataclass

from appliance.deliver.providers import Limits
from appliance.explain import QUOTED_REPLY

SECOND = 1_000_000  # microseconds
FIRST_PAUSE = 15 * SECOND
LONGEST_PAUSE = 15 * 60 * SECOND
SENDER_FAULTS = 10  # in a row: one wrong message is bad luck, ten are a blocked server


@dataclass(slots=True)
class Gate:
    """One pool's gate."""

    pool: str
    limits: Limits
    in_use: int = 0
    unrecorded: int = 0  # transactions that are over, and whose results are not on disk yet
    allowed: float = 0.0  # slots we dare to use now; set to the limit at the start
    slowed_until: int = 0
    slowed_by: str | None = None
    hold_reason: str | None = None  # why the pool should be held, once it should
    _pause: int = FIRST_PAUSE
    _faults: int = 0
    _tokens: float = 0.0
    _tokens_at: int = 0

    def __post_init__(self) -> None:
        self.allowed = float(self.limits.concurrency)
        self._tokens = float(self.limits.per_minute or 0)

    @property
    def slots(self) -> int:
        """How many transactions may run at once at the moment."""
        return max(1, int(self.allowed))

    def is_open(self, now: int) -> bool:
        """Whether one more transaction may begin."""
        return (
            self.in_use < self.slots
            and self.unrecorded < self.slots
            and self.hold_reason is None
            and not self._is_slowed(now)
            and self._has_token(now)
        )

    def is_at_rest(self, now: int) -> bool:
        """Whether nothing would be lost if this gate were forgotten and made anew."""
        slowed = self.slowed_by is not None and abs(now - self.slowed_until) < LONGEST_PAUSE
        used = self.limits.per_minute is not None and self._has_token(now) and self._tokens < self.limits.per_minute
        return not (self.in_use or self.unrecorded or self._faults or slowed or used)

    def enter(self, now: int) -> None:
        """Take a slot."""
        self.in_use += 1
        if self.limits.per_minute is not None and self._has_token(now):
            self._tokens -= 1

    def leave(self) -> None:
        """Give the slot back; what came of it is still to be recorded."""
        self.in_use -= 1
        self.unrecorded += 1

    def recorded(self) -> None:
        """A result is on disk, or nobody waits for that any more."""
        self.unrecorded -= 1

    def delivered(self) -> None:
        """A server took a message: dare a little more."""
        self._faults = 0
        if self.allowed < self.limits.concurrency:
            self.allowed = min(self.limits.concurrency, self.allowed + 1 / self.slots)
        else:
            self._pause, self.slowed_by = FIRST_PAUSE, None

    def slow_down(self, now: int, reason: str) -> None:
        """A server asked for less. What was said while we already wait counts once."""
        self.slowed_by = reason
        if self._is_slowed(now):
            return
        self.allowed = max(1.0, self.allowed / 2)
        self.slowed_until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def refused_as_sender(self, reason: str) -> None:
        """A server does not want mail from us."""
        self._faults += 1
        if self._faults >= SENDER_FAULTS:
            self.hold_reason = f"{self._faults} refusals of us as a sender in a row{QUOTED_REPLY}{reason}"

    def reopen(self) -> None:
        """Somebody has looked into it and lets the pool's mail go again."""
        self._faults = 0
        self.hold_reason = None

    def _is_slowed(self, now: int) -> bool:
        """Not if that would be for longer than any pause: then it is the clock that was set back."""
        return now < self.slowed_until <= now + LONGEST_PAUSE

    def _has_token(self, now: int) -> bool:
        rate = self.limits.per_minute
        if rate is None:
            return True
        self._tokens = min(rate, self._tokens + max(0, now - self._tokens_at) * rate / (60 * SECOND))
        self._tokens_at = now
        return self._tokens >= 1
