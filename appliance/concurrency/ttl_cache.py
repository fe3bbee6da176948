"""A bounded cache whose values expire. For lookups of DNS, TLS policies, credentials and the like.

When it is full, the value that was used longest ago goes. Every call takes constant time.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TtlCache(Generic[Key, Value]):
    """At most `size` values, each for `ttl` by the clock (Trio's: seconds). A value must not be None.

    By a wall clock that was set back, a value comes from the future; it counts as expired.
    """

    __slots__ = ("_clock", "_entries", "_size", "_ttl")

    def __init__(self, size: int, ttl: float, clock: Callable[[], float] = trio.current_time) -> None:
        self._size = size
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[Value, float, float]] = OrderedDict()  # value, since, until

    def get(self, key: Key) -> Value | None:
        """The value, unless there is none or it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, since, until = entry
        if not since <= self._clock() < until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value, ttl: float | None = None) -> None:
        """Keep a value, for a time of its own if one is given."""
        now = self._clock()
        self._entries[key] = value, now, now + (self._ttl if ttl is None else ttl)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def discard(self, key: Key) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        """How many values are held, expired ones included."""
        return len(self._entries)
