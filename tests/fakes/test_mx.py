"""The scripted server speaks SMTP: Python's smtplib talks to it over real sockets."""

import smtplib
import ssl

import pytest
import trio
import trustme

from tests.fakes.mx import FakeMx, hang_up

MESSAGE = b"Subject: dots\r\n\r\n.one\r\n..two\r\nthree\r\n"


async def test_it_takes_a_message_like_any_server() -> None:
    """smtplib delivers a message with dots, and the server has it byte for byte."""
    mx = FakeMx()

    def deliver(port: int) -> None:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.sendmail("from@example.com", ["a@example.com", "b@example.com"], MESSAGE)

    async with mx.listening() as port:
        await trio.to_thread.run_sync(deliver, port)
    assert [(got.recipients, got.data) for got in mx.messages] == [(("a@example.com", "b@example.com"), MESSAGE)]
    assert mx.messages[0].mail.startswith("<from@example.com>")


async def test_it_speaks_tls_and_checks_logins() -> None:
    """smtplib verifies its certificate after STARTTLS, logs in, and is refused with a wrong password."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    mx = FakeMx(tls=context, logins={"user": "right"})
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def log_in(port: int, password: str) -> None:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.starttls(context=trusting)
            client.login("user", password)

    async with mx.listening() as port:
        await trio.to_thread.run_sync(log_in, port, "right")
        with pytest.raises(smtplib.SMTPAuthenticationError):
            await trio.to_thread.run_sync(log_in, port, "wrong")


async def test_it_follows_its_script() -> None:
    """A scripted refusal of one recipient and a scripted disconnect reach smtplib as such."""
    mx = FakeMx(answers={"RCPT b@example.com": b"550 5.1.1 unknown\r\n", ".": [b"250 2.0.0 first\r\n", hang_up]})

    def deliver(port: int) -> dict[str, tuple[int, bytes]]:
        with smtplib.SMTP("127.0.0.1", port) as client:
            refused = client.sendmail("from@example.com", ["a@example.com", "b@example.com"], MESSAGE)
            with pytest.raises(smtplib.SMTPServerDisconnected):
                client.sendmail("from@example.com", ["a@example.com"], MESSAGE)
            return refused

    async with mx.listening() as port:
        assert await trio.to_thread.run_sync(deliver, port) == {"b@example.com": (550, b"5.1.1 unknown")}
    assert [got.recipients for got in mx.messages] == [("a@example.com",)]
