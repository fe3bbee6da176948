"""Sleeps of loops between two rounds of work, ended early by a wake-up or by a change of the wall clock."""

import trio

from appliance.environment import Environment
from appliance.times import SECOND

SLEEP_LIMIT = 60.0  # seconds; no loop sleeps longer, so a clock change delays work by a minute at most
CLOCK_CHECK_INTERVAL = 2.0  # seconds
JUMP_TOLERANCE = 10.0  # seconds between two checks; less is an ordinary correction


class Wake:
    """A hint that there may be work; a lost one delays it by `SLEEP_LIMIT` at most."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """End the current wait, or the next one if no task waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds` (never more than `SLEEP_LIMIT`), or as soon as `set` is called."""
        if self._event.is_set():  # usual under load: no timer needed
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(min(seconds, SLEEP_LIMIT)):
                await self._event.wait()
        self._event = trio.Event()


class ClockJumps:
    """Detects changes of the wall clock by comparing it with Trio's monotonic clock."""

    def __init__(self, env: Environment) -> None:
        self._env, self._difference = env, 0.0
        self.jump()

    def jump(self) -> float:
        """Seconds by which the clock was set since the last check, negative if back; 0.0 if it was not set."""
        before, self._difference = self._difference, self._env.now() / SECOND - trio.current_time()
        seconds = self._difference - before
        return seconds if abs(seconds) > JUMP_TOLERANCE else 0.0

    async def wait(self, seconds: float) -> float:
        """Sleep for `seconds` and return 0.0; return early if the clock was set, with the seconds it was set by."""
        until = trio.current_time() + seconds
        while (remaining := until - trio.current_time()) > 0:
            await trio.sleep(min(CLOCK_CHECK_INTERVAL, remaining))
            if jump := self.jump():
                return jump
        return 0.0
