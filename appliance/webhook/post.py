"""Attempts a due post: signs it, posts it over HTTPS within five seconds, and returns whether it is done or retried.

Each attempt checks the URL and all addresses of its name again. SNI and Host carry the name. Redirects are not
followed. A reusable connection is kept for the next event. Of an answer, the status and the first 2 KiB are kept; its
bytes, reads, headers, chunks and interim answers are bounded, whatever a receiver sends.
"""

import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import h11
import trio
from msgspec import Struct

from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, EventType, PostResult, PostStatus, Webhook, excerpt
from appliance.net.address_policy import Address, Network
from appliance.net.dial import Dial, Shortage, dial_first
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS
from appliance.webhook import connect
from appliance.webhook.connect import NotPosted, ReceiverConnection, Target
from appliance.webhook.received_formats import has_shape
from appliance.webhook.received_posts import ReceivedPosts
from appliance.webhook.signatures import SignedPost, sign

log = get_logger("webhook")

# ---- answers

BODY_KEPT = 2048  # bytes, by the interface
HEAD_LIMIT = 16 * 1024  # bytes of headers, in one answer or one of its trailers
ANSWER_LIMIT = 32 * 1024  # bytes read to keep the connection; beyond that a new one is cheaper
INTERIM_LIMIT = 10  # 1xx answers before the final one
ANSWER_READ_BYTES = 16 * 1024  # at a time: one TLS record
READS_PER_ANSWER = 250  # each costs CPU time, however few bytes it returns
CHUNKS_PER_ANSWER = 250  # each costs as much, and one read may return thousands


_VERSION = b"HTTP/1."
_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: [\x20-\x7e]*\r\n)*")


class Step(StrEnum):
    """What an attempt waits for; the text is the error if it times out there."""

    FOUND = "the receiver's name could not be looked up"
    CONNECTED = "the receiver did not accept a connection"
    SECURED = "the receiver did not finish the TLS handshake"
    SENT = "the receiver did not take the event"
    ANSWERED = "the receiver did not answer"
    ENDED = "the receiver did not finish its answer"


