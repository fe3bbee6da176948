"""Idle connections by key, kept for reuse. For delivery and webhooks. No I/O: the caller closes what it takes out.

Of several with one key the one used last is taken first, so that the others stay idle and are closed.
"""

from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Connection = TypeVar("Connection", bound=Hashable)


class IdlePool(Generic[Key, Connection]):
    """The idle connections; every call takes constant time, or a time proportional to those with one key."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Connection, None]] = {}  # each in order of last use
        self._all: dict[Connection, tuple[Key, float]] = {}  # in that order: its key, and since when it is idle

    def __len__(self) -> int:
        return len(self._all)

    def count(self, key: Key) -> int:
        return len(self._by_key.get(key, ()))

    def put(self, key: Key, connection: Connection) -> None:
        self._by_key.setdefault(key, {})[connection] = None
        self._all[connection] = key, trio.current_time()

    def take(self, key: Key, fits: Callable[[Connection], bool] | None = None) -> Connection | None:
        """Remove and return the one with that key that was used last, of those that fit."""
        for connection in reversed(self._by_key.get(key, {})):
            if fits is None or fits(connection):
                return self._remove(connection)
        return None

    def take_oldest(self, idle_since: float = inf) -> Connection | None:
        """Remove and return the one idle for longest, unless it was used later than that (Trio's clock)."""
        for connection, (_, since) in self._all.items():
            return self._remove(connection) if since <= idle_since else None
        return None

    def _remove(self, connection: Connection) -> Connection:
        key, _ = self._all.pop(connection)
        waiting = self._by_key[key]
        del waiting[connection]
        if not waiting:
            del self._by_key[key]
        return connection
