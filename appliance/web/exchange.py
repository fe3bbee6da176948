"""One HTTP request and its response, as the edge handles them: over ASGI, or read whole by the fast path."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from appliance.web.answer import SECURITY_HEADERS, Answer, Headers
from appliance.web.body import Receive
from appliance.web.http1 import Peer
from appliance.web.live import stream_headers

AsgiSend = Callable[[Any], Awaitable[None]]
AsgiScope = dict[str, Any]

_HSTS = (b"strict-transport-security", b"max-age=31536000")
_CLOSE = (b"connection", b"close")


class Exchange:
    """One request and its response."""

    doubled: frozenset[bytes] = frozenset()  # repeated headers; a proxy may have acted on the other value
    expects_body = False

    def __init__(
        self, receive: Receive, headers: dict[bytes, bytes], peer: Peer, request_id: str, *, secure: bool
    ) -> None:
        self._receive = receive
        self.headers = headers
        self.peer = peer
        self.request_id = request_id
        self._secure = secure

    async def receive(self) -> dict[str, Any]:
        """The next ASGI event of the body."""
        event = await self._receive()
        if not event.get("more_body", False):
            self.expects_body = False
        return event

    def framed(self, headers: Headers) -> Headers:
        """Add the connection's headers to an answer's headers."""
        if self._secure:
            headers = [*headers, _HSTS]
        if self.expects_body:
            # The body is unread, so the next bytes on the connection are not a request.
            headers = [*headers, _CLOSE]
        return headers


class AsgiExchange(Exchange):
    _begun = False  # whether the stream has started

    def __init__(self, receive: Receive, send: AsgiSend, scope: AsgiScope, request_id: str) -> None:
        secure = scope["scheme"] == "https"
        super().__init__(receive, dict(scope["headers"]), scope["peer"], request_id, secure=secure)
        self._send = send

    async def send(self, answer: Answer) -> None:
        status, headers, body = answer
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def write(self, data: bytes, more: bool) -> None:
        """Send a piece of a stream immediately."""
        if not self._begun:
            self._begun = True
            await self._start(200, stream_headers(self.request_id))
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
