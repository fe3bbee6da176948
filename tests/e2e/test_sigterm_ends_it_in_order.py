"""SIGTERM: what is in flight is finished, no client can hold the process up, and what was acknowledged is on disk."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import trio

from tests import engines
from tests.e2e.raw import MESSAGE, Client, certified, request, sending
from tests.running_appliance import STOP_TIMEOUT, Running, appliance
from tests.stopwatch import Stopwatch

SHUTDOWN = 3.0  # seconds, of the setting below
AT_ONCE = 1.5  # seconds that a stop with nothing to wait for may take on a busy machine
MARGIN = 1.5
SETTINGS = 'shutdown_timeout = "3s"'


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server that is stopped in each test."""
    with appliance(tmp_path, server=SETTINGS) as started:
        yield started


def stop(running: Running) -> None:
    """Send the signal, and wait until it has been taken."""
    assert running.process is not None
    running.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while '"event": "stopping"' not in running.log_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def seconds_until_ended(running: Running) -> float:
    """How long the process goes on; it must end by itself, with exit code 0 and nothing to complain about."""
    assert running.process is not None
    watch = Stopwatch(running.pid)
    assert watch.exit_code(running.process, SHUTDOWN + 10) == 0
    taken = watch.taken
    assert running.complaints() == []
    assert '"event": "stopped"' in running.log_file.read_text()
    return taken


def are_stored(running: Running, ids: list[str]) -> bool:
    """Whether every one of these messages is in the store, with its bytes."""

    async def look() -> bool:
        async with engines.beside(running.data_dir) as store:
            account = running.account.account_id
            return all([await store.messages.read(account, each) and await store.messages.mime(each) for each in ids])

    return trio.run(look)


# ---- clients that would hold it up


def test_idle_connections_are_closed_at_once(running: Running) -> None:
    """Connections without a request, new or kept, delay nothing."""
    with Client(running.url) as fresh, Client(running.url) as kept, Client(running.url) as begun:
        kept.send(request("GET", "/healthz"))
        assert kept.answer().status == 200
        begun.send(b"GET /heal")
        stop(running)
        assert seconds_until_ended(running) < AT_ONCE
        assert fresh.rest() == kept.rest() == begun.rest() == []


def test_idle_connections_are_closed_at_once_under_tls(tmp_path: Path) -> None:
    """The same behind TLS, also for a client that has not even begun its handshake."""
    http, context = certified(tmp_path)
    with ExitStack() as stack:
        running = stack.enter_context(appliance(tmp_path, server=SETTINGS, http=http))
        silent = stack.enter_context(Client(running.url))
        kept = stack.enter_context(Client(running.url, tls=context))
        kept.send(request("GET", "/healthz"))
        assert kept.answer().status == 200
        stop(running)
        assert seconds_until_ended(running) < AT_ONCE
        assert silent.rest() == kept.rest() == []


def test_an_open_page_is_told_at_once(running: Running) -> None:
    """The stream of a page ends whole, and delays nothing."""
    with Client(running.url) as page:
        (authorization,) = running.login().values()
        page.send(request("GET", "/dashboard/live", f"Authorization: {authorization}"))
        assert page.socket.recv(1_000).startswith(b"HTTP/1.1 200 ")
        stop(running)
        assert seconds_until_ended(running) < AT_ONCE
        said = b""
        while data := page.socket.recv(1_000):
            said += data
        assert said.endswith(b"0\r\n\r\n")


def test_a_half_sent_body_is_waited_for_no_longer_than_allowed(running: Running) -> None:
    """A client that never finishes its body is cut when the time is up."""
    with Client(running.url) as client:
        client.send(request("POST", "/emails", *sending(running, "half"), "Content-Length: 1000") + MESSAGE)
        time.sleep(0.2)
        stop(running)
        assert SHUTDOWN / 2 < seconds_until_ended(running) < SHUTDOWN + MARGIN


def test_a_client_that_does_not_read_is_waited_for_no_longer_than_allowed(running: Running) -> None:
    """Answers that the client does not take do not hold it up."""
    with Client(running.url, buffer=4_096) as client:
        client.send(request("GET", "/openapi.json") * 1_000)
        time.sleep(0.5)
        stop(running)
        assert seconds_until_ended(running) < SHUTDOWN + MARGIN


# ---- requests in flight


