"""A `POST /emails` gets the same answer, to the byte, whether it is read quickly or by h11; so does what follows it."""

import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.raw import MESSAGE, Client, bearer, certified, request, sending
from tests.running_appliance import Running, appliance

SMALL = 'max_body = "2KiB"'  # so that more than that still comes in one piece
ODD = ("X-Odd: 1", "X-Odd: 2")  # without a meaning, but not plain
JSON = "Content-Type: application/json"
LAST = request("GET", "/healthz", "Connection: close")  # answered wherever the connection got so far

_VARIES = re.compile(rb"(?<=_)[0-9a-f]{32}|(?<=date: )[^\r]*")  # ids and the time


@dataclass(frozen=True)
class Server:
    """A server, and how to connect to it."""

    running: Running
    tls: ssl.SSLContext | None


@pytest.fixture(scope="module", params=["plain", "secure"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One behind plain TCP, one behind TLS."""
    directory: Path = tmp_path_factory.mktemp("running")
    http, tls = certified(directory) if request.param == "secure" else ("", None)
    with appliance(directory, http=f"{SMALL}\n{http}") as running:
        yield Server(running, tls)
        assert running.complaints() == []


def post(*headers: str, body: bytes = MESSAGE) -> bytes:
    """A plain POST /emails."""
    return request("POST", "/emails", *headers, body=body)


# What is sent at once, by name, of a server and the part of a key that keeps the two ways apart.
CASES: dict[str, Callable[[Running, str], list[bytes]]] = {
    "accepted": lambda it, way: [post(*sending(it, f"accepted-{way}"))],
    "accepted, three at once": lambda it, way: [post(*sending(it, f"three-{number}-{way}")) for number in range(3)],
    "accepted, then repeated": lambda it, way: [post(*sending(it, f"again-{way}"))] * 2,
    "accepted, then another under its key": lambda it, way: [
        post(*sending(it, f"other-{way}")),
        post(*sending(it, f"other-{way}"), body=MESSAGE.replace(b'"s"', b'"S"')),
    ],
    "accepted, then something else": lambda it, way: [post(*sending(it, f"else-{way}")), request("GET", "/healthz")],
    "accepted, then no HTTP": lambda it, way: [post(*sending(it, f"garbage-{way}")), b"\x16\x03\x01\r\n\r\n"],
    "no credential": lambda it, way: [post(JSON, f"Idempotency-Key: {way}"), post(*sending(it, way))],
    "wrong credential": lambda it, way: [post("Authorization: Bearer ma_live_wrong", JSON, f"Idempotency-Key: {way}")],
    "no credential, no body": lambda it, way: [post(JSON, body=b""), post(*sending(it, f"no-body-{way}"))],
    "no key": lambda it, way: [post(bearer(it), JSON), post(*sending(it, f"keyless-{way}"))],
    "an empty key": lambda it, way: [post(*sending(it, ""))],
    "a long key": lambda it, way: [post(*sending(it, "k" * 257))],
    "no JSON": lambda it, way: [post(bearer(it), f"Idempotency-Key: {way}", "Content-Type: text/plain")],
    "an unreadable body": lambda it, way: [
        post(*sending(it, f"{way}-{body!r}"), body=body) for body in (b"{", b"\xff")
    ],
    "an empty body": lambda it, way: [post(*sending(it, f"empty-{way}"), body=b""), post(*sending(it, f"then-{way}"))],
    "a body that is too large": lambda it, way: [post(*sending(it, f"large-{way}"), body=bytes(3_000))],
    "a foreign sender": lambda it, way: [
        post(*sending(it, f"foreign-{way}"), body=MESSAGE.replace(b"@example.com", b"@example.org"))
    ],
}


def exchanged(server: Server, requests: list[bytes]) -> bytes:
    """All that is answered, until the other side closes."""
    with Client(server.running.url, tls=server.tls) as client:
        client.send(b"".join(requests) + LAST)
        data = b""
        try:
            while piece := client.socket.recv(65_536):
                data += piece
        except (ConnectionError, ssl.SSLError):
            pass  # an end, too
    return _VARIES.sub(b"...", data)


@pytest.mark.parametrize("name", CASES)
def test_the_two_ways_cannot_be_told_apart(server: Server, name: str) -> None:
    """The same requests, with and without what makes them h11's, get the same answers and the same end."""
    quick = CASES[name](server.running, "quick")
    slow = [
        sent.replace(b"\r\n", "\r\n".join(("", *ODD, "")).encode(), 1) if sent.startswith(b"POST") else sent
        for sent in CASES[name](server.running, "slowly")
    ]
    answered = exchanged(server, quick)
    assert answered.startswith(b"HTTP/1.1 ")
    assert answered == exchanged(server, slow)
