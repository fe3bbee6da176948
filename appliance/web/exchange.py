"""One HTTP request and its response, as the edge handles them: the body within limits, headers, and the error object.

Memory for a body is reserved as bytes arrive, never by Content-Length. Large bodies, small bodies and unauthenticated
clients have separate budgets, and each account or network has a share of its budget. The first bytes need no
reservation, so an ordinary login or message never waits for memory.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from itertools import count
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import Meta, Struct
from quart import request

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.message.batch import Batch, Series
from appliance.message.limits import KEY_LENGTH
from appliance.message.request import Body, Mime, explain, find_repeated_key
from appliance.message.schema import SendRequest
from appliance.store import translated
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import REFUSALS
from appliance.times import rfc3339

T = TypeVar("T")
Object = TypeVar("Object", bound=msgspec.Struct)
Receive = Callable[[], Awaitable[dict[str, Any]]]
AsgiSend = Callable[[Any], Awaitable[None]]
AsgiScope = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]

log = get_logger("web")

# ---- objects of the API

RequestId = Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID`.")]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # RFC 3339, UTC, to the millisecond
CreatedAt = Annotated[Time, Meta(description="Creation time.")]
NextPage = Annotated[str | None, Meta(description="Cursor of the next page; null on the last page.")]
SinglePage = Annotated[str | None, Meta(description="Always null: the list has one page.")]


def request_id() -> str:
    return str(request.scope["appliance"][0])  # type: ignore[typeddict-item]  # the edge's own entry


class ApiAnswer(msgspec.Struct, kw_only=True):
    request_id: RequestId = msgspec.field(default_factory=request_id)


class Error(msgspec.Struct):
    """The body of every error."""

    error: Annotated[str, Meta(description="What went wrong. Starts with the field's name if a field is at fault.")]
    code: Annotated[Code, Meta(description="Stable error code for programs.")]
    request_id: RequestId


class DeletedAnswer(ApiAnswer):
    """The response to a DELETE."""

    deleted: Annotated[bool, Meta(description="Always true.")]


def time_or_none(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def object_from(kind: type[Object], source: object, /, **fields: Any) -> Object:
    """Build an API object from the attributes of `source`, with times as text. Keyword arguments replace attributes."""
    for name in kind.__struct_fields__:
        if name not in fields:
            value: Any = request_id() if name == "request_id" else getattr(source, name)
            fields[name] = time_or_none(value) if name.endswith("_at") else value
    return kind(**fields)


# ---- responses

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Every response: not cached, framed or readable by other sites.
SECURITY_HEADERS: Headers = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
KEY_HEADER = "Idempotency-Key"
OUR_FAULT = "Internal error. Retry later; if it persists, give the operator this request_id."
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_CLOSE = (b"connection", b"close")


class MethodNotAllowed(Refused):
    """405. It has no error code of its own."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(Code.INVALID_REQUEST, f"Method not allowed. Allowed: {self.allowed}.")


def json_answer(body: bytes, request_id: str) -> Headers:
    length, identified = (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id.encode("ascii"))
    return [(b"content-type", b"application/json"), length, identified, *SECURITY_HEADERS]


def error_answer(
    code: Code, text: str, request_id: str, *, status: int | None = None, retry_after: int | None = None
) -> Answer:
    """Status, headers and body of an error. `status` overrides the code's own."""
    REFUSALS.add(("http", code))
    body = msgspec.json.encode(Error(text, code, request_id))
    headers = json_answer(body, request_id)
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if code is Code.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="mail appliance", Basic realm="mail appliance"'))
    return status or code.status, headers, body


def refusal_answer(refused: PublicError, request_id: str) -> Answer:
    if isinstance(refused, MethodNotAllowed):
        status, headers, body = error_answer(refused.code, refused.text, request_id, status=405)
        return status, [*headers, (b"allow", refused.allowed.encode("ascii"))], body
    return error_answer(refused.code, refused.text, request_id, retry_after=refused.retry_after)


