"""The HTTP API and dashboard on the configured addresses: accepts connections, counts them, enforces deadlines, stops.

Every connection is in a table that limits how many there are, in all and by client network; those beyond it get a 503.
It has a deadline in every phase: a client that is too slow, sends nothing or does not read loses its connection and
nothing else. An error in one connection ends that connection only. On shutdown no connection is accepted, idle ones are
closed, and requests that are being read or answered have their part of `server.shutdown_timeout`.
"""

import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import h11
import trio

from appliance.config.reload import LiveSettings
from appliance.config.settings import Config, HttpSettings
from appliance.net.connection_limits import DEADLINE_CHECK, ConnectionTable, KnownNetworks, accept_connections
from appliance.net.socket_stream import ONE_WRITE_BYTES, FastSocketStream
from appliance.shutdown import CONNECTIONS_PART
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS
from appliance.tls import certificate
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import http_files
from appliance.web import hypercorn_parts as hypercorn
from appliance.web.http1 import Application, Http1, Peer
from appliance.web.hypercorn_parts import ASGIWrapper, Lifespan, WorkerContext, hypercorn_config
from appliance.web.turned_away import TurnedAway

# ---- one connection

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
        self._closing = self._peer.gone = True
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


# ---- the server

HTTP_BACKLOG: Final = 1_024  # connections that may wait to be accepted

log = get_logger("web")


class HttpServer:
    """What all connections share."""

    def __init__(
        self, app: Application, config: Config, new_request_id: Callable[[], str], known: KnownNetworks
    ) -> None:
        http = config.http
        self._app = app
        self._new_request_id = new_request_id
        self._settings = http
        self._turned_away = TurnedAway(new_request_id)
        files = http_files(config)
        self.certificate = Certificate(*files, tls_context) if files else None
        self.hypercorn = hypercorn_config()
        self.context = WorkerContext(None)
        self.table: ConnectionTable[HttpConnection] = ConnectionTable(
            http.max_connections, http.max_connections_per_address, http.trusted_proxies, known
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        """Prepare settings for connections that begin after the returned call; OSError for an unusable certificate."""
        http, files = config.http, http_files(config)
        show_certificate = self.certificate.replacement(*files) if self.certificate and files else None

        def apply() -> None:
            if show_certificate is not None:
                show_certificate()
            self._settings = http
            self.table.most, self.table.most_per_address = http.max_connections, http.max_connections_per_address
            self.table.trusted = http.trusted_proxies

        return apply

    async def connected(self, stream: Any) -> None:
        """Serve one client, if the table has a place for it."""
        socket = (stream.transport_stream if isinstance(stream, trio.SSLStream) else stream).socket
        try:
            address = str(socket.getpeername()[0])
        except OSError:  # gone already
            await trio.aclose_forcefully(stream)
            return
        if not self.table.admits(address):
            await self._turned_away.answer(stream)
            return
        connection = HttpConnection(
            self._app,
            self.hypercorn,
            self.context,
            stream,
            settings=self._settings,
            new_request_id=self._new_request_id,
            table=self.table,
        )
        with self.table.inside(connection, address):
            try:
                await connection.run()
            except Exception:
                log.exception("connection failed", client=address)


async def serve(
    app: Application,
    config: Config,
    new_request_id: Callable[[], str],
    stopping: trio.Event,
    live: LiveSettings | None = None,
    known: KnownNetworks | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping`; `started` returns the URLs of the listeners."""
    server = HttpServer(app, config, new_request_id, known or KnownNetworks())
    shown = server.certificate
    listeners, urls = await _listen(config.http, shown)
    lifespan = Lifespan(ASGIWrapper(app), server.hypercorn, {})
    OPEN_CONNECTIONS["http"] = lambda: len(server.table.open)
    if shown is not None:
        CERTIFICATE_EXPIRIES["http"] = lambda: shown.expires
    if live is not None:
        live.join(server.adopt)
    async with trio.open_nursery() as helpers:
        await helpers.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        helpers.start_soon(_enforce_deadlines, server.table.open)
        if shown is not None:
            helpers.start_soon(shown.watch)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(accept_connections, listener, server.connected, connections)
                task_status.started(urls)
                await stopping.wait()
                accepting.cancel_scope.cancel()
            await server.context.terminated.set()
            for connection in list(server.table.open):
                connection.drain()
            connections.cancel_scope.deadline = trio.current_time() + config.server.shutdown_timeout * CONNECTIONS_PART
        await lifespan.wait_for_shutdown()
        helpers.cancel_scope.cancel()


async def _enforce_deadlines(connections: Collection[HttpConnection]) -> None:
    """Check all connections at once, until cancelled: cheaper than two timers for every request."""
    while True:
        await trio.sleep(DEADLINE_CHECK)
        now = trio.current_time()
        for connection in connections:
            connection.end_if_due(now)


@dataclass(frozen=True, slots=True)
class _TlsListener(trio.abc.Listener[Any]):
    """As trio.SSLListener, with the certificate of the time of the handshake."""

    plain: trio.SocketListener
    shown: Certificate

    async def accept(self) -> "trio.SSLStream[trio.SocketStream]":
        stream = await self.plain.accept()
        return trio.SSLStream(stream, self.shown.context, server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        await self.plain.aclose()


async def _listen(settings: HttpSettings, shown: Certificate | None) -> tuple[list[trio.abc.Listener[Any]], list[str]]:
    listeners: list[trio.abc.Listener[Any]] = []
    urls = []
    for bind in settings.bind:
        for plain in await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=HTTP_BACKLOG):
            name = plain.socket.getsockname()
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            urls.append(f"{'https' if shown else 'http'}://{host}:{name[1]}")
            listeners.append(_TlsListener(plain, shown) if shown else plain)
    return listeners, urls


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, with HTTP/1.1 as the only protocol (ALPN)."""
    context = certificate.tls_context(chain, key)
    context.set_alpn_protocols(["http/1.1"])
    return context