def test_a_body_that_is_on_its_way_is_taken(running: Running) -> None:
    """A request that was let in before the signal is answered 202 after it, and the connection closed."""
    with Client(running.url) as client:
        head = request("POST", "/emails", *sending(running, "on its way"), f"Content-Length: {len(MESSAGE)}")
        client.send(head + MESSAGE[:20])
        time.sleep(0.2)
        stop(running)
        client.send(MESSAGE[20:])
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert client.rest() == []
    assert seconds_until_ended(running) < AT_ONCE
    assert are_stored(running, [answer.json()["id"]])


def test_messages_that_wait_for_the_disk_are_answered(running: Running) -> None:
    """Sends that are between the body and the commit when the signal comes get their 202, and are stored."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(running.url)) for _ in range(10)]
        with engines.no_writes(running.data_dir):
            for number, client in enumerate(clients):
                client.send(request("POST", "/emails", *sending(running, f"{number}"), body=MESSAGE))
            time.sleep(0.3)
            stop(running)
            time.sleep(0.3)
        answers = [client.answer() for client in clients]
    assert [answer.status for answer in answers] == [202] * 10
    assert seconds_until_ended(running) < AT_ONCE
    assert are_stored(running, [answer.json()["id"] for answer in answers])


def test_nothing_new_is_begun(running: Running) -> None:
    """While one request is finished, others are refused: kept connections are closed, new ones not accepted."""
    with Client(running.url) as busy, Client(running.url) as kept:
        kept.send(request("GET", "/healthz"))
        assert kept.answer().status == 200
        head = request("POST", "/emails", *sending(running, "busy"), f"Content-Length: {len(MESSAGE)}")
        busy.send(head + MESSAGE[:20])
        time.sleep(0.2)
        stop(running)
        kept.offer(request("POST", "/emails", *sending(running, "too late"), body=MESSAGE))
        assert [answer.status for answer in kept.rest()] in ([], [503])
        with pytest.raises(ConnectionError), Client(running.url):
            pass
        busy.send(MESSAGE[20:] + request("POST", "/emails", *sending(running, "behind it"), body=MESSAGE))
        assert [answer.status for answer in busy.rest()] == [202]
    assert seconds_until_ended(running) < AT_ONCE


# ---- under load


@dataclass
class Senders:
    """Threads that send one message after the other until the server is gone."""

    running: Running
    accepted: list[str] = field(default_factory=list)
    other: set[int] = field(default_factory=set)

    def send(self, name: str) -> None:
        """One thread's work."""
        with self.running.client() as client:
            for number in range(100_000):
                try:
                    answer = client.post(
                        "/emails",
                        content=MESSAGE,
                        headers={"Idempotency-Key": f"{name} {number}", "Content-Type": "application/json"},
                    )
                except httpx.TransportError:
                    return
                if answer.status_code == 202:
                    self.accepted.append(answer.json()["id"])
                else:
                    self.other.add(answer.status_code)


def test_a_stop_under_load_loses_nothing_that_was_acknowledged(running: Running) -> None:
    """With senders at full speed it ends in time, and every 202 is a message in the store."""
    senders = Senders(running)
    threads = [threading.Thread(target=senders.send, args=(f"{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    stop(running)
    assert seconds_until_ended(running) < AT_ONCE
    for thread in threads:
        thread.join()
    assert len(senders.accepted) > 20
    assert senders.other <= {503}
    assert are_stored(running, senders.accepted)


# ---- an end by an error

FAILS_AND_HANGS = """
import trio
from appliance import supervisor
from appliance.cli import main

announce, is_ready = supervisor._announce, trio.Event()

def announces(config, **urls):
    announce(config, **urls)
    is_ready.set()

async def fails(*_, **__):
    await is_ready.wait()
    raise RuntimeError("a bug")

async def hangs(store, shared):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

supervisor._announce, supervisor._repeat, supervisor._share_failures = announces, fails, hangs
main()
"""


def test_an_end_by_an_error_is_bounded_as_well(tmp_path: Path) -> None:
    """A part of the server fails, and another does not end: the process does, and says that it was by force."""
    program = (sys.executable, "-c", FAILS_AND_HANGS)
    with appliance(tmp_path, server=SETTINGS, program=program) as running:
        assert running.process is not None
        assert running.process.wait(SHUTDOWN + 10) == 1
        assert "stopped by force" in running.complaints()[-1]
        assert "an error in another service" in running.complaints()[-1]
