"""HTTP/1.1 on one connection, for `server.py`: requests in, the application's answers out, one after the other.

A subclass of hypercorn's protocol (`hypercorn_parts.py` says what of that is in use). What differs, and why:

- the application runs in the connection's own task and pulls the body as it wants it: no task and no channel per
  request, no body read ahead, and no deadlock when the application stops reading;
- `100 Continue` is sent when the application first reads the body, so one that refuses is never sent a body;
- no Upgrade and no HTTP/2: each had requests that killed the process, and nothing here needs them;
- h11 parses heads only, and only those whose raw bytes were found to be short and in plain lines (`HeadReader`): a
  client cannot make it parse thousands of header lines. A bare LF and a folded line are refused because a proxy in
  front may read them differently (RFC 9112 2.2, 5.2). One empty line before a request line is ignored, as some clients
  send one after a body (RFC 9112 2.2). Every byte is looked at a fixed number of times, also when a head arrives one
  byte per packet;
- a body whose length is told in two ways is refused: a proxy in front may have believed the other one;
- a response leaves in one write instead of three;
- a plain `POST /emails` that is here as a whole is read and answered without h11 (`fast_post.py`);
- a request that is not HTTP gets our error object, with an `X-Request-ID` like every other answer.
"""

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import h11
import trio

from appliance.errors import Code, Refused
from appliance.net.http_server import HEAD_LINES, REQUEST_HEAD_BYTES
from appliance.web import hypercorn_parts as hypercorn
from appliance.web.answer import REASONS, Answer, Headers, error_answer, http_date
from appliance.web.fast_post import QuickRequest, answer_bytes, read_request

# ---- where a head and a body end

CHUNK_LINE = 1_024  # bytes of a chunk's size with its extensions, or of a trailer line
TRAILER_LINES = 16
# Chunks cost by their number: a client that sends many may not send many small ones.
FREE_CHUNKS = 256
CHUNK_AVERAGE = 64  # bytes, of the chunks beyond those

_EMPTY_LINE = b"\r\n"
_END = b"\r\n\r\n"
_LINE_ENDS = 2 + HEAD_LINES  # those of the request line and of the empty line, too
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")  # RFC 9112 7.1
# A header line, not folded, that says nothing of where a body ends (RFC 9110 6.5.1).
_TRAILER = re.compile(
    rb"(?!content-length:|transfer-encoding:)[!#$%&'*+\-.^_`|~0-9a-z]+:[\t\x20-\x7e\x80-\xff]*\r\n", re.IGNORECASE
)


class BadHead(Exception):
    """A head that is refused; its text is for the client."""


class HeadReader:
    """Gathers one request's head."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._line_ends = 0

    def __bool__(self) -> bool:
        """Whether a part of a head has come."""
        return bool(self._held)

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The head and the bytes after it, once it is complete; None before. Raises BadHead."""
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
        """Refuse what makes this no good head; `before` bytes of it were checked already."""
        held = self._held
        line_ends = held.count(b"\n", before, stop)
        self._line_ends += line_ends
        if self._line_ends > _LINE_ENDS + held.startswith(_EMPTY_LINE):
            raise BadHead(f"The request has more than {HEAD_LINES} header lines. Send fewer.")
        if stop > REQUEST_HEAD_BYTES:
            raise BadHead("The request's headers are larger than 16 KiB. Send less in them.")
        last = max(0, before - 1)
        if held.count(b"\r\n", last, stop) != line_ends:
            raise BadHead("A line of the request's head ends with a bare LF. End each with CRLF.")
        if held.find(b"\n ", last, stop) >= 0 or held.find(b"\n\t", last, stop) >= 0:
            raise BadHead("A header is folded over several lines. Send each header in one line.")
        if held.startswith(_EMPTY_LINE * 2):
            raise BadHead("This is not a valid HTTP/1.1 request.")


class LengthBody:
    """A body whose length was told."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = not length

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The body's part of these bytes, and the rest."""
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self.complete = not self._left
        return piece, rest


