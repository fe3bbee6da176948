"""The transport of `AsyncClient`: HTTP/1.1 by h11 over anyio's streams, with a pool of kept connections.

httpx would be the usual choice, but the pool of its transport looks at every connection for each connection, whenever a
request begins or ends: with 50 tasks it sent 30 messages a second where this sends 400.
"""

import ssl
import time
from collections import deque
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSStream

from mail_appliance.errors import ConfigurationError
from mail_appliance.planning import ANSWER_LIMIT, Answer, Configuration, Request, TransportError
from mail_appliance.socket_transport import JOINED, KEPT, KEPT_SECONDS, is_readable

_HEAD_LIMIT: Final = 64 * 1024  # bytes of an answer's head
_LOST: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError)


class StreamTransport:
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
        late = f"timed out after {timeout:g} s"
        try:
            with anyio.fail_after(timeout):
                connection = await self._take()
                if connection is None:
                    late = f"no connection within {self._configuration.connect_timeout:g} s"
                    with anyio.fail_after(self._configuration.connect_timeout):
                        connection = await self._connect()
                    late = f"timed out after {timeout:g} s"
                try:
                    answer, may_keep = await connection.exchange(request)
                except BaseException:
                    await connection.close()
                    raise
        except ssl.SSLCertVerificationError as cause:
            raise TransportError(f"its certificate does not verify: {cause.verify_message}", retryable=False) from cause
        except TimeoutError as cause:
            raise TransportError(late) from cause
        except _LOST as cause:
            raise TransportError(str(cause) or "the connection was lost") from cause
        if may_keep and len(self._kept) < KEPT and not self._closed:
            connection.idle_since = time.monotonic()
            self._kept.append(connection)
        else:
            await connection.close()
        return answer

    async def close(self) -> None:
        """Close the kept connections; those in use are closed after their answer."""
        self._closed = True
        while self._kept:
            await self._kept.pop().close()

    async def _take(self) -> "_Connection | None":
        """The kept connection that was used last, if there is one that still works."""
        while self._kept:
            connection = self._kept.pop()
            if connection.idle_since > time.monotonic() - KEPT_SECONDS and connection.is_quiet():
                return connection
            await connection.close()
        return None

    async def _connect(self) -> "_Connection":
        host, port = self._configuration.host, self._configuration.port
        stream = await anyio.connect_tcp(host, port)
        number = stream.extra(SocketAttribute.raw_socket).fileno()  # noqa: S610 (not of Django)
        if self._ssl is None:
            return _Connection(stream, number, self._configuration.authority)
        try:
            secured = await TLSStream.wrap(stream, hostname=host, ssl_context=self._ssl, standard_compatible=False)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return _Connection(secured, number, self._configuration.authority)


class _Connection:
    """A connected stream and the state of HTTP on it."""

    def __init__(self, stream: ByteStream, file_number: int, authority: str) -> None:
        self._stream = stream
        self._file_number = file_number
        self._authority = authority
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        self.idle_since = 0.0

    async def exchange(self, request: Request) -> tuple[Answer, bool]:
        """The answer to a request, and whether the connection can be used again."""
        head, is_sent = self._head(request), True
        if len(request.body) <= JOINED:
            await self._stream.send(head + request.body)
            answer = await self._read()
        else:
            answer, is_sent = await self._read_while_sending(head, request.body)
        may_keep = is_sent and self._http.states == _BOTH_DONE and not self._http.trailing_data[0]
        if may_keep:
            self._http.start_next_cycle()
        return answer, may_keep

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither its end nor what was not asked for."""
        return not is_readable(self._file_number)

    async def close(self) -> None:
        await anyio.aclose_forcefully(self._stream)

    def _head(self, request: Request) -> bytes:
        """The head; h11 is told of the body too, which goes over the wire as it is."""
        headers = [("Host", self._authority), *request.headers.items()]
        if request.method == "POST":
            headers.append(("Content-Length", str(len(request.body))))
        head = self._http.send(h11.Request(method=request.method, target=request.target, headers=headers))
        if request.body:
            self._http.send_with_data_passthrough(h11.Data(data=request.body))
        self._http.send(h11.EndOfMessage())
        assert head is not None  # noqa: S101 (h11 has None only for ConnectionClosed)
        return head

    async def _read_while_sending(self, head: bytes, body: bytes) -> tuple[Answer, bool]:
        """The answer, and whether all was sent: a server that refuses a large body answers before its end."""
        is_sent = False
        answer: Answer | None = None
        lost: Exception | None = None

        async def send() -> None:
            nonlocal is_sent
            try:
                await self._stream.send(head)
                await self._stream.send(body)
                is_sent = True
            except _LOST:
                pass  # reading sees it too, or an answer that was sent before

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            try:
                answer = await self._read()
            except _LOST as error:
                lost = error
            tasks.cancel_scope.cancel()
        if answer is None:
            raise lost or anyio.BrokenResourceError
        return answer, is_sent

    async def _read(self) -> Answer:
        status, headers, pieces, size = 0, {}, [], 0
        while size < ANSWER_LIMIT:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._receive())
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                size += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
        return Answer(status, headers, b"".join(pieces)[:ANSWER_LIMIT])

    async def _receive(self) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""


_BOTH_DONE: Final = {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
