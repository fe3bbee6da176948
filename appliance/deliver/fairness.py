"""Sharing between accounts: a queue in which they take turns, and limited slots of which none gets all. No I/O."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

SHARE_OF_FREE = 4  # times the free slots that one holder may have

Item = TypeVar("Item")


class AccountQueue(Generic[Item]):
    """A queue in which accounts take turns, each with its own items in order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # the account whose turn is next stands first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, account: str, item: Item) -> None:
        self._waiting.setdefault(account, deque()).append(item)
        self._count += 1

    def put_back(self, account: str, item: Item) -> None:
        """Make it the next of its account, which has had its turn all the same."""
        self._waiting.setdefault(account, deque()).appendleft(item)
        self._count += 1

    def peek(self) -> Item:
        return next(iter(self._waiting.values()))[0]

    def heads(self) -> list[Item]:
        """The first item of every account, in the order of their turns."""
        return [waiting[0] for waiting in self._waiting.values()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """The first item that may go, by turns; an account whose first may not keeps its turn and blocks no other."""
        for account, waiting in self._waiting.items():
            if may_go(waiting[0]):
                return self._take(account)
        return None

    def drain(self) -> list[Item]:
        """Everything, by turns; the queue is empty afterwards."""
        return [self.next() for _ in range(self._count)]

    def next(self) -> Item:
        return self._take(next(iter(self._waiting)))

    def _take(self, account: str) -> Item:
        """The first item of an account, which then stands behind all others."""
        waiting = self._waiting.pop(account)
        item = waiting.popleft()
        if waiting:
            self._waiting[account] = waiting
        self._count -= 1
        return item


def may_take(held: int, free: int) -> bool:
    """Whether a holder of so many slots may take one of those that are free: fewer than SHARE_OF_FREE times as many.

    So a single holder gets four fifths of all slots, two get four ninths each, and however many hold slots already,
    some stay free for the next one.
    """
    return held < SHARE_OF_FREE * free


class Shares:
    """A limited number of slots, and how many of them each holder has."""

    def __init__(self, slots: int) -> None:
        self.slots, self.used = slots, 0
        self._held: dict[str, int] = {}  # none of 0

    def of(self, holder: str) -> int:
        return self._held.get(holder, 0)

    def have_room(self, holder: str) -> bool:
        return may_take(self._held.get(holder, 0), self.slots - self.used)

    def take(self, holder: str) -> None:
        self.used += 1
        self._held[holder] = self._held.get(holder, 0) + 1

    def give_back(self, holder: str) -> None:
        self.used -= 1
        if left := self._held.pop(holder) - 1:
            self._held[holder] = left
