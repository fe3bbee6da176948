"""Mail made to be slow to read, opened ninety times at once: others are served, memory is bounded, SIGTERM ends it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.raw import Client, others_are_served, request
from tests.e2e.submission.client import smtp
from tests.e2e.test_memory_stays_bounded import MIB, Measured
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch

SHUTDOWN = 4.0  # seconds, of the setting below
AT_ONCE = 90  # requests
ENDING = 1.0  # seconds between the exit and a waiting test on a busy machine
MEMORY = 128 * MIB  # above idle: eight answers, a message of 10 MiB, and what ninety connections take

HEAD = b"From: shop@example.com\r\nTo: ada@example.net\r\nSubject: x\r\n"
LINE = 900  # octets: SMTP takes 998


def lines(unit: bytes, octets: int) -> bytes:
    line = (unit * (LINE // len(unit) + 1))[:LINE] + b"\r\n"
    return line * (octets // len(line))


def folded(unit: bytes, octets: int) -> bytes:
    return b"".join(b" " + line + b"\r\n" for line in lines(unit, octets).split(b"\r\n") if line)


def nested(levels: int, inside: bytes) -> bytes:
    heads = [b"Content-Type: multipart/mixed; boundary=n%d\r\n\r\n--n%d\r\n" % (each, each) for each in range(levels)]
    return b"".join(heads) + inside


HOSTILE = {
    "parameters": HEAD + b'Content-Type: text/plain; x="\r\n' + folded(b";", 90_000) + b' "\r\n\r\nx\r\n',
    "punycode": HEAD + b"Content-Type: text/plain; charset=punycode\r\n\r\n" + lines(b"a-999999b", 900_000),
    "messages": HEAD + b"Content-Type: message/rfc822\r\n\r\n" * 2_000 + b"Subject: y\r\n\r\nz\r\n",
    "multiparts": HEAD + nested(30, b"--n\r\n" * 1_900_000),
    "base64": HEAD + b"Content-Transfer-Encoding: base64\r\n\r\n" + (b"QUJD" * 19 + b"\r\n") * 130_000,
    "controls": HEAD + b"\r\n" + lines(b"\x01", 3 * MIB),  # each is six octets in JSON
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Measured]:
    """A server of its own for each test, with one small message sent."""
    with appliance(tmp_path, server=f'shutdown_timeout = "{SHUTDOWN:.0f}s"', fresh=True) as running:
        yield Measured(running)


def stored(running: Running) -> list[str]:
    ids = []
    with smtp(running) as client:
        for message in HOSTILE.values():
            client.mail("shop@example.com")
            client.rcpt("ada@example.net")
            code, text = client.data(message)
            assert code == 250, text
            ids.append(text.decode().rpartition(" ")[2])
    return ids


def opened(running: Running, login: dict[str, str], message_id: str) -> int:
    """The status of one reading, on a connection of its own; 0 when the server is gone."""
    with Client(running.url, timeout=60) as client:
        try:
            client.send(request("GET", f"/v1/emails/{message_id}/body", *(f"{k}: {v}" for k, v in login.items())))
            return client.answer().status
        except (OSError, AssertionError, ValueError):
            return 0


def test_ninety_readers_slow_down_no_other_client_and_take_little_memory(server: Measured) -> None:
    """Every one is answered, a client beside them hardly notices, and memory stays within a bound."""
    running = server.running
    ids, login = stored(running), running.login()
    assert opened(running, login, ids[0]) == 200
    server.idle = server.now()
    server.forget_peak()
    with others_are_served(running), ThreadPoolExecutor(AT_ONCE) as readers:
        statuses = list(readers.map(lambda number: opened(running, login, ids[number % len(ids)]), range(AT_ONCE)))
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > AT_ONCE / 2
    assert server.peak() < MEMORY
    assert running.terminate() == 0


def test_sigterm_ends_it_while_ninety_read(server: Measured) -> None:
    running = server.running
    ids, login = stored(running), running.login()
    with ThreadPoolExecutor(AT_ONCE) as readers:
        reading = [readers.submit(opened, running, login, ids[number % len(ids)]) for number in range(AT_ONCE)]
        time.sleep(0.5)
        assert running.process is not None
        watch = Stopwatch(running.pid)
        running.process.terminate()
        code = watch.exit_code(running.process, SHUTDOWN + 20)
        seconds = watch.taken
        assert {each.result() for each in reading} <= {0, 200, 503}
    assert (code, seconds < SHUTDOWN + ENDING) == (0, True), seconds
