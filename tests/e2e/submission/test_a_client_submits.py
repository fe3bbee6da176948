"""Python's own SMTP client submits over STARTTLS and TLS, and is told the id of a message that is on disk."""

import re
import smtplib
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage

import pytest
import trio

from tests import engines
from tests.e2e.submission.client import MESSAGE, Raw, endpoint, smtp, smtps, trusting
from tests.running_appliance import Running, appliance

pytestmark = pytest.mark.both_engines


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: engines.Kind) -> Iterator[Running]:
    """One server for all, on IPv4 and IPv6."""
    binds = '["127.0.0.1:0", "[::1]:0"]'
    with appliance(tmp_path_factory.mktemp("submission"), smtp_bind=binds) as started:
        yield started


def stored(running: Running, message_id: str) -> bytes:
    async def look() -> bytes:
        async with engines.beside(running.data_dir) as store:
            assert await store.messages.read(running.account.account_id, message_id)
            mime = await store.messages.mime(message_id)
            assert mime is not None
            return mime

    return trio.run(look)


def queued(reply: tuple[int, bytes]) -> str:
    match = re.fullmatch(rb"2\.0\.0 queued as (msg_[0-9a-f]{32})", reply[1])
    assert match, reply
    assert reply[0] == 250
    return match[1].decode()


def submit(client: smtplib.SMTP, message: bytes = MESSAGE) -> str:
    assert client.mail("shop@example.com")[0] == 250
    assert client.rcpt("ada@example.net")[0] == 250
    return queued(client.data(message))


def test_over_starttls(running: Running) -> None:
    """STARTTLS, AUTH, a message: 250 with its id, and it is in the store."""
    with smtp(running) as client:
        assert b"Hello, Ada." in stored(running, submit(client))


def test_over_tls(running: Running) -> None:
    """The same where TLS comes first; several messages on one connection."""
    with smtps(running) as client:
        ids = {submit(client) for _ in range(5)}
    assert len(ids) == 5
    for each in ids:
        assert b"Hello, Ada." in stored(running, each)


def test_what_smtplib_says_twice(running: Running) -> None:
    """Its `send_message` adds SMTPUTF8 also to the options that name it; that is one wish, not two."""
    message = EmailMessage()
    message["From"], message["To"] = "Shop <shop@example.com>", "jürgen@example.net"
    message.set_content("Hello.")
    with smtp(running) as client:
        assert not client.send_message(message, mail_options=["SMTPUTF8"])


def test_what_is_offered(running: Running) -> None:
    """Without TLS no AUTH, with TLS no STARTTLS; everything else in both."""
    always = {"pipelining", "size", "8bitmime", "smtputf8", "chunking", "enhancedstatuscodes", "dsn"}
    with smtplib.SMTP(*endpoint(running), timeout=20) as client:
        client.ehlo()
        assert set(client.esmtp_features) == always | {"starttls"}
        assert client.esmtp_features["size"] == "10485760"
        client.starttls(context=trusting(running))
        client.ehlo()
        assert set(client.esmtp_features) == always | {"auth", "futurerelease"}
        assert client.esmtp_features["auth"].split() == ["PLAIN", "LOGIN"]


@pytest.mark.parametrize("mechanism", ["auth_plain", "auth_login"])
@pytest.mark.parametrize("initial", [True, False])
def test_both_mechanisms(running: Running, mechanism: str, initial: bool) -> None:
    """PLAIN and LOGIN, with the first answer in the command or asked for."""
    with smtp(running, login=False) as client:
        client.ehlo()
        client.user, client.password = running.account.username, running.account.password
        name = mechanism.removeprefix("auth_").upper()
        code, text = client.auth(name, getattr(client, mechanism), initial_response_ok=initial)
        assert (code, text) == (235, b"2.7.0 Authentication successful")
        submit(client)


def test_a_pipelined_group_is_answered_in_order(running: Running) -> None:
    """MAIL, RCPT and DATA in one packet, then two more transactions in one go with BDAT."""
    with Raw(running, "smtps") as client:
        client.log_in()
        client.send(b"MAIL FROM:<shop@example.com>\r\nRCPT TO:<ada@example.net>\r\nDATA\r\n")
        assert [client.reply()[:3] for _ in range(3)] == [b"250", b"250", b"354"]
        client.send(MESSAGE + b".\r\n")
        assert client.reply().startswith(b"250 2.0.0 queued as msg_")
        one = b"MAIL FROM:<shop@example.com>\r\nRCPT TO:<ada@example.net>\r\nBDAT 10\r\n" + MESSAGE[:10]
        one += b"BDAT %d LAST\r\n" % len(MESSAGE[10:]) + MESSAGE[10:]
        client.send(one + one + b"QUIT\r\n")
        answers = client.rest()
        assert [each[:9] for each in answers] == [
            *[b"250 2.1.0", b"250 2.1.5", b"250 2.0.0", b"250 2.0.0"] * 2,
            b"221 2.0.0",
        ]
        for each in (answers[3], answers[7]):
            assert b"Hello, Ada." in stored(running, each.split()[-1].decode())


def test_it_listens_on_ipv6(running: Running) -> None:
    """A client that comes by IPv6 is served like any other, with the same certificate."""
    by_ipv6 = replace(running, smtp=[url for url in running.smtp if "//[::1]:" in url])
    assert endpoint(by_ipv6)[0] == "::1"
    with smtp(by_ipv6) as client:
        submit(client)


def test_it_complains_about_nothing(running: Running) -> None:
    assert running.complaints() == []
