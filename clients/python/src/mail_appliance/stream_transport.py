"""The transport of `AsyncClient`: HTTP/1.1 over anyio's streams, parsed by httptools, with a pool of kept connections.

httpx would be the usual choice, but the pool of its transport looks at every connection for each connection, whenever a
request begins or ends: with 50 tasks it sent 30 messages a second where this sent 400. With h11 as the parser a send
took half as long again.
"""

import ssl
import time
from collections import deque
from typing import Final

import anyio
import httptools
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSStream

from mail_appliance.errors import ConfigurationError
from mail_appliance.planning import ANSWER_LIMIT, Answer, Configuration, Request, TransportError
from mail_appliance.socket_transport import JOINED, KEPT, KEPT_SECONDS, head_of, is_readable

_HEAD_LIMIT: Final = 64 * 1024  # bytes of an answer's head
_LOST: Final = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    httptools.HttpParserError,
)


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
        try:
            with anyio.move_on_after(timeout):  # half as costly as fail_after
                return await self._send(request)
        except ssl.SSLCertVerificationError as cause:
            raise TransportError(f"its certificate does not verify: {cause.verify_message}", retryable=False) from cause
        except _LOST as cause:
            raise TransportError(str(cause) or "the connection was lost") from cause
        raise TransportError(f"timed out after {timeout:g} s")

    async def _send(self, request: Request) -> Answer:
        connection = await self._take() or await self._connect()
        try:
            answer, may_keep = await connection.exchange(request)
        except BaseException:
            await connection.close()
            raise
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
        seconds = self._configuration.connect_timeout
        with anyio.move_on_after(seconds):
            return await self._secured()
        raise TransportError(f"no connection within {seconds:g} s")

    async def _secured(self) -> "_Connection":
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
    """A connected stream."""

    def __init__(self, stream: ByteStream, file_number: int, authority: str) -> None:
        self._stream = stream
        self._file_number = file_number
        self._authority = authority
        self.idle_since = 0.0

    async def exchange(self, request: Request) -> tuple[Answer, bool]:
        """The answer to a request, and whether the connection can be used again."""
        head = head_of(request, self._authority)
        if len(request.body) <= JOINED:
            await self._stream.send(head + request.body)
            return await self._read()
        return await self._read_while_sending(head, request.body)

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither its end nor what was not asked for."""
        return not is_readable(self._file_number)

    async def close(self) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def _read_while_sending(self, head: bytes, body: bytes) -> tuple[Answer, bool]:
        """The same for a large body, which a server that refuses it may answer before its end."""
        is_sent = False
        read: tuple[Answer, bool] | None = None
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
                read = await self._read()
            except _LOST as error:
                lost = error
            tasks.cancel_scope.cancel()
        if read is None:
            raise lost or anyio.EndOfStream
        return read[0], read[1] and is_sent

    async def _read(self) -> tuple[Answer, bool]:
        reading = _Reading()
        while not reading.is_done:
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                if not reading.ends_with_connection:
                    raise
                break
            reading.feed(data)
        return reading.answer(), reading.may_keep


class _Reading:
    """An answer as it arrives; the methods `on_…` are called by the parser."""

    def __init__(self) -> None:
        self.is_done = False  # the answer is whole, or as much of it is here as will be read
        self.ends_with_connection = False
        self.may_keep = False
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0  # of the head until it is complete, then of the body
        self._has_head = False

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
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
        """What was read."""
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
        self.ends_with_connection = not self._headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.is_done:
            self._body.append(data)
            self._size += len(data)
            self.is_done = self._size >= ANSWER_LIMIT

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_done:
            self.is_done, self.may_keep = True, self._parser.should_keep_alive()
