"""Accepts connections, limits them, enforces their deadlines and shuts down: one server for HTTP and SMTP.

An error in one connection ends that connection only. On shutdown the server accepts nothing more, closes idle
connections at once, and gives the others their part of `server.shutdown_timeout`.
"""

import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from appliance.config.values import Endpoint
from appliance.net.connection_limits import ConnectionTable, Evictable
from appliance.net.dial import SHORTAGE_ERRNOS
from appliance.shutdown import CONNECTIONS_PART
from appliance.telemetry.log import Log, get_logger
from appliance.telemetry.metrics import OPEN_CONNECTIONS

ACCEPT_BACKLOG: Final = 1_024  # connections that the kernel queues
ACCEPT_PAUSE: Final = 0.1  # seconds, while the system is out of descriptors or memory
DEADLINE_CHECK: Final = 0.25  # seconds by which a client can exceed a deadline
# The connection broke before it was accepted. accept(2) says to treat these like EAGAIN.
_LOST_BEFORE_ACCEPT: Final = {
    errno.ECONNABORTED, errno.ECONNRESET, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
}  # fmt: skip

log = get_logger("connections")


class SocketListener(trio.abc.Listener[Any]):
    """A listening socket that returns plain sockets, up to `per_turn` of them in one turn of Trio's scheduler.

    Trio starts the tasks of one turn in random order. With one connection per turn, clients enter the table in the
    order in which they connected, so the first is evicted first.
    """

    def __init__(self, listening: socket.socket, scheme: str = "", *, secure: bool = False, per_turn: int = 1) -> None:
        listening.setblocking(False)
        self._socket = listening
        self.address = str(Endpoint(*listening.getsockname()[:2]))  # as in a URL
        self.url = f"{scheme}://{self.address}"
        self.secure = secure  # TLS from the first byte
        self._per_turn = per_turn
        self._accepted = 0  # in this turn

    async def accept(self) -> socket.socket:
        """Return the next connection. Raises OSError when the system is out of descriptors or memory."""
        while True:
            if self._accepted == self._per_turn:
                self._accepted = 0
                await trio.lowlevel.checkpoint()
            self._accepted += 1
            try:
                client, _ = self._socket.accept()
            except BlockingIOError:
                self._accepted = 0
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                if error.errno not in _LOST_BEFORE_ACCEPT:
                    raise
            else:
                return client

    async def aclose(self) -> None:
        self._socket.close()
        await trio.lowlevel.checkpoint()


async def listen(bind: Endpoint, scheme: str = "", *, secure: bool = False, per_turn: int = 1) -> list[SocketListener]:
    """Return the listeners of an address; a host name can have several."""
    opened = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=ACCEPT_BACKLOG)
    sockets = [socket.socket(fileno=listener.socket.detach()) for listener in opened]
    return [SocketListener(listening, scheme, secure=secure, per_turn=per_turn) for listening in sockets]


async def accept_connections(
    listener: trio.abc.Listener[Any], connected: Callable[[Any], Any], connections: trio.Nursery
) -> None:
    """Accept until cancelled. When the system is out of descriptors or memory, log that once, pause and retry.

    trio.serve_listeners would log a traceback ten times a second.
    """
    is_short = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in SHORTAGE_ERRNOS:
                    raise
                if not is_short:
                    log.warning("no more connections can be opened", reason=error.strerror)
                is_short = True
                await trio.sleep(ACCEPT_PAUSE)
            else:
                is_short = False
                connections.start_soon(connected, stream)


class ServedConnection(Evictable, Protocol):
    def close_if_late(self, now: float) -> None:
        """Close if the client missed a deadline."""

    def drain(self) -> None:
        """Shut down: close now if idle, otherwise after the current request or message."""


Connection = TypeVar("Connection", bound=ServedConnection)


@dataclass(slots=True)
class ConnectionServer(Generic[Connection]):
    """Runs `serve(client, address, secure)` for every admitted connection, and `refuse(client, secure)` for the others.

    `serve` enters its connection into the table; both close the socket.
    """

    name: str  # in metrics
    table: ConnectionTable[Connection]
    serve: Callable[[socket.socket, str, bool], Awaitable[None]]
    refuse: Callable[[socket.socket, bool], Awaitable[None]]
    log: Log
    admission_timeout: float = 0.0  # seconds that a client waits while its network has too many connections

    async def run(
        self,
        listeners: Sequence[SocketListener],
        stopping: trio.Event,
        *,
        shutdown_timeout: float,
        started: Callable[[], None],
        begin_shutdown: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve until `stopping` is set and all connections are closed; `begin_shutdown` runs before they drain."""
        OPEN_CONNECTIONS[self.name] = lambda: len(self.table.open)
        async with trio.open_nursery() as watch:
            watch.start_soon(self._enforce_deadlines)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        connected = self._connected_securely if listener.secure else self._connected
                        accepting.start_soon(accept_connections, listener, connected, connections)
                    started()
                    await stopping.wait()
                    accepting.cancel_scope.cancel()
                if begin_shutdown is not None:
                    await begin_shutdown()
                for connection in list(self.table.open):
                    connection.drain()
                connections.cancel_scope.deadline = trio.current_time() + shutdown_timeout * CONNECTIONS_PART
            watch.cancel_scope.cancel()

    async def _connected_securely(self, client: socket.socket) -> None:
        await self._connected(client, secure=True)

    async def _connected(self, client: socket.socket, *, secure: bool = False) -> None:
        try:
            address = str(client.getpeername()[0])
        except OSError:  # the client has disconnected
            client.close()
            return
        if self.admission_timeout and self.table.is_crowded(address):
            await self.table.queue(address, self.admission_timeout)
        try:
            if self.table.admits(address):
                await self.serve(client, address, secure)
            else:
                with suppress(OSError):
                    await self.refuse(client, secure)
        except Exception:
            self.log.exception("connection failed", client=address)

    async def _enforce_deadlines(self) -> None:
        """Check all connections together: cheaper than a timer for each request."""
        while True:
            await trio.sleep(DEADLINE_CHECK)
            now = trio.current_time()
            for connection in list(self.table.open):
                connection.close_if_late(now)
