"""The answer to HTTP connections beyond the limits: a 503 that says when to come back, sent without reading a request.

It is one write that does not wait. A few such connections are then read for a moment, because closing a socket with
unread input would reset it and destroy the answer; all others are closed at once. Under TLS there is no answer: it
would take a handshake, which costs more than the request that was refused.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from appliance.errors import Code
from appliance.web.answer import error_answer, http_date
from appliance.web.fast_post import answer_bytes

AT_ONCE = 64  # connections that are read for a moment after their answer
LINGER = 2.0  # seconds
RETRY_AFTER = 1  # seconds
PIECE = 16 * 1024  # bytes read at once

_TEXT = (
    "There are too many connections, in all or from this address. Use fewer, or retry in a moment with the same key."
)


@dataclass(slots=True)
class TurnedAway:
    """Those who are being answered so."""

    new_request_id: Callable[[], str]
    _lingering: int = 0

    async def answer(self, stream: trio.abc.Stream) -> None:
        """Answer a connection, if it can be done cheaply, and end it."""
        try:
            if isinstance(stream, trio.SocketStream) and self._lingering < AT_ONCE:
                self._lingering += 1
                try:
                    with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(LINGER):
                        await self._tell(stream)
                finally:
                    self._lingering -= 1
        finally:
            await trio.aclose_forcefully(stream)

    async def _tell(self, stream: trio.SocketStream) -> None:
        status, headers, body = error_answer(
            Code.SERVICE_UNAVAILABLE, _TEXT, self.new_request_id(), retry_after=RETRY_AFTER
        )
        headers += [(b"date", http_date(int(time.time()))), (b"connection", b"close")]
        # As it is new, its send buffer has room for this.
        await stream.socket.send(answer_bytes(status, headers, body))
        await stream.send_eof()
        while await stream.receive_some(PIECE):
            pass
