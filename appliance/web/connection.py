"""One HTTP connection: reads and writes for `http1.py`, with a deadline in every phase.

A client that is too slow, sends nothing or does not read loses its connection and nothing else; the connection's task
ends with it and never raises because of what a client did.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import h11
import trio

from appliance.config.settings import HttpSettings
from appliance.net.connection_limits import ConnectionTable
from appliance.net.socket_stream import ONE_WRITE_BYTES, FastSocketStream
from appliance.web import hypercorn_parts as hypercorn
from appliance.web.http1 import Application, Http1, Peer

READ_BYTES = 64 * 1024  # at once
HANDSHAKE_TIMEOUT = 10  # seconds
MIN_BODY_RATE = 1_000  # bytes a second over the body so far, after a start of BODY_SLOW_START seconds
BODY_SLOW_START = 10  # seconds
DRAIN_GRACE = 10  # seconds for a body or a client that reads slowly, once the process is stopping
LINGER_SECONDS = 5  # after a refusal, during which input is read so that no reset destroys the answer
LINGER_BYTES = 32 * 1024 * 1024

_STATE = hypercorn.ConnectionState({})  # of hypercorn; unused


class HttpConnection(hypercorn.TCPServer):
    """A client's connection, over TLS or not."""

    stream: Any  # an SSLStream or a SocketStream
    protocol: Http1  # type: ignore[assignment]  # hypercorn's wrapper would add HTTP/2

    def __init__(
        self,
        app: Application,
        config: hypercorn.HypercornConfig,
        context: hypercorn.WorkerContext,
        stream: trio.abc.Stream,
        *,
        settings: HttpSettings,
        new_request_id: Callable[[], str],
        table: "ConnectionTable[HttpConnection]",
    ) -> None:
        super().__init__(app, config, context, {}, stream)  # type: ignore[arg-type]  # our own ASGI callable, any stream
        self._settings = settings
        self._new_request_id = new_request_id
        self._table = table
        self._peer = Peer(None)
        self._closing = False
        self._busy = False  # a request is being read or answered
        self._waiting_since = trio.current_time()  # for the first byte of a request, its headers, or its body
        self._request_begun = True  # a new connection has to send a request at once; one that has sent some has not
        self._body_bytes = 0
        self._due = inf  # when the client will be late; the server checks it
        self._serving = trio.CancelScope()
        self._writing = trio.CancelScope()
        self._quick = FastSocketStream(stream) if type(stream) is trio.SocketStream else None

    async def run(self) -> None:
        """Serve requests until either side closes."""
        try:
            with self._serving:
                await self._serve()
        finally:
            await self._close()

    async def _serve(self) -> None:
        secure = isinstance(self.stream, trio.SSLStream)
        if secure:
            self._due = trio.current_time() + HANDSHAKE_TIMEOUT
            try:
                await self.stream.do_handshake()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            self._due = inf
        socket = (self.stream.transport_stream if secure else self.stream).socket
        try:
            client = hypercorn.parse_socket_addr(socket.family, socket.getpeername())
            server = hypercorn.parse_socket_addr(socket.family, socket.getsockname())
        except OSError:
            return  # gone already
        self._peer.address = client
        requests = hypercorn.InlineTaskGroup(lambda: self.protocol.receive(), self._peer)
        self.protocol = Http1(
            self.app, self.config, self.context, requests, _STATE, secure, client, server, self.protocol_send
        )
        self.protocol.listen(self._new_request_id, self._read_more, self._peer)
        while not self._closing and not self.context.terminated.is_set() and (data := await self._read_more()):
            await self.protocol.handle(hypercorn.RawData(data))
        if self._closing and self.protocol.connection.our_state is not h11.SEND_RESPONSE:
            await self._linger()

    def end_if_due(self, now: float) -> None:
        """Close if the client is late."""
        if now >= self._due:
            self._serving.cancel()

    def give_way(self) -> None:
        """Close for another client: this one is waited for."""
        self._serving.cancel()

    def drain(self) -> None:
        """The process is stopping: close now if idle, soon if busy."""
        soon = trio.current_time() + DRAIN_GRACE
        self._writing.deadline = min(self._writing.deadline, soon)
        if self._due < inf:  # the client is waited for
            if self._busy:
                self._due = min(self._due, soon)
            else:
                self._serving.cancel()

    # ---- reading

    async def _read_more(self) -> bytes:
        """The next bytes; none when there will be no more, or when they came too late."""
        self._due = self._read_deadline()
        # A body that is waited for does not give way once its request is authenticated.
        if not self._busy or not self._peer.authenticated:
            self._table.waits(self, authenticated=self._peer.authenticated)
        try:
            data: bytes = await (self._quick or self.stream).receive_some(READ_BYTES)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            data = b""
        if self._serving.cancel_called:
            return b""  # late
        self._due = inf
        if self._busy:
            self._body_bytes += len(data)
            self._table.works(self)
        elif not self._request_begun:
            self._request_begun, self._waiting_since = True, trio.current_time()
        return data

    def _read_deadline(self) -> float:
        """Until when the next bytes must come, given what they belong to."""
        if not self._busy:
            limit = self._settings.header_timeout if self._request_begun else self._settings.keep_alive_timeout
            return self._waiting_since + limit
        start = BODY_SLOW_START + self._body_bytes / MIN_BODY_RATE
        deadline = self._waiting_since + min(self._settings.body_timeout, start)
        return min(deadline, trio.current_time() + DRAIN_GRACE) if self.context.terminated.is_set() else deadline

    # ---- writing

    async def protocol_send(self, event: hypercorn.Event) -> None:
        """Write, or note the state of the protocol."""
        # By type: hypercorn's events are abstract classes, for which isinstance() is slow.
        if type(event) is hypercorn.RawData:
            await self._write(event.data)
        elif type(event) is hypercorn.Closed:
            self._closing = True
        elif type(event) is hypercorn.Updated:
            self._busy = not event.idle
            if self._busy:
                self._table.works(self)
            self._waiting_since, self._body_bytes, self._request_begun = trio.current_time(), 0, False

    async def _write(self, data: bytes) -> None:
        """Send all, or close: a client that does not read must not hold a task or a shutdown."""
        try:
            sent = self._quick.send_now(data) if self._quick is not None and len(data) <= ONE_WRITE_BYTES else 0
            if sent == len(data):
                return  # without a checkpoint: the next read has one
            limit = DRAIN_GRACE if self.context.terminated.is_set() else self._settings.write_timeout
            if not self._peer.authenticated:
                self._table.waits(self)
            with trio.move_on_after(limit) as self._writing:
                await self.stream.send_all(memoryview(data)[sent:])
                if self._busy:
                    self._table.works(self)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._closing = True
        await self._close()

    # ---- the end

    async def _close(self) -> None:
        await trio.aclose_forcefully(self._quick or self.stream)

    async def _linger(self) -> None:
        """Read on for a moment: closing a socket with unread data would reset it and destroy the last answer."""
        # Below TLS, whose closing alert would fail while the client is still sending.
        transport = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        self._table.waits(self)
        with trio.move_on_after(LINGER_SECONDS):
            try:
                await transport.send_eof()
                left = LINGER_BYTES
                while left > 0 and (data := await transport.receive_some(READ_BYTES)):
                    left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
