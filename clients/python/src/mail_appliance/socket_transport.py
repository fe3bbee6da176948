"""The transport of `Client`: HTTP/1.1 on the standard library, with a pool of kept connections."""

import io
import os
import select
import socket
import ssl
import time
from collections import deque
from http.client import HTTPException, HTTPResponse
from typing import Final

from mail_appliance.configuration import Configuration
from mail_appliance.errors import ConfigurationError
from mail_appliance.planning import ANSWER_LIMIT, Answer, Request, TransportError
from mail_appliance.proxies import Proxy, Tunnel

KEPT: Final = 100  # idle connections that are kept for reuse
KEPT_SECONDS: Final = 60.0  # idle for longer, a middlebox may have forgotten it, and a send on it would only time out
JOINED: Final = 64 * 1024  # bytes of a body that are sent together with the head, in one segment where that fits
BLOCK: Final = 256 * 1024  # bytes given to the system at a time, so that the deadline is looked at in between

CONNECT_BLOCK: Final = 4096  # bytes read at a time of a proxy's answer to CONNECT


class SocketTransport:
    """HTTP/1.1 over sockets, with a pool of kept connections. Each is used by one thread at a time.

    The pool needs no lock: it is a deque, whose `append` and `pop` are atomic.
    """

    def __init__(self, configuration: Configuration, ssl_context: ssl.SSLContext | None = None) -> None:
        """Without a context, certificates are verified against the system's authorities."""
        self._configuration = configuration
        self._ssl = (ssl_context or ssl.create_default_context()) if configuration.tls else None
        self._kept: deque[_Connection] = deque()
        self._process = os.getpid()
        self._closed = False

    def send(self, request: Request, timeout: float) -> Answer:
        """Send it once and read the whole answer within so many seconds, or raise TransportError."""
        if self._closed:
            raise ConfigurationError("the client is closed")
        end = time.monotonic() + timeout
        try:
            connection = self._take() or self._connect(end)
            try:
                answer, may_keep = connection.exchange(head_of(request, self._configuration), request, end)
            except BaseException:
                connection.close()
                raise
        except ssl.SSLCertVerificationError as cause:
            raise TransportError(f"its certificate does not verify: {cause.verify_message}", retryable=False) from cause
        except TimeoutError as cause:
            raise TransportError(f"timed out after {timeout:g} s") from cause
        except (OSError, HTTPException) as cause:
            raise TransportError(str(cause) or type(cause).__name__) from cause
        if may_keep and len(self._kept) < KEPT:
            self._keep(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the kept connections; those in use are closed after their answer."""
        self._closed = True
        while self._kept:
            self._kept.pop().close()

    def _keep(self, connection: "_Connection") -> None:
        connection.idle_since = time.monotonic()
        self._kept.append(connection)
        if self._closed:  # meanwhile, by another thread
            self.close()

    def _take(self) -> "_Connection | None":
        """The kept connection that was used last, if there is one that still works."""
        if self._process != os.getpid():  # forked: these sockets are the parent's too
            self._kept, self._process = deque(), os.getpid()
        oldest = time.monotonic() - KEPT_SECONDS
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                return None
            if connection.idle_since > oldest and connection.is_quiet():
                return connection
            connection.close()

    def _connect(self, end: float) -> "_Connection":
        """A new connection; all its addresses and the TLS handshake share the time for connecting."""
        host, port = self._configuration.first_hop
        end = min(end, time.monotonic() + self._configuration.connect_timeout)
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            sock = socket.socket(family, kind, protocol)
            try:
                left = end - time.monotonic()
                sock.settimeout(max(left, 0.001) / (len(addresses) - number))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _Connection(self._secured(sock, end))
            except BaseException as error:
                sock.close()
                if isinstance(error, TimeoutError) and number == len(addresses) - 1:
                    seconds = self._configuration.connect_timeout
                    raise TransportError(f"no connection within {seconds:g} s") from error
                if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or number == len(addresses) - 1:
                    raise
        raise OSError(f"{host} has no address")

    def _secured(self, sock: socket.socket, end: float) -> socket.socket:
        if self._ssl is None:
            return sock
        sock.settimeout(max(end - time.monotonic(), 0.001))
        if proxy := self._configuration.proxy:
            tunnel = Tunnel(proxy, self._configuration.host, self._configuration.port)
            sock.sendall(tunnel.request)
            while (status := tunnel.status(sock.recv(CONNECT_BLOCK))) is None:
                sock.settimeout(max(end - time.monotonic(), 0.001))
            check_tunnel(proxy, status)
        return self._ssl.wrap_socket(sock, server_hostname=self._configuration.host)


def check_tunnel(proxy: Proxy, status: int) -> None:
    """Raise TransportError unless the proxy has opened the tunnel. A retry can help only against its own failure."""
    if not 200 <= status < 300:
        reason = f"the proxy {proxy.host}:{proxy.port} answered CONNECT with status {status}"
        raise TransportError(reason, retryable=status >= 500)


def head_of(request: Request, configuration: Configuration) -> bytes:
    """The request line and the headers; in absolute form for a proxy that reads the request itself."""
    proxy = None if configuration.tls else configuration.proxy
    target = f"{configuration.origin}{request.target}" if proxy else request.target
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {configuration.authority}"]
    if proxy and proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if request.method != "GET":
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii")


class _Connection:
    """A connected socket; every wait on it ends at the deadline of the attempt."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.idle_since = 0.0

    def exchange(self, head: bytes, request: Request, end: float) -> tuple[Answer, bool]:
        """The answer to a request, and whether the connection can be used again."""
        refused: OSError | None = None
        try:
            if len(request.body) <= JOINED:
                self._send(head + request.body, end)
            else:
                self._send(head, end)
                self._send(request.body, end)
        except (
            BrokenPipeError,
            ConnectionResetError,
        ) as error:  # a server that does not want the whole body may have said why
            refused = error
        response = HTTPResponse(_Reading(self._socket, end), method=request.method)  # type: ignore[arg-type]
        try:
            response.begin()
            body = _read(response)
        except (OSError, HTTPException) as error:
            raise (refused or error) from error
        finally:
            whole = response.isclosed()
            response.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        may_keep = whole and not response.will_close and response.status >= 200 and refused is None
        return Answer(response.status, headers, body), may_keep

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither its end nor what was not asked for."""
        return not is_readable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes, end: float) -> None:
        left = memoryview(data)
        while left:
            self._socket.settimeout(_time_left(end))
            left = left[self._socket.send(left[:BLOCK]) :]


def _read(response: HTTPResponse) -> bytes:
    """At most ANSWER_LIMIT bytes of the body; HTTPException if it ends before its length."""
    pieces, size = [], 0
    while size < ANSWER_LIMIT and (piece := response.read(ANSWER_LIMIT - size)):
        pieces.append(piece)
        size += len(piece)
    if response.length and size < ANSWER_LIMIT:
        raise HTTPException("the connection was lost within the answer")
    return b"".join(pieces)


def _time_left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Buffered(io.BufferedReader):
    """Reads whole lines: HTTPResponse takes a head that the end of the connection cuts off for a whole one."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise HTTPException("the connection was lost before the end of the answer")
        return line


class _Reading(io.RawIOBase):
    """What HTTPResponse reads from: a socket, until the deadline."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._socket, self._end = sock, end

    def makefile(self, mode: str) -> io.BufferedReader:
        """What HTTPResponse asks a socket for."""
        return _Buffered(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # as io calls it
        self._socket.settimeout(_time_left(self._end))
        return self._socket.recv_into(buffer)


def is_readable(file_number: int) -> bool:
    """Whether something came on a socket: data, its end, or an error."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(file_number, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([file_number], [], [], 0)[0])  # Windows
