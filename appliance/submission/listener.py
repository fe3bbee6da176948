"""In charge of taking connections off a listening socket, many at a time when many have come."""

import errno
import socket
from typing import Any, Final

import trio

from appliance.config.values import Endpoint

BACKLOG: Final = 1_024  # connections that may wait to be accepted
IN_A_ROW: Final = 32  # accepted before anybody else has a turn
# A connection that broke before it was accepted; accept(2) wants these treated as if it had not come.
_GONE: Final = frozenset(
    (
        errno.ECONNABORTED, errno.ECONNRESET, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
        errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
    )
)  # fmt: skip


class Listener(trio.abc.Listener[Any]):
    """A listening socket, which hands out sockets as they are.

    Trio's accepts one connection in a turn of the scheduler and makes a stream of it, which asyncio has no use for:
    new connections wait while kept ones are served, and messages come to disk one by one instead of together.
    """

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._in_a_row = 0

    @property
    def url(self) -> str:
        """Host and port, as in a URL."""
        return str(Endpoint(*self._socket.getsockname()[:2]))

    async def accept(self) -> socket.socket:
        """The next connection. Raises OSError when it cannot be taken for want of a descriptor or memory."""
        while True:
            if self._in_a_row == IN_A_ROW:
                self._in_a_row = 0
                await trio.lowlevel.checkpoint()
            self._in_a_row += 1
            try:
                client, _ = self._socket.accept()
            except BlockingIOError:
                self._in_a_row = 0
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            else:
                return client

    async def aclose(self) -> None:
        """Listen no more."""
        self._socket.close()
        await trio.lowlevel.checkpoint()


async def listen(bind: Endpoint) -> list[Listener]:
    """Every listener of an address to bind; a name may have several."""
    opened = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=BACKLOG)
    return [Listener(socket.socket(fileno=each.socket.detach())) for each in opened]
