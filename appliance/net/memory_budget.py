"""Memory for what clients send: one budget for all of them, of which each owner may have a share.

For bodies of HTTP requests, which wait until there is memory (`take`), and for messages over SMTP, which are refused at
once when there is none (`try_take`). Only counts: the caller allocates.
"""

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field

import trio


class MemoryBudget:
    """Bytes that owners (accounts or networks) take for bodies.

    When it is used up, bodies wait, and the oldest goes on first, so that bodies come to their end instead of all
    standing half read. One at a time, the oldest that waits, may go beyond the limits: so any single body fits.
    """

    def __init__(self, total: int, *, owner_part: int) -> None:
        self._free = total
        self._share = total // owner_part  # of one owner
        self.used_by: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []  # the oldest body first
        self._beyond: int | None = None  # the age of the body that may go beyond the limits

    def try_take(self, owner: str, amount: int) -> bool:
        """Take some at once, if there is some; an owner that has none yet may take more than its share."""
        mine = self.used_by[owner]
        if amount > self._free or (mine and mine + amount > self._share):
            return False
        self._count(owner, amount)
        return True

    async def take(self, owner: str, amount: int, *, age: int, patience: float) -> bool:
        """Take some more for a body, False when there is none within the time; `age` is the order of the bodies."""
        waiting = _Waiting(age, owner, amount)
        insort(self._waiting, waiting)
        self._grant()
        if waiting.granted.is_set():
            return True
        try:
            with trio.move_on_after(patience):
                await waiting.granted.wait()
        finally:
            if not waiting.granted.is_set():
                self._waiting.remove(waiting)
        return waiting.granted.is_set()

    def give_back(self, owner: str, amount: int, age: int | None = None) -> None:
        self._count(owner, -amount)
        if not self.used_by[owner]:
            del self.used_by[owner]
        if self._beyond == age:
            self._beyond = None
        self._grant()

    def _count(self, owner: str, amount: int) -> None:
        self._free -= amount
        self.used_by[owner] += amount

    def _grant(self) -> None:
        used_up = False
        for waiting in list(self._waiting):
            if waiting.age != self._beyond:
                if used_up:
                    continue  # younger ones must not take what an older one waits for
                mine = self.used_by[waiting.owner] + waiting.amount
                if waiting.amount > self._free or mine > self._share:
                    if self._beyond is not None:
                        used_up = waiting.amount > self._free
                        continue
                    self._beyond = waiting.age
            self._waiting.remove(waiting)
            self._count(waiting.owner, waiting.amount)
            waiting.granted.set()


@dataclass(slots=True, order=True)
class _Waiting:
    age: int  # the order in which bodies began
    owner: str = field(compare=False)
    amount: int = field(compare=False)
    granted: trio.Event = field(compare=False, default_factory=trio.Event)
