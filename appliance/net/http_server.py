"""In charge of HTTP for listeners that have little to say: a request is its head, an answer ends the connection."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import trio

from appliance.net.connection_limits import ConnectionTable

HEAD_BYTES = 8 * 1024
PLAIN = "text/plain; charset=utf-8"

# RFC 9112 3: a method, an absolute path with or without a query, and a version.
_FIRST_LINE = re.compile(rb"([A-Z]+) (/[\x21-\x7e]*) HTTP/1\.[01]\r\n")


class Request(NamedTuple):
    """What was asked for."""

    method: str
    target: str


@dataclass(slots=True, eq=False)
class Visit:
    """One connection, from its request to the end of its answer."""

    scope: trio.CancelScope

    def give_way(self) -> None:
        """End it for another."""
        self.scope.cancel()


async def answer_one(
    stream: trio.SocketStream,
    door: ConnectionTable[Visit],
    patience: float,
    answer: Callable[[bytes], Awaitable[bytes]],
) -> None:
    """One request by its head, and its whole answer; a client that comes when it is full or is slow gets none."""
    try:
        address = str(stream.socket.getpeername()[0])
        if not door.admits(address):
            await trio.aclose_forcefully(stream)
            return
        visit = Visit(trio.CancelScope())
        with door.inside(visit, address):
            async with stream:
                with trio.move_on_after(patience), visit.scope:
                    await stream.send_all(await answer(await read_head(stream)))
    except (OSError, trio.BrokenResourceError):
        await trio.aclose_forcefully(stream)


async def read_head(stream: trio.abc.ReceiveStream) -> bytes:
    """What a client sends, up to the end of its head, or as much as is taken of one."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
        more = await stream.receive_some(HEAD_BYTES - len(head))
        if not more:
            break
        head += more
    return head


def read_request(head: bytes) -> Request | None:
    """The request that this is the head of; None when it is none."""
    found = _FIRST_LINE.match(head)
    return Request(found[1].decode(), found[2].decode()) if found and b"\r\n\r\n" in head else None


def response(status: str, text: str, more: str = "", *, kind: str = PLAIN, whole: bool = True) -> bytes:
    """A whole answer; `more` are further header lines, and without `whole` it has no body, as for HEAD."""
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"{head}{more}\r\n".encode() + (body if whole else b"")
