"""Limits how many large answers are in memory at once: each takes a slot until it has been written to its client.

Rules:
- There are ANSWER_SLOTS slots. An account may have ACCOUNT_SLOTS, the second only while half of all are free.
- A slot that becomes free goes to the client that has waited longest, of those whose account may have one more.
- A client that waits makes another give way that has not read a piece of its answer for STALLED_AFTER seconds: one of
  its own account if that has a slot, of any account otherwise. The connection of the other one ends.
- A client that waits for longer than it may is told to retry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.errors import Code, Refused

ANSWER_SLOTS = 8  # each answer has up to 12 MiB when every character of it must be escaped
ACCOUNT_SLOTS = 2
STALLED_AFTER = 1.0  # seconds without a read
STALL_CHECK_INTERVAL = 0.25  # seconds between two searches for a stalled client


@dataclass(eq=False, slots=True)
class AnswerSlot:
    """One client's slot, or its wait for one."""

    account_id: str
    table: "AnswerSlots"
    given: trio.Event = field(default_factory=trio.Event)
    read_at: float = inf  # when the client last read something; never late before it has something to read
    cut: Callable[[], None] | None = None

    def begin(self, cut: Callable[[], None]) -> None:
        """The answer is being written from now on; calling `cut` ends that."""
        self.cut = cut
        self.progress()

    def progress(self) -> None:
        self.read_at = trio.current_time()

    def release(self) -> None:
        """Give the slot back; it may be called more than once."""
        self.table.end(self)


class AnswerSlots:
    def __init__(self, wait: float) -> None:
        self._wait = wait  # seconds that a client waits at most
        self._held: list[AnswerSlot] = []
        self._waiting: list[AnswerSlot] = []  # oldest first

    async def take(self, account_id: str) -> AnswerSlot:
        """Wait for a slot; the caller must release it."""
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
        text = "Too many messages are being read right now. Retry in a moment."
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
        """End the answer that its client has not read for longest, if that is too long."""
        own = self._own(account_id)
        writing = [each for each in self._held if each.cut and (not own or each.account_id == account_id)]
        slowest = min(writing, key=lambda each: each.read_at, default=None)
        if slowest is not None and slowest.cut is not None and trio.current_time() - slowest.read_at >= STALLED_AFTER:
            slowest.cut()
            slowest.cut = None
