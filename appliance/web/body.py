"""Request bodies: read within size and memory limits, checked and decoded as JSON.

Memory is reserved as bytes arrive, never by Content-Length. Large bodies, small bodies and unauthenticated clients have
separate budgets, and each account or network has a share of its budget. The first bytes need no reservation, so an
ordinary login or message never waits for memory.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import msgspec
import trio

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import Code, Refused
from appliance.message.limits import KEY_LENGTH
from appliance.message.request import explain, find_repeated_key

# A message is briefly in memory twice, as received and as decoded, so it counts twice.
MEMORY_FACTOR = 2
UNCOUNTED = 8 * 1024  # bytes of each body that need no reservation; a few MiB over all connections
MEMORY_STEP = 64 * 1024  # bytes per reservation
MEMORY_WAIT = 5.0  # seconds that a body may wait for memory in total before a 503
SMALL_BODY = 256 * 1024  # bytes; nearly all bodies are smaller
SMALL_BODY_PART = 8  # an eighth of the budget is reserved for small bodies
ACCOUNT_BODY_PART = 2  # one account may use half of a budget
ANONYMOUS_BYTES = 8 * 1024 * 1024  # budget of all unauthenticated clients
NETWORK_BODY_PART = 8  # one network may use an eighth of it

_SHOWN = 40  # characters of a header value shown in an error

_ages = count()

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before the body was complete. No response is sent."""


@dataclass(frozen=True, slots=True)
class BodyOwner:
    """The account or network that a body counts for, and its budgets."""

    name: str
    small: MemoryBudget
    large: MemoryBudget


class BodyBudgets:
    """The three memory budgets of all bodies."""

    def __init__(self, total: int) -> None:
        self._large = MemoryBudget(total - total // SMALL_BODY_PART, owner_part=ACCOUNT_BODY_PART)
        self._small = MemoryBudget(total // SMALL_BODY_PART, owner_part=ACCOUNT_BODY_PART)
        self._anonymous = MemoryBudget(ANONYMOUS_BYTES, owner_part=NETWORK_BODY_PART)

    def of_account(self, account_id: str) -> BodyOwner:
        return BodyOwner(account_id, self._small, self._large)

    def of_network(self, network: str) -> BodyOwner:
        return BodyOwner(network, self._anonymous, self._anonymous)


def declared_length(headers: dict[bytes, bytes], limit: int) -> int | None:
    """The Content-Length, or None if chunked. Refuses an oversized body before reading it."""
    chunked = b"transfer-encoding" in headers
    length = int(headers.get(b"content-length", b"0"))  # the head parser checked that it is a number
    if length > limit or (chunked and limit == 0):
        raise _too_large(limit)
    return None if chunked else length


class RequestBody:
    """The complete body of a request. Its memory stays reserved until the end of the `async with` block."""

    def __init__(self, receive: Receive, length: int | None, limit: int, owner: BodyOwner) -> None:
        self._receive = receive
        self._limit = limit
        self._owner = owner
        self._memory = owner.large if (length or 0) > SMALL_BODY else owner.small
        self._held = 0
        self._age = next(_ages)
        self._patience = MEMORY_WAIT

    async def __aenter__(self) -> bytearray:
        try:
            return await self._read()
        except BaseException:
            self._give_back()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if self._held:
            self._memory.give_back(self._owner.name, self._held, self._age)
            self._held = 0

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
            if size > UNCOUNTED:
                await self._hold(size)
            body += chunk
        return body

    async def _hold(self, size: int) -> None:
        """Reserve memory before the bytes are stored."""
        steps = -(-(size - UNCOUNTED) // MEMORY_STEP)
        needed = steps * MEMORY_STEP * MEMORY_FACTOR
        if size > SMALL_BODY and self._memory is not self._owner.large:
            await self._take(self._owner.large, needed)
            self._give_back()
            self._memory, self._held = self._owner.large, needed
        elif needed > self._held:
            await self._take(self._memory, needed - self._held)
            self._held = needed

    async def _take(self, memory: MemoryBudget, amount: int) -> None:
        began = trio.current_time()
        if not await memory.take(self._owner.name, amount, age=self._age, patience=max(0.0, self._patience)):
            text = (
                "The server is reading too many large requests. Retry in a few seconds with the same Idempotency-Key."
            )
            raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)
        self._patience -= trio.current_time() - began


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body is too large (limit {size}). Send a smaller one.")


_JSON_TYPE = re.compile(rb"application/json\s*(?:;\s*charset\s*=\s*\"?([^\s\";]{1,40})\"?\s*)?;?", re.IGNORECASE)


def check_content_type(content_type: bytes) -> None:
    """Accept only JSON in UTF-8 (RFC 8259 8.1)."""
    match = _JSON_TYPE.fullmatch(content_type)
    if match is None:
        raise Refused(Code.INVALID_REQUEST, "Content-Type: expected application/json")
    charset = (match[1] or b"utf-8").decode("ascii", "replace")
    if charset.lower() not in ("utf-8", "utf8"):
        raise Refused(Code.INVALID_REQUEST, f"Content-Type: charset {charset} is not supported. Send UTF-8.")


def check_encoding(encoding: bytes | None) -> None:
    """Refuse a compressed body, which could expand to any size."""
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        name = encoding.strip()[:_SHOWN].decode("ascii", "replace")
        raise Refused(Code.INVALID_REQUEST, f"Content-Encoding: {name} is not supported. Send the body uncompressed.")


def decode_body(body: bytes, kind: type[T]) -> T:
    """Decode the body. Raises Refused with the field's name if it is invalid."""
    try:
        value = msgspec.json.decode(body, type=kind)
    # Bad UTF-8 raises UnicodeDecodeError and deep nesting RecursionError, which are not DecodeErrors.
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise explain(fault, body) from fault
    if (repeated := find_repeated_key(body)) is not None:
        raise repeated
    return value


_KEY = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def idempotency_key(key: bytes | None, *, doubled: bool = False) -> str:
    """The Idempotency-Key. Refuses a missing, malformed or repeated header."""
    if key is None:
        raise Refused(
            Code.INVALID_REQUEST, "Idempotency-Key: missing header. Send a new unique value for each message."
        )
    if doubled or len(key) > KEY_LENGTH or not _KEY.fullmatch(key):
        text = f"Idempotency-Key: expected one header with 1 to {KEY_LENGTH} printable ASCII characters"
        raise Refused(Code.INVALID_REQUEST, text)
    return key.decode("ascii")
