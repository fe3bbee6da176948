"""One HTTP/1.1 request and its response on an open connection, by h11, with a limit on what is read.

The server chooses how much work its bytes are, so few are parsed at a time, and other tasks run between two reads.
For rare requests: MTA-STS policies and ACME. Webhooks have a faster reader of their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import h11
import trio

RESPONSE_HEADER_BYTES = 8 * 1024  # bytes: as 2,000 lines, which are parsed at once, they take 3 ms
RESPONSE_READ_BYTES = 2 * 1024  # at a time: as chunks of one byte they take 3 ms
RESPONSE_PIECES = 2_000  # reads, chunks and interim responses


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
        body = bytearray()
        for _ in range(RESPONSE_PIECES):
            event = await _next(self._stream, self._http)
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                raise ClosedEarly("the connection was closed early")
            body += event.data
            if len(body) > limit:
                raise TooLong(f"it is over {limit} bytes")
        raise BadResponse("it comes in too many pieces")


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
    for _ in range(RESPONSE_PIECES):
        event = await _next(stream, http)
        if isinstance(event, h11.Response):
            return HttpResponse(event.status_code, tuple(event.headers), stream, http)
        if not isinstance(event, h11.InformationalResponse):
            raise ClosedEarly("the connection was closed early")
    raise BadResponse("it has too many interim responses")


async def _next(stream: trio.abc.Stream, http: h11.Connection) -> object:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(RESPONSE_READ_BYTES)))
    except h11.RemoteProtocolError as fault:
        raise BadResponse(str(fault)) from fault
    return event
