"""In charge of request bodies: how large one may be, and how much memory all of them together."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from appliance.errors import Code, Refused

# A body lives twice for a while, as it came and as what it becomes; so it is counted twice.
MEMORY_FACTOR = 2
WAIT = 5.0  # seconds a request may wait for memory before it is told to come back
STEP = 256 * 1024  # bytes by which a body of undeclared length grows
SMALL = 256 * 1024  # bytes up to which a body is small, as nearly all are
SMALL_PART = 8  # one part in so many of the budget is for small bodies only

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its body was complete; there is nobody to answer."""


class Budget:
    """Memory for bodies in flight: large ones share most of it, small ones have a part that large ones cannot take.

    Nobody gets more than half of either, so that one sender's uploads, even if they stand still, leave room for the
    others'. A single body always fits.
    """

    def __init__(self, total: int) -> None:
        self._large = _Memory(total - total // SMALL_PART)
        self._small = _Memory(total // SMALL_PART)

    def part_for(self, length: int | None) -> "_Memory":
        """Where a body of this length belongs; one of unknown length may become large."""
        return self._small if length is not None and length <= SMALL else self._large


class _Memory:
    """One part of the budget, given out first come, first served."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._used_by: dict[str, int] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def is_taken(self) -> bool:
        """Whether anybody has some of it."""
        return self._free != self._total

    def _fits(self, owner: str, amount: int) -> bool:
        used = self._used_by.get(owner, 0)
        fair = used + amount <= self._total // 2 or used == 0
        return fair and (amount <= self._free or not self.is_taken)

    async def take(self, owner: str, amount: int) -> None:
        """Reserve memory, waiting a little while others finish."""
        if not self._fits(owner, amount):
            await self._wait_until_it_fits(owner, amount)
        self._free -= amount
        self._used_by[owner] = self._used_by.get(owner, 0) + amount

    async def _wait_until_it_fits(self, owner: str, amount: int) -> None:
        with trio.move_on_after(WAIT):
            while not self._fits(owner, amount):
                await self._waiting.park()
        if not self._fits(owner, amount):
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "Too many large requests are being read right now. Retry with the same key.",
                retry_after=2,
            )

    def give_back(self, owner: str, amount: int) -> None:
        """Free memory for whoever waits."""
        self._free += amount
        left = self._used_by.pop(owner, 0) - amount
        if left:
            self._used_by[owner] = left
        if self._waiting:
            self._waiting.unpark_all()


def declared_length(headers: dict[bytes, bytes], limit: int) -> int | None:
    """The body's length as its headers tell it (None: it comes in chunks); too much is refused here, unread."""
    chunked = b"transfer-encoding" in headers
    length = int(headers.get(b"content-length", b"0"))  # h11 has made sure it is a number
    if length > limit or (chunked and limit == 0):
        raise _too_large(limit)
    return None if chunked else length


class RequestBody:
    """The whole body of a request, its memory reserved for as long as somebody is at work on it (`async with`)."""

    def __init__(self, receive: Receive, length: int | None, limit: int, budget: Budget, owner: str) -> None:
        self._receive = receive
        self._length = length
        self._limit = limit
        self._memory = budget.part_for(length)
        self._owner = owner  # whose account, or which address, the memory is counted for
        self._taken = 0

    async def __aenter__(self) -> bytearray:
        try:
            return await self._read()
        except BaseException:
            self._memory.give_back(self._owner, self._taken)
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._memory.give_back(self._owner, self._taken)

    async def _read(self) -> bytearray:
        await self._take(self._length or 0)
        body, filled = bytearray(self._length or 0), 0  # untouched pages cost nothing, and no joining copies it again
        more = True
        while more:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ClientGone
            chunk, more = event["body"], event["more_body"]
            end = filled + len(chunk)
            if end > self._limit:
                raise _too_large(self._limit)
            if self._length is None and end * MEMORY_FACTOR > self._taken:
                await self._take(STEP)
            body[filled:end] = chunk
            filled = end
        return body

    async def _take(self, size: int) -> None:
        if size:
            await self._memory.take(self._owner, size * MEMORY_FACTOR)
            self._taken += size * MEMORY_FACTOR


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body may be {size} at most. Send less.")
