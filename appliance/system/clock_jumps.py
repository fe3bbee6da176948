"""In charge of noticing that the wall clock was set: against Trio's clock, which nobody can set."""

from dataclasses import dataclass, field

import trio

from appliance.outside import Outside
from appliance.times import SECOND

LOOK_EVERY = 2.0  # seconds between two looks
SLACK = 10.0  # seconds by which the two may come apart between two looks: small corrections set no clock


@dataclass(slots=True)
class SetClock:
    """Remembers how far the two clocks were apart at the last look."""

    outside: Outside
    _apart: float = field(init=False)

    def __post_init__(self) -> None:
        """Look for the first time."""
        self._apart = self._now_apart()

    def was_set_by(self) -> float:
        """By how many seconds the clock was set since the last look, to the past if negative; 0.0 if it was not."""
        before, self._apart = self._apart, self._now_apart()
        seconds = self._apart - before
        return seconds if abs(seconds) > SLACK else 0.0

    def _now_apart(self) -> float:
        return self.outside.now() / SECOND - trio.current_time()

    async def wait(self, seconds: float) -> float:
        """Return after so long, or when the clock was set: by how many seconds, as above."""
        until = trio.current_time() + seconds
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(LOOK_EVERY, left))
            if by := self.was_set_by():
                return by
        return 0.0
