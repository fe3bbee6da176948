"""In charge of letting tasks that want the same thing at the same time share one piece of work."""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True)
class _Running(Generic[Value]):
    ended: trio.Event = field(default_factory=trio.Event)
    values: list[Value] = field(default_factory=list)  # one; none when the work did not come to its end


class Joint(Generic[Key, Value]):
    """Runs work once for all who ask for it under one key meanwhile; remembers nothing afterwards.

    The work is done by the first who asks. When that task is cancelled, or its work raises, the next of those who wait
    does it again; so work that may fail for everybody should return its failure.
    """

    def __init__(self) -> None:
        self._running: dict[Key, _Running[Value]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """What the work gives, done here or by another."""
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
