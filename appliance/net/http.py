"""Minimal HTTP/1.1: a client for MTA-STS and ACME, and a server for ACME challenges and /metrics.

Both handle one request per connection, with limits on what they read. The client parses little at a time, because the
server chooses how much work its bytes are; other tasks run in between. Webhooks and the API have their own HTTP code.
"""

import re
from collections.abc import Awaitable, Callable, Iterable

import h11
import trio
from msgspec import Struct

from appliance.net.connection_server import ConnectionTable
from appliance.telemetry.log import Log

# ---- the client

RESPONSE_HEADER_BYTES = 8 * 1024  # bytes: parsing 2,000 lines of it takes 3 ms
RESPONSE_READ_BYTES = 2 * 1024  # per read: chunks of one byte take 3 ms
RESPONSE_PIECES = 2_000  # reads, chunks and interim responses


class BadResponse(Exception):
    """The response is invalid or not acceptable; the text is the reason."""


class ClosedEarly(BadResponse):
    """The connection ended before the response did."""


class TooLong(BadResponse):
    """The body is longer than the caller reads."""


class HttpResponse(Struct, frozen=True):
    status: int
    headers: tuple[tuple[bytes, bytes], ...]  # names in lower case
    _stream: trio.abc.Stream
    _http: h11.Connection

    def all(self, name: bytes) -> list[bytes]:
        return [value for header, value in self.headers if header == name]

    async def body(self, limit: int) -> bytes:
        """Read the body; raises `TooLong` if it exceeds the limit."""
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
        raise BadResponse("it has too many pieces")


async def send_request(
    stream: trio.abc.Stream, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> HttpResponse:
    """Send the only request of this connection, and read the response up to its body; raises `BadResponse`."""
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


# ---- the server

REQUEST_HEAD_BYTES = 16 * 1024  # of the API and dashboard: request line and header lines with their line ends
HEAD_LINES = 100  # header lines
SHORT_HEAD_BYTES = 8 * 1024
PLAIN_TEXT = "text/plain; charset=utf-8"

# RFC 9112 3: method, absolute path with optional query, version.
_FIRST_LINE = re.compile(rb"([A-Z]+) (/[\x21-\x7e]*) HTTP/1\.[01]\r\n")


class ShortConnection(Struct, eq=False):
    scope: trio.CancelScope

    def evict(self) -> None:
        self.scope.cancel()


async def answer_one(
    stream: trio.SocketStream,
    connections: ConnectionTable[ShortConnection],
    patience: float,
    answer: Callable[[bytes], Awaitable[bytes]],
    log: Log,
) -> None:
    """Answer one request; a client that is too slow, or beyond the limits, gets no response."""
    try:
        address = str(stream.socket.getpeername()[0])
        if not connections.admits(address):
            await trio.aclose_forcefully(stream)
            return
        connection = ShortConnection(trio.CancelScope())
        with connections.tracking(connection, address):
            async with stream:
                with trio.move_on_after(patience), connection.scope:
                    head = b""
                    while b"\r\n\r\n" not in head and len(head) < SHORT_HEAD_BYTES:
                        if not (more := await stream.receive_some(SHORT_HEAD_BYTES - len(head))):
                            break
                        head += more
                    await stream.send_all(await answer(head))
    except (OSError, trio.BrokenResourceError):
        await trio.aclose_forcefully(stream)
    except Exception:  # ends this request only
        log.exception("request failed")


def read_request(head: bytes) -> tuple[str, str] | None:
    match = _FIRST_LINE.match(head)
    return (match[1].decode(), match[2].decode()) if match and b"\r\n\r\n" in head else None


def response(status: str, text: str, more: str = "", *, kind: str = PLAIN_TEXT, whole: bool = True) -> bytes:
    """Return a response; `more` are additional header lines; `whole=False` omits the body, as for HEAD."""
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}{more}\r\n".encode() + (body if whole else b"")
