"""In charge of the trail of each message through the log: one line for each step, all with its id.

A line of the log costs as much as signing a message. So a step is only noted on its way, and the lines are written a
moment later, many at once.
"""

import time
from typing import Any, NamedTuple

import trio

from appliance.telemetry.log import get_logger, write_many

WRITE_EVERY = 0.1  # seconds
MOST = 10_000  # notes that wait; what finds no room is counted, not kept

log = get_logger("mail")


class Note(NamedTuple):
    """One step of one message."""

    at: float  # seconds since 1970
    event: str
    fields: dict[str, Any]


class Trail:
    """Notes that wait to be written; none are taken before `keep` is set."""

    def __init__(self) -> None:
        self.keep = False
        self._notes: list[Note] = []
        self._lost = 0

    def note(self, event: str, **fields: Any) -> None:
        """A step of a message; the first field is its `message_id`."""
        if not self.keep:
            return
        if len(self._notes) < MOST:
            self._notes.append(Note(time.time(), event, fields))
        else:
            self._lost += 1

    async def run(self) -> None:
        """Write what is noted, for ever."""
        while True:
            await trio.sleep(WRITE_EVERY)
            self.write()

    def write(self) -> None:
        """Write what is noted."""
        notes, self._notes = self._notes, []
        if notes:
            write_many(log, [(note.at, note.event, note.fields) for note in notes])
        if self._lost:
            lost, self._lost = self._lost, 0
            log.warning("lines about messages were lost: too many at once", lines=lost)


TRAIL = Trail()
