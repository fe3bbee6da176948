"""Clients that are slow, many or loud: each is cut when its time is up, and the others are served meanwhile."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.submission.client import MESSAGE, Raw, endpoint, plain, serves
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch

IMPATIENT = 'command_timeout = "700ms"\nsession_timeout = "1500ms"\ndata_timeout = "1s"\n'
SMALL = "max_connections = 5\nallow_plaintext_auth = true\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("patient")) as started:
        yield started
        assert started.complaints() == []


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("impatient"), smtp=IMPATIENT) as started:
        yield started
        assert started.complaints() == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("small"), smtp=SMALL) as started:
        yield started
        assert started.complaints() == []


def send_until_cut(client: Raw, data: bytes, every: float) -> None:
    """Send this again and again until the other side has a last word, which is "too slow"."""
    client.socket.settimeout(every)
    heard = b""
    while b"\n" not in heard:
        client.send(data)
        try:
            heard += client.socket.recv(1_000)
        except TimeoutError:
            continue
    assert heard.startswith(b"421 4.4.2 ")


def begin_data(client: Raw) -> None:
    """Up to the 354."""
    client.log_in()
    for line in (b"MAIL FROM:<shop@example.com>", b"RCPT TO:<ada@example.net>", b"DATA"):
        client.say(line)


@pytest.fixture(scope="module")
def drip(running: Running) -> Callable[[], tuple[float, float]]:
    """A client that sends a message too slowly, begun early: its ten seconds pass while others are tested."""
    lasted: list[tuple[float, float]] = []

    def send() -> None:
        with Raw(running, "smtps", source="127.0.0.8") as client:
            begin_data(client)
            watch = Stopwatch(running.pid)
            send_until_cut(client, b"x\r\n", 0.2)
            lasted.append((watch.elapsed, watch.taken))

    thread = threading.Thread(target=send)
    thread.start()

    def result() -> tuple[float, float]:
        thread.join(40)
        return lasted[0]

    return result


@pytest.mark.usefixtures("drip")
@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_client_that_says_nothing_is_cut(impatient: Running, scheme: str) -> None:
    with Raw(impatient, scheme) as client:
        watch = Stopwatch(impatient.pid)
        assert [answer[:9] for answer in client.rest()] == [b"421 4.4.2"]
        assert watch.elapsed > 0.6
        assert watch.taken < 3


def test_a_handshake_that_never_comes_holds_nothing(impatient: Running) -> None:
    """On the TLS port a client that is silent is not served, and hinders no other."""
    with socket.create_connection(endpoint(impatient, "smtps")):
        serves(impatient)


def test_a_command_that_drips_is_cut(impatient: Running) -> None:
    """A byte now and then is no reason to wait longer."""
    with Raw(impatient) as client:
        watch = Stopwatch(impatient.pid)
        send_until_cut(client, b"x", 0.1)
        assert watch.elapsed > 0.6
        assert watch.taken < 3


def test_small_talk_does_not_extend_a_session(impatient: Running) -> None:
    with Raw(impatient) as client:
        watch = Stopwatch(impatient.pid)
        while (answer := client.say(b"NOOP")).startswith(b"250 "):
            time.sleep(0.2)
        assert answer.startswith(b"421 4.4.2 Session time limit reached")
        assert watch.elapsed > 1.4
        assert watch.taken < 4


def test_a_message_that_takes_too_long_is_cut(impatient: Running) -> None:
    with Raw(impatient, "smtps") as client:
        begin_data(client)
        watch = Stopwatch(impatient.pid)
        send_until_cut(client, b"x" * 70 + b"\r\n", 0.05)
        assert watch.elapsed > 0.9
        assert watch.taken < 3
    serves(impatient)


def test_a_client_that_was_sent_away_counts_until_it_is_gone(running: Running) -> None:
    """Connections that hold on after our last word keep their address's places, and are cut soon."""
    with ExitStack() as stack:
        for _ in range(30):
            rude = stack.enter_context(Raw(running, source="127.0.0.6"))
            rude.send(b"NOOP\n")
            assert rude.reply().startswith(b"500 5.5.2 ")
        watch = Stopwatch(running.pid)
        with Raw(running, source="127.0.0.6", greeted=False) as late:
            assert late.reply().startswith(b"220 ")
        assert watch.elapsed > 1
        assert watch.taken < 4
        serves(running, "127.0.0.6")


def test_half_a_connection_is_answered(small: Running) -> None:
    """A client that has sent everything and closed its side still gets its answers, without TLS."""
    with Raw(small) as client:
        client.send(b"EHLO c\r\nAUTH PLAIN " + plain(small) + b"\r\nMAIL FROM:<shop@example.com>\r\n")
        client.send(b"RCPT TO:<ada@example.net>\r\nDATA\r\n")
        replies = [client.reply()[:3] for _ in range(5)]
        client.send(MESSAGE + b".\r\n")
        client.socket.shutdown(socket.SHUT_WR)
        assert replies == [b"250", b"235", b"250", b"250", b"354"]
        assert client.rest()[0].startswith(b"250 2.0.0 queued as msg_")


def test_a_message_that_drips_is_cut(drip: Callable[[], tuple[float, float]], running: Running) -> None:
    """Less than 500 bytes a second is not waited for, once the first seconds are over."""
    elapsed, taken = drip()
    assert elapsed > 9
    assert taken < 20
    serves(running)
