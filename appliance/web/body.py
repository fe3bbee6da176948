"""In charge of request bodies: how large one may be, and how much memory all of them together."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from appliance.errors import Code, Refused

# A body lives twice for a while, as it came and as what it becomes; so it is counted twice.
MEMORY_FACTOR = 2
WAIT = 5.0  # seconds a request may wait for memory before it is told to come back
STEP = 256 * 1024  # bytes by which a body of undeclared length grows

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its body was complete; there is nobody to answer."""


class Budget:
    """Memory for bodies in flight, given out first come, first served."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._waiting = trio.lowlevel.ParkingLot()

    async def take(self, amount: int) -> None:
        """Reserve memory, waiting a little while others finish."""
        if self._free < amount:
            with trio.move_on_after(WAIT):
                while self._free < amount:
                    await self._waiting.park()
        if self._free < amount:
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "Too many large requests are being read right now. Retry with the same key.",
                retry_after=2,
            )
        self._free -= amount

    def give_back(self, amount: int) -> None:
        """Free memory for whoever waits."""
        self._free += amount
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

    def __init__(self, receive: Receive, length: int | None, limit: int, budget: Budget) -> None:
        self._receive = receive
        self._length = length
        self._limit = limit
        self._budget = budget
        self._taken = 0

    async def __aenter__(self) -> bytearray:
        try:
            return await self._read()
        except BaseException:
            self._budget.give_back(self._taken)
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._budget.give_back(self._taken)

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
            await self._budget.take(size * MEMORY_FACTOR)
            self._taken += size * MEMORY_FACTOR


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body may be {size} at most. Send less.")
