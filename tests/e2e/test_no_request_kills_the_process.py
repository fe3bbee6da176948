"""Whatever bytes a client sends, the process lives, others are served, and an error is our error object."""

import os
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.e2e.raw import MESSAGE, Answer, Client, bearer, certified, check_error, parsed, request, sending
from tests.running_appliance import Running, appliance

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@dataclass(frozen=True)
class Door:
    running: Running
    tls: ssl.SSLContext | None

    def connect(self, timeout: float = 10) -> Client:
        return Client(self.running.url, tls=self.tls, timeout=timeout)

    def check(self) -> None:
        """The process lives, and a normal request on a new connection is answered."""
        assert self.running.process is not None
        assert self.running.process.poll() is None, self.running.log_file.read_text()
        with self.connect() as client:
            client.send(request("GET", "/healthz"))
            assert client.answer().status == 200


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with appliance(tmp_path_factory.mktemp("plain")) as running:
        yield Door(running, None)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The same behind TLS, and a client that trusts it and offers HTTP/2 first."""
    directory = tmp_path_factory.mktemp("secure")
    http, context = certified(directory)
    with appliance(directory, http=http) as running:
        yield Door(running, context)


@pytest.fixture(params=["plain", "secure"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """Each server in turn; nothing a client does wrong may be a complaint in its log."""
    opened: Door = request.getfixturevalue(request.param)
    yield opened
    opened.check()
    assert opened.running.complaints() == []


# ---- the requests that killed hypercorn

UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((*UPGRADE, "HTTP2-Settings: AAMA"), id="h2c settings AAMA"),
        pytest.param((*UPGRADE, "HTTP2-Settings: A"), id="h2c settings A"),
        pytest.param(UPGRADE, id="h2c without settings"),
        pytest.param(WEBSOCKET, id="websocket"),
        pytest.param((*WEBSOCKET, "Sec-WebSocket-Protocol: \xff"), id="websocket protocol not ASCII"),
    ],
)
def test_a_request_to_upgrade_is_answered_as_an_ordinary_one(door: Door, headers: tuple[str, ...]) -> None:
    with door.connect() as client:
        client.send(request("GET", "/healthz", *headers) + request("GET", "/emails/none", bearer(door.running)))
        assert client.answer().status == 200
        assert client.answer().status == 404


def test_bytes_after_a_websocket_upgrade_are_just_bad_requests(door: Door) -> None:
    """A client that goes on to speak WebSocket gets a 400 and a closed connection."""
    with door.connect() as client:
        client.send(request("GET", "/healthz", *WEBSOCKET) + b"\x81\x85\x01\x02\x03\x04trail\r\n\r\n")
        assert client.answer().status == 200
        refusal = client.answer()
        assert (refusal.status, refusal.headers["connection"]) == (400, "close")
        check_error(refusal)
        assert client.rest() == []


@pytest.mark.parametrize("field", [b"\x04\x02/\xff", b"\x02\x01\xff"], ids=["path", "method"])
def test_the_preface_of_http2_is_refused(door: Door, field: bytes) -> None:
    """HTTP/2 by prior knowledge, with a path or a method that is not ASCII, gets a 400 and a closed connection."""
    headers = len(field).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big") + field
    with door.connect() as client:
        client.send(PREFACE + SETTINGS + headers)
        refusal = client.answer()
        assert refusal.status == 400
        check_error(refusal)
        assert client.rest() == []


def test_tls_offers_http_1_1_only(secure: Door) -> None:
    """ALPN never chooses HTTP/2, whatever the client prefers."""
    with secure.connect() as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(request("GET", "/healthz"), id="plain HTTP"),
        pytest.param(bytes(range(256)) * 8, id="every byte"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600, id="a broken hello"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x28", id="an alert"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_garbage_on_the_tls_port_ends_only_its_own_connection(secure: Door, garbage: bytes) -> None:
    """A handshake that is none is closed without a word in the log."""
    with Client(secure.running.url) as client:
        client.send(garbage)
        client.finish()
        assert client.seconds_until_closed() < 5
    secure.check()
    assert secure.running.complaints() == []


def test_garbage_after_the_handshake_ends_only_its_own_connection(secure: Door) -> None:
    """TLS records that do not decrypt are the end of a connection, not of a process."""
    with secure.connect() as client:
        client.send(request("GET", "/healthz"))
        assert client.answer().status == 200
        assert isinstance(client.socket, ssl.SSLSocket)
        with socket.socket(fileno=os.dup(client.socket.fileno())) as bare:
            bare.settimeout(10)
            bare.sendall(b"\x17\x03\x03\x00\x40" + b"\x5a" * 64)
            assert bare.recv(1) in (b"", b"\x15", b"\x17")
    secure.check()
    assert secure.running.complaints() == []


# ---- what is HTTP, but only just


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://mail.example.com/healthz", 200),
        ("HTTPS://mail.example.com:443/healthz?a=b", 200),
        ("//healthz", 200),
        ("http://[", 302),
        ("http://", 302),
        ("?x", 302),
        ("*", 404),
        ("mail.example.com:443", 404),
        ("/%ff%00/../..", 404),
        ("/\xff", 400),
    ],
)
def test_a_target_of_any_form_is_answered(door: Door, target: str, status: int) -> None:
    """Absolute, empty and senseless targets are found or not found; none is a failure of ours. `/` leads elsewhere."""
    with door.connect() as client:
        client.send(request("GET", target))
        answer = client.answer()
        assert answer.status == status
        if status >= 400:
            check_error(answer)


def test_a_body_whose_length_is_told_in_two_ways_is_refused(door: Door) -> None:
    """Content-Length beside Transfer-Encoding may be smuggling past a proxy: nothing that follows is run."""
    with door.connect() as client:
        headers = sending(door.running, "smuggled", "Transfer-Encoding: chunked", "Content-Length: 5")
        client.send(request("POST", "/emails", *headers) + b"0\r\n\r\n" + request("GET", "/healthz"))
        refusal = client.answer()
        assert (refusal.status, refusal.headers["connection"]) == (400, "close")
        check_error(refusal)
        assert client.rest() == []


# ---- seeded chance

OCTETS = (b"\0", b"\r", b"\n", b"\xff", b"\x80", b" ", b":", b"\x7f\x1b[")
FIRST_LINES = (
    b"", b"\r\n\r\nGET / HTTP/1.1", b"GET / HTTP/1.1 ", b"GET  / HTTP/1.1", b"GET / HTTP/1.1\tx", b"GET /",
    b"get / HTTP/1.1", b"G\xc9T / HTTP/1.1", b"{} / HTTP/1.1", b"M" * 9_000 + b" / HTTP/1.1", b"\0 / HTTP/1.1",
    b"GET / HTTP/1.0", b"GET / HTTP/0.9", b"GET / HTTP/2.0", b"GET / HTTP/11", b"GET / http/1.1", b"GET / X",
    b"TRACE / HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"PRI * HTTP/2.0", b"PATCH /v1 HTTP/1.1",
    b"GET /%s HTTP/1.1" % (b"x" * 8_000), b"GET /?%s HTTP/1.1" % (b"a=b&" * 2_000), b"GET /\xe9 HTTP/1.1",
)  # fmt: skip
LINES = (
    b"Content-Length: 5", b"Content-Length: -5", b"Content-Length: +5", b"Content-Length: 5, 5",
    b"Content-Length: 5, 6", b"Content-Length: 1e3", b"Content-Length: %d" % 2**70, b"Content-Length:",
    b"Content-Length: \xb2", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked", b"TE: trailers", b" folded", b"\tfolded", b"Folded: a\r\n b\r\n\tc",
    b"No colon", b": no name", b"Sp ace: x", b"Nul: \0", b"X:\xff\xfe", b"a: b\r\n" * 1_500 + b"c: d",
    b"a: b\r\n" * 8_000 + b"c: d", b"Long: " + b"x" * 15_000, b"Long: " + b"x" * 70_000, b"Host: two.example",
    b"Host: " + b"a" * 300, b"Host: a..b", b"Host: [::", b"Host: \xff", b"Host:", b"Host: a:99999999", b"Upgrade: h2c",
    b"Upgrade: websocket", b"Connection: close", b"Connection: upgrade", b"HTTP2-Settings: AAMA",
    b"Expect: 100-continue", b"Expect: \xff", b"Expect: 200-ok", b"Cookie: \xff=;;=", b"X-Forwarded-For: \xff, ::",
    b"Authorization: \xff", b"Authorization:", b"Authorization: Basic", b"Authorization: Digest x",
    b"Idempotency-Key: \xff", b"Content-Type: \xff", b"Content-Type: text/plain",
    b"Content-Type: multipart/form-data; boundary=\xff",
)  # fmt: skip
BAD_CHUNKS = (
    b"zz\r\n", b"-1\r\n", b"ffffffffffffffffffff\r\n", b"5;" + b"x" * 20_000, b"5\r\nhello0\r\n\r\n",
    b"1\r\na\r\n0\r\nTrailer: \0\r\n\r\n",
)  # fmt: skip


def changed(choose: random.Random, data: bytes) -> bytes:
    """One change; octets only change before the credentials, because guesses are answered slowly."""
    head, mark, body = data.partition(b"\r\n\r\n")
    lines, at = head.split(b"\r\n"), choose.randrange(len(data))
    match choose.randrange(17):
        case 0:
            return data[:at] + choose.choice(OCTETS) + data[at:]
        case 1:
            at %= 30
            return data[:at] + choose.randbytes(1) + data[at + 1 :]
        case 2:
            return data[:at] + data[choose.randrange(at + 1) :]
        case 3:
            return data[:at]
        case 4:
            return data.replace(b"\r\n", b"\n")
        case 5:
            lines = [line for line in lines if not line.startswith(b"Content-Length")] + [b"Transfer-Encoding: chunked"]
            body = choose.choice([b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), choose.randbytes(200), *BAD_CHUNKS])
        case 6 | 7 | 8 | 9 | 10:
            lines[0] = choose.choice(FIRST_LINES)
        case _:
            lines.insert(choose.randint(1, len(lines)), choose.choice(LINES))
    return b"\r\n".join(lines) + mark + body


def requests(choose: random.Random, running: Running) -> bytes:
    """One to three requests on one connection, at least one of them mutated."""
    good = [
        request("GET", "/healthz"),
        request("GET", "/openapi.json"),
        request("HEAD", "/healthz"),
        request("GET", "/emails/none", bearer(running)),
        request("DELETE", "/v1/templates/none"),
        request("POST", "/emails", *sending(running, choose.randbytes(8).hex()), body=MESSAGE),
        request("POST", "/emails", *sending(running, choose.randbytes(8).hex()), body=choose.randbytes(300)),
        request("POST", "/v1/auth/login", "Content-Type: application/json", body=b'{"email": 1}'),
    ]
    mutated = choose.choice(good)
    for _ in range(choose.randint(1, 3)):
        mutated = changed(choose, mutated or b"x")
    around = [choose.choice(good) if choose.random() < 0.3 else b"" for _ in range(2)]
    return around[0] + mutated + around[1]


def answers_to(door: Door, data: bytes) -> list[Answer]:
    """What a client is told that sends these bytes and then closes its side."""
    received = b""
    with door.connect() as client:
        client.offer(data)
        client.finish()
        with suppress(ConnectionError):
            while piece := client.socket.recv(65_536):
                received += piece
    found, rest = parsed(received, ended=True)
    assert rest == b"", f"{data[:500]!r} was answered {received!r}"
    return found
