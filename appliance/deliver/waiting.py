"""Messages of one pool that wait for a session: accounts take turns, and a large message stops no small one. PURE."""

from collections.abc import Callable

from appliance.deliver.due_mail import Turns
from appliance.deliver.pool_limiter import Gate
from appliance.deliver.preparing import Ready


class Waiting:
    """Two queues, of small and of large messages, which take turns where both could go."""

    __slots__ = ("_first", "_second", "gate")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._first: tuple[bool, Turns[Ready]] = False, Turns()  # whether of large ones; its turn is next
        self._second: tuple[bool, Turns[Ready]] = True, Turns()

    def __len__(self) -> int:
        return len(self._first[1]) + len(self._second[1])

    def add(self, ready: Ready) -> None:
        """Let it wait behind the others of its account and kind."""
        self._of(ready).add(ready.routed.parcel.account_id, ready)

    def put_back(self, ready: Ready) -> None:
        """Let it be the next of its account and kind."""
        self._of(ready).put_back(ready.routed.parcel.account_id, ready)

    def next_that(self, may_go: Callable[[Ready], bool]) -> Ready | None:
        """The next that may go."""
        for _, queue in (self._first, self._second):
            if queue and (ready := queue.next_that(may_go)) is not None:
                if queue is self._first[1] and self._second[1]:
                    self._first, self._second = self._second, self._first
                return ready
        return None

    def heads(self) -> list[Ready]:
        """The first of every account and kind."""
        return self._first[1].heads() + self._second[1].heads()

    def drain(self) -> list[Ready]:
        """Everything; nothing waits any more."""
        return self._first[1].drain() + self._second[1].drain()

    def _of(self, ready: Ready) -> Turns[Ready]:
        large, queue = self._first
        return queue if large == ready.routed.large else self._second[1]
