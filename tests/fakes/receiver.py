"""A customer's HTTPS server on loopback, as good or as bad as a test wants it, and a poster for it."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_network
from typing import Any

import trio
import trustme

from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.tls.certificate import verifying_context
from appliance.webhook.post import Poster
from tests.fakes.dns import Zone, ZoneResolver

HOST = "hooks.example.com"
HERE: Zone = {HOST: {"A": ["127.0.0.1"]}}
LOOPBACK = (ip_network("127.0.0.0/8"),)
AUTHORITY = trustme.CA()
GOOD = AUTHORITY.issue_cert(HOST)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Tls = trio.SSLStream[trio.SocketStream]
Serve = Callable[["Receiver", Tls], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request:
    head: bytes
    body: bytes


def server_context(certificate: trustme.LeafCert = GOOD) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@cache
def client_context() -> ssl.SSLContext:
    """What trusts the test authority besides the system's, which take their time to read."""
    context = verifying_context(None)
    AUTHORITY.configure_trust(context)
    return context


async def read_request(receiver: "Receiver", stream: Tls) -> Request | None:
    """The next request on a connection, noted; None when there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := await stream.receive_some(65536)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += await stream.receive_some(65536)
    request = Request(head, body)
    receiver.requests.append(request)
    return request


def answering(*answers: bytes, after: Serve | None = None) -> Serve:
    """Gives one answer after the other, the last to all further requests; then does `after` if there is one."""

    async def serve(receiver: "Receiver", stream: Tls) -> None:
        while await read_request(receiver, stream):
            await stream.send_all(answers[min(len(receiver.requests), len(answers)) - 1])
            if after is not None:
                await after(receiver, stream)
                break

    return serve


async def hang_up(receiver: "Receiver", stream: Tls) -> None:
    await stream.aclose()


async def break_off(receiver: "Receiver", stream: Tls) -> None:
    await stream.transport_stream.aclose()


async def silence(receiver: "Receiver", stream: Tls) -> None:
    await trio.sleep_forever()


class Receiver:
    """Serves HTTPS, or whatever `plain` does with the socket; counts connections, notes requests."""

    def __init__(
        self,
        serve: Serve | None = None,
        *,
        certificate: trustme.LeafCert = GOOD,
        plain: Callable[[trio.SocketStream], Awaitable[None]] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._serve_tls = serve or answering(OK)
        self._plain = plain
        self.context = server_context(certificate)

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, connection: trio.SocketStream) -> None:
        self.connections += 1
        try:
            if self._plain is not None:
                await self._plain(connection)
                return
            stream = trio.SSLStream(connection, self.context, server_side=True, https_compatible=True)
            await self._serve_tls(self, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client has had enough, which is what many tests are about
        finally:
            await trio.aclose_forcefully(connection)


@dataclass
class Posting:
    poster: Poster
    port: int

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}/in?a=1"


@asynccontextmanager
async def posting(receiver: Receiver, resolver: Resolver | None = None, **options: Any) -> AsyncIterator[Posting]:
    """A poster that finds this receiver on loopback and trusts the test authority."""
    async with trio.open_nursery() as nursery:
        port = await nursery.start(receiver.run)
        settings = {"ports": {port}, "allowed": LOOPBACK, **options}
        dial = settings.pop("dial", Environment().dial)
        poster = Poster(resolver or ZoneResolver(HERE), dial, client_context(), **settings)
        try:
            yield Posting(poster, port)
        finally:
            with trio.CancelScope(shield=True):
                await poster.idle.aclose()
        nursery.cancel_scope.cancel()
