"""Reads an account's events by time, for clients that ask for them instead of receiving webhooks."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from appliance.store.engine import StorePart, Tx, rows

Item = TypeVar("Item")

_BLOCK = 200  # events between two checks of the time: some milliseconds
_READ_TIME = 0.05  # seconds of reading for one page
_ASCENDING = """SELECT e.id, m.credential, m.envelope_from, e.body
    FROM events e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    WHERE e.account_id = :account_id AND e.id > :after AND e.id < :before ORDER BY e.id LIMIT :most"""
_DESCENDING = _ASCENDING.replace("ORDER BY e.id", "ORDER BY e.id DESC")


class EventRange(NamedTuple):
    """Events with ids between two, from either end, and how many of them."""

    after: str
    before: str
    descending: bool
    most: int

    def behind(self, position: str, count: int = 0) -> "EventRange":
        """The range behind an id, with `count` events fewer."""
        changes: dict[str, Any] = {"before" if self.descending else "after": position, "most": self.most - count}
        return self._replace(**changes)


class StoredEvent(NamedTuple):
    id: str
    credential: str | None  # that sent the message
    envelope_from: str
    body: bytes


class EventFeed(StorePart):
    clock: Callable[[], float] = time.monotonic

    async def page(
        self, account_id: str, select: Callable[[StoredEvent], Item | None], wanted: EventRange
    ) -> tuple[list[Item], str | None]:
        """Return selected events, and the id to continue behind (None at the end).

        Reads for a bounded time: there may be no event yet.
        """

        def work(tx: Tx) -> tuple[list[Item], str | None]:
            items, end = list[Item](), self.clock() + _READ_TIME
            query, part = _DESCENDING if wanted.descending else _ASCENDING, wanted
            while True:
                bounds = {"account_id": account_id, "after": part.after, "before": part.before, "most": _BLOCK}
                block = [StoredEvent(*row) for row in rows(tx, query, bounds)]
                for event in block:
                    if (item := select(event)) is not None:
                        items.append(item)
                        if len(items) == wanted.most:
                            return items, event.id
                if len(block) < _BLOCK:
                    return items, None
                if self.clock() >= end:
                    return items, block[-1].id
                part = part.behind(block[-1].id)

        return await self.engine.scan(work, account_id)
