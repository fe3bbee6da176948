"""In charge of request bodies: how large one may be, and how much memory all of them together."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
    if b"transfer-encoding" in headers:
        return None
    length = int(headers.get(b"content-length", b"0"))  # h11 has made sure it is a number
    if length > limit:
        raise _too_large(limit)
    return length


@asynccontextmanager
async def read_body(receive: Receive, length: int | None, limit: int, budget: Budget) -> AsyncIterator[bytearray]:
    """The whole body, its memory reserved for as long as the caller is at work on it."""
    taken = 0
    body = bytearray(length or 0)  # untouched pages cost nothing, and no joining copies it again
    filled = 0
    try:
        if length:
            await budget.take(length * MEMORY_FACTOR)
            taken = length * MEMORY_FACTOR
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise ClientGone
            chunk = event.get("body", b"")
            end = filled + len(chunk)
            if end > limit:
                raise _too_large(limit)
            if length is None and end * MEMORY_FACTOR > taken:
                await budget.take(STEP * MEMORY_FACTOR)
                taken += STEP * MEMORY_FACTOR
            body[filled:end] = chunk
            filled = end
            if not event.get("more_body", False):
                break
        yield body
    finally:
        budget.give_back(taken)


def _too_large(limit: int) -> Refused:
    if limit == 0:
        return Refused(Code.PAYLOAD_TOO_LARGE, "This endpoint takes no request body.")
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body may be {size} at most. Send less.")