class ChunkedBody:
    """A body that comes in chunks (RFC 9112 7.1); extensions and trailers are checked and left out."""

    def __init__(self) -> None:
        self.complete = False
        self._line = b""  # one that is not complete yet
        self._left = 0  # bytes of the chunk that are still to come
        self._begun = False  # a chunk, whose CRLF is still to come after its bytes
        self._ending = False  # the last chunk has come
        self._chunks = self._size = self._trailers = 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The content among these bytes, and the rest once the body is complete."""
        if self._line:
            data, self._line = self._line + data, b""
        pieces, at = [], 0
        while at < len(data) and not self.complete:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
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
        if self._begun:
            if line != b"\r\n":
                raise _bad_chunks("has a chunk of another size than it says")
            self._begun = False
        elif self._ending:
            self._trailers += 1
            self.complete = line == b"\r\n"
            if not self.complete and (self._trailers > TRAILER_LINES or not _TRAILER.fullmatch(line)):
                raise _bad_chunks("has trailers that are not taken")
        elif found := _CHUNK_SIZE.fullmatch(line):
            size = self._left = int(found[1], 16)
            self._begun, self._ending = size > 0, size == 0
            self._chunks += 1
            self._size += size
            if self._chunks > FREE_CHUNKS + self._size // CHUNK_AVERAGE:
                raise _bad_chunks("comes in too many small chunks")
        else:
            raise _bad_chunks("is not in chunks, as its head says")


BodyReader = LengthBody | ChunkedBody


def _bad_chunks(what: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"The request's body {what}. Send it with a Content-Length.")


# ---- the protocol

JOIN_BYTES = 64 * 1024  # of a response that are gathered before they are written

_BUSY, _IDLE, _CLOSED = hypercorn.Updated(idle=False), hypercorn.Updated(idle=True), hypercorn.Closed()
_DISCONNECT = {"type": "http.disconnect"}
_NOT_HTTP = "This is not a valid HTTP/1.1 request."
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


@dataclass(slots=True)
class Peer:
    """The client of a connection; the application notes whether a request of it was authenticated."""

    address: tuple[str, int] | None  # and port; None for a socket without addresses
    authenticated: bool = False
    gone: bool = False  # it could not be written to


class Application(Protocol):
    """What is served: an ASGI application with a fast path for whole requests."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request over ASGI."""

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        """The answer to a `POST /emails` that is here already, and whether it ends the connection."""


def _body_of(request: h11.Request) -> BodyReader | None:
    """The reader of its body; None when it gives the length in two ways (RFC 9112 6.3: an attempt at smuggling)."""
    length, chunked = None, False
    for name, value in request.headers:
        if name == b"content-length":
            length = int(value)  # h11 has made sure that it is a number
        elif name == b"transfer-encoding":
            chunked = True  # h11 takes no other coding
    if chunked:
        return None if length is not None else ChunkedBody()
    return LengthBody(length or 0)


def _origin_form(target: bytes) -> bytes:
    """The target as path and query, also of an absolute URL (RFC 9112 3.2.2); anything else becomes an unknown path."""
    if target.startswith(b"/"):
        return target
    return b"/" + _ABSOLUTE_FORM.sub(b"", target, count=1).removeprefix(b"/")


