"""A client that may break every rule of HTTP: bytes out, answers in, over plain TCP or TLS."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import trustme

from tests.running_appliance import Running
from tests.stopwatch import Stopwatch

PIECE = 65_536
NOTICED = 1.0  # seconds after which another client would call us slow


@dataclass(frozen=True)
class Answer:
    """One response, its header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = field(default=b"", repr=False)

    def json(self) -> Any:
        return json.loads(self.body)


def parsed(data: bytes, *, ended: bool = False) -> tuple[list[Answer], bytes]:
    """Every whole response at the beginning of the bytes, and what is left over; `ended`: nothing more will come."""
    answers = []
    while (end := data.find(b"\r\n\r\n")) >= 0:
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        rest, length = data[end + 4 :], int(headers.get("content-length", "0"))
        if rest.startswith(b"HTTP/1.1 ") or (ended and not rest):
            length = 0  # what a HEAD is told has a length and no body
        if len(rest) < length:
            break
        answers.append(Answer(int(first.split(" ")[1]), headers, rest[:length]))
        data = rest[length:]
    return answers, data


class Client:
    """One connection; every wait on it ends after `timeout` seconds."""

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | None = None, timeout: float = 10, source: str = "", buffer: int = 0
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            if source:
                self.socket.bind((source, 0))
            self.socket.connect((parts.hostname, parts.port))
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=parts.hostname)
        except OSError:
            self.socket.close()
            raise
        self._unread = b""
        self._answers: list[Answer] = []

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all of it; the other side must not have closed."""
        self.socket.sendall(data)

    def offer(self, data: bytes) -> bool:
        """Send as much of it as the other side lets us; whether that was all."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def finish(self) -> None:
        if not isinstance(self.socket, ssl.SSLSocket):
            self.socket.shutdown(socket.SHUT_WR)

    def answer(self) -> Answer:
        """The next response; raises TimeoutError or ConnectionError when none comes."""
        while not self._answers:
            if not self._receive():
                raise ConnectionError(f"closed before an answer, with {self._unread!r} unread")
        return self._answers.pop(0)

    def rest(self) -> list[Answer]:
        try:
            while self._receive():
                pass
        except (ConnectionError, ssl.SSLError):
            pass  # a reset is an end too
        assert self._unread == b""
        found, self._answers = self._answers, []
        return found

    def seconds_until_closed(self) -> float:
        """How long the other side takes to close; raises TimeoutError when it does not."""
        began = time.monotonic()
        self.rest()
        return time.monotonic() - began

    def _receive(self) -> bool:
        data = self.socket.recv(PIECE)
        found, self._unread = parsed(self._unread + data)
        self._answers += found
        return data != b""


def request(method: str, target: str, *headers: str, body: bytes | None = None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: mail.example.com", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def bearer(running: Running) -> str:
    return f"Authorization: Bearer {running.account.full_key}"


def sending(running: Running, key: str, *headers: str) -> tuple[str, ...]:
    return bearer(running), f"Idempotency-Key: {key}", "Content-Type: application/json", *headers


def certified(directory: Path) -> tuple[str, ssl.SSLContext]:
    """The `[http]` settings of a server behind TLS, and a client's context that trusts it and would prefer HTTP/2."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(directory / "cert.pem", append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return f'tls_cert = "{directory / "cert.pem"}"\ntls_key = "{directory / "key.pem"}"', context


MESSAGE = json.dumps({"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t"}).encode()


def check_error(answer: Answer, *, head: bool = False) -> None:
    """An error has the error object, under the id that its header names; a client's fault is never ours."""
    request_id = answer.headers["x-request-id"]
    assert request_id.startswith("req_")
    assert answer.status != 500
    if not head:
        told = answer.json()
        assert set(told) == {"error", "code", "request_id"}
        assert told["request_id"] == request_id


@contextmanager
def others_are_served(running: Running) -> Iterator[None]:
    """A client at another address asks all the while, on new connections, and is answered at once."""
    done, waits = threading.Event(), list[float]()

    def ask() -> None:
        while not done.wait(0.02):
            watch = Stopwatch(running.pid)
            with Client(running.url, timeout=60, source="127.0.0.77") as client:
                client.send(request("GET", "/healthz"))
                assert client.answer().status == 200
            waits.append(watch.taken)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
    assert waits
    assert max(waits) < NOTICED
