"""The HTTP API and dashboard on the configured addresses: reads requests, writes responses, enforces deadlines, stops.

`net/connection_server.py` accepts and limits the connections; clients beyond the limits get a 503. A client that is too
slow, sends nothing or does not read loses its connection. An error in one connection ends that connection only.
`build` assembles the edge, the API's routes and the dashboard.
"""

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import h11
import trio
from msgspec import Struct

from appliance.attention.mail import Mailer
from appliance.attention.problems import Problems
from appliance.concurrency.ttl_cache import trio_clock
from appliance.config.load import LiveSettings
from appliance.config.settings import Config
from appliance.environment import Environment
from appliance.errors import Code
from appliance.intake.batch import BatchIntake
from appliance.intake.services import IntakeServices
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import derive
from appliance.keys.received_links import ReceivedLinks
from appliance.keys.secrets import PasswordHasher, TotpSecrets, WebhookSecrets
from appliance.net.connection_server import ConnectionServer, ConnectionTable, KnownNetworks, listen
from appliance.net.dial import ONE_WRITE_BYTES, FastSocketStream
from appliance.store import Store
from appliance.system import memory
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES
from appliance.tls import certificate
from appliance.tls.certificate import Certificate, http_files
from appliance.web import hypercorn_parts as hypercorn
from appliance.web import openapi, pages
from appliance.web.api.message_body import MessageBodies
from appliance.web.app import ApiServices, Routes, create_app, route_classes
from appliance.web.auth import Authenticator, LoginCheck, SessionCookies, Tokens
from appliance.web.doors.serving import Doors
from appliance.web.edge import Edge
from appliance.web.exchange import BodyBudgets, Peer, answer_bytes, dated, error_answer
from appliance.web.http1 import Application, Http1, InlineTaskGroup
from appliance.web.live import LiveStreams
from appliance.web.operations import operations_of
from appliance.web.sent import SentMessages

log = get_logger("web")

# ---- one connection

READ_BYTES = 64 * 1024  # per read
BODY_READ_BYTES = 192 * 1024  # per read of a body: fewer rounds of the event loop
HANDSHAKE_TIMEOUT = 10  # seconds
MIN_BODY_RATE = 1_000  # bytes per second, averaged over the body after BODY_SLOW_START
BODY_SLOW_START = 10  # seconds
DRAIN_GRACE = 10  # seconds for a slow body or a slow reader during shutdown
LINGER_SECONDS = 5  # for reading and dropping input after a refusal, so that no reset destroys the response
LINGER_BYTES = 32 * 1024 * 1024

_STATE = hypercorn.ConnectionState({})  # required by hypercorn, unused


