"""In charge of servers that take too long to answer: one look a second at all of them.

A timer for each transaction, set and moved and taken away, would cost a tenth of what the whole transaction does; and
nobody minds whether a server has 300 seconds or 301.
"""

from typing import Protocol

import trio

EVERY = 1.0  # seconds


class Watched(Protocol):
    """Somebody who waits for a server."""

    deadline: float  # Trio's clock

    async def cut_off(self) -> None:
        """Wait no longer."""
        ...


class Watch:
    """Those who wait at the moment. `run` it for as long as anybody may."""

    def __init__(self) -> None:
        self._waiting: set[Watched] = set()
        self._nobody_waits = trio.lowlevel.ParkingLot()

    def begin(self, watched: Watched) -> None:
        """From now on its deadline counts."""
        self._waiting.add(watched)
        self._nobody_waits.unpark_all()

    def end(self, watched: Watched) -> None:
        """It waits no more."""
        self._waiting.discard(watched)

    async def run(self) -> None:
        """Cut off those whose time is up, for ever."""
        while True:
            if not self._waiting:
                await self._nobody_waits.park()
            await trio.sleep(EVERY)
            now = trio.current_time()
            for late in [each for each in self._waiting if now >= each.deadline]:
                if late in self._waiting:  # it may have had its answer while another was cut off
                    await late.cut_off()
