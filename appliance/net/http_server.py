"""Minimal HTTP for the challenge server and /metrics: one request without a body, one response, then close."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from appliance.net.connection_limits import ConnectionTable

REQUEST_HEAD_BYTES = 16 * 1024  # of the API and dashboard: request line and header lines, with their line ends
HEAD_LINES = 100  # header lines
SHORT_HEAD_BYTES = 8 * 1024
PLAIN_TEXT = "text/plain; charset=utf-8"

# RFC 9112 3: a method, an absolute path with or without a query, and a version.
_FIRST_LINE = re.compile(rb"([A-Z]+) (/[\x21-\x7e]*) HTTP/1\.[01]\r\n")


@dataclass(slots=True, eq=False)
class ShortConnection:
    scope: trio.CancelScope

    def evict(self) -> None:
        self.scope.cancel()


async def answer_one(
    stream: trio.SocketStream,
    connections: ConnectionTable[ShortConnection],
    patience: float,
    answer: Callable[[bytes], Awaitable[bytes]],
) -> None:
    """Answer one request; a client gets none when the table is full or when it is too slow."""
    try:
        address = str(stream.socket.getpeername()[0])
        if not connections.admits(address):
            await trio.aclose_forcefully(stream)
            return
        connection = ShortConnection(trio.CancelScope())
        with connections.tracking(connection, address):
            async with stream:
                with trio.move_on_after(patience), connection.scope:
                    await stream.send_all(await answer(await read_head(stream)))
    except (OSError, trio.BrokenResourceError):
        await trio.aclose_forcefully(stream)


async def read_head(stream: trio.abc.ReceiveStream) -> bytes:
    """What a client sends, up to the end of the head or `SHORT_HEAD_BYTES`."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < SHORT_HEAD_BYTES:
        if not (more := await stream.receive_some(SHORT_HEAD_BYTES - len(head))):
            break
        head += more
    return head


def read_request(head: bytes) -> tuple[str, str] | None:
    """Method and target of a request; None when the head is not that of a complete one."""
    found = _FIRST_LINE.match(head)
    return (found[1].decode(), found[2].decode()) if found and b"\r\n\r\n" in head else None


def response(status: str, text: str, more: str = "", *, kind: str = PLAIN_TEXT, whole: bool = True) -> bytes:
    """A whole response; `more` are further header lines, and without `whole` it has no body, as for HEAD."""
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}{more}\r\n".encode() + (body if whole else b"")
