"""Caches bounded by time or bytes, and work that several tasks share. For DNS, TLS policies, credentials and mail."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def trio_clock() -> Callable[[], float]:
    """Trio's clock; inside a run, one that takes one call instead of three. A message reads it thirty times."""
    return trio.lowlevel.current_clock().current_time if trio.lowlevel.in_trio_run() else trio.current_time


class TtlCache(Generic[Key, Value]):
    """At most `size` values, each for `ttl` by the clock (Trio's: seconds). A value must not be None.

    A full cache drops the least recently used value. Every call takes constant time. If a wall clock was set back, a
    value from the future counts as expired.
    """

    def __init__(self, size: int, ttl: float, clock: Callable[[], float] | None = None) -> None:
        self._size, self._ttl, self._clock = size, ttl, clock or trio_clock()
        self._entries: OrderedDict[Key, tuple[Value, float, float]] = OrderedDict()  # value, since, until

    def get(self, key: Key) -> Value | None:
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
        return len(self._entries)


class RecentBytes(Generic[Key]):
    """The newest values, at most `limit` bytes of them; a larger value is not kept."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._values: dict[Key, bytes] = {}  # the oldest first

    def put(self, key: Key, value: bytes) -> None:
        self.discard(key)
        self._values[key] = value
        self._left -= len(value)
        while self._left < 0:
            self.discard(next(iter(self._values)))

    def get(self, key: Key) -> bytes | None:
        return self._values.get(key)

    def discard(self, key: Key) -> None:
        if (value := self._values.pop(key, None)) is not None:
            self._left += len(value)


class SingleFlight(Generic[Key, Value]):
    """Runs work once for all tasks that ask for the same key at the same time; keeps no result afterwards.

    The first task runs the work. If it is cancelled or the work raises, the next waiting task runs it again. Work that
    would fail for all tasks should therefore return its failure.
    """

    def __init__(self) -> None:
        self._running: dict[Key, tuple[trio.Event, list[Value]]] = {}  # the end; then one value, none after a failure

    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        while running := self._running.get(key):
            await running[0].wait()
            if running[1]:
                return running[1][0]
        ended, values = self._running[key] = trio.Event(), []
        try:
            values.append(await work())
            return values[0]
        finally:
            del self._running[key]
            ended.set()
