"""In charge of one client's connection: its deadlines, and that nothing it does outlives or outgrows it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import h11
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from appliance.web.http1 import Application, Http1, Requests

TLS_HANDSHAKE = 10  # seconds
MIN_BODY_RATE = 1_000  # bytes a second over the body so far, after a start of SLOW_START seconds
SLOW_START = 10  # seconds
DRAIN_GRACE = 10  # seconds that a body or a slow reader has left once the process is stopping
LINGER_SECONDS = 5  # for which we read on after a refusal, so that the client gets to read our answer
LINGER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each phase of a connection may take, in seconds."""

    header: float
    body: float
    write: float
    keep_alive: float


class Connection(TCPServer):
    """A hypercorn connection with a deadline in every phase, ended by itself and never by an exception."""

    stream: Any  # an SSLStream or a SocketStream
    protocol: Http1  # type: ignore[assignment]  # hypercorn's wrapper would add HTTP/2

    def __init__(
        self,
        app: Application,
        config: HypercornConfig,
        context: WorkerContext,
        stream: trio.abc.Stream,
        deadlines: Deadlines,
        new_request_id: Callable[[], str],
    ) -> None:
        super().__init__(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        self._deadlines = deadlines
        self._new_request_id = new_request_id
        self._closing = False
        self._idle = True
        self._phase_began = trio.current_time()  # of the idle time, the headers or the body we wait for
        self._phase: object = h11.IDLE
        self._header_started = True  # a new connection owes us headers at once; an idle one does not
        self._body_bytes = 0
        self._reading = trio.CancelScope()
        self._writing = trio.CancelScope()

    async def run(self) -> None:
        """Serve requests until either side has enough."""
        try:
            await self._serve()
        finally:
            await trio.aclose_forcefully(self.stream)

    async def _serve(self) -> None:
        secure = isinstance(self.stream, trio.SSLStream)
        if secure:
            try:
                with trio.fail_after(TLS_HANDSHAKE):
                    await self.stream.do_handshake()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                return
        socket = (self.stream.transport_stream if secure else self.stream).socket
        try:
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
        except OSError:
            return  # gone before we looked
        async with Requests(lambda: self.protocol.send_continue()) as requests:
            self._task_group = requests
            self.protocol = Http1(
                self.app, self.config, self.context, requests, self.state, secure, client, server, self.protocol_send
            )
            self.protocol.listen(self._new_request_id)
            await self._read_data()
        if self._closing:
            await self._linger()

    def drain(self) -> None:
        """The process is stopping: an idle connection ends now, a busy one soon."""
        if self._idle and self._phase is h11.IDLE:
            self._closing = True
            self._reading.cancel()
        soon = trio.current_time() + DRAIN_GRACE
        self._reading.deadline = min(self._reading.deadline, soon)
        self._writing.deadline = min(self._writing.deadline, soon)

    # ---- reading

    async def _read_data(self) -> None:
        while not self._closing:
            with trio.CancelScope(deadline=self._read_deadline()) as self._reading:
                try:
                    data = await self.stream.receive_some(MAX_RECV)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    break
            if self._reading.cancelled_caught:
                break
            if self._phase is h11.IDLE and not self._header_started:
                self._header_started, self._phase_began = True, trio.current_time()
            self._body_bytes += len(data)
            await self.protocol.handle(RawData(bytes(data)))
            if not data:
                break
        await self.protocol.handle(Closed())

    def _read_deadline(self) -> float:
        """Until when the next bytes must come, given what the client owes us."""
        phase = self.protocol.connection.their_state
        if phase is not self._phase:
            self._phase, self._phase_began, self._body_bytes = phase, trio.current_time(), 0
            self._header_started = False
        if phase is h11.IDLE:
            return self._phase_began + (self._deadlines.header if self._header_started else self._deadlines.keep_alive)
        if phase is h11.SEND_BODY:
            deadline = self._phase_began + min(self._deadlines.body, SLOW_START + self._body_bytes / MIN_BODY_RATE)
            return min(deadline, trio.current_time() + DRAIN_GRACE) if self.context.terminated.is_set() else deadline
        return inf  # the request is complete; what comes now is early, or the end

    # ---- writing

    async def protocol_send(self, event: Event) -> None:
        """Write, or note that the protocol is done with this connection."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            self._closing = True
            self._reading.cancel()
        elif isinstance(event, Updated):
            self._idle = event.idle
            if event.idle and self._phase is not h11.IDLE:
                # The reader may be waiting without a deadline since the request was complete.
                self._phase, self._phase_began, self._header_started = h11.IDLE, trio.current_time(), False
                self._reading.deadline = self._read_deadline()

    async def _write(self, data: bytes) -> None:
        """Send all, or give the connection up: a client that does not read must not hold a task or a shutdown."""
        limit = DRAIN_GRACE if self.context.terminated.is_set() else self._deadlines.write
        async with self.send_lock:
            with trio.move_on_after(limit) as self._writing:
                try:
                    await self.stream.send_all(data)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
        self._closing = True
        self._reading.cancel()
        await trio.aclose_forcefully(self.stream)

    # ---- the end

    async def _linger(self) -> None:
        """Read on for a moment: closing a socket with unread data would reset it and destroy our last answer."""
        with trio.move_on_after(LINGER_SECONDS):
            try:
                if not isinstance(self.stream, trio.SSLStream):
                    await self.stream.send_eof()
                left = LINGER_BYTES
                while left > 0 and (data := await self.stream.receive_some(MAX_RECV)):
                    left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
