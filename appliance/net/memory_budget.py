"""Memory for data that clients send: one budget for all clients, of which one owner may have a share.

HTTP request bodies wait for memory (`take`); SMTP messages are rejected at once without it (`try_take`). The
budget only counts; the caller allocates.
"""

from bisect import insort
from dataclasses import dataclass, field

import trio

from appliance.concurrency.fair_share import Shares


class MemoryBudget:
    """Bytes that owners (accounts or networks) hold for request bodies.

    When the budget is used up, bodies wait, and the oldest gets memory first, not the owner whose turn it is: a body
    holds its memory until it ends, so turns could leave all bodies half read. One body at a time, the oldest waiting
    one, may exceed the limits, so that any single body fits.
    """

    def __init__(self, total: int, *, owner_part: int) -> None:
        self.shares = Shares[str](total)
        self._owner_limit = total // owner_part  # bytes
        self._requests: list[_Request] = []  # waiting, the oldest body first
        self._excess_age: int | None = None  # the age of the body that may exceed the limits

    def try_take(self, owner: str, amount: int) -> bool:
        """Take memory at once, if there is enough. An owner that holds none may exceed its share."""
        held = self.shares.of(owner)
        if amount > self.shares.free or (held and held + amount > self._owner_limit):
            return False
        if amount:
            self.shares.take(owner, amount)
        return True

    async def take(self, owner: str, amount: int, *, age: int, patience: float) -> bool:
        """Take more memory for a body; False after `patience` seconds without success. `age` orders the bodies."""
        request = _Request(age, owner, amount)
        insort(self._requests, request)
        self._grant()
        if request.granted.is_set():
            return True
        try:
            with trio.move_on_after(patience):
                await request.granted.wait()
        finally:
            if not request.granted.is_set():
                self._requests.remove(request)
        return request.granted.is_set()

    def give_back(self, owner: str, amount: int, age: int | None = None) -> None:
        self.shares.give_back(owner, amount)
        if self._excess_age == age:
            self._excess_age = None
        self._grant()

    def _grant(self) -> None:
        is_used_up = False
        for request in list(self._requests):
            if request.age != self._excess_age:
                if is_used_up:
                    continue  # a younger body must not take the memory that an older one waits for
                held = self.shares.of(request.owner) + request.amount
                if request.amount > self.shares.free or held > self._owner_limit:
                    if self._excess_age is not None:
                        is_used_up = request.amount > self.shares.free
                        continue
                    self._excess_age = request.age
            self._requests.remove(request)
            self.shares.take(request.owner, request.amount)
            request.granted.set()


@dataclass(slots=True, order=True)
class _Request:
    age: int  # the order in which bodies began
    owner: str = field(compare=False)
    amount: int = field(compare=False)
    granted: trio.Event = field(compare=False, default_factory=trio.Event)