def public_error(error: Exception, request_id: str, method: str, path: str) -> PublicError:
    """What the client may know about a failure. Called inside the exception handler."""
    error = translated(error)  # a full or failing disk is not a bug
    if not isinstance(error, PublicError):
        log.exception("request failed", request_id=request_id, method=method, path=path[:200])
        return PublicError(Code.INTERNAL_ERROR, OUR_FAULT)
    if error.__cause__ is not None and error.code.status >= 500:
        log.error("request refused", request_id=request_id, cause=repr(error.__cause__))
    # Drop the traceback and with it the request body. An error from a worker thread is in a reference cycle that is
    # collected much later: sixty rejected bodies of 15 MB held 2 GB.
    chained: BaseException | None = error
    while chained is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error


def failure_answer(error: Exception, request_id: str, method: str, path: str) -> Answer:
    """The answer to a failed request. Called inside the exception handler."""
    return refusal_answer(public_error(error, request_id, method, path), request_id)


def dated(headers: Headers, *, close: bool = True) -> Headers:
    dated = [*headers, (b"date", _http_date(int(time.time())))]
    return [*dated, _CLOSE] if close else dated


@lru_cache(maxsize=2)
def _http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode("ascii")


def answer_bytes(status: int, headers: Headers, body: bytes) -> bytes:
    fields = b"\r\n".join([b": ".join(field) for field in headers])
    return b"HTTP/1.1 %d %s\r\n%s\r\n\r\n%s" % (status, REASONS.get(status, b""), fields, body)


# ---- a request and its response
class Peer(Struct):
    """The client of a connection; the application sets `authenticated`."""

    address: tuple[str, int] | None  # with the port; None for a socket without addresses
    authenticated: bool = False
    gone: bool = False  # writing failed


@dataclass(eq=False, repr=False)  # its headers have secrets
class Exchange:
    _receive: Receive
    headers: dict[bytes, bytes]
    peer: Peer
    request_id: str
    _secure: bool
    doubled: frozenset[bytes] = frozenset()  # repeated headers; a proxy may have acted on the other value
    expects_body: bool = False

    async def receive(self) -> dict[str, Any]:
        event = await self._receive()
        if not event.get("more_body", False):
            self.expects_body = False
        return event

    def framed(self, headers: Headers) -> Headers:
        """Add the connection's headers. After an unread body, the next bytes on the connection are not a request."""
        return [*headers, *((_HSTS,) if self._secure else ()), *((_CLOSE,) if self.expects_body else ())]


class AsgiExchange(Exchange):
    _begun = False  # whether the stream has started

    def __init__(self, receive: Receive, send: AsgiSend, scope: AsgiScope, request_id: str) -> None:
        super().__init__(receive, dict(scope["headers"]), scope["peer"], request_id, scope["scheme"] == "https")
        self._send = send

    async def send(self, answer: Answer) -> None:
        status, headers, body = answer
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def write(self, data: bytes, more: bool) -> None:
        """Send a piece of a stream immediately. Its headers ask proxies not to buffer it."""
        if not self._begun:
            self._begun = True
            kind = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
            await self._start(200, [*kind, (b"x-request-id", self.request_id.encode("ascii")), *SECURITY_HEADERS])
        await self._send({"type": "http.response.body", "body": data, "more_body": more, "flush": more})

    async def _start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": self.framed(headers)})

    async def pass_on(self, event: Any) -> None:
        """ASGI `send` for Quart: adds the request id, and the security headers that the response does not set."""
        if event["type"] == "http.response.start":
            present = {name for name, _ in event["headers"]}
            missing = [header for header in SECURITY_HEADERS if header[0] not in present]
            identified = (b"x-request-id", self.request_id.encode("ascii"))
            await self._start(event["status"], [*event["headers"], identified, *missing])
        else:
            await self._send(event)


