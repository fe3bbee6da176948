"""In charge of the HTTP listeners: hypercorn's connections, guarded and counted, and their orderly end."""

import logging
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext

from appliance.config.load import Config
from appliance.config.reload import LiveSettings
from appliance.config.settings import HttpSettings
from appliance.net.connection_limits import ConnectionTable, KnownNetworks, accept_connections
from appliance.shutdown import CONNECTIONS_PART
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS
from appliance.tls import certificate
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import http_files
from appliance.web.connection import Connection, Deadlines
from appliance.web.http1 import Application
from appliance.web.turned_away import TurnedAway

HEADER_BYTES = 16 * 1024
BACKLOG = 1_024
LOOK_EVERY = 0.25  # seconds, by which a client may overstay any of its deadlines
REQUESTS_PER_CONNECTION = 1_000_000  # effectively no limit: reconnecting costs clients more than it saves us

log = get_logger("web")


async def serve(
    app: Application,
    settings: Config,
    new_request_id: Callable[[], str],
    stopping: trio.Event,
    live: LiveSettings | None = None,
    known: KnownNetworks | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping`, then let requests in flight finish for their part of `shutdown_timeout` at most."""
    http = settings.http
    config = _hypercorn_config()
    context = WorkerContext(None)
    doorkeeper: ConnectionTable[Connection] = ConnectionTable(
        http.max_connections, http.max_connections_per_address, http.trusted_proxies, known or KnownNetworks()
    )
    turned_away = TurnedAway(new_request_id)
    OPEN_CONNECTIONS["http"] = lambda: len(doorkeeper.open)
    deadlines = _deadlines(http)
    shown = _certificate(settings)
    listeners, urls = await _listen(http, shown)
    lifespan = Lifespan(ASGIWrapper(app), config, {})

    async def connected(stream: trio.abc.Stream) -> None:
        address = _address(stream)
        if address is None:
            await trio.aclose_forcefully(stream)
        elif not doorkeeper.admits(address):
            await turned_away.answer(stream)
        else:
            connection = Connection(app, config, context, stream, deadlines, new_request_id, doorkeeper)
            await _guarded(connection, doorkeeper, address)

    def adopt(new: Config) -> Callable[[], None]:
        http, files = new.http, http_files(new)
        show = shown.replacement(*files) if shown and files else None

        def put_in_place() -> None:
            nonlocal deadlines
            if show is not None:
                show()
            deadlines = _deadlines(http)
            doorkeeper.most, doorkeeper.most_per_address = http.max_connections, http.max_connections_per_address
            doorkeeper.trusted = http.trusted_proxies

        return put_in_place

    if shown is not None:
        CERTIFICATE_EXPIRIES["http"] = lambda: shown.expires
    if live is not None:
        live.join(adopt)
    async with trio.open_nursery() as lifespan_nursery:
        await lifespan_nursery.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        lifespan_nursery.start_soon(_watch, doorkeeper.open)
        if shown is not None:
            lifespan_nursery.start_soon(shown.watch)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(accept_connections, listener, connected, connections)
                task_status.started(urls)
                await stopping.wait()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            for connection in list(doorkeeper.open):
                connection.drain()
            connections.cancel_scope.deadline = (
                trio.current_time() + settings.server.shutdown_timeout * CONNECTIONS_PART
            )
        await lifespan.wait_for_shutdown()
        lifespan_nursery.cancel_scope.cancel()


def _deadlines(http: HttpSettings) -> Deadlines:
    return Deadlines(http.header_timeout, http.body_timeout, http.write_timeout, http.keep_alive_timeout)


def _certificate(config: Config) -> Certificate | None:
    files = http_files(config)
    return Certificate(*files, tls_context) if files else None


async def _watch(connections: Collection[Connection]) -> None:
    """End, for ever, whatever connection's client is late.

    One look at all of them, where Trio would have two deadlines to note and to forget for every request.
    """
    while True:
        await trio.sleep(LOOK_EVERY)
        now = trio.current_time()
        for connection in connections:
            connection.end_if_due(now)


async def _guarded(connection: Connection, doorkeeper: ConnectionTable[Connection], address: str) -> None:
    """Run one connection; whatever goes wrong in it ends it alone."""
    with doorkeeper.inside(connection, address):
        try:
            await connection.run()
        except Exception:
            log.exception("connection failed", client=address)


def _address(stream: Any) -> str | None:
    socket = (stream.transport_stream if isinstance(stream, trio.SSLStream) else stream).socket
    try:
        return str(socket.getpeername()[0])
    except OSError:
        return None  # gone already


@dataclass(frozen=True, slots=True)
class _TlsListener(trio.abc.Listener[Any]):
    """As trio.SSLListener, but with the certificate that is shown at the time."""

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
        for plain in await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=BACKLOG):
            name = plain.socket.getsockname()
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            urls.append(f"{'https' if shown else 'http'}://{host}:{name[1]}")
            listeners.append(_TlsListener(plain, shown) if shown else plain)
    return listeners, urls


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, and no protocol but HTTP/1.1 to choose."""
    context = certificate.tls_context(chain, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.h11_max_incomplete_size = HEADER_BYTES
    config.include_server_header = False
    config.keep_alive_max_requests = REQUESTS_PER_CONNECTION
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")  # into our own log, not a second handler
    return config
