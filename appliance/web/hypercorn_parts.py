"""The fence around hypercorn: everything of it that the program uses, written against 0.18.0.

- `Config`, `WorkerContext` (whose `terminated` announces the shutdown), and `Lifespan` with `ASGIWrapper`, which start
  and stop the application
- the constructors of `TCPServer` and `H11Protocol`, the bases of `server.py` and `http1.py`; the events between them;
  `_send_h11_event`
- `HTTPStream`, the base of `HttpExchange`, which makes the ASGI scope and writes streamed responses

hypercorn's reading is not used: through its tasks, channels, read-ahead, Upgrade, WebSocket and HTTP/2, requests could
kill the process, deadlock a connection or fill memory, and they took most of a request's time.
`tests/web/test_hypercorn_parts.py` fails when a used method has moved, and when another function of hypercorn runs.
"""

import logging
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

from appliance.net.http import REQUEST_HEAD_BYTES

__all__ = [
    "STREAM_ID", "ASGIWrapper", "Body", "Closed", "ConnectionState", "EndBody", "Event", "H11Protocol",
    "HypercornConfig", "Lifespan", "RawData", "Request", "Response", "StreamClosed", "StreamEvent", "TCPServer",
    "TaskGroup", "Updated", "WorkerContext", "parse_socket_addr",
]  # fmt: skip

REQUESTS_PER_CONNECTION = 1_000_000  # effectively no limit: reconnecting costs clients more than it saves us


def hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.h11_max_incomplete_size = REQUEST_HEAD_BYTES
    config.keep_alive_max_requests = REQUESTS_PER_CONNECTION
    config.errorlog = logging.getLogger("hypercorn.error")  # into our own log, not a second handler
    return config


async def discard(event: Any) -> None:
    """Drop events to an application that has ended."""


@dataclass(frozen=True)
class WholeResponse(StreamEvent):
    """A complete response, as nearly all are: one event instead of hypercorn's four."""

    status_code: int
    headers: list[tuple[bytes, bytes]]
    data: bytes


class Flush(StreamEvent):
    """Write the buffered data now."""


class HttpExchange(HTTPStream):
    """One request and its response."""

    app_put = staticmethod(discard)
    _start: Any = None  # of a response, until its body shows whether it is complete

    async def app_send(self, message: Any) -> None:
        """Forward the application's events; without a response the connection is closed."""
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
