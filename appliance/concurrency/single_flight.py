"""Tasks that need the same result at the same time share one piece of work, such as a DNS lookup."""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True)
class _Running(Generic[Value]):
    ended: trio.Event = field(default_factory=trio.Event)
    values: list[Value] = field(default_factory=list)  # one; none when the work failed


class SingleFlight(Generic[Key, Value]):
    """Runs work once for all tasks that ask for the same key meanwhile; keeps no result afterwards.

    The first task does the work. When it is cancelled, or its work raises, the next waiting task does it again; so work
    that would fail for all of them should return its failure.
    """

    def __init__(self) -> None:
        self._running: dict[Key, _Running[Value]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """The result of the work, done by this task or by another."""
        while running := self._running.get(key):
            await running.ended.wait()
            if running.values:
                return running.values[0]
        running = self._running[key] = _Running()
        try:
            running.values.append(await work())
            return running.values[0]
        finally:
            del self._running[key]
            running.ended.set()
