"""A scripted HTTP server on loopback, and the library's clients of all three kinds behind one blocking surface."""

import json
import socket
import ssl
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # when it is not installed

from mail_appliance import AsyncClient, Client, Message, Request, SendResult
from mail_appliance.testing import FakeAppliance

KINDS = ("threads", "asyncio", "trio")


@dataclass(frozen=True)
class Received:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes


Step = Callable[["Server", socket.socket, Received], None]


class Server:
    """Answers each request by the next step of its script, and after the last step as the fake appliance does.

    A step that closes the socket ends the connection. An `early` step runs once the head of a request is
    read, and its connection ends with it.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.script: deque[Step] = deque()
        self.early: deque[Step] = deque()
        self.stopped = threading.Event()
        self.appliance = FakeAppliance()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            secured = self._context.wrap_socket(sock, server_side=True) if self._context else sock
            with secured, secured.makefile("rb") as reader:
                while secured.fileno() != -1 and (line := reader.readline()) and self._answer(secured, reader, line):
                    pass

    def _answer(self, sock: socket.socket, reader: Any, line: bytes) -> bool:
        """Whether the connection stays open."""
        method, target, _ = line.decode().split()
        headers = {}
        while (line := reader.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        if self.early:
            self.early.popleft()(self, sock, Received(method, target, headers, b""))
            return False
        received = Received(method, target, headers, reader.read(int(headers.get("content-length", 0))))
        self.requests.append(received)
        step = self.script.popleft() if self.script else as_appliance
        step(self, sock, received)
        return True


def as_appliance(server: Server, sock: socket.socket, received: Received) -> None:
    """Answer as the fake appliance does."""
    headers = {"Idempotency-Key": received.headers.get("idempotency-key", "")}
    result = server.appliance.respond(Request(received.method, received.target, headers, received.body))
    answer(result.status, result.body, **result.headers)(server, sock, received)


def answer(status: int, content: bytes | dict[str, Any] = b"", **headers: str) -> Step:
    """A step that sends an answer with a length; `_` in the name of a header is `-`."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    fields = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = f"HTTP/1.1 {status} Text\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return raw(head.encode() + b"\r\n" + body)


def raw(data: bytes, *, close: bool = False) -> Step:
    """A step that sends exactly these bytes."""

    def step(_: Server, sock: socket.socket, __: Received) -> None:
        sock.sendall(data)
        if close:
            close_quietly(_, sock, __)

    return step


def close_quietly(_: Server, sock: socket.socket, __: Received) -> None:
    """End the connection without an answer."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def reset(_: Server, sock: socket.socket, __: Received) -> None:
    """Reset the connection without an answer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Without a duplicate that a reader holds, closing sends the RST.
    with suppress(OSError):
        socket.socket(fileno=sock.detach()).close()


def hang(server: Server, _: socket.socket, __: Received) -> None:
    """Say nothing until the test is over."""
    server.stopped.wait(60)


def trickle(server: Server, sock: socket.socket, __: Received) -> None:
    """Send a byte of the answer every 50 ms, for longer than any test wants to wait."""
    sock.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 1200\r\n\r\n")
    for _ in range(1200):
        sock.sendall(b" ")
        if server.stopped.wait(0.05):
            return


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go to loopback, whatever proxy the machine has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without TLS."""
    with running_server() as running:
        yield running


@contextmanager
def running_server(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server, and its end."""
    running = Server(context)
    try:
        yield running
    finally:
        running.close()


class BlockingClient:
    """A client of one kind; those of event loops run in a thread of their own."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self._stack = ExitStack()
        self._client: Any
        if kind == "threads":
            self._client = Client(**options)
            self._call: Callable[..., Any] = lambda function, *args: function(*args)
        else:
            self._client = AsyncClient(**options)
            self._call = self._stack.enter_context(start_blocking_portal(kind)).call

    def send(self, **message: Any) -> SendResult:
        fields = {"from_": "shop@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hello Ada"}
        result: SendResult = self._call(partial(self._client.send, **(fields | message)))
        return result

    def get(self, id: str) -> Message:
        result: Message = self._call(self._client.get, id)
        return result

    def wait(self, id: str, timeout: float) -> Message:
        result: Message = self._call(self._client.wait, id, timeout)
        return result

    def close(self) -> None:
        self._call(self._client.close)

    def end(self) -> None:
        self.close()
        self._stack.close()


MakeClient = Callable[..., BlockingClient]


@pytest.fixture(params=KINDS)
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes clients of each kind in turn, and closes them."""
    with ExitStack() as stack:

        def make(url: str, **options: Any) -> BlockingClient:
            client = BlockingClient(request.param, {"url": url, "token": "t", **options})
            stack.callback(client.end)
            return client

        yield make
