"""Waits of loops that sleep until their next work is due: ended by a wake-up, or by a change of the wall clock."""

import trio

from appliance.environment import Environment
from appliance.times import SECOND

SLEEP_LIMIT = 60.0  # seconds; no loop sleeps longer, so a jump of the clock does no harm for more than a minute
CLOCK_CHECK_INTERVAL = 2.0  # seconds
JUMP_TOLERANCE = 10.0  # seconds of difference between two checks that are taken for a small correction


class Wake:
    """A hint that there may be work; losing one costs at most `SLEEP_LIMIT`."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """End the current wait, or else the next one."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds` (never more than `SLEEP_LIMIT`), or as soon as `set` is called."""
        if self._event.is_set():  # as nearly always under load: no need for a timer
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(min(seconds, SLEEP_LIMIT)):
                await self._event.wait()
        self._event = trio.Event()


class ClockJumps:
    """Notices that the wall clock was set, by comparing it with Trio's clock, which is monotonic."""

    def __init__(self, env: Environment) -> None:
        self._outside, self._difference = env, 0.0
        self.jump()

    def jump(self) -> float:
        """By how many seconds the clock was set since the last check, negative if back; 0.0 if it was not."""
        before, self._difference = self._difference, self._outside.now() / SECOND - trio.current_time()
        seconds = self._difference - before
        return seconds if abs(seconds) > JUMP_TOLERANCE else 0.0

    async def wait(self, seconds: float) -> float:
        """Return 0.0 after so long, or as soon as the clock was set: by how many seconds."""
        until = trio.current_time() + seconds
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(CLOCK_CHECK_INTERVAL, left))
            if by := self.jump():
                return by
        return 0.0
