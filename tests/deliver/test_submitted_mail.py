"""Submitted mail on its way out: to the byte what was submitted, and never to a server that would damage it."""

import email
from email.header import decode_header, make_header
from pathlib import Path

import pytest
from trio.testing import MockClock

from appliance.config.values import Share
from appliance.deliver.preparing import Payloads
from appliance.feedback.return_path import UnsubscribeLinks
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import FreeSpace, Quota
from appliance.model.accounts import Caller, CredentialKind
from tests.deliver.simulated_delivery import SIGNATURE, Stage, domain_zone, one, stage
from tests.fakes.mx import FakeMx
from tests.message.submissions import message

OLD = ("PIPELINING", "SIZE 10485760")  # neither 8BITMIME nor SMTPUTF8
EIGHT_BIT = (*OLD, "8BITMIME")
MODERN = (*EIGHT_BIT, "SMTPUTF8")

PLAIN = message(b"X: a\r\n\tb", body=b".\r\n..\r\n.a\r\nFrom b \t\r\n\r\n\r\n")
EIGHT_BIT_TEXT = "Grüße\r\n".encode()
EIGHT_BIT_BODY = message(body=EIGHT_BIT_TEXT)
NOT_EVEN_UTF8 = message(body=b"\xff\xfe\r\n")
UTF8_TEXT = "Grüße"
UTF8_HEADER = message(f"X: {UTF8_TEXT}".encode())


async def submit(played: Stage, data: bytes, tmp_path: Path) -> str:
    account = played.accounts["demo"]
    caller = Caller(account, CredentialKind.SMTP, "smtp:demo", True, False, False, frozenset({"example.com"}))
    free = FreeSpace(tmp_path, 0, 0, played.env)
    door = MessageIntake(
        played.store,
        played.env,
        free,
        Quota(Share(), free),
        sandbox=False,
        hostname="mail.example.com",
        links=UnsubscribeLinks(b"k" * 32, ""),
    )
    sent = await door.submit(caller, "bounce@example.com", ["ada@a.test"], data, "req_1")
    played.scheduler.new_mail.request_poll()
    return sent.message_id


@pytest.mark.parametrize(
    ("data", "extensions"),
    [(PLAIN, OLD), (PLAIN, MODERN), (EIGHT_BIT_BODY, EIGHT_BIT), (NOT_EVEN_UTF8, EIGHT_BIT), (UTF8_HEADER, MODERN)],
)
async def test_a_server_gets_the_message_byte_for_byte(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, extensions: tuple[str, ...]
) -> None:
    server = FakeMx(extensions)
    async with stage(tmp_path, *one(server)) as played:
        sent = await submit(played, data, tmp_path)
        await played.final(sent)
        assert await played.recipient(sent) == ("delivered", 1)
        (got,) = server.messages
        assert got.data.startswith(SIGNATURE + b"Received: by mail.example.com ")
        trace, _, rest = got.data.removeprefix(SIGNATURE).partition(b"From: ")
        assert trace.count(b"\r\n") == 2
        assert b"From: " + rest == data
        assert any(command.startswith("MAIL FROM:<bounce@example.com>") for command in server.commands)


SIGNED = b"DKIM-Signature: v=1; d=example.com; s=x; h=From; bh=x; b=x"


@pytest.mark.parametrize(
    ("data", "extensions"), [(EIGHT_BIT_BODY, OLD), (NOT_EVEN_UTF8, OLD), (UTF8_HEADER, EIGHT_BIT), (UTF8_HEADER, OLD)]
)
async def test_what_a_server_cannot_carry_is_encoded(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, extensions: tuple[str, ...]
) -> None:
    server = FakeMx(extensions)
    async with stage(tmp_path, *one(server)) as played:
        sent = await submit(played, data, tmp_path)
        await played.final(sent)
        assert await played.recipient(sent) == ("delivered", 1)
        (got,) = server.messages
        assert got.data.isascii()
        was, read = email.message_from_bytes(data), email.message_from_bytes(got.data)
        assert read.get_payload(decode=True) == was.get_payload(decode=True)
        assert str(make_header(decode_header(read["X"] or ""))) == (UTF8_TEXT if data is UTF8_HEADER else "")
        assert not any("SMTPUTF8" in command or "8BITMIME" in command for command in server.commands)


@pytest.mark.parametrize(
    ("data", "extensions", "words"),
    [
        (message(SIGNED, body=EIGHT_BIT_TEXT), OLD, "the server has no 8BITMIME: its sender has signed it"),
        (
            message(SIGNED, "X: Grüße".encode()),
            EIGHT_BIT,
            "no SMTPUTF8 at the server, and the header of the message needs it: its sender has signed it",
        ),
        (
            message("Cc: jürgen@example.net".encode()),
            EIGHT_BIT,
            "the header of the message needs it: an address in its Cc has no other form",
        ),
    ],
)
async def test_what_cannot_be_encoded_bounces_unchanged(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, extensions: tuple[str, ...], words: str
) -> None:
    """Signed mail, and addresses with no form in ASCII: they bounce, in words, and the server never sees them."""
    server = FakeMx(extensions)
    async with stage(tmp_path, *one(server)) as played:
        sent = await submit(played, data, tmp_path)
        await played.final(sent)
        assert await played.recipient(sent) == ("bounced", 1)
        ((response,),) = await played.rows("SELECT last_smtp_response FROM recipients")
        assert words in response
        assert server.messages == []


async def test_a_server_that_takes_it_costs_no_encoding(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Payloads, "seven_bit", None)
    zone, addresses = domain_zone("a.test")
    for number, (data, extensions) in enumerate([(PLAIN, OLD), (EIGHT_BIT_BODY, EIGHT_BIT), (UTF8_HEADER, MODERN)]):
        async with stage(tmp_path / str(number), zone, {addresses["a.test"]: FakeMx(extensions)}) as played:
            sent = await submit(played, data, tmp_path)
            await played.final(sent)
            assert await played.recipient(sent) == ("delivered", 1)
            assert played.signer.signed == 1
