"""HTTP/1.1 on one connection, for `server.py`: reads requests and writes the application's responses, in order.

A subclass of hypercorn's protocol (`hypercorn_parts.py` lists what is used). The differences, and why:

- The application runs in the connection's task and pulls the body: no task or channel per request, nothing read ahead.
- `100 Continue` is sent when the application first reads the body, so a refused request is never sent one.
- No Upgrade and no HTTP/2: both had requests that killed the process.
- `HeadReader` checks each byte of the raw head a fixed number of times before h11 parses it, so a client cannot make
  h11 parse thousands of lines. It refuses a bare LF, a folded line and a second body length, which a proxy in front may
  read differently (RFC 9112 2.2, 5.2, 6.3), and ignores one empty line before a request.
- A response is one write. A complete, plain `POST /emails`, or POST to a door, bypasses h11 (`read_request`).
- A request that is not HTTP gets our error object with an `X-Request-ID`.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import h11
import trio

from appliance.errors import Code, Refused
from appliance.net.http import HEAD_LINES, REQUEST_HEAD_BYTES
from appliance.telemetry.log import get_logger
from appliance.web import hypercorn_parts as hypercorn
from appliance.web.exchange import REASONS, Answer, AsgiSend, Headers, Peer, Receive, answer_bytes, dated, error_answer

log = get_logger("web")

# ---- the end of heads and bodies

CHUNK_LINE = 1_024  # bytes of a chunk's size with its extensions, or of a trailer line
TRAILER_LINES = 16
# Each chunk costs time, so a client may not send many small ones.
FREE_CHUNKS = 256
CHUNK_AVERAGE = 64  # bytes, for chunks beyond those

_EMPTY_LINE = b"\r\n"
_END = b"\r\n\r\n"
_LINE_ENDS = 2 + HEAD_LINES  # with the request line and the empty line
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")  # RFC 9112 7.1
# An unfolded header line that does not define the length of a body (RFC 9110 6.5.1).
_TRAILER = re.compile(
    rb"(?!content-length:|transfer-encoding:)[!#$%&'*+\-.^_`|~0-9a-z]+:[\t\x20-\x7e\x80-\xff]*\r\n", re.IGNORECASE
)


class BadHead(Exception):
    """A refused head; the text is for the client."""


class HeadReader:
    def __init__(self) -> None:
        self._held = bytearray()
        self._line_ends = 0

    def __bool__(self) -> bool:
        return bool(self._held)  # part of a head has arrived

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the head and the bytes after it once it is complete, otherwise None. Raises BadHead."""
        held = self._held
        before = len(held)
        held += data
        end = held.find(_END, max(0, before - len(_END) + 1))
        stop = len(held) if end < 0 else end + len(_END)
        self._check(before, stop)
        if end < 0:
            return None
        head, rest = bytes(held[:stop]).removeprefix(_EMPTY_LINE), bytes(held[stop:])
        held.clear()
        self._line_ends = 0
        return head, rest

    def _check(self, before: int, stop: int) -> None:
        held = self._held  # of which `before` bytes are already checked
        line_ends = held.count(b"\n", before, stop)
        self._line_ends += line_ends
        if self._line_ends > _LINE_ENDS + held.startswith(_EMPTY_LINE):
            raise BadHead(f"The request has more than {HEAD_LINES} header lines. Send fewer.")
        if stop > REQUEST_HEAD_BYTES:
            raise BadHead("The request's headers are larger than 16 KiB. Send less in them.")
        last = max(0, before - 1)
        if held.count(b"\r\n", last, stop) != line_ends:
            raise BadHead("A line of the request's head ends with a bare LF. End every line with CRLF.")
        if held.find(b"\n ", last, stop) >= 0 or held.find(b"\n\t", last, stop) >= 0:
            raise BadHead("A header is folded over several lines. Send every header on one line.")
        if held.startswith(_EMPTY_LINE * 2):
            raise BadHead("This is not a valid HTTP/1.1 request.")


class LengthBody:
    def __init__(self, length: int) -> None:
        self._remaining = length
        self.complete = not length

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        piece, rest = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(piece)
        self.complete = not self._remaining
        return piece, rest


