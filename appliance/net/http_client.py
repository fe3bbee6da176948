"""One HTTP/1.1 request and its response on an open connection, by h11, with a limit on what is read.

For rare requests: MTA-STS policies and ACME. Webhooks have a faster reader of their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import h11
import trio

RESPONSE_HEADER_BYTES = 16 * 1024  # bytes


class BadResponse(Exception):
    """The response is not valid HTTP, or not acceptable; the text is the reason."""


class ClosedEarly(BadResponse):
    """The connection ended before the response did."""


class TooLong(BadResponse):
    """The body is longer than the caller reads."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response whose body has not been read yet."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]  # names in lower case
    _stream: trio.abc.Stream
    _http: h11.Connection

    def all(self, name: bytes) -> list[bytes]:
        return [value for each, value in self.headers if each == name]

    async def body(self, limit: int) -> bytes:
        """The whole body; raises `TooLong` when it has more bytes than the limit."""
        body = b""
        while not isinstance(event := await _next(self._stream, self._http), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > limit:
                    raise TooLong(f"it is over {limit} bytes")
            else:
                raise ClosedEarly("the connection was closed early")
        return body


async def send_request(
    stream: trio.abc.Stream, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> HttpResponse:
    """Send a request, the only one on this connection, and read the response up to its body; raises `BadResponse`."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=RESPONSE_HEADER_BYTES)
    framing = [("Content-Length", str(len(body)))] if body else []
    fields = [*headers, *framing, ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = http.send(h11.Request(method=method, target=target, headers=fields)) or b""
    if body:
        request += http.send(h11.Data(data=body)) or b""
    await stream.send_all(request + (http.send(h11.EndOfMessage()) or b""))
    while True:
        event = await _next(stream, http)
        if isinstance(event, h11.Response):
            return HttpResponse(event.status_code, tuple(event.headers), stream, http)
        if not isinstance(event, h11.InformationalResponse):
            raise ClosedEarly("the connection was closed early")


async def _next(stream: trio.abc.Stream, http: h11.Connection) -> object:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(RESPONSE_HEADER_BYTES)))
    except h11.RemoteProtocolError as fault:
        raise BadResponse(str(fault)) from fault
    return event
