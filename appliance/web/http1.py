"""In charge of HTTP/1.1 on one connection: hypercorn's protocol, with the doors it leaves open closed.

What differs from hypercorn's own, and why:

- the application runs in the connection's own task and pulls the body as it wants it: no task and no channel per
  request, no body read that nobody asked for, and nothing to deadlock on when it stops reading;
- `100 Continue` is sent when the application first reads the body, so one that refuses is never sent a body;
- no Upgrade and no HTTP/2: each had requests that killed the process, and nothing here needs them;
- a body whose length is told in two ways is refused: a proxy in front may have believed the other one;
- a response leaves in one write instead of three;
- the request that carries the load is read and answered without h11, where there can be no two opinions of it;
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
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.task_group import TaskGroup

from appliance.errors import Code
from appliance.log import get_logger
from appliance.web.answer import REASONS, Answer, Headers, error_answer, http_date
from appliance.web.quick_http import QuickRequest, answer_bytes, read_request

JOIN_BYTES = 64 * 1024  # of a response that are gathered before they are written

log = get_logger("web")

Send = Callable[[Any], Awaitable[None]]
Client = tuple[str, int] | None  # address and port, where there is such a thing

_BUSY, _IDLE, _CLOSED = Updated(idle=False), Updated(idle=True), Closed()
_DISCONNECT = {"type": "http.disconnect"}
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


class Application(Protocol):
    """What is served: an ASGI application with a short way for whole requests."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request over ASGI."""

    async def send_whole(self, request: QuickRequest, client: Client, *, secure: bool) -> tuple[Answer, bool]:
        """The answer to a `POST /emails` that is here already, and whether it ends the connection."""


def _is_ambiguous(request: h11.Request) -> bool:
    """Whether it tells its length in two ways (RFC 9112 6.3: an attempt at request smuggling)."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}


def _origin_form(target: bytes) -> bytes:
    """The target as path and query, also of an absolute URL (RFC 9112 3.2.2); anything else is a path of nobody's."""
    if target.startswith(b"/"):
        return target
    return b"/" + _ABSOLUTE_FORM.sub(b"", target, count=1).removeprefix(b"/")


