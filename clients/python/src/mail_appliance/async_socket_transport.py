"""The transport of `AsyncClient`: HTTP/1.1 parsed by httptools, over sockets that wait by anyio, with a pool of kept
connections.

httpx would be the usual choice, but the pool of its transport looks at every connection for each connection, whenever a
request begins or ends: with 50 tasks it sent 30 messages a second where this sent 400. Sockets that wait only when
there is nothing to do, and a parser in C, take half the processor time that anyio's streams and h11 took.
"""

import errno
import os
import socket
import ssl
import time
from collections import deque
from typing import Any, Final

import anyio
import httptools

from mail_appliance.configuration import Configuration
from mail_appliance.errors import ConfigurationError
from mail_appliance.planning import ANSWER_LIMIT, Answer, Request, TransportError
from mail_appliance.proxies import Tunnel
from mail_appliance.socket_transport import (
    BLOCK,
    CONNECT_BLOCK,
    JOINED,
    KEPT,
    KEPT_SECONDS,
    check_tunnel,
    head_of,
    is_readable,
)

_HEAD_LIMIT: Final = 64 * 1024  # bytes of an answer's head
_RECEIVED: Final = 64 * 1024  # bytes taken from the system at a time
_LOST: Final = (OSError, EOFError, httptools.HttpParserError)


class AsyncSocketTransport:
    """Sends for the tasks of one event loop; each connection is used by one task at a time."""

    def __init__(self, configuration: Configuration, ssl_context: ssl.SSLContext | None = None) -> None:
        """Without a context, certificates are verified against the system's authorities."""
        self._configuration = configuration
        self._ssl = (ssl_context or ssl.create_default_context()) if configuration.tls else None
        self._kept: deque[_Connection] = deque()
        self._closed = False

    async def send(self, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109 (the protocol's name)
        """Send it once and read the whole answer within so many seconds, or raise TransportError."""
        if self._closed:
            raise ConfigurationError("the client is closed")
        try:
            with anyio.move_on_after(timeout):  # half as costly as fail_after
                return await self._send(request)
        except ssl.SSLCertVerificationError as cause:
            raise TransportError(f"its certificate does not verify: {cause.verify_message}", retryable=False) from cause
        except _LOST as cause:
            raise TransportError(str(cause) or "the connection was lost") from cause
        raise TransportError(f"timed out after {timeout:g} s")

    async def _send(self, request: Request) -> Answer:
        connection = self._take() or await self._connect()
        try:
            answer, may_keep = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if may_keep and len(self._kept) < KEPT and not self._closed:
            connection.idle_since = time.monotonic()
            self._kept.append(connection)
        else:
            connection.close()
        return answer

    async def close(self) -> None:
        """Close the kept connections; those in use are closed after their answer."""
        self._closed = True
        while self._kept:
            self._kept.pop().close()

    def _take(self) -> "_Connection | None":
        """The kept connection that was used last, if there is one that still works."""
        while self._kept:
            connection = self._kept.pop()
            if connection.idle_since > time.monotonic() - KEPT_SECONDS and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        seconds = self._configuration.connect_timeout
        with anyio.move_on_after(seconds):
            return await self._secured()
        raise TransportError(f"no connection within {seconds:g} s")

    async def _secured(self) -> "_Connection":
        """A new connection: to the first address that answers, each having its share of the time, and TLS on it."""
        host, port = self._configuration.first_hop
        end = time.monotonic() + self._configuration.connect_timeout
        addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            share = (end - time.monotonic()) / (len(addresses) - number + 1)
            connection = _Connection(socket.socket(family, kind, protocol), self._configuration)
            try:
                with anyio.fail_after(share if number < len(addresses) else None):
                    await connection.connect(address)
                if self._ssl is not None:
                    await connection.secure(self._ssl)
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or number == len(addresses):
                    raise
            else:
                return connection
        raise OSError(f"{host} has no address")


class _Connection:
    """A socket that waits in the event loop."""

    def __init__(self, sock: socket.socket, configuration: Configuration) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._configuration = configuration
        self.idle_since = 0.0

    async def connect(self, address: Any) -> None:
        """Connect it."""
        error = self._socket.connect_ex(address)
        if error in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            await anyio.wait_writable(self._socket)
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def secure(self, context: ssl.SSLContext) -> None:
        """Begin TLS, through the proxy if there is one."""
        host = self._configuration.host
        if proxy := self._configuration.proxy:
            tunnel = Tunnel(proxy, host, self._configuration.port)
            await self._send(tunnel.request)
            while (status := tunnel.status(await self._receive(CONNECT_BLOCK))) is None:
                pass
            check_tunnel(proxy, status)
        sock = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        self._socket = sock
        while True:
            try:
                return sock.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(sock)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(sock)

    async def exchange(self, request: Request) -> tuple[Answer, bool]:
        """The answer to a request, and whether the connection can be used again."""
        head, reading = head_of(request, self._configuration), _Reading()
        refused: OSError | None = None
        try:
            if len(request.body) <= JOINED:
                await self._send(head + request.body)
            else:
                await self._send(head)
                await self._send(request.body)
        except (BrokenPipeError, ConnectionResetError) as error:  # the server may have said why
            refused = error
        try:
            while not reading.is_done:
                reading.feed(await self._receive())
        except _LOST as error:
            raise (refused or error) from error
        return reading.answer(), reading.may_keep and refused is None

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither its end nor what was not asked for."""
        return not is_readable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()

    async def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left[:BLOCK]) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await anyio.wait_writable(self._socket)
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)

    async def _receive(self, size: int = _RECEIVED) -> bytes:
        while True:
            try:
                return self._socket.recv(size)
            except (BlockingIOError, ssl.SSLWantReadError):
                await anyio.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(self._socket)


class _Reading:
    """An answer as it arrives; the methods `on_…` are called by the parser."""

    def __init__(self) -> None:
        self.is_done = False  # the answer is whole, or as much of it is here as will be read
        self.may_keep = False
        self._ends_with_connection = False
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0  # of the head until it is complete, then of the body
        self._has_head = False

    def feed(self, data: bytes) -> None:
        """Take what has arrived; nothing is the end of the connection, which some answers end with."""
        if not data:
            if not self._ends_with_connection:
                raise EOFError("the connection was lost")
            self.is_done = True
            return
        self._size += 0 if self._has_head else len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self.is_done:
                raise
            self.may_keep = False  # what follows the answer is not HTTP
        if not self._has_head and self._size > _HEAD_LIMIT:
            raise httptools.HttpParserError("the head of the answer is too large")

    def answer(self) -> Answer:
        """The bytes read so far."""
        return Answer(self._status, self._headers, b"".join(self._body)[:ANSWER_LIMIT])

    def on_message_begin(self) -> None:
        self.may_keep = False  # also when it is another one behind the answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_done:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.is_done:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:  # an interim answer
            self._headers.clear()
            return
        self._has_head, self._size = True, 0
        self._ends_with_connection = not self._headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.is_done:
            self._body.append(data)
            self._size += len(data)
            self.is_done = self._size >= ANSWER_LIMIT

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_done:
            self.is_done, self.may_keep = True, self._parser.should_keep_alive()
