"""In charge of how many parcels are in hand: taken, and not yet on their way. PURE."""


class InHand:
    """Parcels in hand, by pool, and by account within a pool."""

    def __init__(self) -> None:
        self.total = 0
        self._by_pool: dict[str, int] = {}  # none of 0, here and below
        self._by_account: dict[tuple[str, str], int] = {}

    def __contains__(self, pool: object) -> bool:
        return pool in self._by_pool

    def __getitem__(self, pool: str) -> int:
        return self._by_pool.get(pool, 0)

    def of(self, pool: str, account: str) -> int:
        """How many there are of an account for a pool."""
        return self._by_account.get((pool, account), 0)

    def add(self, pool: str, account: str) -> None:
        """One more."""
        self.total += 1
        self._by_pool[pool] = self._by_pool.get(pool, 0) + 1
        self._by_account[pool, account] = self._by_account.get((pool, account), 0) + 1

    def remove(self, pool: str, account: str) -> None:
        """One less."""
        self.total -= 1
        if left := self._by_pool.pop(pool) - 1:
            self._by_pool[pool] = left
        if left := self._by_account.pop((pool, account)) - 1:
            self._by_account[pool, account] = left

    def move(self, pool: str, to: str, account: str) -> None:
        """It is another pool's after all."""
        if pool != to:
            self.remove(pool, account)
            self.add(to, account)
