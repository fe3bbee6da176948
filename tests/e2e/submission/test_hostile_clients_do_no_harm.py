"""Clients that break the rules, or try what is not theirs: each is refused, and the others are served."""

import base64
import socket
import ssl
from collections.abc import Iterator

import pytest

from tests.e2e.submission.client import Raw, endpoint
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("hostile")) as started:
        yield started
        assert started.complaints() == []


# ---- threats 5, 6, 8, 12, 19, 24


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


def test_old_tls_is_not_spoken(running: Running) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(endpoint(running, "smtps"), timeout=15) as client, pytest.raises(ssl.SSLError):
        context.wrap_socket(client)
