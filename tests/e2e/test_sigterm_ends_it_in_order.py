"""SIGTERM: what is in flight is finished, no client can hold the process up, and what was acknowledged is on disk."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests import engines
from tests.e2e.raw import MESSAGE, Client, request, sending
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch
from tests.waiting import wait_until_read

SHUTDOWN = 3.0  # seconds, of the setting SHORT
SHORT, LONG = 'shutdown_timeout = "3s"', 'shutdown_timeout = "2m"'
AT_ONCE = 60.0  # seconds that a stop with nothing to wait for may take on a busy machine: half of the setting LONG


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """With two minutes for a stop; a test that waits for the end of the time has `SHORT` as its parameter."""
    with appliance(tmp_path, server=getattr(request, "param", LONG)) as started:
        yield started


in_three_seconds = pytest.mark.parametrize("running", [SHORT], indirect=True, ids=["in three seconds"])


def stop(running: Running) -> float:
    """Returns when the signal was sent."""
    assert running.process is not None
    sent = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    running.await_event("stopping")
    return sent


def seconds_until_ended(running: Running) -> float:
    """How long the process goes on; it must end by itself, with exit code 0 and nothing to complain about."""
    assert running.process is not None
    watch = Stopwatch(running.pid)
    assert watch.exit_code(running.process, 2 * AT_ONCE) == 0
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


@in_three_seconds
def test_a_half_sent_body_is_waited_for_no_longer_than_allowed(running: Running) -> None:
    """A client that never finishes its body is cut when the time is up."""
    with Client(running.url) as client:
        client.send(request("POST", "/emails", *sending(running, "half"), "Content-Length: 1000") + MESSAGE)
        wait_until_read(client.socket)
        sent = stop(running)
        seconds_until_ended(running)
        assert time.monotonic() - sent > SHUTDOWN / 2


# ---- requests in flight


def test_a_body_that_is_on_its_way_is_taken(running: Running) -> None:
    """A request that was let in before the signal is answered 202 after it, and the connection closed."""
    with Client(running.url) as client:
        head = request("POST", "/emails", *sending(running, "on its way"), f"Content-Length: {len(MESSAGE)}")
        client.send(head + MESSAGE[:20])
        wait_until_read(client.socket)
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
                wait_until_read(client.socket)
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
        wait_until_read(busy.socket)
        stop(running)
        kept.offer(request("POST", "/emails", *sending(running, "too late"), body=MESSAGE))
        assert [answer.status for answer in kept.rest()] in ([], [503])
        with pytest.raises(ConnectionError), Client(running.url):
            pass
        busy.send(MESSAGE[20:] + request("POST", "/emails", *sending(running, "behind it"), body=MESSAGE))
        assert [answer.status for answer in busy.rest()] == [202]
    assert seconds_until_ended(running) < AT_ONCE


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

supervisor._announce, supervisor.repeat, supervisor._share_failures = announces, fails, hangs
main()
"""


@pytest.mark.slow
def test_an_end_by_an_error_is_bounded_as_well(tmp_path: Path) -> None:
    """A part of the server fails, and another does not end: the process does, and says that it was by force."""
    program = (sys.executable, "-c", FAILS_AND_HANGS)
    with appliance(tmp_path, server=SHORT, program=program) as running:
        assert running.process is not None
        assert running.process.wait(AT_ONCE) == 1
        assert "stopped by force" in running.complaints()[-1]
        assert "an error in another service" in running.complaints()[-1]
