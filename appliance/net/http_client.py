"""In charge of one HTTP/1.1 request and its answer on an open connection, by h11, and of how much of it is read.

For what is asked now and then: a policy, a certificate. Webhooks, of which there are many, have a quicker reader.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import h11
import trio

HEADER_LIMIT = 16 * 1024  # bytes


class BadAnswer(Exception):
    """What came is no good HTTP, with the reason in words."""


class ClosedEarly(BadAnswer):
    """The connection ended before the answer did."""


class TooLong(BadAnswer):
    """The body is longer than the caller reads."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose body has not been read yet."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]  # names in lower case
    _stream: trio.abc.Stream
    _http: h11.Connection

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header."""
        return [value for each, value in self.headers if each == name]

    async def body(self, limit: int) -> bytes:
        """The body, all of it; raises `TooLong` when it has more bytes than the limit."""
        body = b""
        while not isinstance(event := await _next(self._stream, self._http), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > limit:
                    raise TooLong(f"it is over {limit} bytes")
            else:
                raise ClosedEarly("the connection was closed early")
        return body


async def ask(
    stream: trio.abc.Stream, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> Answer:
    """Send a request, the only one on this connection, and read its answer up to the body; raises `BadAnswer`."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_LIMIT)
    framing = [("Content-Length", str(len(body)))] if body else []
    fields = [*headers, *framing, ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = http.send(h11.Request(method=method, target=target, headers=fields)) or b""
    if body:
        request += http.send(h11.Data(data=body)) or b""
    await stream.send_all(request + (http.send(h11.EndOfMessage()) or b""))
    while True:
        event = await _next(stream, http)
        if isinstance(event, h11.Response):
            return Answer(event.status_code, tuple(event.headers), stream, http)
        if not isinstance(event, h11.InformationalResponse):
            raise ClosedEarly("the connection was closed early")


async def _next(stream: trio.abc.Stream, http: h11.Connection) -> object:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(HEADER_LIMIT)))
    except h11.RemoteProtocolError as fault:
        raise BadAnswer(str(fault)) from fault
    return event
