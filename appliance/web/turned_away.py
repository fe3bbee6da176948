"""The answer to HTTP connections beyond the limits: a 503 that says when to come back, sent without reading a request.

It is one write that does not wait. The connection is then read until the client closes it, because closing a socket
with unread input would reset it and destroy the answer. The first LONG_LINGERING connections are read for up to
LONG_LINGER seconds, LINGERING in all for up to SHORT_LINGER. One beyond those is read once, enough for a client whose
request is here already, and closed. Under TLS there is no answer: it would take a handshake, which costs more
than the request that was refused.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from appliance.errors import Code
from appliance.web.answer import error_answer, http_date
from appliance.web.fast_post import answer_bytes

LINGERING = 512  # connections that are read after their answer; each takes a task and a descriptor
LONG_LINGERING = 64  # of those
LONG_LINGER = 2.0  # seconds
SHORT_LINGER = 0.5  # seconds: some round trips
TURNED_AWAY_RETRY = 1  # seconds, in Retry-After
LINGER_READ = 16 * 1024  # bytes at once

_TEXT = (
    "There are too many connections, in all or from this address. Use fewer, or retry in a moment with the same key."
)


@dataclass(slots=True)
class TurnedAway:
    """The connections that are being answered so."""

    new_request_id: Callable[[], str]
    at_once: int = LINGERING
    _lingering: int = 0

    async def answer(self, stream: trio.abc.Stream) -> None:
        """Answer a connection, if it can be done cheaply, and end it."""
        try:
            if isinstance(stream, trio.SocketStream):
                error = Code.SERVICE_UNAVAILABLE, _TEXT, self.new_request_id()
                status, headers, body = error_answer(*error, retry_after=TURNED_AWAY_RETRY)
                headers += [(b"date", http_date(int(time.time()))), (b"connection", b"close")]
                with suppress(OSError, trio.BrokenResourceError):
                    # As the connection is new, its send buffer has room for this.
                    await stream.socket.send(answer_bytes(status, headers, body))
                    await stream.send_eof()
                    await self._linger(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _linger(self, stream: trio.SocketStream) -> None:
        if self._lingering >= self.at_once:
            os.read(stream.socket.fileno(), LINGER_READ)  # never waits: Trio's sockets do not block
            return
        self._lingering += 1
        try:
            with trio.move_on_after(LONG_LINGER if self._lingering <= LONG_LINGERING else SHORT_LINGER):
                while await stream.receive_some(LINGER_READ):
                    pass
        finally:
            self._lingering -= 1
