"""Everything of hypercorn that the program uses: the fence around it, written against 0.18.0.

In use:

- `Config`, `WorkerContext` (whose `terminated` says that the process is stopping), and `Lifespan` with `ASGIWrapper`,
  which start and stop the application;
- the constructors of `TCPServer` and `H11Protocol`, the bases of `server.py` and `http1.py`, the events between
  those two, and `_send_h11_event`;
- `HTTPStream`, the base of `HttpExchange`: it makes the ASGI scope of a request, and writes answers sent in pieces.

Not in use is how hypercorn reads: a task and a channel for each request, a body read ahead of the application, timers
for each connection, Upgrade, WebSocket and HTTP/2. Requests could kill the process through them, deadlock a connection
or fill memory, and they took most of the time of a request. `http1.py` says what is done instead.
`tests/web/test_hypercorn_parts.py` fails when a method that is overridden, called or relied upon has moved, and when
another function of hypercorn runs for a request.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from appliance.net.http_server import REQUEST_HEAD_BYTES
from appliance.telemetry.log import get_logger

__all__ = [
    "STREAM_ID", "ASGIWrapper", "Body", "Closed", "ConnectionState", "EndBody", "Event", "H11Protocol",
    "HypercornConfig", "Lifespan", "RawData", "Request", "Response", "StreamClosed", "StreamEvent", "TCPServer",
    "Updated", "WorkerContext", "parse_socket_addr",
]  # fmt: skip

REQUESTS_PER_CONNECTION = 1_000_000  # effectively no limit: reconnecting costs clients more than it saves us

log = get_logger("web")

Send = Callable[[Any], Awaitable[None]]


def hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.h11_max_incomplete_size = REQUEST_HEAD_BYTES
    config.keep_alive_max_requests = REQUESTS_PER_CONNECTION
    config.errorlog = logging.getLogger("hypercorn.error")  # into our own log, not a second handler
    return config


class InlineTaskGroup(TaskGroup):
    """Runs the application in the task of its connection, where hypercorn would start one for each request."""

    def __init__(self, receive: Callable[[], Awaitable[dict[str, Any]]], peer: object) -> None:
        super().__init__()
        self._receive = receive
        self._peer = peer

    async def spawn_app(self, app: Any, config: object, scope: Any, send: Send) -> Send:
        """Run the application on one request, to its end."""
        scope["peer"] = self._peer
        try:
            await app(scope, self._receive, send)
        except Exception:
            log.exception("request failed outside its guard", method=scope["method"], path=scope["path"][:200])
        await send(None)
        return _discard


async def _discard(event: Any) -> None:
    """For events to an application that has ended."""


@dataclass(frozen=True)
class WholeResponse(StreamEvent):
    """A response that is complete at once, as nearly all are: one event instead of hypercorn's four."""

    status_code: int
    headers: list[tuple[bytes, bytes]]
    data: bytes


class Flush(StreamEvent):
    """What was sent so far leaves now."""


class HttpExchange(HTTPStream):
    """One request and its response."""

    app_put = staticmethod(_discard)
    _start: Any = None  # the head of a response, until its body says whether it is whole

    async def app_send(self, message: Any) -> None:
        """Take what the application sends; one that ends without an answer only has the connection closed."""
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
            if message.get("flush"):
                await self.send(Flush(STREAM_ID))

    async def _send_closed(self) -> None:
        # As hypercorn's, without its access log.
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED
        await self.send(StreamClosed(stream_id=self.stream_id))
