"""Memory for request bodies: how large one may be, and how much all that are being read may take together.

Memory is taken as bytes arrive, never by the length a client promises. Three budgets keep clients apart: large bodies,
small ones, and those of clients that have not authenticated. In each, one account or client network has a share.
The first bytes of a body are free of any budget, so an ordinary login or message never waits for memory.
"""

from bisect import insort
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import trio

from appliance.errors import Code, Refused

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


class Memory:
    """One budget, which bodies take from in steps.

    When it is used up, bodies wait, and the oldest goes on first, so that bodies come to their end instead of all
    standing half read. One at a time, the oldest that waits, may go beyond the limits: so any single body fits.
    """

    def __init__(self, total: int, part: int) -> None:
        self._free = total
        self._share = total // part
        self._used_by: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []  # the oldest body first
        self._beyond: int | None = None  # the age of the body that may go beyond the limits

    def taken_by(self, owner: str) -> int:
        """How much one owner's bodies have."""
        return self._used_by[owner]

    async def take(self, owner: str, amount: int, age: int, patience: float = WAIT) -> None:
        """Take some more for a body; Refused when there is none within the time."""
        waiting = _Waiting(age, owner, amount)
        insort(self._waiting, waiting)
        self._grant()
        if waiting.granted.is_set():
            return
        try:
            with trio.move_on_after(patience):
                await waiting.granted.wait()
        finally:
            if not waiting.granted.is_set():
                self._waiting.remove(waiting)
        if not waiting.granted.is_set():
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "Too many large requests are being read right now. Retry with the same key.",
                retry_after=2,
            )

    def give_back(self, owner: str, amount: int, age: int) -> None:
        """Free all that a body has taken."""
        self._free += amount
        self._used_by[owner] -= amount
        if not self._used_by[owner]:
            del self._used_by[owner]
        if self._beyond == age:
            self._beyond = None
        self._grant()

    def _grant(self) -> None:
        """Let those who wait have what there is, the oldest first."""
        used_up = False
        for waiting in list(self._waiting):
            if waiting.age != self._beyond:
                if used_up:
                    continue  # younger ones must not take what an older one waits for
                if not self._fits(waiting):
                    if self._beyond is not None:
                        used_up = waiting.amount > self._free
                        continue
                    self._beyond = waiting.age
            self._waiting.remove(waiting)
            self._free -= waiting.amount
            self._used_by[waiting.owner] += waiting.amount
            waiting.granted.set()

    def _fits(self, waiting: "_Waiting") -> bool:
        return waiting.amount <= self._free and self._used_by[waiting.owner] + waiting.amount <= self._share


@dataclass(slots=True, order=True)
class _Waiting:
    age: int  # the order in which bodies began
    owner: str = field(compare=False)
    amount: int = field(compare=False)
    granted: trio.Event = field(compare=False, default_factory=trio.Event)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose body it is, and which budgets it is counted in."""

    name: str
    small: Memory
    large: Memory


class Budget:
    """The memory of all bodies. Large ones cannot take the part of small ones, nor strangers that of accounts."""

    def __init__(self, total: int) -> None:
        self._large = Memory(total - total // SMALL_PART, ACCOUNT_PART)
        self._small = Memory(total // SMALL_PART, ACCOUNT_PART)
        self._anonymous = Memory(ANONYMOUS_BYTES, NETWORK_PART)

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

    async def _take(self, memory: Memory, amount: int) -> None:
        began = trio.current_time()
        await memory.take(self._owner.name, amount, self._age, max(0.0, self._patience))
        self._patience -= trio.current_time() - began


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body may be {size} at most. Send less.")