class ChunkedBody:
    """A chunked body (RFC 9112 7.1); extensions and trailers are checked and dropped."""

    def __init__(self) -> None:
        self.complete = False
        self._line = b""  # incomplete
        self._remaining = 0  # bytes of the chunk
        self._expects_crlf = False  # after the bytes of a chunk
        self._in_trailers = False  # after the last chunk
        self._chunks = self._size = self._trailers = 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        if self._line:
            data, self._line = self._line + data, b""
        pieces, at = [], 0
        while at < len(data) and not self.complete:
            if self._remaining:
                piece = data[at : at + self._remaining]
                pieces.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
                continue
            end = data.find(b"\n", at, at + CHUNK_LINE) + 1
            if not end:
                if len(data) - at >= CHUNK_LINE:
                    raise _bad_chunks("has a line that is too long")
                self._line = data[at:]
                return b"".join(pieces), b""
            self._take_line(data[at:end])
            at = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), data[at:]

    def _take_line(self, line: bytes) -> None:
        if self._expects_crlf:
            if line != b"\r\n":
                raise _bad_chunks("has a chunk that does not match its size")
            self._expects_crlf = False
        elif self._in_trailers:
            self._trailers += 1
            self.complete = line == b"\r\n"
            if not self.complete and (self._trailers > TRAILER_LINES or not _TRAILER.fullmatch(line)):
                raise _bad_chunks("has invalid or too many trailers")
        elif match := _CHUNK_SIZE.fullmatch(line):
            size = self._remaining = int(match[1], 16)
            self._expects_crlf, self._in_trailers = size > 0, size == 0
            self._chunks += 1
            self._size += size
            if self._chunks > FREE_CHUNKS + self._size // CHUNK_AVERAGE:
                raise _bad_chunks("has too many small chunks")
        else:
            raise _bad_chunks("is not chunked, although its head says so")


BodyReader = LengthBody | ChunkedBody


def _bad_chunks(what: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"The request's body {what}. Send it with a Content-Length.")


# ---- the fast path: a plain, complete POST that sends

# Without it, h11 and ASGI serve every request: an accepted message takes 52 % more CPU time, and the rate falls from
# 980 to 540 messages/s (`tests.bench.accept`, ten rounds in turns). It reads only requests that h11 parses identically.
# `tests/web/test_http1_fast_post.py` compares the two.

FAST_HEAD_BYTES = 4 * 1024  # h11 parses longer heads
LENGTH_DIGITS = 7  # more than one read ever returns

# The spellings of clients that join a base URL and a path.
_REQUEST_LINES = (b"POST /emails HTTP/1.1\r\n", b"POST /emails/ HTTP/1.1\r\n", b"POST //emails HTTP/1.1\r\n")
# Of the doors, without a query or an escaped character.
_DOOR_LINE = re.compile(rb"POST (/(?:resend|postmark|mailgun|sendgrid)/[A-Za-z0-9./_-]{1,200}) HTTP/1\.1\r\n")
# No bare CR or LF, folded line, control or 8-bit character, or space around a name: only one way to parse it.
_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+:[\x20-\x7e]*\r\n)+")
# Another framing (RFC 9112 6.1), an interim response, or another protocol.
_NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class QuickRequest(NamedTuple):
    """A complete POST, and the bytes after it."""

    path: str
    headers: dict[bytes, bytes]  # names in lower case
    body: bytes
    rest: bytes


