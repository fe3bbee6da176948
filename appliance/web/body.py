"""Memory for request bodies: how large one may be, and how much all that are being read may take together.

Memory is taken as bytes arrive, never by the length a client promises. Three budgets keep clients apart: large bodies,
small ones, and those of clients that have not authenticated. In each, one account or client network has a share.
The first bytes of a body are free of any budget, so an ordinary login or message never waits for memory.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import trio

from appliance.errors import Code, Refused
from appliance.net.memory_budget import MemoryBudget

# A message lives twice for a while, as it came and as what it becomes (decoded, then MIME); so it is counted twice.
MEMORY_FACTOR = 2
FREE = 8 * 1024  # bytes of each body that are not counted; all connections together have a few MiB of these
STEP = 64 * 1024  # bytes by which a body's memory grows
WAIT = 5.0  # seconds a body may wait for memory, in all, before its client is told to come back
SMALL = 256 * 1024  # bytes up to which a body is small, as nearly all are
SMALL_PART = 8  # one part in so many of the budget is for small bodies only
ACCOUNT_PART = 2  # one part in so many of a budget is what one account may have
ANONYMOUS_BYTES = 8 * 1024 * 1024  # the budget of all clients that have not authenticated
NETWORK_PART = 8  # one part in so many of that is what one network may have

_ages = count()

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its body was complete; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose body it is, and which budgets it is counted in."""

    name: str
    small: MemoryBudget
    large: MemoryBudget


class Budget:
    """The memory of all bodies. Large ones cannot take the part of small ones, nor strangers that of accounts."""

    def __init__(self, total: int) -> None:
        self._large = MemoryBudget(total - total // SMALL_PART, owner_part=ACCOUNT_PART)
        self._small = MemoryBudget(total // SMALL_PART, owner_part=ACCOUNT_PART)
        self._anonymous = MemoryBudget(ANONYMOUS_BYTES, owner_part=NETWORK_PART)

    def of_account(self, account_id: str) -> Owner:
        """A client that has authenticated."""
        return Owner(account_id, self._small, self._large)

    def of_network(self, network: str) -> Owner:
        """A client that has not."""
        return Owner(network, self._anonymous, self._anonymous)


def declared_length(headers: dict[bytes, bytes], limit: int) -> int | None:
    """The body's length as its headers tell it (None: it comes in chunks); too much is refused here, unread."""
    chunked = b"transfer-encoding" in headers
    length = int(headers.get(b"content-length", b"0"))  # h11 has made sure it is a number
    if length > limit or (chunked and limit == 0):
        raise _too_large(limit)
    return None if chunked else length


class RequestBody:
    """The whole body of a request, its memory taken for as long as somebody is at work on it (`async with`)."""

    def __init__(self, receive: Receive, length: int | None, limit: int, owner: Owner) -> None:
        self._receive = receive
        self._limit = limit
        self._owner = owner
        self._memory = owner.large if (length or 0) > SMALL else owner.small
        self._taken = 0
        self._age = next(_ages)
        self._patience = WAIT

    async def __aenter__(self) -> bytearray:
        try:
            return await self._read()
        except BaseException:
            self._give_back()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if self._taken:
            self._memory.give_back(self._owner.name, self._taken, self._age)
            self._taken = 0

    async def _read(self) -> bytearray:
        body = bytearray()
        more = True
        while more:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ClientGone
            chunk, more = event["body"], event["more_body"]
            size = len(body) + len(chunk)
            if size > self._limit:
                raise _too_large(self._limit)
            if size > FREE:
                await self._hold(size)
            body += chunk
        return body

    async def _hold(self, size: int) -> None:
        """Have memory for this much, before it is kept."""
        steps = -(-(size - FREE) // STEP)
        wanted = steps * STEP * MEMORY_FACTOR
        if size > SMALL and self._memory is not self._owner.large:
            await self._take(self._owner.large, wanted)
            self._give_back()
            self._memory, self._taken = self._owner.large, wanted
        elif wanted > self._taken:
            await self._take(self._memory, wanted - self._taken)
            self._taken = wanted

    async def _take(self, memory: MemoryBudget, amount: int) -> None:
        began = trio.current_time()
        if not await memory.take(self._owner.name, amount, age=self._age, patience=max(0.0, self._patience)):
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "Too many large requests are being read right now. Retry with the same key.",
                retry_after=2,
            )
        self._patience -= trio.current_time() - began


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body may be {size} at most. Send less.")