class InPlace(TaskGroup):
    """Hypercorn's place to start the application, which runs it right there, guarded."""

    def __init__(self, receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        super().__init__()
        self._receive = receive

    async def spawn_app(self, app: Any, config: object, scope: Any, send: Send) -> Send:
        """Run the application on one request, to its end."""
        try:
            await app(scope, self._receive, send)
        except Exception:
            log.exception("request failed outside its guard", method=scope["method"], path=scope["path"][:200])
        await send(None)
        return _nobody


async def _nobody(event: Any) -> None:
    """Where events for an application go that has ended."""


@dataclass(frozen=True)
class WholeResponse(StreamEvent):
    """A response that is complete in one go, as nearly all are: one step instead of hypercorn's four."""

    status_code: int
    headers: list[tuple[bytes, bytes]]
    data: bytes


class Exchange(HTTPStream):
    """One request and its response."""

    app_put = staticmethod(_nobody)
    _start: Any = None  # the head of a response, until its body says whether it is whole

    async def app_send(self, message: Any) -> None:
        """Take what the application sends; one that ends without an answer leaves only a closed connection."""
        if message is None:
            if self.state is not ASGIHTTPState.CLOSED:
                await self.send(StreamClosed(stream_id=self.stream_id))
        elif message["type"] == "http.response.start":
            self._start = message
        elif self._start is not None and not message.get("more_body", False):
            self.state = ASGIHTTPState.CLOSED
            body = b"" if self.scope["method"] == "HEAD" else message["body"]
            await self.send(WholeResponse(STREAM_ID, self._start["status"], self._start["headers"], body))
        else:
            if self._start is not None:
                start, self._start = self._start, None
                await super().app_send(start)
            await super().app_send(message)

    async def _send_closed(self) -> None:
        # As hypercorn's, without its access log.
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED
        await self.send(StreamClosed(stream_id=self.stream_id))


class Http1(H11Protocol):
    """The protocol of one connection."""

    app: Application  # type: ignore[assignment]  # called in place, without hypercorn's wrapper
    connection: h11.Connection
    _new_request_id: Callable[[], str]
    _read_more: Callable[[], Awaitable[bytes]]
    _unsent: list[bytes]
    _between_requests: bool  # nothing of a request is with h11

    def listen(self, new_request_id: Callable[[], str], read_more: Callable[[], Awaitable[bytes]]) -> None:
        """Finish construction: hypercorn's own `__init__` has a fixed signature."""
        self._new_request_id = new_request_id
        self._read_more = read_more
        self._unsent = []
        self._between_requests = True

    # ---- what comes in

    async def handle(self, event: Event) -> None:
        """Serve what has come: quickly as far as that goes, and by h11 from the first request that is not plain."""
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        data = event.data
        while self._between_requests and (request := read_request(data)) is not None:
            data = request.rest
            if not await self._serve_whole(request) or not data:
                return
            await trio.lowlevel.checkpoint()  # nobody gets to send many requests at once and have us for itself
        await super().handle(RawData(data))
        self._between_requests = self.connection.their_state is h11.IDLE and not self.connection.trailing_data[0]

    async def _serve_whole(self, request: QuickRequest) -> bool:
        """Answer a request that is here already; whether the connection goes on."""
        self.keep_alive_requests += 1
        await self.send(_BUSY)
        (status, headers, body), ends = await self.app.send_whole(request, self.client, secure=self.ssl)
        await self.send(RawData(answer_bytes(status, self._dated(headers), body)))
        goes_on = not ends and not self._is_last()
        await self.send(_IDLE if goes_on else _CLOSED)
        return goes_on

    async def _handle_events(self) -> None:
        """Serve every request that has arrived whole, as far as its headers go."""
        served = False
        while True:
            if served:
                await trio.lowlevel.checkpoint()  # as above
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if not isinstance(event, h11.Request):
                return  # needs more data, or the connection is over
            if event.http_version not in (b"1.0", b"1.1") or _is_ambiguous(event):
                await self._refuse(None)
                return
            size = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            if size > self.config.h11_max_incomplete_size:
                # h11 holds only headers that come in pieces to the limit.
                await self._refuse(h11.RemoteProtocolError("headers too large", error_status_hint=431))
                return
            await self.send(_BUSY)
            await self._create_stream(event)
            served = True

    async def _create_stream(self, request: h11.Request) -> None:
        exchange = Exchange(
            self.app,  # type: ignore[arg-type]  # as above
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.keep_alive_requests += 1
        await exchange.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=_origin_form(request.target),
                state=self.connection_state,
            )
        )

    async def receive(self) -> dict[str, Any]:
        """ASGI's receive: the next piece of the body, read from the client only now."""
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError:
                return _DISCONNECT
            if event is h11.NEED_DATA:
                if self.connection.they_are_waiting_for_100_continue:
                    await self._send_h11_event(
                        h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                    )
                data = await self._read_more()
                if not data:
                    return _DISCONNECT
                self.connection.receive_data(data)
            elif isinstance(event, h11.Data):
                return {"type": "http.request", "body": event.data, "more_body": True}
            elif isinstance(event, h11.EndOfMessage):
                return {"type": "http.request", "body": b"", "more_body": False}
            else:
                return _DISCONNECT

    # ---- what goes out

    async def stream_send(self, event: StreamEvent) -> None:
        """Write a response; what belongs together leaves together."""
        if isinstance(event, WholeResponse):
            self._queue_head(event.status_code, event.headers)
            if event.data:
                self._queue(h11.Data(data=event.data))
            self._queue(h11.EndOfMessage())
            await self._flush()
            await self._maybe_recycle()
        elif isinstance(event, Response):
            self._queue_head(event.status_code, event.headers)
        elif isinstance(event, Body):
            self._queue(h11.Data(data=event.data))
            if len(event.data) >= JOIN_BYTES:
                await self._flush()
        elif isinstance(event, EndBody):
            self._queue(h11.EndOfMessage())
            await self._flush()
        elif isinstance(event, StreamClosed):
            await self._maybe_recycle()

    async def _maybe_recycle(self) -> None:
        """Make ready for the next request, or close: after a body that was not read, nothing else can be."""
        if self.connection.our_state is h11.DONE and self.connection.their_state is h11.SEND_BODY:
            # Answered without a look at the body. There is none, or the answer would have said `close`: read its end.
            with suppress(h11.RemoteProtocolError):
                self.connection.next_event()
        if (
            not self.context.terminated.is_set()
            and self.connection.our_state is h11.DONE
            and self.connection.their_state is h11.DONE
        ):
            self.connection.start_next_cycle()
            await self.send(_IDLE)
        else:
            await self.send(_CLOSED)

    def _is_last(self) -> bool:
        """Whether the connection ends with this answer, for reasons of our own."""
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
        # A client that broke the protocol while we were answering will not understand the answer either.
        with suppress(h11.LocalProtocolError):
            data = self.connection.send(event)
            if data:
                self._unsent.append(data)

    async def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if data:
            await self.send(RawData(data=data))

    async def _refuse(self, error: h11.RemoteProtocolError | None) -> None:
        """Answer what is not HTTP/1.1, where it can still be answered, and close."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = (
                "The request's headers are larger than 16 KiB. Send less in them."
                if error is not None and error.error_status_hint == 431
                else "This is not a valid HTTP/1.1 request."
            )
            status, headers, body = error_answer(Code.INVALID_REQUEST, text, self._new_request_id())
            self._queue_head(status, [*headers, (b"connection", b"close")])
            self._queue(h11.Data(data=body))
            self._queue(h11.EndOfMessage())
            await self._flush()
        await self.send(_CLOSED)