class HttpConnection(hypercorn.TCPServer):
    stream: Any  # an SSLStream or a SocketStream
    protocol: Http1  # type: ignore[assignment]  # hypercorn's wrapper would add HTTP/2

    def __init__(self, server: "HttpServer", stream: trio.abc.Stream) -> None:
        super().__init__(server.app, server.hypercorn, server.context, {}, stream)  # type: ignore[arg-type]  # our own ASGI callable, any stream
        self._settings, self._table, self._new_request_id = server.settings, server.table, server.new_request_id
        self._peer = Peer(None)
        self._closing = False
        self._busy = False  # reading or answering a request
        self._clock = trio_clock()
        self._waiting_since = self._clock()  # for a request, its headers, or its body
        self._awaits_headers = True  # header_timeout applies, not keep_alive_timeout
        self._body_bytes = 0
        self._due = inf  # deadline of the client; the server checks it
        self._serving = trio.CancelScope()
        self._writing = trio.CancelScope()
        self._fast = FastSocketStream(stream) if type(stream) is trio.SocketStream else None

    async def run(self) -> None:
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
            return  # the client has disconnected
        self._peer.address = client
        requests = InlineTaskGroup(lambda: self.protocol.receive(), self._peer)
        self.protocol = Http1(
            self.app, self.config, self.context, requests, _STATE, secure, client, server, self.protocol_send
        )
        self.protocol.listen(self._new_request_id, self._read_more, self._peer)
        while not self._closing and not self.context.terminated.is_set() and (data := await self._read_more()):
            await self.protocol.handle(hypercorn.RawData(data))
        if self._closing and self.protocol.connection.our_state is not h11.SEND_RESPONSE:
            await self._linger()

    def close_if_late(self, now: float) -> None:
        if now >= self._due:
            self._serving.cancel()

    def evict(self) -> None:
        self._serving.cancel()

    def drain(self) -> None:
        soon = trio.current_time() + DRAIN_GRACE
        self._writing.deadline = min(self._writing.deadline, soon)
        if self._due < inf:  # waiting for the client
            if self._busy:
                self._due = min(self._due, soon)
            else:
                self._serving.cancel()

    # ---- reading

    async def _read_more(self) -> bytes:
        """Return the next bytes; none after the end of input or a missed deadline."""
        self._due = self._read_deadline()
        # An authenticated request is not evicted while its body arrives.
        if not self._busy or not self._peer.authenticated:
            self._table.mark_idle(self, authenticated=self._peer.authenticated)
        most = BODY_READ_BYTES if self._busy else READ_BYTES
        try:
            data: bytes = await (self._fast or self.stream).receive_some(most)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            data = b""
        if self._serving.cancel_called:
            return b""  # late
        self._due = inf
        if self._busy:
            self._body_bytes += len(data)
            self._table.mark_busy(self)
        elif not self._awaits_headers:
            self._awaits_headers, self._waiting_since = True, self._clock()
        return data

    def _read_deadline(self) -> float:
        if not self._busy:
            limit = self._settings.header_timeout if self._awaits_headers else self._settings.keep_alive_timeout
            return self._waiting_since + limit
        start = BODY_SLOW_START + self._body_bytes / MIN_BODY_RATE
        deadline = self._waiting_since + min(self._settings.body_timeout, start)
        return min(deadline, trio.current_time() + DRAIN_GRACE) if self.context.terminated.is_set() else deadline

    # ---- writing

    async def protocol_send(self, event: hypercorn.Event) -> None:
        # By type: its classes are abstract base classes, for which `isinstance` runs Python code.
        if type(event) is hypercorn.RawData:
            await self._write(event.data)
        elif type(event) is hypercorn.Closed:
            self._closing = True
        elif type(event) is hypercorn.Updated:
            self._busy = not event.idle
            if self._busy:
                self._table.mark_busy(self)
            self._waiting_since, self._body_bytes, self._awaits_headers = self._clock(), 0, False

    async def _write(self, data: bytes) -> None:
        """Send all, or close: a client that does not read must not delay a shutdown."""
        try:
            sent = self._fast.send_now(data) if self._fast is not None and len(data) <= ONE_WRITE_BYTES else 0
            if sent == len(data):
                return  # the next read has the checkpoint
            limit = DRAIN_GRACE if self.context.terminated.is_set() else self._settings.write_timeout
            if not self._peer.authenticated:
                self._table.mark_idle(self)
            with trio.move_on_after(limit) as self._writing:
                await self.stream.send_all(memoryview(data)[sent:])
                if self._busy:
                    self._table.mark_busy(self)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._closing = self._peer.gone = True
        await self._close()

    # ---- the end

    async def _close(self) -> None:
        await trio.aclose_forcefully(self._fast or self.stream)

    async def _linger(self) -> None:
        """Read and drop input for a moment: closing a socket with unread data would reset it and lose the response."""
        # Below TLS, whose closing alert would fail while the client still sends.
        transport = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        self._table.mark_idle(self)
        with trio.move_on_after(LINGER_SECONDS):
            try:
                await transport.send_eof()
                remaining = LINGER_BYTES
                while remaining > 0 and (data := await transport.receive_some(READ_BYTES)):
                    remaining -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass


# ---- connections beyond the limits

LINGERING = 512  # connections read after their response; each takes a task and a descriptor
LONG_LINGERING = 64  # of LINGERING
LONG_LINGER = 2.0  # seconds
SHORT_LINGER = 0.5  # seconds: a few round trips
TURNED_AWAY_RETRY = 1  # seconds, in Retry-After
LINGER_READ = 16 * 1024  # bytes per read

_TOO_MANY = "Too many connections, in total or from this address. Use fewer, or retry in a second with the same key."


class TurnedAway(Struct):
    """Rejects connections with a 503 and Retry-After, without reading a request.

    The response is one write that does not wait. Then the connection is read until the client closes it, because
    closing a socket with unread input resets it and destroys the response. The first LONG_LINGERING connections are
    read for LONG_LINGER seconds, up to LINGERING for SHORT_LINGER. Any further one is read once and closed. TLS
    connections get no response: the handshake would cost more than the rejected request.
    """

    new_request_id: Callable[[], str]
    at_once: int = LINGERING
    _lingering: int = 0

    async def answer(self, stream: trio.abc.Stream) -> None:
        try:
            if isinstance(stream, trio.SocketStream):
                error = Code.SERVICE_UNAVAILABLE, _TOO_MANY, self.new_request_id()
                status, headers, body = error_answer(*error, retry_after=TURNED_AWAY_RETRY)
                with suppress(OSError, trio.BrokenResourceError):
                    # A new connection has room in its send buffer.
                    await stream.socket.send(answer_bytes(status, dated(headers), body))
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


