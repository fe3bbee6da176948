"""The fault proxy by itself, between a plain HTTP client and a server that counts: each fault is what it says."""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from clients.conformance.proxy import Fault, FaultProxy
from clients.conformance.runner import Materials

BODY = b'{"a": "' + b"x" * 100_000 + b'"}'


class Upstream(BaseHTTPRequestHandler):
    """Answers with what it was sent, and counts."""

    protocol_version = "HTTP/1.1"
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        """Echo."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(body)
        self.send_response(202)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Path", self.path)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def proxied(upstream: str, *faults: Fault, prefix: str = "", **how: Any) -> Iterator[FaultProxy]:
    """A proxy with these faults before it."""
    Upstream.bodies.clear()
    with FaultProxy(upstream, faults, prefix).listening(**how) as proxy:
        yield proxy


def post(proxy: FaultProxy, timeout: float = 20, body: bytes = BODY) -> tuple[http.client.HTTPResponse, bytes]:
    """One request on a connection of its own."""
    parts = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("POST", parts.path + "/emails", body, {"Authorization": "x"})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_requests_are_passed_and_recorded(upstream: str) -> None:
    """With their bytes, by connection, and without the prefix."""
    with proxied(upstream, prefix="/a/b") as proxy:
        answer, body = post(proxy)
        post(proxy)
    assert (answer.status, body, answer.headers["X-Path"]) == (202, BODY, "/emails")
    assert [(call.method, call.path, call.connection) for call in proxy.calls] == [
        ("POST", "/a/b/emails", 1),
        ("POST", "/a/b/emails", 2),
    ]
    assert proxy.calls[0].body == BODY
    assert proxy.calls[0].headers["authorization"] == "x"
    assert proxy.calls[0].answered is not None
    assert Upstream.bodies == [BODY, BODY]


@pytest.mark.parametrize(
    ("fault", "passed", "read"),
    [
        ({"reset": "before"}, 0, 0),
        ({"reset": "during"}, 0, len(BODY) // 2),
        ({"reset": "after"}, 0, len(BODY)),
        ({"drop": "reset"}, 1, len(BODY)),
        ({"drop": "close"}, 1, len(BODY)),
        ({"cut": "close"}, 1, len(BODY)),
        ({"cut": "reset"}, 1, len(BODY)),
    ],
    ids=str,
)
def test_lost_connections(upstream: str, fault: Fault, passed: int, read: int) -> None:
    """The client gets no whole answer; the server got the request or not; the next request passes."""
    with proxied(upstream, fault) as proxy:
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            post(proxy)
        assert len(Upstream.bodies) == passed
        assert len(proxy.calls[0].body) == read
        assert proxy.calls[0].answered is None
        assert post(proxy)[1] == BODY


@pytest.mark.parametrize(
    ("fault", "passed"), [({"delay": 50}, 1), ({"trickle": "head", "every": 0.05}, 1), ({"stall": True}, 0)], ids=str
)
def test_slow_answers(upstream: str, fault: Fault, passed: int) -> None:
    """Nothing comes in time, and the end does not wait for it."""
    with proxied(upstream, fault) as proxy, socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port)) as client:
        client.sendall(b"POST /emails HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        client.settimeout(0.5)
        whole = b""
        with suppress(TimeoutError):
            while len(whole) < 10:
                whole += client.recv(1)
        assert b"\r\n" not in whole
        ended = time.monotonic()
    assert time.monotonic() - ended < 20
    assert len(Upstream.bodies) == passed


def test_trickled_body(upstream: str) -> None:
    """The head comes at once, the body byte by byte; all of it in the end."""
    with proxied(upstream, {"trickle": "body", "every": 0.02}) as proxy:
        begin = time.monotonic()
        assert post(proxy, body=b'{"a": "0123456789"}')[1] == b'{"a": "0123456789"}'
    assert time.monotonic() - begin >= 0.3


def test_made_and_changed_answers(upstream: str) -> None:
    """Status, header fields and body as the fault says; `times` repeats it."""
    change = {"change": {"b": 2, "list": {"c": 3}}}
    with proxied(
        upstream,
        {"answer": 429, "code": "rate_limited", "retry_after": 7, "times": 2},
        {"answer": 502, "text": "<h1>", "headers": {"X-A": "b"}},
        {"redirect": 307},
        change,
        {"chunked": True},
    ) as proxy:
        for _ in range(2):
            answer, body = post(proxy)
            assert (answer.status, answer.headers["Retry-After"], json.loads(body)["code"]) == (
                429,
                "7",
                "rate_limited",
            )
        answer, body = post(proxy)
        assert (answer.status, answer.headers["X-A"], answer.headers["Content-Type"], body) == (
            502,
            "b",
            "text/html",
            b"<h1>",
        )
        answer, _ = post(proxy)
        assert (answer.status, answer.headers["Location"]) == (307, f"{proxy.url}/elsewhere")
        _, body = post(proxy, body=b'{"a": 1, "list": [{"d": 4}]}')
        assert json.loads(body) == {"a": 1, "b": 2, "list": [{"d": 4, "c": 3}]}
        answer, body = post(proxy)
        assert (answer.headers["Transfer-Encoding"], body) == ("chunked", BODY)


@pytest.mark.parametrize(("kind", "announced"), [("idle", None), ("announced", "close")])
def test_closed_after_the_answer(upstream: str, kind: str, announced: str | None) -> None:
    """The answer is whole, and the connection ends behind it."""
    with proxied(upstream, {"close": kind}) as proxy:
        parts = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        connection.request("POST", "/emails", b"{}")
        with connection.getresponse() as answer:
            assert (answer.read(), answer.headers["Connection"]) == (b"{}", announced)
        assert connection.sock is None or connection.sock.recv(1) == b""
        connection.close()


def test_ports_that_make_no_connection(upstream: str) -> None:
    """One refuses, one never answers."""
    with proxied(upstream, kind="closed") as proxy, pytest.raises(ConnectionRefusedError):
        post(proxy)
    with proxied(upstream, kind="full") as proxy, pytest.raises(TimeoutError):
        post(proxy, timeout=1)
    assert proxy.connections == 0


def test_certificate(upstream: str, tmp_path: Any) -> None:
    """Without trust the handshake fails and the connection is counted; with it requests are passed."""
    materials = Materials(tmp_path)
    with proxied(upstream, tls=materials.tls()) as proxy:
        port = urlsplit(proxy.url).port
        distrustful = http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(), timeout=20)
        with pytest.raises(ssl.SSLCertVerificationError):
            distrustful.request("POST", "/emails", b"{}")
        distrustful.close()
        trusting = ssl.create_default_context(cafile=materials.trust()["SSL_CERT_FILE"])
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=20)
        connection.request("POST", "/emails", b"{}")
        with connection.getresponse() as answer:
            assert answer.read() == b"{}"
        connection.close()
    assert proxy.connections == 2
    assert len(proxy.calls) == 1
