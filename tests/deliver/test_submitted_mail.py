"""Submitted mail on its way out: to the byte what was submitted, and never to a server that would damage it."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from appliance.config.values import Share
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import FreeSpace, Quota
from appliance.model.mail import Caller, CredentialKind
from tests.deliver.simulated_delivery import SIGNATURE, Stage, domain_zone, stage
from tests.fakes.mx import FakeMx
from tests.message.submissions import message

OLD = ("PIPELINING", "SIZE 10485760")  # neither 8BITMIME nor SMTPUTF8
EIGHT_BIT = (*OLD, "8BITMIME")
MODERN = (*EIGHT_BIT, "SMTPUTF8")

PLAIN = message(b"X: a\r\n\tb", body=b".\r\n..\r\n.a\r\nFrom b \t\r\n\r\n\r\n")
EIGHT_BIT_BODY = message(body="Grüße\r\n".encode())
NOT_EVEN_UTF8 = message(body=b"\xff\xfe\r\n")
UTF8_HEADER = message("X: Grüße".encode())


async def submit(played: Stage, data: bytes, tmp_path: Path) -> str:
    """Submit a message as the SMTP server would; its id."""
    account = played.accounts["demo"]
    caller = Caller(account, CredentialKind.SMTP, "smtp:demo", True, False, False, frozenset({"example.com"}))
    free = FreeSpace(tmp_path, 0, 0, played.outside)
    door = MessageIntake(
        played.store, played.outside, free, Quota(Share(), free), sandbox=False, hostname="mail.example.com"
    )
    sent = await door.submit(caller, "bounce@example.com", ["ada@a.test"], data, "req_1")
    played.scheduler.new_mail.request_poll()
    return sent.message_id


@pytest.mark.parametrize(
    ("data", "extensions"),
    [
        (PLAIN, OLD),
        (PLAIN, MODERN),
        (EIGHT_BIT_BODY, EIGHT_BIT),
        (NOT_EVEN_UTF8, EIGHT_BIT),
        (UTF8_HEADER, MODERN),
    ],
)
async def test_a_server_gets_the_message_byte_for_byte(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, extensions: tuple[str, ...]
) -> None:
    """Below the signature and the trace stands what the client submitted, dots and white space included."""
    zone, addresses = domain_zone("a.test")
    server = FakeMx(extensions)
    async with stage(tmp_path, zone, {addresses["a.test"]: server}) as played:
        sent = await submit(played, data, tmp_path)
        await played.final(sent)
        assert await played.recipient(sent) == ("delivered", 1)
        (got,) = server.messages
        assert got.data.startswith(SIGNATURE + b"Received: by mail.example.com ")
        trace, _, rest = got.data.removeprefix(SIGNATURE).partition(b"From: ")
        assert trace.count(b"\r\n") == 2
        assert b"From: " + rest == data
        assert any(command.startswith("MAIL FROM:<bounce@example.com>") for command in server.commands)


@pytest.mark.parametrize(
    ("data", "extensions", "words"),
    [
        (EIGHT_BIT_BODY, OLD, "the message has 8-bit text, the server has no 8BITMIME"),
        (UTF8_HEADER, EIGHT_BIT, "no SMTPUTF8 at the server, and the message or its sender needs it"),
    ],
)
async def test_what_a_server_cannot_carry_bounces_unchanged(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, extensions: tuple[str, ...], words: str
) -> None:
    """A submitted message is not encoded anew: it bounces, in words, and the server never sees it."""
    zone, addresses = domain_zone("a.test")
    server = FakeMx(extensions)
    async with stage(tmp_path, zone, {addresses["a.test"]: server}) as played:
        sent = await submit(played, data, tmp_path)
        await played.final(sent)
        assert await played.recipient(sent) == ("bounced", 1)
        ((response,),) = await played.rows("SELECT last_smtp_response FROM recipients")
        assert words in response
        assert server.messages == []
