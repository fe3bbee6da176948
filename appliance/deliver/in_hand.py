"""In charge of how many parcels are in hand: taken, and not yet on their way. PURE."""


class InHand:
    """Parcels in hand, by pool."""

    def __init__(self) -> None:
        self.total = 0
        self._by_pool: dict[str, int] = {}  # none of 0

    def __contains__(self, pool: object) -> bool:
        return pool in self._by_pool

    def __getitem__(self, pool: str) -> int:
        return self._by_pool.get(pool, 0)

    def add(self, pool: str) -> None:
        """One more."""
        self.total += 1
        self._by_pool[pool] = self._by_pool.get(pool, 0) + 1

    def remove(self, pool: str) -> None:
        """One less."""
        self.total -= 1
        left = self._by_pool.pop(pool) - 1
        if left:
            self._by_pool[pool] = left

    def move(self, pool: str, to: str) -> None:
        """It is another pool's after all."""
        if pool != to:
            self.remove(pool)
            self.add(to)
