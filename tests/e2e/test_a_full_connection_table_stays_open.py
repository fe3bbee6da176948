"""Idle connections from many addresses keep no client out, and who is refused learns it from a 503."""

import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.raw import MESSAGE, Answer, Client, certified, check_error, request, sending
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch

ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 12))
EACH = 5
LIMITS = f"max_connections = {len(ADDRESSES) * EACH}\nmax_connections_per_address = {EACH}"
UNKNOWN = "127.0.0.99"  # an address from which no client has authenticated
BODY = 'header_timeout = "30s"'


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with appliance(tmp_path, http=f"{LIMITS}\n{BODY}") as started:
        yield started
        assert started.complaints() == []


def opened(running: Running, clients: ExitStack, source: str, data: bytes = b"") -> Client:
    client = clients.enter_context(Client(running.url, source=source))
    client.send(data)
    return client


def ask(running: Running, source: str) -> Answer:
    with Client(running.url, source=source) as client:
        client.send(request("GET", "/healthz"))
        return client.answer()


def post(client: Client, running: Running, key: str) -> int:
    client.send(request("POST", "/emails", *sending(running, key), body=MESSAGE))
    return client.answer().status


IDLE = {
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: a\r\n",
    "answered, and kept": request("GET", "/healthz"),
}


@pytest.mark.parametrize("kind", IDLE)
def test_idle_connections_from_ten_addresses_give_way(running: Running, kind: str) -> None:
    """New clients are served at once, known or not; the table never grows beyond its limit."""
    with ExitStack() as stack:
        clients = [opened(running, stack, address, IDLE[kind]) for address in ADDRESSES for _ in range(EACH)]
        time.sleep(0.3)
        watch = Stopwatch(running.pid)
        for number in range(20):
            newcomer = opened(running, stack, f"127.0.1.{number + 1}", request("GET", "/healthz"))
            assert newcomer.answer().status == 200
        with Client(running.url) as client:
            assert post(client, running, f"full {kind}") == 202
        assert watch.taken < 5
        for client in clients[:20]:
            watch = Stopwatch(running.pid)
            client.rest()
            assert watch.taken < 1  # the first to come are the first to give way


def test_an_address_beyond_its_limit_is_answered_503(running: Running) -> None:
    """With the error object and a time to retry; the answer is not destroyed by what the client has sent."""
    with ExitStack() as stack:
        for _ in range(EACH):
            opened(running, stack, UNKNOWN, request("GET", "/healthz")).answer()
        for _ in range(20):
            with Client(running.url, source=UNKNOWN) as client:
                client.offer(request("POST", "/emails", *sending(running, "over"), body=b" " * 100_000))
                answer = client.answer()
                assert (answer.status, answer.json()["code"]) == (503, "service_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.headers["connection"] == "close"
                check_error(answer)
        assert ask(running, "127.0.0.98").status == 200
    for _ in range(40):
        if ask(running, UNKNOWN).status == 200:
            break
        time.sleep(0.05)
    assert ask(running, UNKNOWN).status == 200


def test_under_tls_an_address_beyond_its_limit_is_closed(tmp_path: Path) -> None:
    settings, tls = certified(tmp_path)
    with appliance(tmp_path, http=f"{LIMITS}\n{settings}") as running, ExitStack() as stack:
        for _ in range(EACH):
            client = stack.enter_context(Client(running.url, tls=tls))
            client.send(request("GET", "/healthz"))
            assert client.answer().status == 200
        with pytest.raises((ConnectionError, ssl.SSLError)):
            stack.enter_context(Client(running.url, tls=tls))
        stack.enter_context(Client(running.url, tls=tls, source="127.0.0.2"))
