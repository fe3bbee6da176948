"""The HTTP API and dashboard on the configured addresses: accepts connections, counts them, enforces deadlines, stops.

Every connection is in a table that limits how many there are, in all and by client network; those beyond it get a 503.
An error in one connection ends that connection only. On shutdown no connection is accepted, idle ones are closed, and
requests that are being read or answered have their part of `server.shutdown_timeout`.
"""

import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from appliance.config.reload import LiveSettings
from appliance.config.settings import Config, HttpSettings
from appliance.net.connection_limits import DEADLINE_CHECK, ConnectionTable, KnownNetworks, accept_connections
from appliance.shutdown import CONNECTIONS_PART
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS
from appliance.tls import certificate
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import http_files
from appliance.web.connection import HttpConnection
from appliance.web.http1 import Application
from appliance.web.hypercorn_parts import ASGIWrapper, Lifespan, WorkerContext, hypercorn_config
from appliance.web.turned_away import TurnedAway

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
