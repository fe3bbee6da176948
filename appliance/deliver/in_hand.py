"""In charge of how many parcels are in hand: taken, and not yet on their way. PURE."""

from collections import Counter


class InHand:
    """Parcels in hand, by pool."""

    def __init__(self) -> None:
        self.total = 0
        self._by_pool: Counter[str] = Counter()  # none of 0

    def __contains__(self, pool: object) -> bool:
        return pool in self._by_pool

    def __getitem__(self, pool: str) -> int:
        return self._by_pool[pool]

    def add(self, pool: str) -> None:
        """One more."""
        self.total += 1
        self._by_pool[pool] += 1

    def remove(self, pool: str) -> None:
        """One less."""
        self.total -= 1
        self._by_pool[pool] -= 1
        if not self._by_pool[pool]:
            del self._by_pool[pool]

    def move(self, pool: str, to: str) -> None:
        """It is another pool's after all."""
        if pool != to:
            self.remove(pool)
            self.add(to)
