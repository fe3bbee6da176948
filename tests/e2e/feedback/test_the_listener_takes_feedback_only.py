"""The listener for feedback is no relay, has no mailbox, and withstands what submission does."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.environment import Environment
from tests import engines
from tests.e2e.feedback.feedback import LISTENS, return_path
from tests.e2e.submission.client import MESSAGE, Raw, endpoint, trusting
from tests.running_appliance import Running, appliance
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("inbound"), retention=LISTENS) as started:
        yield started
        assert started.complaints() == []


@pytest.fixture
def path(running: Running) -> bytes:
    return return_path(running, Environment().identifier("rcp")).encode()


def transact(client: Raw, recipient: bytes, message: bytes = MESSAGE) -> bytes:
    for line in (b"MAIL FROM:<>", b"RCPT TO:<" + recipient + b">", b"DATA"):
        reply = client.say(line)
        if reply[:1] not in b"23":
            return reply
    client.send(message + b".\r\n")
    return client.reply()


def test_what_is_taken(running: Running, path: bytes) -> None:
    """A valid token and the report addresses of a registered domain, with TLS and without."""
    with Raw(running, "inbound") as client:
        assert b"AUTH" not in client.say(b"EHLO mx.example.net")
        for recipient in (
            path,
            b"fbl@bounces.example.com",
            b"DMARC@bounces.example.com",
            b"tlsrpt@bounces.example.com",
        ):
            assert transact(client, recipient).startswith(b"250 2.0.0 queued as fbm_")
        assert client.say(b"STARTTLS").startswith(b"220 ")
        client.socket = trusting(running).wrap_socket(client.socket, server_hostname="127.0.0.1")
        client.say(b"EHLO mx.example.net")
        assert transact(client, path).startswith(b"250 2.0.0 queued as fbm_")


@pytest.mark.parametrize(
    ("recipient", "reply"),
    [
        (b"ada@example.net", b"550 5.7.1 "),
        (b"shop@example.com", b"550 5.7.1 "),
        (b"fbl@bounces.example.org", b"550 5.1.1 "),
        (b"b+aaaaaaaaaaaaaaaaaaaaaaaa@bounces.example.com", b"550 5.1.1 "),
    ],
)
def test_it_is_no_relay(running: Running, recipient: bytes, reply: bytes) -> None:
    """Nothing else is taken, and there is no login that would help."""
    with Raw(running, "inbound") as client:
        client.say(b"EHLO client.example.com")
        assert client.say(b"AUTH PLAIN AGEAYg==").startswith(b"502 ")
        assert transact(client, recipient).startswith(reply)


def test_a_client_that_hangs_up_early_does_no_harm(running: Running, path: bytes) -> None:
    whole = [b"EHLO c\r\n", b"MAIL FROM:<>\r\n", b"RCPT TO:<" + path + b">\r\n", b"DATA\r\n", MESSAGE]
    for count in range(len(whole)):
        with Raw(running, "inbound") as client:
            client.send(b"".join(whole[:count]))
    with socket.create_connection(endpoint(running, "inbound"), timeout=15):
        pass
    with Raw(running, "inbound") as client:
        client.say(b"EHLO mx.example.net")
        assert transact(client, path).startswith(b"250 ")


def test_large_mail(running: Running, path: bytes) -> None:
    """Ten mebibytes come in, of which the beginning is kept; one byte more is refused."""
    head, line = b"Subject: large\r\n\r\n", b"x" * 62 + b"\r\n"
    body = head + line * ((10 * 2**20 - len(head)) // len(line))
    with Raw(running, "inbound", timeout=60) as client:
        client.say(b"EHLO mx.example.net")
        assert transact(client, path, body).startswith(b"250 ")
        assert transact(client, path, body + line).startswith(b"552 5.3.4")
        assert transact(client, path).startswith(b"250 ")


def test_all_that_was_taken_is_read(running: Running) -> None:
    """Nothing waits in the end, and nothing came of it: no such recipient was ever sent to."""
    wait_until(lambda: engines.rows(running.data_dir, "SELECT count(*) FROM feedback_mail") == [(0,)])
    assert engines.rows(running.data_dir, "SELECT count(*) FROM events") == [(0,)]
    assert engines.rows(running.data_dir, "SELECT count(*) FROM suppressions") == [(0,)]


@pytest.mark.parametrize("together", [False, True], ids=["one command at a time", "pipelined"])
def test_a_message_on_its_way_is_not_closed_for_newcomers(tmp_path: Path, together: bool) -> None:
    """Idle connections give way to the next ones; a mail server that is sending its message can finish it."""
    small = "max_connections = 6\nmax_connections_per_address = 6"
    with appliance(tmp_path, smtp=small, retention=LISTENS) as running, ExitStack() as stack:
        sending, idle = (stack.enter_context(Raw(running, "inbound", source="127.0.0.2")) for _ in range(2))
        sending.say(b"EHLO mx.example.net")
        lines = b"MAIL FROM:<>\r\n", b"RCPT TO:<dmarc@bounces.example.com>\r\n", b"DATA\r\n"
        for data in (b"".join(lines),) if together else lines:
            sending.send(data)
            for _ in range(len(lines) if together else 1):
                assert sending.reply()[:1] in b"23"
        for number in range(20):
            stack.enter_context(Raw(running, "inbound", source=f"127.0.1.{number + 1}"))
        assert idle.reply().startswith(b"421 4.7.0 ")
        sending.send(MESSAGE + b".\r\n")
        assert sending.reply().startswith(b"250 2.0.0 queued as fbm_")
