"""Notices that the wall clock was set, by comparing it with Trio's clock, which is monotonic."""

from dataclasses import dataclass, field

import trio

from appliance.outside import Outside
from appliance.times import SECOND

CLOCK_CHECK_INTERVAL = 2.0  # seconds
JUMP_TOLERANCE = 10.0  # seconds of difference between two checks that are taken for a small correction


@dataclass(slots=True)
class ClockJumps:
    """Remembers the difference between the two clocks at the last check."""

    outside: Outside
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self._difference()

    def jump(self) -> float:
        """By how many seconds the clock was set since the last check, negative if back; 0.0 if it was not."""
        before, self._last = self._last, self._difference()
        seconds = self._last - before
        return seconds if abs(seconds) > JUMP_TOLERANCE else 0.0

    def _difference(self) -> float:
        return self.outside.now() / SECOND - trio.current_time()

    async def wait(self, seconds: float) -> float:
        """Return 0.0 after so long, or as soon as the clock was set: by how many seconds."""
        until = trio.current_time() + seconds
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(CLOCK_CHECK_INTERVAL, left))
            if by := self.jump():
                return by
        return 0.0
