"""Reads an account's events by time, for clients that ask for them instead of receiving webhooks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from appliance.store.engine import StorePart, Tx, rows

Item = TypeVar("Item")

_BLOCK = 200  # events between two checks of the time: some milliseconds
_READ_TIME = 0.05  # seconds of reading for one page
_ASCENDING = """SELECT e.id, m.credential, m.envelope_from, e.body
    FROM events e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    WHERE e.account_id = :account_id AND e.id > :after AND e.id < :before ORDER BY e.id LIMIT :most"""
_DESCENDING = _ASCENDING.replace("ORDER BY e.id", "ORDER BY e.id DESC")


class StoredEvent(NamedTuple):
    id: str
    credential: str | None  # that sent the message
    envelope_from: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EventFeed(StorePart):
    clock: Callable[[], float] = time.monotonic

    async def page(
        self,
        account_id: str,
        select: Callable[[StoredEvent], Item | None],
        *,
        after: str,
        before: str,
        descending: bool,
        most: int,
    ) -> tuple[list[Item], str | None]:
        """Return selected events with ids between `after` and `before`, and the id to continue at (None at the end).

        Reads for a bounded time: there may be no event yet.
        """

        def work(tx: Tx) -> tuple[list[Item], str | None]:
            items, end = list[Item](), self.clock() + _READ_TIME
            bounds = {"account_id": account_id, "after": after, "before": before, "most": _BLOCK}
            while True:
                block = [StoredEvent(*row) for row in rows(tx, _DESCENDING if descending else _ASCENDING, bounds)]
                for event in block:
                    if (item := select(event)) is not None:
                        items.append(item)
                        if len(items) == most:
                            return items, event.id
                if len(block) < _BLOCK:
                    return items, None
                if self.clock() >= end:
                    return items, block[-1].id
                bounds["before" if descending else "after"] = block[-1].id

        return await self.engine.scan(work, account_id)