class Http1(hypercorn.H11Protocol):
    """The state of one connection."""

    app: Application  # type: ignore[assignment]  # called in place, without hypercorn's wrapper
    connection: h11.Connection  # for one request and its answer

    def listen(self, new_request_id: Callable[[], str], read_more: Callable[[], Awaitable[bytes]], peer: Peer) -> None:
        """Finish construction: hypercorn's own `__init__` has a fixed signature."""
        self._new_request_id = new_request_id
        self._read_more = read_more
        self._peer = peer
        self._unsent: list[bytes] = []
        self._unread = b""  # of the body of this request, or of what follows it
        self._head = HeadReader()
        self._body: BodyReader = LengthBody(0)
        self._body_given = True  # all of it, to the application

    # ---- what comes in

    async def handle(self, event: hypercorn.Event) -> None:
        """Serve what has come: by the fast path each request that is plain and whole, and with h11 otherwise."""
        assert isinstance(event, hypercorn.RawData)  # noqa: S101 - nothing else is sent here
        self._unread = event.data
        while self._unread:
            if not self._head and (request := read_request(self._unread)) is not None:
                self._unread = request.rest
                goes_on = await self._serve_whole(request)
            else:
                goes_on = await self._serve_head()
            if not goes_on:
                return
            if self._unread:
                await trio.lowlevel.checkpoint()  # between pipelined requests, other connections have a turn

    async def _serve_whole(self, request: QuickRequest) -> bool:
        """Answer a request that is here already; whether the connection goes on."""
        self.keep_alive_requests += 1
        await self.send(_BUSY)
        (status, headers, body), ends = await self.app.send_whole(request, self._peer, secure=self.ssl)
        await self.send(hypercorn.RawData(answer_bytes(status, self._dated(headers), body)))
        goes_on = not ends and not self._is_last()
        await self.send(_IDLE if goes_on else _CLOSED)
        return goes_on

    async def _serve_head(self) -> bool:
        """Serve a request whose head is complete now; whether the connection goes on."""
        try:
            found = self._head.feed(self._unread)
        except BadHead as bad:
            await self._refuse(str(bad))
            return False
        if found is None:
            self._unread = b""
            return True
        head, self._unread = found
        self.connection.receive_data(head)
        try:
            request = self.connection.next_event()
        except h11.RemoteProtocolError:
            await self._refuse(_NOT_HTTP)
            return False
        assert isinstance(request, h11.Request)  # noqa: S101 - a complete head is a request, or an error
        body = _body_of(request)
        if body is None or request.http_version not in (b"1.0", b"1.1"):
            await self._refuse(_NOT_HTTP)
            return False
        self._body, self._body_given = body, False
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
        """ASGI's receive: the next piece of the body, read from the client only now."""
        while not self._body_given:
            piece, self._unread = self._body.take(self._unread)
            self._body_given = self._body.complete
            if piece or self._body_given:
                return {"type": "http.request", "body": piece, "more_body": not self._body_given}
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self._unread = await self._read_more()
            if not self._unread:
                break
        return _DISCONNECT

    # ---- what goes out

    async def stream_send(self, event: hypercorn.StreamEvent) -> None:
        """Write a response; what belongs together leaves together."""
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
        """Make ready for the next request, or close: after a body that was not read, nothing else can be."""
        if not self.context.terminated.is_set() and self.connection.our_state is h11.DONE and self._body.complete:
            self.connection = h11.Connection(h11.SERVER)
            await self.send(_IDLE)
        else:
            await self.send(_CLOSED)

    def _is_last(self) -> bool:
        """Whether the server ends the connection with this answer."""
        return self.keep_alive_requests >= self.config.keep_alive_max_requests or self.context.terminated.is_set()

    def _dated(self, headers: Headers) -> Headers:
        headers = [*headers, (b"date", http_date(int(time.time())))]
        if self._is_last():
            headers.append((b"connection", b"close"))
        return headers

    def _queue_head(self, status: int, headers: Headers) -> None:
        reason = REASONS.get(status, b"")
        self._queue(h11.Response(headers=self._dated(headers), status_code=status, reason=reason))

    def _queue(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        # h11 raises for a client that broke the protocol meanwhile; it would not understand the answer either.
        with suppress(h11.LocalProtocolError):
            data = self.connection.send(event)
            if data:
                self._unsent.append(data)

    async def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if data:
            await self.send(hypercorn.RawData(data=data))

    async def _refuse(self, text: str) -> None:
        """Answer what is not valid HTTP/1.1, and close."""
        status, headers, body = error_answer(Code.INVALID_REQUEST, text, self._new_request_id())
        dated = [*headers, (b"date", http_date(int(time.time()))), (b"connection", b"close")]
        self.connection = h11.Connection(h11.SERVER)  # which owes the client no answer
        await self.send(hypercorn.RawData(data=answer_bytes(status, dated, body)))
        await self.send(_CLOSED)
