"""Clients that break the rules, or try what is not theirs: each is refused, and the others are served."""

import base64
import socket
import ssl
from collections.abc import Iterator

import pytest

from tests.e2e.submission.client import MESSAGE, Raw, endpoint, plain, serves, smtp
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("hostile")) as started:
        yield started
        assert started.complaints() == []


# ---- threats 5, 6, 8, 12, 19, 24


def test_it_is_no_open_relay(running: Running) -> None:
    """Without a login, with a foreign sender or with none, nothing is taken."""
    with Raw(running) as client:
        client.say(b"EHLO client.example.com")
        assert client.say(b"MAIL FROM:<shop@example.com>").startswith(b"530 5.7.0 ")
        assert client.say(b"AUTH PLAIN " + plain(running)).startswith(b"538 5.7.11 ")
    with Raw(running, "smtps") as client:
        client.say(b"EHLO client.example.com")
        assert client.say(b"MAIL FROM:<shop@example.com>").startswith(b"530 5.7.0 ")
        client.log_in()
        assert client.say(b"MAIL FROM:<>").startswith(b"550 5.7.1 ")
        assert client.say(b"MAIL FROM:<shop@example.org>").startswith(b"550 5.7.1 ")


def test_guessing_is_slow_and_short(running: Running) -> None:
    """A second for each wrong password, unknown user or not, one after the other; three to a connection.

    The right one works at once all the same.
    """
    wrong = base64.b64encode(f"\0{running.account.username}\0wrong".encode())
    with Raw(running, "smtps") as client:
        client.say(b"EHLO client.example.com")
        watch = Stopwatch(running.pid)
        client.send((b"AUTH PLAIN AHVua25vd24AeA==\r\nAUTH PLAIN " + wrong + b"\r\n") * 25)
        for code in (b"535 5.7.8", b"535 5.7.8", b"421 4.7.0"):
            assert client.reply().startswith(code)
            assert watch.elapsed > 0.9
            assert watch.taken < 2
            watch = Stopwatch(running.pid)
        assert client.rest() == []
        with Raw(running, "smtps") as other:
            other.log_in()
    assert watch.taken < 1


# ---- and what else


@pytest.mark.parametrize(
    "data", [b"EHLO client\r\n" * 20, b"\x16\x03\x01\x02\x00" + b"\xff" * 600, b"", b"\0" * 100_000]
)
def test_a_handshake_of_nonsense_ends_only_itself(running: Running, data: bytes) -> None:
    """Neither on the TLS port nor after STARTTLS does anything that is no TLS do harm."""
    with socket.create_connection(endpoint(running, "smtps"), timeout=15) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        try:
            while client.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    with Raw(running) as raw:
        raw.say(b"STARTTLS")
        raw.send(data)
        raw.socket.shutdown(socket.SHUT_WR)
        try:
            while raw.socket.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    serves(running)


def test_old_tls_is_not_spoken(running: Running) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(endpoint(running, "smtps"), timeout=15) as client, pytest.raises(ssl.SSLError):
        context.wrap_socket(client)


def test_a_client_that_hangs_up_early_loses_nothing_of_others(running: Running) -> None:
    """Hanging up at any point of a transaction is nothing to complain about."""
    whole = [
        b"EHLO c\r\n",
        b"AUTH PLAIN " + plain(running) + b"\r\n",
        b"MAIL FROM:<shop@example.com>\r\n",
        b"RCPT TO:<ada@example.net>\r\n",
        b"DATA\r\n",
        MESSAGE,
    ]
    for count in range(len(whole)):
        with Raw(running, "smtps") as client:
            client.send(b"".join(whole[:count]))
        with Raw(running, "smtps") as client:
            for each in whole[:count]:
                client.send(each)
                if each is not MESSAGE:
                    client.reply()
    serves(running)


def test_a_large_message_keeps_no_other_client_waiting(running: Running) -> None:
    """Ten mebibytes come in whole, and one byte more is refused."""
    line = b"x" * 62 + b"\r\n"
    body = b"From: shop@example.com\r\nTo: a@example.net\r\nDate: Mon, 2 Mar 2026 10:00:00 +0000\r\n"
    body += b"Message-ID: <1@example.com>\r\nSubject: large\r\n\r\n"
    room = 10 * 1024 * 1024 - 2_048 - len(body)
    with smtp(running) as client:
        client.mail("shop@example.com")
        client.rcpt("ada@example.net")
        assert client.data(body + line * (room // 64))[0] == 250
        client.mail("shop@example.com")
        client.rcpt("ada@example.net")
        assert client.data(body + line * (room // 64 + 64))[:1] == (552,)
