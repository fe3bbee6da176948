"""The listener for feedback takes it with TLS and without, and reads all of it."""

from collections.abc import Iterator

import pytest

from appliance.environment import Environment
from tests import engines
from tests.e2e.feedback.feedback import LISTENS, return_path
from tests.e2e.submission.client import MESSAGE, Raw, trusting
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


def test_all_that_was_taken_is_read(running: Running) -> None:
    """Nothing waits in the end, and nothing came of it: no such recipient was ever sent to."""
    wait_until(lambda: engines.rows(running.data_dir, "SELECT count(*) FROM feedback_mail") == [(0,)])
    assert engines.rows(running.data_dir, "SELECT count(*) FROM events") == [(0,)]
    assert engines.rows(running.data_dir, "SELECT count(*) FROM suppressions") == [(0,)]
