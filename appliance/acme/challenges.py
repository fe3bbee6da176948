"""The server on port 80: answers http-01 challenges (RFC 8555 8.3), and redirects other requests to HTTPS.

It is open to every client, so each client gets few resources: a few kilobytes, a few seconds, and one response.
"""

import re
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Struct, field

from appliance.config.values import Endpoint
from appliance.net.connection_server import ConnectionTable, accept_connections
from appliance.net.http import ShortConnection, answer_one, read_request, response
from appliance.telemetry.log import get_logger

CHALLENGE_CONNECTIONS = 200  # at once
CONNECTIONS_PER_ADDRESS = 20
CHALLENGE_TIMEOUT = 5.0  # seconds for a request and its response

_PREFIX = "/.well-known/acme-challenge/"  # RFC 8555 8.3
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")

log = get_logger("acme")


def token_of(head: bytes) -> str | None:
    """Return the challenge token in a request head; None if it is another request. No I/O."""
    method, target = read_request(head) or ("", "")
    token = target.removeprefix(_PREFIX)
    return token if method in ("GET", "HEAD") and token != target and _TOKEN.fullmatch(token) else None


def answer(head: bytes, tokens: Mapping[str, str], https: str) -> bytes:
    """Return the response to a request head; `https` is the site to redirect to, or empty. No I/O."""
    request = read_request(head)
    if request is None:
        return response("400 Bad Request", "Not a valid HTTP request.\n")
    method, target = request
    whole = method == "GET"
    if not whole and method != "HEAD":
        return response("405 Method Not Allowed", "Use HTTPS.\n", "Allow: GET, HEAD\r\n")
    if target.startswith(_PREFIX):
        text = tokens.get(token_of(head) or "")
        if text is None:
            return response("404 Not Found", "No such challenge.\n", whole=whole)
        return response("200 OK", text, kind="application/octet-stream", whole=whole)
    if not https:
        return response("404 Not Found", "Not found.\n", whole=whole)
    place = f"{https}{target}"
    return response("308 Permanent Redirect", f"{place}\n", f"Location: {place}\r\n", whole=whole)


class ChallengeServer(Struct):
    """The listeners, and the texts of pending challenges by token; `look_up` finds texts of other nodes."""

    https: str
    tokens: dict[str, str] = field(default_factory=dict)
    connections: ConnectionTable[ShortConnection] = field(
        default_factory=lambda: ConnectionTable(CHALLENGE_CONNECTIONS, CONNECTIONS_PER_ADDRESS)
    )
    timeout: float = CHALLENGE_TIMEOUT
    look_up: Callable[[str], Awaitable[str | None]] | None = None

    async def serve(self, binds: tuple[Endpoint, ...], *, task_status: trio.TaskStatus[list[str]]) -> None:
        listeners = [one for bind in binds for one in await trio.open_tcp_listeners(bind.port, host=bind.host)]
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(accept_connections, listener, self._connected, nursery)
            task_status.started([f"http://{Endpoint(*one.socket.getsockname()[:2])}" for one in listeners])

    async def _connected(self, stream: trio.SocketStream) -> None:
        await answer_one(stream, self.connections, self.timeout, self._answer, log)

    async def _answer(self, head: bytes) -> bytes:
        tokens: Mapping[str, str] = self.tokens
        if self.look_up is not None and (token := token_of(head)) is not None and token not in tokens:
            text = await self.look_up(token)
            tokens = {} if text is None else {token: text}
        return answer(head, tokens, self.https)