async def keep_connection(exchange: Exchange, error: Exception) -> None:
    """After a 429, discard a small body and keep the connection: a reconnect would cost more than the request."""
    if not isinstance(error, Refused) or error.code is not Code.RATE_LIMITED or b"expect" in exchange.headers:
        return
    if not 0 < int(exchange.headers.get(b"content-length", b"0")) <= DROPPED_BODY:
        return
    while exchange.expects_body and (await exchange.receive())["type"] == "http.request":
        pass


def received(body: bytes) -> Receive:
    """ASGI `receive` for a complete body. A disconnect cancels nothing."""
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await trio.sleep_forever()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


# ---- request bodies

# A message is briefly in memory twice, as received and as decoded, so it counts twice.
MEMORY_FACTOR = 2
DROPPED_BODY = 64 * 1024  # largest body to discard after a 429, in bytes
UNCOUNTED = 8 * 1024  # bytes of each body that need no reservation; a few MiB over all connections
MEMORY_STEP = 64 * 1024  # bytes per reservation
MEMORY_WAIT = 5.0  # seconds that a body may wait for memory in total before a 503
SMALL_BODY = 256 * 1024  # bytes; nearly all bodies are smaller
SMALL_BODY_PART = 8  # an eighth of the budget is reserved for small bodies
ACCOUNT_BODY_PART = 2  # one account may use half of a budget
ANONYMOUS_BYTES = 8 * 1024 * 1024  # budget of all unauthenticated clients
NETWORK_BODY_PART = 8  # one network may use an eighth of it

_OUT_OF_MEMORY = "The server is reading too many large requests. Retry in a few seconds with the same Idempotency-Key."
_SHOWN = 40  # characters of a header value shown in an error
_JSON_TYPE = re.compile(rb"application/json\s*(?:;\s*charset\s*=\s*\"?([^\s\";]{1,40})\"?\s*)?;?", re.IGNORECASE)
_KEY = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ages = count()


class ClientGone(Exception):
    """The client closed the connection before the body was complete. No response is sent."""


class BodyOwner(Struct, frozen=True):
    """The account or network that a body counts for, and its budgets."""

    name: str
    small: MemoryBudget
    large: MemoryBudget


class BodyBudgets:
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
            raise Refused(Code.TEMPORARY_FAILURE, _OUT_OF_MEMORY, retry_after=2)
        self._patience -= trio.current_time() - began


def _too_large(limit: int) -> Refused:
    size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // (1024 * 1024)} MiB"
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The request body is too large (limit {size}). Send a smaller one.")


def check_content_type(content_type: bytes) -> None:
    match = _JSON_TYPE.fullmatch(content_type)
    if match is None:
        raise invalid("Content-Type", "expected application/json")
    charset = (match[1] or b"utf-8").decode("ascii", "replace")
    if charset.lower() not in ("utf-8", "utf8"):
        raise invalid("Content-Type", f"charset {charset} is not supported. Send UTF-8.")


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
        raise explain(fault, body, kind=kind) from fault
    if (repeated := find_repeated_key(body)) is not None:
        raise repeated
    return value


def idempotency_key(key: bytes | None, *, doubled: bool = False) -> str:
    """The Idempotency-Key. Refuses a missing, malformed or repeated header."""
    if key is None:
        raise invalid(KEY_HEADER, "missing header. Send a new unique value for each message.")
    if doubled or len(key) > KEY_LENGTH or not _KEY.fullmatch(key):
        raise invalid(KEY_HEADER, f"expected one header with 1 to {KEY_LENGTH} printable ASCII characters")
    return key.decode("ascii")


class Form(NamedTuple):
    """A kind of request that sends: how its body is decoded, what that costs in microseconds, and how it is logged."""

    decode: Callable[[Body], SendRequest | Batch | Series | Mime]
    cost: Callable[[Body], int]
    key: Callable[[Exchange], str | None] = lambda exchange: idempotency_key(
        exchange.headers.get(b"idempotency-key"), doubled=b"idempotency-key" in exchange.doubled
    )
    check_type: Callable[[bytes], None] = check_content_type
    source: str = "api"
    status: int = 202
    is_test: Callable[[], bool] = lambda: False  # after decoding: whether it is simulated, as with a test key
