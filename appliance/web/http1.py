"""In charge of HTTP/1.1 on one connection: hypercorn's protocol, with the doors it leaves open closed.

What differs from hypercorn's own, and why:

- no Upgrade and no HTTP/2: each had requests that killed the process, and nothing here needs them;
- `100 Continue` is sent when the application first reads the body, so one that refuses is never sent a body;
- a response leaves in one write instead of three;
- the body waits in an `Inbox` that lets go when the application stops reading (hypercorn's channel deadlocks there);
- a request that is not HTTP gets our error object, with an `X-Request-ID` like every other answer.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain
from typing import Any

import h11
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup

from appliance.errors import Code
from appliance.log import get_logger
from appliance.web.answer import error_answer

INBOX_BYTES = 256 * 1024  # of a body that may wait for the application before reading from the client stops
JOIN_BYTES = 64 * 1024  # of a response that are gathered before they are written

log = get_logger("web")

Application = Callable[..., Awaitable[None]]


class Inbox:
    """The request body on its way to the application, and word that the client is gone."""

    def __init__(self, before_first: Callable[[], Awaitable[None]]) -> None:
        self._before_first: Callable[[], Awaitable[None]] | None = before_first
        self._events: deque[dict[str, Any]] = deque()
        self._size = 0
        self._abandoned = False
        self._changed = trio.lowlevel.ParkingLot()

    async def put(self, event: dict[str, Any]) -> None:
        """Hand over an event, waiting while the application has enough to read; never waits for one that has ended."""
        while self._size > INBOX_BYTES and not self._abandoned:
            await self._changed.park()
        if not self._abandoned:
            self._events.append(event)
            self._size += len(event.get("body", b""))
            self._changed.unpark_all()

    async def receive(self) -> dict[str, Any]:
        """ASGI's receive. The first call tells a client that waits for `100 Continue` to go on."""
        if self._before_first is not None:
            before_first, self._before_first = self._before_first, None
            await before_first()
        while not self._events:
            await self._changed.park()
        event = self._events.popleft()
        self._size -= len(event.get("body", b""))
        self._changed.unpark_all()
        return event

    def abandon(self) -> None:
        """The application has ended: drop what it did not read, and hold up nobody for it."""
        self._abandoned = True
        self._events.clear()
        self._size = 0
        self._changed.unpark_all()


class Requests(TaskGroup):
    """The tasks of one connection; each request runs guarded, so that its failure is its own."""

    def __init__(self, send_continue: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._send_continue = send_continue

    async def spawn_app(
        self,
        app: Application,
        config: object,
        scope: Any,
        send: Callable[[Any], Awaitable[None]],
    ) -> Callable[[Any], Awaitable[None]]:
        """Start the application on one request; what it will receive goes into the returned function."""
        inbox = Inbox(self._send_continue)
        self._nursery.start_soon(_run, app, scope, inbox, send)  # type: ignore[union-attr]  # set while entered
        return inbox.put


async def _run(app: Application, scope: Any, inbox: Inbox, send: Callable[[Any], Awaitable[None]]) -> None:
    try:
        await app(scope, inbox.receive, send)
    except Exception:
        log.exception("request failed outside its guard", method=scope["method"], path=scope["path"][:200])
    finally:
        inbox.abandon()
    await send(None)


class Exchange(HTTPStream):
    """One request and its response."""

    async def handle(self, event: StreamEvent) -> None:
        """Pass an event on to the application; a closed stream is told without waiting for anybody."""
        if isinstance(event, StreamClosed) and not self.closed:
            self.closed = True
            await self.app_put({"type": "http.disconnect"})
        else:
            await super().handle(event)

    async def _send_closed(self) -> None:
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = type(self.state).CLOSED
        await self.send(StreamClosed(stream_id=self.stream_id))


class Http1(H11Protocol):
    """The protocol of one connection."""

    connection: h11.Connection
    new_request_id: Callable[[], str]
    _unsent: list[bytes]

    def listen(self, new_request_id: Callable[[], str]) -> None:
        """Finish construction: hypercorn's own `__init__` has a fixed signature."""
        self.new_request_id = new_request_id
        self._unsent = []

    async def send_continue(self) -> None:
        """Let a client that asked first send its body."""
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    # ---- what comes in

    async def _handle_events(self) -> None:
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if isinstance(event, h11.Request):
                if event.http_version not in (b"1.0", b"1.1"):
                    await self._refuse(None)
                    return
                await self.send(Updated(idle=False))
                await self._create_stream(event)
            elif event is h11.PAUSED:
                await self.can_read.clear()
                await self.can_read.wait()
            elif isinstance(event, h11.ConnectionClosed) or event is h11.NEED_DATA or self.stream is None:
                return
            elif isinstance(event, h11.Data):
                await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = Exchange(
            self.app,
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
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )

    # ---- what goes out

    async def stream_send(self, event: StreamEvent) -> None:
        """Write a response; what belongs together leaves together."""
        if isinstance(event, Response):
            headers = list(chain(event.headers, self.config.response_headers("h11")))
            if self.keep_alive_requests >= self.config.keep_alive_max_requests or self.context.terminated.is_set():
                headers.append((b"connection", b"close"))
            self._queue(h11.Response(headers=headers, status_code=event.status_code))
        elif isinstance(event, Body):
            self._queue(h11.Data(data=event.data))
            if sum(map(len, self._unsent)) >= JOIN_BYTES:
                await self._flush()
        elif isinstance(event, EndBody):
            self._queue(h11.EndOfMessage())
            await self._flush()
        elif isinstance(event, StreamClosed):
            await self._maybe_recycle()

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
        if self.stream is None and self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            too_large = error is not None and error.error_status_hint == 431
            text = (
                "The request's headers are larger than 16 KiB. Send less in them."
                if too_large
                else "This is not a valid HTTP/1.1 request."
            )
            status, headers, body = error_answer(Code.INVALID_REQUEST, text, self.new_request_id())
            self._queue(h11.Response(status_code=status, headers=[*headers, (b"connection", b"close")]))
            self._queue(h11.Data(data=body))
            self._queue(h11.EndOfMessage())
            await self._flush()
        await self.send(Closed())

