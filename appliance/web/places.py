"""Places for large answers, of which few may be in memory at once: who has one, who is next, and who gives way.

Rules:
- There are PLACES places. An account may have OWN_PLACES, the second only while half of all are free.
- A place that becomes free goes to the client that has waited longest, of those whose account may have one more.
- A client that waits makes another give way that has not read a piece of its answer for STALLED seconds: one of its own
  account if that has a place, of any account otherwise. The connection of the other one ends.
- A client that waits for longer than it may is told to retry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.errors import Code, Refused

PLACES = 8  # each answer has up to 12 MiB when every character of it must be escaped
OWN_PLACES = 2
STALLED = 1.0  # seconds
LOOK_EVERY = 0.25  # seconds


@dataclass(eq=False, slots=True)
class Place:
    """One client's place, or its wait for one."""

    account_id: str
    table: "Places"
    given: trio.Event = field(default_factory=trio.Event)
    read_at: float = inf  # when the client last read something; never late before it has something to read
    cut: Callable[[], None] | None = None

    def begin(self, cut: Callable[[], None]) -> None:
        """The answer is being written from now on; `cut` ends that."""
        self.cut = cut
        self.progress()

    def progress(self) -> None:
        """The client has read something."""
        self.read_at = trio.current_time()

    def release(self) -> None:
        """Give the place back; it may be called more than once."""
        self.table.end(self)


class Places:
    """All places."""

    def __init__(self, wait: float) -> None:
        self._wait = wait  # seconds that a client waits at most
        self._held: list[Place] = []
        self._waiting: list[Place] = []  # oldest first

    async def take(self, account_id: str) -> Place:
        """Wait for a place; whoever has it must release it."""
        place = Place(account_id, self)
        self._waiting.append(place)
        self._deal()
        try:
            with trio.move_on_after(self._wait):
                while not place.given.is_set():
                    with trio.move_on_after(LOOK_EVERY):
                        await place.given.wait()
                        break
                    self._make_room_for(account_id)
        except BaseException:
            place.release()
            raise
        if place in self._held:
            return place
        place.release()
        raise Refused(
            Code.TEMPORARY_FAILURE, "Too many messages are being read right now. Retry in a moment.", retry_after=5
        )

    def end(self, place: Place) -> None:
        """A client has its place no longer, or waits no longer."""
        for table in (self._held, self._waiting):
            if place in table:
                table.remove(place)
        self._deal()

    def _deal(self) -> None:
        for place in list(self._waiting):
            if self._may_have_one(place.account_id):
                self._waiting.remove(place)
                self._held.append(place)
                place.given.set()

    def _may_have_one(self, account_id: str) -> bool:
        own = self._own(account_id)
        return len(self._held) < PLACES and (not own or (own < OWN_PLACES and len(self._held) < PLACES // 2))

    def _own(self, account_id: str) -> int:
        return sum(place.account_id == account_id for place in self._held)

    def _make_room_for(self, account_id: str) -> None:
        """End the answer that its client has not read for longest, if that is too long."""
        own = self._own(account_id)
        writing = [each for each in self._held if each.cut and (not own or each.account_id == account_id)]
        slowest = min(writing, key=lambda each: each.read_at, default=None)
        if slowest is not None and slowest.cut is not None and trio.current_time() - slowest.read_at >= STALLED:
            slowest.cut()
            slowest.cut = None
