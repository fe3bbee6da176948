"""Rejects HTTP connections beyond the limits with a 503 and Retry-After, without reading a request.

The response is one write that does not wait. Then the connection is read until the client closes it, because closing a
socket with unread input resets it and destroys the response. The first LONG_LINGERING connections are read for
LONG_LINGER seconds, up to LINGERING for SHORT_LINGER. Any further one is read once and closed. TLS connections get no
response: the handshake would cost more than the rejected request.
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

LINGERING = 512  # connections read after their response; each takes a task and a descriptor
LONG_LINGERING = 64  # of LINGERING
LONG_LINGER = 2.0  # seconds
SHORT_LINGER = 0.5  # seconds: a few round trips
TURNED_AWAY_RETRY = 1  # seconds, in Retry-After
LINGER_READ = 16 * 1024  # bytes per read

_TEXT = "Too many connections, in total or from this address. Use fewer, or retry in a second with the same key."


@dataclass(slots=True)
class TurnedAway:
    """The connections that are being rejected."""

    new_request_id: Callable[[], str]
    at_once: int = LINGERING
    _lingering: int = 0

    async def answer(self, stream: trio.abc.Stream) -> None:
        """Send the response if that is cheap, and close the connection."""
        try:
            if isinstance(stream, trio.SocketStream):
                error = Code.SERVICE_UNAVAILABLE, _TEXT, self.new_request_id()
                status, headers, body = error_answer(*error, retry_after=TURNED_AWAY_RETRY)
                headers += [(b"date", http_date(int(time.time()))), (b"connection", b"close")]
                with suppress(OSError, trio.BrokenResourceError):
                    # A new connection has room in its send buffer.
                    await stream.socket.send(answer_bytes(status, headers, body))
                    await stream.send_eof()
                    await self._linger(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _linger(self, stream: trio.SocketStream) -> None:
        if self._lingering >= self.at_once:
            os.read(stream.socket.fileno(), LINGER_READ)  # never waits: Trio's sockets are non-blocking
            return
        self._lingering += 1
        try:
            with trio.move_on_after(LONG_LINGER if self._lingering <= LONG_LINGERING else SHORT_LINGER):
                while await stream.receive_some(LINGER_READ):
                    pass
        finally:
            self._lingering -= 1
