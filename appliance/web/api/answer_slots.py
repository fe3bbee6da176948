"""Limits the number of large responses in memory: a response holds a slot until its client has read it.

- There are `ANSWER_SLOTS` slots. An account may have `ACCOUNT_SLOTS`, the second only while half of all are free.
- A free slot goes to the waiting accounts in turn, of those that may have one more.
- A waiting client ends another client's response that made no progress for `STALLED_AFTER` seconds: one of its own
  account if the account has a slot, else one of any account. The connection of that client ends.
- A client that waits too long must retry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.concurrency.fair_share import Shares, TurnQueue
from appliance.errors import Code, Refused

ANSWER_SLOTS = 8  # a response takes up to 12 MiB if every character must be escaped
ACCOUNT_SLOTS = 2
STALLED_AFTER = 1.0  # seconds without a read
STALL_CHECK_INTERVAL = 0.25  # seconds between two searches for a stalled client


@dataclass(eq=False, slots=True)
class AnswerSlot:
    """One client's slot, or its place in the queue for one."""

    account_id: str
    table: "AnswerSlots"
    granted: trio.Event = field(default_factory=trio.Event)
    read_at: float = inf  # when the client last read something; infinite until there is something to read
    cut: Callable[[], None] | None = None

    def begin(self, cut: Callable[[], None]) -> None:
        """Note that the response is being written; calling `cut` ends that."""
        self.cut = cut
        self.progress()

    def progress(self) -> None:
        self.read_at = trio.current_time()

    def release(self) -> None:
        """Give the slot back; may be called more than once."""
        self.table.end(self)


class AnswerSlots:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # seconds that a client waits at most
        self._shares = Shares[str](ANSWER_SLOTS)  # by account
        self._held: set[AnswerSlot] = set()
        self._waiting = TurnQueue[str, AnswerSlot]()

    async def take(self, account_id: str) -> AnswerSlot:
        """Wait for a slot; the caller must release it."""
        slot = AnswerSlot(account_id, self)
        self._waiting.add(account_id, slot)
        self._grant()
        try:
            with trio.move_on_after(self._timeout):
                while not slot.granted.is_set():
                    with trio.move_on_after(STALL_CHECK_INTERVAL):
                        await slot.granted.wait()
                        break
                    self._cut_stalled(account_id)
        except BaseException:
            slot.release()
            raise
        if slot in self._held:
            return slot
        slot.release()
        text = "The server is reading too many messages. Retry in a few seconds."
        raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=5)

    def end(self, slot: AnswerSlot) -> None:
        if slot in self._held:
            self._held.remove(slot)
            self._shares.give_back(slot.account_id)
        elif not slot.granted.is_set():
            slot.granted.set()  # so that a second release changes nothing
            self._waiting.remove(slot.account_id, slot)
        self._grant()

    def _grant(self) -> None:
        while (slot := self._waiting.next_that(self._may_have)) is not None:
            self._shares.take(slot.account_id)
            self._held.add(slot)
            slot.granted.set()

    def _may_have(self, slot: AnswerSlot) -> bool:
        held = self._shares.of(slot.account_id)
        return self._shares.free > (0 if not held else ANSWER_SLOTS // 2) and held < ACCOUNT_SLOTS

    def _cut_stalled(self, account_id: str) -> None:
        """End the response that its client has not read for longest, if that is too long."""
        own = self._shares.of(account_id)
        writing = [slot for slot in self._held if slot.cut and (not own or slot.account_id == account_id)]
        stalled = min(writing, key=lambda slot: slot.read_at, default=None)
        if stalled is not None and stalled.cut is not None and trio.current_time() - stalled.read_at >= STALLED_AFTER:
            stalled.cut()
            stalled.cut = None