# ---- the server
class HttpServer:
    def __init__(
        self, app: Application, config: Config, new_request_id: Callable[[], str], known: KnownNetworks
    ) -> None:
        http = config.http
        self.app, self.new_request_id, self.settings = app, new_request_id, http
        self._turned_away = TurnedAway(new_request_id)
        files = http_files(config)
        self.certificate = Certificate(*files, tls_context) if files else None
        self.hypercorn = hypercorn.hypercorn_config()
        self.context = hypercorn.WorkerContext(None)
        self.table: ConnectionTable[HttpConnection] = ConnectionTable(
            http.max_connections, http.max_connections_per_address, http.trusted_proxies, known
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        """Prepare new settings; the returned call applies them to new connections. OSError: unusable certificate."""
        http, files = config.http, http_files(config)
        use_certificate = self.certificate.replacement(*files) if self.certificate and files else None

        def apply() -> None:
            if use_certificate is not None:
                use_certificate()
            self.settings = http
            self.table.limit, self.table.limit_per_address = http.max_connections, http.max_connections_per_address
            self.table.trusted = http.trusted_proxies

        return apply

    async def serve_client(self, client: socket.socket, address: str, secure: bool) -> None:
        connection = HttpConnection(self, self._stream(client))
        with self.table.tracking(connection, address):
            await connection.run()

    async def refuse(self, client: socket.socket, secure: bool) -> None:
        await self._turned_away.answer(self._stream(client))

    def _stream(self, client: socket.socket) -> trio.abc.Stream:
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        if self.certificate is None:
            return plain
        return trio.SSLStream(plain, self.certificate.context, server_side=True, https_compatible=True)


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
    """Serve until `stopping` is set; `started` returns the URLs of the listeners."""
    server = HttpServer(app, config, new_request_id, known or KnownNetworks())
    shown = server.certificate
    scheme, secure = ("http", False) if shown is None else ("https", True)
    listeners = [listener for bind in config.http.bind for listener in await listen(bind, scheme, secure=secure)]
    connections = ConnectionServer("http", server.table, server.serve_client, server.refuse, log)
    lifespan = hypercorn.Lifespan(hypercorn.ASGIWrapper(app), server.hypercorn, {})
    if live is not None:
        live.join(server.adopt)
    async with trio.open_nursery() as helpers:
        await helpers.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        if shown is not None:
            CERTIFICATE_EXPIRIES["http"] = lambda: shown.expires
            helpers.start_soon(shown.watch)
        await connections.run(
            listeners,
            stopping,
            shutdown_timeout=config.server.shutdown_timeout,
            started=lambda: task_status.started([listener.url for listener in listeners]),
            begin_shutdown=server.context.terminated.set,
        )
        await lifespan.wait_for_shutdown()
        helpers.cancel_scope.cancel()


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, with HTTP/1.1 as the only protocol (ALPN)."""
    context = certificate.tls_context(chain, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def build(
    config: Config,
    env: Environment,
    store: Store,
    key: bytes,
    stopping: trio.Event,
    intake_services: IntakeServices,
    check_webhook_url: Callable[[str], Awaitable[str | None]],
    *,
    auth: Authenticator | None = None,
    more_routes: Iterable[Callable[[ApiServices], Routes]] = (),
    inbox: bool = False,
) -> Edge:
    """Assemble the edge. `more_routes` add operations or replace some by name; `inbox` shows its page."""
    intake, tokens = intake_services.intake, Tokens(derive(key, "dashboard tokens"), env)
    auth = auth or Authenticator(
        store, env, tokens, intake_services.credentials, intake_services.known, config.dashboard.require_totp
    )
    hashing, routes = PasswordHasher(), route_classes()
    makers: list[Callable[[ApiServices], Routes]] = [*routes, *more_routes]
    operations = [operation for kind in routes for _, operation in operations_of(kind)]
    services = ApiServices(
        config=config,
        store=store,
        env=env,
        auth=auth,
        intake=intake,
        logins=LoginCheck(store, intake_services.guesses, hashing, TotpSecrets(key, env)),
        hashing=hashing,
        cookies=SessionCookies(derive(key, "dashboard cookies"), config.http.base_url),
        signing_keys=SigningKeys(store, env, key),
        webhook_secrets=WebhookSecrets(key, env),
        bodies=MessageBodies(store),
        operations=operations,
        check_webhook_url=check_webhook_url,
        problems=Problems(config, store, env, intake.free_space),
        mailer=Mailer(config, store, env),
        received_links=ReceivedLinks(key, config.http.base_url),
        stopping=stopping,
    )
    site = pages.read_site()
    blueprints = (
        openapi.blueprint(config.http.base_url),
        pages.blueprint(site, sandbox=intake.sandbox, inbox=inbox),
        pages.unsubscribe_blueprint(site, services),
        pages.received_blueprint(services),
    )
    app = create_app(auth, [make(services) for make in makers], blueprints)
    budgets = BodyBudgets(memory.for_messages(config.http.body_memory))
    return Edge(
        services=services,
        rate=intake_services.rate,
        read_rate=intake_services.read_rate,
        requests=intake_services.requests,
        settings=config.http,
        pages=app,
        open_bodies=frozenset(known.path for known in operations if known.body and not known.permission),
        budgets=budgets,
        sent=SentMessages(services, intake_services.rate, budgets),
        streams=LiveStreams(intake.accepted, stopping),
        batches=BatchIntake(intake),
        doors=Doors(),
    )
