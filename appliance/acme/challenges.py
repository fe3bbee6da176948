"""In charge of port 80: the authority's questions are answered there, and people are sent on to HTTPS.

Anybody may come here, so little is given to each: a few kilobytes, a few seconds, and one answer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from appliance.config.values import Endpoint
from appliance.net.connection_limits import Doorkeeper, accept_forever
from appliance.net.http_server import Visit, answer_one, read_request, response
from appliance.telemetry.log import get_logger

MOST = 200  # connections at once
MOST_PER_ADDRESS = 20
PATIENCE = 5.0  # seconds for a whole request and its answer

_PREFIX = "/.well-known/acme-challenge/"  # RFC 8555 8.3
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")

log = get_logger("acme")


def answer(head: bytes, shown: Mapping[str, str], https: str) -> bytes:
    """The whole answer to the head of a request; `https` is where people are sent, empty for nowhere. PURE."""
    request = read_request(head)
    if request is None:
        return response("400 Bad Request", "This is no request.\n")
    whole = request.method == "GET"
    if not whole and request.method != "HEAD":
        return response("405 Method Not Allowed", "Use HTTPS.\n", "Allow: GET, HEAD\r\n")
    if request.target.startswith(_PREFIX):
        token = request.target.removeprefix(_PREFIX)
        text = shown.get(token) if _TOKEN.fullmatch(token) else None
        if text is None:
            return response("404 Not Found", "No such challenge.\n", whole=whole)
        return response("200 OK", text, kind="application/octet-stream", whole=whole)
    if not https:
        return response("404 Not Found", "There is nothing here.\n", whole=whole)
    place = f"{https}{request.target}"
    return response("308 Permanent Redirect", f"{place}\n", f"Location: {place}\r\n", whole=whole)


@dataclass(slots=True)
class Questions:
    """The listeners of port 80, and the answers to the questions that are open."""

    https: str
    shown: dict[str, str] = field(default_factory=dict)
    doorkeeper: Doorkeeper[Visit] = field(default_factory=lambda: Doorkeeper(MOST, MOST_PER_ADDRESS))

    async def serve(
        self, binds: tuple[Endpoint, ...], *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve for ever."""
        listeners = [each for bind in binds for each in await trio.open_tcp_listeners(bind.port, host=bind.host)]
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(accept_forever, listener, self._connected, nursery)
            task_status.started([f"http://{Endpoint(*each.socket.getsockname()[:2])}" for each in listeners])

    async def _connected(self, stream: trio.SocketStream) -> None:
        """One request; whatever goes wrong in it ends it alone."""
        try:
            await answer_one(stream, self.doorkeeper, PATIENCE, self._answer)
        except Exception:
            log.exception("port 80 could not answer")

    async def _answer(self, head: bytes) -> bytes:
        return answer(head, self.shown, self.https)
