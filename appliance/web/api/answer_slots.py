"""Limits how many large responses are in memory: each holds a slot until it is written to its client.

Rules:
- There are ANSWER_SLOTS slots. An account may hold ACCOUNT_SLOTS, the second only while half of all slots are free.
- A free slot goes to the longest-waiting client whose account may hold one more.
- A waiting client evicts a response whose client has read nothing for STALLED_AFTER seconds: one of its own account if
  that holds a slot, otherwise any. The evicted connection is closed.
- A client that waits too long gets a 503.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.errors import Code, Refused

ANSWER_SLOTS = 8  # a response has up to 12 MiB if every character is escaped
ACCOUNT_SLOTS = 2
STALLED_AFTER = 1.0  # seconds without a read
STALL_CHECK_INTERVAL = 0.25  # seconds between searches for a stalled client


@dataclass(eq=False, slots=True)
class AnswerSlot:
    """A client's slot, or its place in the queue."""

    account_id: str
    table: "AnswerSlots"
    given: trio.Event = field(default_factory=trio.Event)
    read_at: float = inf  # time of the client's last read; infinite until writing starts
    cut: Callable[[], None] | None = None

    def begin(self, cut: Callable[[], None]) -> None:
        """Writing starts. `cut` aborts it."""
        self.cut = cut
        self.progress()

    def progress(self) -> None:
        self.read_at = trio.current_time()

    def release(self) -> None:
        """Release the slot. Safe to call more than once."""
        self.table.end(self)


class AnswerSlots:
    def __init__(self, wait: float) -> None:
        self._wait = wait  # maximum wait in seconds
        self._held: list[AnswerSlot] = []
        self._waiting: list[AnswerSlot] = []  # oldest first

    async def take(self, account_id: str) -> AnswerSlot:
        """Wait for a slot. The caller must release it."""
        slot = AnswerSlot(account_id, self)
        self._waiting.append(slot)
        self._deal()
        try:
            with trio.move_on_after(self._wait):
                while not slot.given.is_set():
                    with trio.move_on_after(STALL_CHECK_INTERVAL):
                        await slot.given.wait()
                        break
                    self._make_room_for(account_id)
        except BaseException:
            slot.release()
            raise
        if slot in self._held:
            return slot
        slot.release()
        text = "The server is reading too many messages. Retry in a few seconds."
        raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=5)

    def end(self, slot: AnswerSlot) -> None:
        for table in (self._held, self._waiting):
            if slot in table:
                table.remove(slot)
        self._deal()

    def _deal(self) -> None:
        for slot in list(self._waiting):
            held, own = len(self._held), self._own(slot.account_id)
            if held < ANSWER_SLOTS and (not own or (own < ACCOUNT_SLOTS and held < ANSWER_SLOTS // 2)):
                self._waiting.remove(slot)
                self._held.append(slot)
                slot.given.set()

    def _own(self, account_id: str) -> int:
        return sum(slot.account_id == account_id for slot in self._held)

    def _make_room_for(self, account_id: str) -> None:
        """Abort the response that has stalled longest, if it has stalled."""
        own = self._own(account_id)
        writing = [slot for slot in self._held if slot.cut and (not own or slot.account_id == account_id)]
        slowest = min(writing, key=lambda slot: slot.read_at, default=None)
        if slowest is not None and slowest.cut is not None and trio.current_time() - slowest.read_at >= STALLED_AFTER:
            slowest.cut()
            slowest.cut = None
