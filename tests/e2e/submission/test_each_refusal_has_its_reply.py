"""The table of refusals, over the wire: each reason not to take a message has its own reply, and queues nothing."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.e2e.submission.client import MESSAGE, Raw, messages
from tests.running_appliance import Running, add_account, appliance, command

HEADER = b"From: shop@example.com\r\nTo: ada@example.net\r\n"
PER_SECOND = 50  # requests; a burst may have twice as many


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all."""
    with appliance(tmp_path_factory.mktemp("refusals"), requests_per_second=PER_SECOND) as started:
        yield started
        assert started.complaints() == []


@contextmanager
def session(running: Running) -> Iterator[Raw]:
    """A client that has logged in."""
    with Raw(running, "smtps") as client:
        yield client.log_in()


def another(running: Running, name: str, **options: object) -> Running:
    """The same server, for whom it is another account's."""
    return replace(running, account=add_account(running.data_dir, name, domain=f"{name}.example", **options))


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (MESSAGE.replace(b"@example.com", b"@example.org"), b"550 5.7.1 From: "),  # forbidden
        (b"Sender: boss@example.org\r\n" + MESSAGE, b"550 5.7.1 Sender: "),
        (b"Cc: =?utf-8?q?a=0Ab?= <a@example.net>\r\n" + MESSAGE, b"554 5.6.0 Cc: "),
        (MESSAGE.replace(b"From:", b"X-From:"), b"554 5.6.0 From: "),  # invalid_request
        (HEADER + b"\r\na\rb\r\n", b"554 5.6.0 message: contains a bare CR or LF"),
        (HEADER + b"\r\na\nb\r\n", b"554 5.6.0 message: contains a bare CR or LF"),
        (HEADER + b"\r\na\0b\r\n", b"554 5.6.0 message: contains a NUL"),
        (HEADER + b"\r\n\r\n" + b"x" * 999 + b"\r\n", b"554 5.6.0 message: line 5 is longer than 998 octets"),
        (HEADER + b"X-Long: " + b"x" * 991 + b"\r\n\r\n", b"554 5.6.0 message: line 3 is longer than 998 octets"),
        (HEADER + b"\r\n" + (b"x" * 78 + b"\r\n") * 131_072, b"552 5.3.4 The message is larger than"),
        (HEADER + b"X-Service-Tag: a,,b\r\n\r\nx\r\n", b"554 5.6.0 X-Service-Tag: "),
        (HEADER + b"Idempotency-Key: \xc3\xa4\r\n\r\nx\r\n", b"554 5.6.0 Idempotency-Key: "),
    ],
    ids=["From", "Sender", "encoded word", "no From", "CR", "LF", "NUL", "line", "header line", "size", "tag", "key"],
)
def test_what_is_wrong_with_a_message(running: Running, message: bytes, reply: bytes) -> None:
    """It is refused after its end with the reason, nothing is stored, and the session goes on."""
    before = messages(running)
    with session(running) as client:
        assert client.transact(message).startswith(reply)
        assert messages(running) == before
        assert client.transact().startswith(b"250 2.0.0 queued as msg_")


def test_too_large_by_its_own_word(running: Running) -> None:
    """SIZE beyond the limit is refused before anything is sent."""
    with session(running) as client:
        assert client.say(b"MAIL FROM:<shop@example.com> SIZE=10485761").startswith(b"552 5.3.4 ")
        assert client.say(b"MAIL FROM:<shop@example.com> SIZE=10485760").startswith(b"250 2.1.0 ")


def test_no_credits(running: Running) -> None:
    """One credit is enough for one recipient, and not for two."""
    with session(another(running, "poor", credit=1)) as client:
        for recipients, reply in ((2, b"452 4.7.1 "), (1, b"250 2.0.0 "), (1, b"452 4.7.1 ")):
            client.say(b"MAIL FROM:<shop@poor.example>")
            for number in range(recipients):
                assert client.say(b"RCPT TO:<to%d@example.net>" % number).startswith(b"250 2.1.5 ")
            client.say(b"DATA")
            assert client.say(b"From: shop@poor.example\r\n\r\nx\r\n.").startswith(reply)


def test_a_suspended_account(running: Running) -> None:
    """An account that is suspended may log in, and learns at MAIL that it may not send."""
    other = another(running, "idle")
    command(running.config_file, "account", "suspend", "idle")
    with session(other) as client:
        assert client.say(b"MAIL FROM:<shop@idle.example>").startswith(b"550 5.7.1 This account is suspended.")


def test_too_fast(running: Running) -> None:
    """Beyond its burst a credential is told to come later, at MAIL."""
    other = another(running, "quick")
    answers: list[bytes] = []
    while not any(answer.startswith(b"452") for answer in answers) and len(answers) < 10 * PER_SECOND:
        with session(other) as client:  # of which each may say a hundred idle words
            client.send(b"MAIL FROM:<shop@quick.example>\r\nRSET\r\n" * 90)
            answers += [client.reply() for _ in range(180)][::2]
    assert [answer[:9] for answer in answers[: 2 * PER_SECOND]] == [b"250 2.1.0"] * (2 * PER_SECOND)
    assert any(answer.startswith(b"452 4.7.1 This credential may call") for answer in answers)


def test_recipients(running: Running) -> None:
    """The fifty-first is for another message, an address that is none for no message, and the fifty get it."""
    with session(running) as client:
        client.say(b"MAIL FROM:<shop@example.com>")
        for number in range(50):
            assert client.say(b"RCPT TO:<to%d@example.net>" % number).startswith(b"250 2.1.5 ")
        assert client.say(b"RCPT TO:<one.more@example.net>").startswith(b"452 4.5.3 ")
        assert client.say(b"RCPT TO:<TO7@example.net>").startswith(b"250 2.1.5 ")
        assert client.say(b"RCPT TO:<a b@example.net>").startswith(b"553 5.1.3 ")
        client.say(b"DATA")
        reply = client.say(MESSAGE + b".")
    message_id = reply.split()[-1].decode()
    with running.client() as http:
        shown = http.get(f"/emails/{message_id}").json()
    assert (shown["source"], shown["recipient_count"], shown["credits_reserved"]) == ("smtp", 50, 50)


def test_an_idempotency_key_is_one_message(running: Running) -> None:
    """The same message again gets the first id; another one under the same key is refused."""
    keyed = b"Idempotency-Key: order-1\r\n" + MESSAGE
    with session(running) as client:
        first = client.transact(keyed)
        assert re.fullmatch(rb"250 2\.0\.0 queued as msg_[0-9a-f]{32}\r\n", first)
        assert client.transact(b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\n" + keyed) == first
        assert client.transact(keyed + b"And more.\r\n").startswith(b"554 5.6.0 This Idempotency-Key was used")
        assert client.transact(keyed, recipient=b"bob@example.net").startswith(b"554 5.6.0 ")


def test_a_credential_revoked_during_data(running: Running) -> None:
    """The message is refused at its end, and nothing is queued."""
    other = another(running, "leaver")
    with session(other) as client:
        client.say(b"MAIL FROM:<shop@leaver.example>")
        client.say(b"RCPT TO:<ada@example.net>")
        assert client.say(b"DATA").startswith(b"354 ")
        client.send(b"From: shop@leaver.example\r\n\r\n")
        before = messages(running)
        command(running.config_file, "credential", "revoke", "leaver", other.account.username)
        time.sleep(1)  # within which a running server sees it
        assert client.say(b"x\r\n.").startswith(b"535 5.7.8 ")
    assert messages(running) == before
