"""Reads whose result comes late, as from a database on another machine: what happens meanwhile is the test's to say."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest


def late(monkeypatch: pytest.MonkeyPatch, part: type, verb: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """Let `meanwhile` run once: after the next read by a verb of the store, and before its result is returned."""
    read = getattr(part, verb)
    left = [meanwhile]

    async def reading(*given: Any, **named: Any) -> Any:
        found = await read(*given, **named)
        if left:
            await left.pop()()
        return found

    monkeypatch.setattr(part, verb, reading)