class Posted(Struct):
    """The result of one attempt; during the attempt its progress, so that a timeout can name the step."""

    status: int | None = None
    body: bytes = b""  # the first 2 KiB of the answer's body
    error: str | None = None  # also for a 2xx with a broken body; None after a whole answer
    duration_ms: int = 0
    timed_out: bool = False
    awaiting: Step = Step.FOUND

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the event: any 2xx in time, by the interface, whatever its body."""
        return self.status is not None and 200 <= self.status < 300 and not self.timed_out

    @property
    def before_what(self) -> str:
        return "before it answered" if self.status is None else "before the end of its answer"


class ConnectionLost(NotPosted):
    """The connection ended before any byte of the answer."""


def request_bytes(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A POST with these headers and the ones HTTP requires (RFC 9112 3.2, 6.2); raises `NotPosted`."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not _FIELDS.fullmatch(fields) or fields.count("\r\n") != len(headers):
        raise NotPosted("a header of the event has a character that cannot be sent")
    # Accept-Encoding: people read the start of the answer in the history, so it must not be compressed.
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n{fields}"
        f"Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


# Fast path for the usual answer: short, plain, with a Content-Length. Without it a post costs 39 % more CPU time. It
# parses only answers that h11 certainly parses the same way; all others go to `AnswerReader`, from their first byte.
# `tests/webhook/test_post_answer.py` compares the two.

_FAST_HEAD_LIMIT = 4 * 1024  # bytes; a longer head is unusual
# A final status; then no folded line, no bare CR or LF, no control or 8-bit character, no space around a name.
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\x20-\x7e]*)?\r\n")
_ANSWER_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+:[\x20-\x7e]*\r\n)*")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,5}) *\r\n")
_CONNECTION = re.compile(rb"\r\nconnection: *(keep-alive|close) *\r\n")  # it stays open by default: RFC 9112 9.3
_NO_CONTENT = (204, 304)  # no body, whatever their headers say (RFC 9112 6.3)


class FastAnswer(NamedTuple):
    """A plain answer; `missing` bytes at its end have not arrived."""

    status: int
    body: bytes
    keep: bool  # the connection is reusable
    missing: int


def read_fast(data: bytes) -> FastAnswer | None:
    """The answer at the start of these bytes; None if they need the full parser."""
    first, end = _STATUS_LINE.match(data), data.find(b"\r\n\r\n", 0, _FAST_HEAD_LIMIT)
    if first is None or end < 0 or not _ANSWER_FIELDS.fullmatch(data, first.end(), end + 2):
        return None
    status, head = int(first[1]), data[first.end() - 2 : end + 2].lower()
    length, connection = _value(head, b"content-length", _LENGTH), _value(head, b"connection", _CONNECTION)
    if length is None or connection is None or b"\r\ntransfer-encoding:" in head:
        return None
    if status in _NO_CONTENT:
        length = b"0"
    elif not length:
        return None
    missing = end + 4 + int(length) - len(data)
    return None if missing < 0 else FastAnswer(status, data[end + 4 :], connection != b"close", missing)


def _value(head: bytes, name: bytes, pattern: re.Pattern[bytes]) -> bytes | None:
    """The value of a field, b"" without one; None if it is unusual. `head` is in lower case."""
    count = head.count(b"\r\n%b:" % name)
    match = pattern.search(head) if count == 1 else None
    return match[1] if match else None if count else b""


class AnswerReader:
    """Parses one answer with h11, within the limits above, into `posted`. No I/O."""

    def __init__(self, posted: Posted) -> None:
        self.posted = posted
        posted.status, posted.body = None, b""
        self.done = False  # nothing more is read
        self.whole = False  # the end was read
        self.keep = False  # the connection may carry another request
        self._start = b""
        self.received = self._interim = self._chunks = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        # The request is already sent; only its method matters for parsing the answer.
        self._http.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._http.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> None:
        """Parse received bytes, b"" at the end of the stream; raises `NotPosted`."""
        self.received += len(data)
        # Recognise another protocol by its first bytes: h11 would wait for a whole head, which may never arrive.
        self._start += data[: len(_VERSION) - len(self._start)]
        if not _VERSION.startswith(self._start):
            raise NotPosted("the receiver's answer is not HTTP/1.1")
        try:
            self._http.receive_data(data)
            while not self.done and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._handle(event)
        except h11.RemoteProtocolError as fault:
            text = f"the receiver's answer is not valid HTTP: {fault}"
            if not data:
                text = f"the receiver closed the connection {self.posted.before_what}"
            elif fault.error_status_hint == 431:
                text = f"the receiver's answer has over {HEAD_LIMIT // 1024} KiB of headers"
            raise NotPosted(text) from fault
        self.done = self.done or self.received > ANSWER_LIMIT

    def _handle(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > INTERIM_LIMIT:
                raise NotPosted(f"the receiver sent over {INTERIM_LIMIT} interim (1xx) answers")
        elif isinstance(event, h11.Response):
            self.posted.status = event.status_code
        elif isinstance(event, h11.Data):
            self.posted.body += event.data[: BODY_KEPT - len(self.posted.body)]
            self._chunks += event.chunk_start
            self.done = self._chunks > CHUNKS_PER_ANSWER
        elif isinstance(event, h11.EndOfMessage):
            self.done = self.whole = True
            in_step = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            self.keep = in_step and self._http.trailing_data == (b"", False)


async def exchange(posted: Posted, connection: ReceiverConnection, request: bytes) -> bool:
    """Send a request and read its answer. Return whether the connection is reusable; raises `NotPosted`."""
    connection.transport.left = connect.RECEIVED_LIMIT
    posted.awaiting, data = Step.SENT, b""
    try:
        await connection.stream.send_all(request)
        posted.awaiting = Step.ANSWERED
        if data := bytes(await connection.stream.receive_some(ANSWER_READ_BYTES)):
            return await _read_answer(posted, connection.stream, data)
    except connect.ByteLimitExceeded as exceeded:
        raise NotPosted(f"{exceeded} {posted.before_what}") from exceeded
    except trio.BrokenResourceError as broken:
        text = f"the receiver broke the connection off {posted.before_what}"
        raise (NotPosted if data else ConnectionLost)(text) from broken
    raise ConnectionLost("the receiver closed the connection before it answered")


async def _read_answer(posted: Posted, stream: trio.abc.Stream, data: bytes) -> bool:
    reads = 1
    while (fast := read_fast(data)) is not None and len(data) + fast.missing <= ANSWER_LIMIT:
        posted.status, posted.body = fast.status, fast.body[:BODY_KEPT]
        if not fast.missing:
            return fast.keep
        if reads == READS_PER_ANSWER:
            break
        posted.awaiting = Step.ENDED
        more = await stream.receive_some(ANSWER_READ_BYTES)
        if not more:
            raise NotPosted("the receiver closed the connection before the end of its answer")
        data, reads = data + more, reads + 1
    reader = AnswerReader(posted)
    reader.receive(data)
    while not reader.done and reads < READS_PER_ANSWER:
        if posted.status is not None:
            posted.awaiting = Step.ENDED
        reader.receive(bytes(await stream.receive_some(ANSWER_READ_BYTES)))
        reads += 1
    if not reader.whole:
        is_long = reader.received > ANSWER_LIMIT
        fault = f"is over {ANSWER_LIMIT // 1024} KiB long" if is_long else "comes in too many pieces"
        if posted.status is None:
            raise NotPosted(f"the receiver's answer {fault} and yet without a status")
        posted.error = f"the receiver's answer {fault}; the rest was not read"
    return reader.keep


# ---- posts

POST_TIMEOUT = 5.0  # seconds for all of an attempt, by the interface
ADDRESSES_TRIED = 2
FIRST_ADDRESS = 2.0  # seconds until the second is tried: an unreachable IPv6 address usually times out
URLS_CACHED = 1_000


class Poster:
    """Posts events. The process has one, since it keeps the idle connections."""

    def __init__(
        self,
        resolver: Resolver,
        dial: Dial,
        context: ssl.SSLContext,
        *,
        ports: Collection[int],
        own_names: Container[str] = frozenset(),
        allowed: tuple[Network, ...] = (),
        own: Container[Address] = frozenset(),
        plain_loopback: bool = False,
        timeout: float = POST_TIMEOUT,
        first_address: float = FIRST_ADDRESS,
        idle_seconds: float = connect.IDLE_SECONDS,
    ) -> None:
        self._dial = dial
        self._context = context
        self._timeout = timeout
        self._first_address = first_address
        self._lookup = connect.AddressLookup(resolver, allowed, own)
        self.idle = connect.IdleConnections(idle_seconds)
        # The verdict depends only on the URL's text and the settings, so it can be cached.
        self._read = lru_cache(URLS_CACHED)(
            lambda url: connect.read_url(url, ports, own_names, allowed, plain_loopback=plain_loopback)
        )

    async def check(self, url: str) -> str | None:
        """Why this URL may not be saved; None if it may.

        A temporary DNS failure refuses nothing: every attempt looks the name up again, and customers must be able to
        save their settings during a DNS outage.
        """
        try:
            with trio.move_on_after(self._timeout):
                await self._lookup.addresses(self._read(url))
        except (connect.UrlRefused, connect.NoAddress) as refused:
            return None if isinstance(refused, connect.NoAddress) and refused.temporary else str(refused)
        except Shortage:
            pass
        return None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once; a cancellation closes the connection. Raises `Shortage`, after closing the idle connections."""
        posted, started = Posted(), trio.current_time()
        with trio.move_on_after(self._timeout) as limit:
            try:
                target = self._read(url)
                await self._post(posted, target, request_bytes(target, headers, body))
            except (connect.UrlRefused, NotPosted) as fault:
                posted.error = str(fault)
            except Shortage:
                await self.idle.drop_all()
                raise
        if limit.cancelled_caught:
            posted.timed_out, posted.error = True, f"{posted.awaiting} within {self._timeout:g} s"
        posted.duration_ms = round((trio.current_time() - started) * 1000)
        return posted

    async def _post(self, posted: Posted, target: Target, request: bytes) -> None:
        addresses = await self._lookup.addresses(target)
        if target.secure and (connection := await self.idle.take(target.host, target.port, addresses)):
            try:
                return await self._exchange(posted, target, connection, request)
            except ConnectionLost:  # closed while idle; a receiver that took the event nevertheless sees its id twice
                await self.idle.drop_all_to(connection.endpoint)
        posted.awaiting = Step.CONNECTED
        tried, port = addresses[:ADDRESSES_TRIED], target.port
        try:
            address, stream = await dial_first(self._dial, tried, port, patience=self._first_address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotPosted(f"the receiver did not accept a connection to port {port}: {reason}") from error
        posted.awaiting = Step.SECURED
        connection = await connect.open_connection(self._context, target, address, stream)
        return await self._exchange(posted, target, connection, request)

    async def _exchange(self, posted: Posted, target: Target, connection: ReceiverConnection, request: bytes) -> None:
        keep = False
        try:
            keep = await exchange(posted, connection, request) and target.secure
        finally:
            if not keep:
                await connection.aclose()
        if keep:
            await self.idle.give_back(connection)


# ---- attempts

JSON_CONTENT = "application/json"
USER_AGENT_HEADER = ("User-Agent", "Service-Webhook/1.0")

BROKEN_SEAL = "the signing secret cannot be read: rotate it, or have the operator restore the key file"
OWN_FAULT = "the attempt failed on our side; the operator's log has the details"


class Attempts(Struct, frozen=True):
    post: Callable[[str, Sequence[tuple[str, str]], bytes], Awaitable[Posted]]
    secrets: WebhookSecrets
    env: Environment
    retry_delays: Sequence[float]  # seconds before each further attempt
    received: ReceivedPosts

    async def make(self, webhook: Webhook, post: DuePost) -> PostResult:
        """Attempt a post once; raises `Shortage`, which is not an attempt. Any other exception is a failed attempt."""
        began_at = self.env.now()
        try:
            secret, seconds = self.secrets.open(webhook), began_at // 1_000_000
            if post.type == EventType.RECEIVED and has_shape(post.format):
                async with self.received.shaped(webhook, post, secret, seconds) as shape:
                    signed = sign(secret, post, seconds, shape.body)
                    posted = await self._post(webhook, signed, shape.content_type, shape.headers)
            else:
                posted = await self._post(webhook, sign(secret, post, seconds))
        except Shortage:
            raise
        except NotPosted as fault:
            posted = Posted(error=str(fault))
        except UnsealError as broken:
            log.warning("signing secret unreadable", webhook_id=webhook.id, reason=str(broken))
            posted = Posted(error=BROKEN_SEAL)
        except Exception as error:
            log.exception("webhook post failed", error, delivery_id=post.id, webhook_id=webhook.id)
            posted = Posted(error=OWN_FAULT)
        return self._result(webhook, post, posted, began_at)

    async def _post(
        self,
        webhook: Webhook,
        signed: SignedPost,
        content_type: str = JSON_CONTENT,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Posted:
        named = (("Content-Type", content_type), USER_AGENT_HEADER, *signed.headers, *headers)
        return await self.post(webhook.url, named, signed.body)

    def _result(self, webhook: Webhook, post: DuePost, posted: Posted, began_at: int) -> PostResult:
        """Any 2xx is success. The delay before the next attempt starts at the end of this one."""
        status, next_attempt_at = PostStatus.FAILED, None
        if posted.accepted:
            status = PostStatus.SUCCESS
        elif post.attempt < len(self.retry_delays):
            status = PostStatus.PENDING
            next_attempt_at = self.env.now() + round(self.retry_delays[post.attempt] * 1_000_000)
        return PostResult(
            post,
            status,
            webhook.url,
            response_status=posted.status,
            response_body=None if posted.status is None else excerpt(posted.body),
            error=posted.error,
            duration_ms=posted.duration_ms,
            attempted_at=began_at,
            next_attempt_at=next_attempt_at,
        )


def observe(result: PostResult) -> None:
    """Count a recorded attempt and write it to the message log; one that is retried counts as failed."""
    WEBHOOK_POSTS.add((PostStatus.SUCCESS if result.status is PostStatus.SUCCESS else PostStatus.FAILED).value)
    WEBHOOK_SECONDS.add(result.duration_ms / 1000)
    post = result.post
    if not MESSAGE_LOG.keep or post.message_id is None:  # a ping has no message
        return
    MESSAGE_LOG.note(
        "webhook",
        message_id=post.message_id,
        recipient_id=post.recipient_id,
        event_id=post.event_id,
        delivery_id=post.id,
        trigger=post.lane.trigger.value,
        status=result.status.value,
        attempt=post.attempt + 1,
        response_status=result.response_status,
        error=result.error,
        ms=result.duration_ms,
    )
