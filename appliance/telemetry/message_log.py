"""The log lines of each message, from acceptance to webhook: one for each step, all with the message's id.

A line costs as much as signing a message. So a step is only noted when it happens, and the lines are written every
tenth of a second, many in one write.
"""

import time
from typing import Any

import trio

from appliance.telemetry.log import get_logger, write_many

WRITE_EVERY = 0.1  # seconds
NOTES_WAITING = 10_000  # more are counted, not kept

log = get_logger("mail")


class MessageLog:
    """Notes that wait to be written; none are kept unless `keep` is set."""

    def __init__(self, size: int = NOTES_WAITING) -> None:
        self.keep = False
        self._size = size
        self._notes: list[tuple[float, str, dict[str, Any]]] = []  # seconds since 1970, event, fields
        self._lost = 0

    def note(self, event: str, **fields: Any) -> None:
        """A step of a message; the first field is its `message_id`."""
        if not self.keep:
            return
        if len(self._notes) < self._size:
            self._notes.append((time.time(), event, fields))
        else:
            self._lost += 1

    async def run(self) -> None:
        while True:
            await trio.sleep(WRITE_EVERY)
            self.write()

    def write(self) -> None:
        notes, self._notes = self._notes, []
        if notes:
            write_many(log, notes)
        if self._lost:
            lost, self._lost = self._lost, 0
            log.warning("lines about messages were lost: too many at once", lines=lost)


MESSAGE_LOG = MessageLog()
