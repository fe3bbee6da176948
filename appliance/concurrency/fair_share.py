"""Shares a limited resource between owners: `Shares` counts who holds how much, and in a `TurnQueue` owners take turns.

Every device that divides slots, bytes or time between accounts, networks or receivers is built from these two classes
(docs/decisions.md, "How shares, budgets and limits interact"). Neither waits nor does I/O: a device adds its own limit
per holder, and decides whether a request waits or is refused.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

SHARE_OF_FREE = 4  # a holder may have fewer than four times as many slots as are free
SPARE_SHARE = 2  # the stricter share, for uses that yield to other uses of the same holder

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


def may_take(held: int, free: int, share: int = SHARE_OF_FREE) -> bool:
    """Whether a holder of `held` slots may take one of the `free` ones: if it holds fewer than `share` times as many.

    One holder gets four fifths of all slots, two get four ninths each. However many hold slots, one stays free.
    """
    return held < share * free


class Shares(Generic[Owner]):
    """A limited amount of slots or bytes, and how much of it each holder has."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._held: dict[Owner, int] = {}  # no zeros

    @property
    def free(self) -> int:
        """Negative while more is in use than there is, after `total` shrank."""
        return self.total - self.used

    def of(self, holder: Owner) -> int:
        return self._held.get(holder, 0)

    def has_room(self, holder: Owner, share: int = SHARE_OF_FREE) -> bool:
        return may_take(self._held.get(holder, 0), self.total - self.used, share)

    def take(self, holder: Owner, amount: int = 1) -> None:
        """Count an amount as held. The caller checks the limit."""
        self.used += amount
        self._held[holder] = self._held.get(holder, 0) + amount

    def give_back(self, holder: Owner, amount: int = 1) -> None:
        self.used -= amount
        if remaining := self._held.pop(holder) - amount:
            self._held[holder] = remaining


class TurnQueue(Generic[Owner, Item]):
    """A queue in which owners take turns; each owner's items keep their order."""

    def __init__(self) -> None:
        self._items: dict[Owner, deque[Item]] = {}  # the owner whose turn is next comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def owners(self) -> Iterable[Owner]:
        """Owners with items, in the order of their turns."""
        return self._items.keys()

    def count(self, owner: Owner) -> int:
        items = self._items.get(owner)
        return 0 if items is None else len(items)

    def add(self, owner: Owner, item: Item, ahead_of: Callable[[Item], bool] | None = None) -> None:
        """Add an item behind its owner's others, or before the first one that it goes `ahead_of`."""
        items = self._items.setdefault(owner, deque())
        place = len(items)
        if ahead_of is not None:
            place = next((place for place, other in enumerate(items) if ahead_of(other)), place)
        items.insert(place, item)
        self._count += 1

    def put_back(self, owner: Owner, item: Item) -> None:
        """Make an item its owner's next one. The owner keeps its place among the owners."""
        self._items.setdefault(owner, deque()).appendleft(item)
        self._count += 1

    def remove(self, owner: Owner, item: Item) -> None:
        items = self._items[owner]
        items.remove(item)
        self._count -= 1
        if not items:
            del self._items[owner]

    def peek(self) -> Item:
        return next(iter(self._items.values()))[0]

    def heads(self) -> list[Item]:
        """Every owner's first item, in the order of their turns."""
        return [items[0] for items in self._items.values()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """Remove and return the first head that may go. An owner whose head may not go keeps its turn."""
        for owner, items in self._items.items():
            if may_go(items[0]):
                return self.next_of(owner)
        return None

    def next(self) -> Item:
        return self.next_of(next(iter(self._items)))

    def next_of(self, owner: Owner) -> Item:
        """Remove and return an owner's first item; the owner's next turn comes after all others'."""
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        self._count -= 1
        return item

    def drain(self) -> list[Item]:
        """Remove and return all items, by turns."""
        return [self.next() for _ in range(self._count)]
