"""How many of a limited number of places each holder may take. PURE.

A holder may take one more while it has fewer than SHARE times as many as are still free. So one alone gets four fifths
of them, two get four ninths each, and however many hold places already, some stay free for whoever comes next.
"""

SHARE = 4


def may_take(held: int, free: int) -> bool:
    """Whether a holder of so many places may take one of those that are free."""
    return held < SHARE * free


class Shares:
    """The places, and how many of them each holder has."""

    __slots__ = ("_held", "places", "used")

    def __init__(self, places: int) -> None:
        self.places = places
        self.used = 0
        self._held: dict[str, int] = {}  # none of 0

    def of(self, holder: str) -> int:
        """How many places it has."""
        return self._held.get(holder, 0)

    def have_room(self, holder: str) -> bool:
        """Whether it may take one more."""
        return may_take(self._held.get(holder, 0), self.places - self.used)

    def take(self, holder: str) -> None:
        """It has one more."""
        self.used += 1
        self._held[holder] = self._held.get(holder, 0) + 1

    def give_back(self, holder: str) -> None:
        """It has one less."""
        self.used -= 1
        if left := self._held.pop(holder) - 1:
            self._held[holder] = left
