"""A wake-up for a loop that sleeps until its next work is due."""

import trio

SLEEP_LIMIT = 60.0  # seconds; no loop sleeps longer, so a jump of the clock does no harm for more than a minute


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