def read_request(data: bytes) -> QuickRequest | None:
    """The request at the start of these bytes, or None if h11 must parse it."""
    path = "/emails"
    if not data.startswith(_REQUEST_LINES):
        if (door := _DOOR_LINE.match(data)) is None:
            return None
        path = door[1].decode("ascii")
    begin, end = data.index(b"\n") + 1, data.find(b"\r\n\r\n", 0, FAST_HEAD_BYTES)
    if end < begin or data.count(b"\n", begin, end) >= HEAD_LINES or not _FIELDS.fullmatch(data, begin, end + 2):
        return None
    lines = data[begin:end].split(b"\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(b" ")
    if len(headers) < len(lines) or b"host" not in headers or not _NOT_PLAIN.isdisjoint(headers):
        return None
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or len(length) > LENGTH_DIGITS:
        return None
    begin = end + 4
    end = begin + int(length)
    if len(data) < end:
        return None
    return QuickRequest(path, headers, data[begin:end], data[end:])


# ---- the protocol

JOIN_BYTES = 64 * 1024  # of a response, joined into one write

_BUSY, _IDLE, _CLOSED = hypercorn.Updated(idle=False), hypercorn.Updated(idle=True), hypercorn.Closed()
_DISCONNECT = {"type": "http.disconnect"}
_NOT_HTTP = "This is not a valid HTTP/1.1 request."
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


class Application(Protocol):
    """An ASGI application with a fast path for complete requests."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        """Return the response to a complete POST, and whether it ends the connection."""


class InlineTaskGroup(hypercorn.TaskGroup):
    """Runs the application in the connection's task; hypercorn would start one per request."""

    def __init__(self, receive: Receive, peer: Peer) -> None:
        super().__init__()
        self._receive = receive
        self._peer = peer

    async def spawn_app(self, app: Any, config: object, scope: Any, send: AsgiSend) -> AsgiSend:
        scope["peer"] = self._peer
        try:
            await app(scope, self._receive, send)
        except Exception:
            log.exception("request failed outside its guard", method=scope["method"], path=scope["path"][:200])
        await send(None)
        return hypercorn.discard


def _body_of(request: h11.Request) -> BodyReader | None:
    """Return the reader of the body; None if it has two lengths (RFC 9112 6.3: request smuggling)."""
    length, chunked = None, False
    for name, value in request.headers:
        if name == b"content-length":
            length = int(value)  # h11 has checked the number
        elif name == b"transfer-encoding":
            chunked = True  # h11 accepts no other coding
    if chunked:
        return None if length is not None else ChunkedBody()
    return LengthBody(length or 0)


def _origin_form(target: bytes) -> bytes:
    """Return path and query, also of an absolute URL (RFC 9112 3.2.2); anything else becomes an unknown path."""
    if target.startswith(b"/"):
        return target
    return b"/" + _ABSOLUTE_FORM.sub(b"", target, count=1).removeprefix(b"/")


class Http1(hypercorn.H11Protocol):
    app: Application  # type: ignore[assignment]  # called directly, without hypercorn's wrapper
    connection: h11.Connection  # for one request and its response

    def listen(self, new_request_id: Callable[[], str], read_more: Callable[[], Awaitable[bytes]], peer: Peer) -> None:
        self._new_request_id = new_request_id
        self._read_more = read_more
        self._peer = peer
        self._unsent: list[bytes] = []
        self._unread = b""  # of this request's body, or after it
        self._head = HeadReader()
        self._body: BodyReader = LengthBody(0)
        self._body_consumed = True  # by the application

    # ---- requests

    async def handle(self, event: hypercorn.Event) -> None:
        """Serve the received bytes: complete plain requests on the fast path, others with h11."""
        assert isinstance(event, hypercorn.RawData)  # noqa: S101 - nothing else is sent here
        self._unread = event.data
        while self._unread:
            if not self._head and (request := read_request(self._unread)) is not None:
                self._unread = request.rest
                stays_open = await self._serve_whole(request)
            else:
                stays_open = await self._serve_head()
            if not stays_open:
                return
            if self._unread:
                await trio.lowlevel.checkpoint()  # between pipelined requests other connections run

    async def _serve_whole(self, request: QuickRequest) -> bool:
        self.keep_alive_requests += 1
        await self.send(_BUSY)
        (status, headers, body), ends = await self.app.send_whole(request, self._peer, secure=self.ssl)
        await self.send(hypercorn.RawData(answer_bytes(status, dated(headers, close=self._is_last()), body)))
        stays_open = not ends and not self._is_last()
        await self.send(_IDLE if stays_open else _CLOSED)
        return stays_open

    async def _serve_head(self) -> bool:
        try:
            complete = self._head.feed(self._unread)
        except BadHead as bad:
            await self._refuse(str(bad))
            return False
        if complete is None:
            self._unread = b""
            return True
        head, self._unread = complete
        self.connection.receive_data(head)
        try:
            request = self.connection.next_event()
        except h11.RemoteProtocolError:
            await self._refuse(_NOT_HTTP)
            return False
        assert isinstance(request, h11.Request)  # noqa: S101 - a complete head is a request or an error
        if len(head) > FAST_HEAD_BYTES:  # 2 ms for 16 KB: other connections run before the request is served
            await trio.lowlevel.checkpoint()
        body = _body_of(request)
        if body is None or request.http_version not in (b"1.0", b"1.1"):
            await self._refuse(_NOT_HTTP)
            return False
        self._body, self._body_consumed = body, False
        await self.send(_BUSY)
        await self._create_stream(request)
        return self.connection.our_state is h11.IDLE

    async def _create_stream(self, request: h11.Request) -> None:
        exchange = hypercorn.HttpExchange(
            self.app,  # type: ignore[arg-type]  # as above
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            hypercorn.STREAM_ID,
        )
        self.keep_alive_requests += 1
        await exchange.handle(
            hypercorn.Request(
                stream_id=hypercorn.STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=_origin_form(request.target),
                state=self.connection_state,
            )
        )

    async def receive(self) -> dict[str, Any]:
        """ASGI's receive: read the next piece of the body from the client."""
        while not self._body_consumed:
            piece, self._unread = self._body.take(self._unread)
            self._body_consumed = self._body.complete
            if piece or self._body_consumed:
                return {"type": "http.request", "body": piece, "more_body": not self._body_consumed}
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self._unread = await self._read_more()
            if not self._unread:
                break
        return _DISCONNECT

    # ---- responses

    async def stream_send(self, event: hypercorn.StreamEvent) -> None:
        if isinstance(event, hypercorn.WholeResponse):
            self._queue_head(event.status_code, event.headers)
            if event.data:
                self._queue(h11.Data(data=event.data))
            self._queue(h11.EndOfMessage())
            await self._flush()
            await self._maybe_recycle()
        elif isinstance(event, hypercorn.Response):
            self._queue_head(event.status_code, event.headers)
        elif isinstance(event, hypercorn.Body):
            self._queue(h11.Data(data=event.data))
            if len(event.data) >= JOIN_BYTES:
                await self._flush()
        elif isinstance(event, hypercorn.Flush):
            await self._flush()
        elif isinstance(event, hypercorn.EndBody):
            self._queue(h11.EndOfMessage())
            await self._flush()
        elif isinstance(event, hypercorn.StreamClosed):
            await self._maybe_recycle()

    async def _maybe_recycle(self) -> None:
        """Prepare for the next request, or close if the body was not read to its end."""
        if not self.context.terminated.is_set() and self.connection.our_state is h11.DONE and self._body.complete:
            self.connection = h11.Connection(h11.SERVER)
            await self.send(_IDLE)
        else:
            await self.send(_CLOSED)

    def _is_last(self) -> bool:
        return self.keep_alive_requests >= self.config.keep_alive_max_requests or self.context.terminated.is_set()

    def _queue_head(self, status: int, headers: Headers) -> None:
        headers, reason = dated(headers, close=self._is_last()), REASONS.get(status, b"")
        self._queue(h11.Response(headers=headers, status_code=status, reason=reason))

    def _queue(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        # h11 raises if the client has violated the protocol; it would not understand the response either.
        with suppress(h11.LocalProtocolError):
            data = self.connection.send(event)
            if data:
                self._unsent.append(data)

    async def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if data:
            await self.send(hypercorn.RawData(data=data))

    async def _refuse(self, text: str) -> None:
        status, headers, body = error_answer(Code.INVALID_REQUEST, text, self._new_request_id())
        self.connection = h11.Connection(h11.SERVER)  # no response is pending
        await self.send(hypercorn.RawData(data=answer_bytes(status, dated(headers), body)))
        await self.send(_CLOSED)
