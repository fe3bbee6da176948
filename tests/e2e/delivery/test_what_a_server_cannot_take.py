"""Servers that lack SMTPUTF8 or 8BITMIME, or take only small messages: what can be re-encoded is, the rest bounces."""

import email
import email.policy
from pathlib import Path

from tests.e2e.delivery.telling import explanation, polled, polled_recipient
from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.fakes.mx import FakeMx, Received

OLD = ("PIPELINING", "SIZE 10485760")  # neither 8BITMIME nor SMTPUTF8
NO_SMTPUTF8 = (*OLD, "8BITMIME")
SMTPUTF8 = (*NO_SMTPUTF8, "SMTPUTF8")
TEXT = "Grüße an Ada,\n.\n" + "x" * 3_000 + "\nund ein € für dich.\n"


def asked(server: FakeMx) -> list[str]:
    """Whom a server was asked to take mail for."""
    return [command for command in server.commands if command.startswith(("MAIL", "RCPT"))]


def text(received: Received) -> str:
    """The text of a message, as its reader sees it."""
    read = email.message_from_bytes(received.data, policy=email.policy.default)
    part = read.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


async def bounced(made: World, message: str) -> str:
    """Check that a message's only recipient bounced, free of charge and without blame; the words for its sender."""
    await made.final(message)
    told = await polled(made, message)
    (recipient,) = told["recipients"]
    assert (told["status"], told["billing_status"]) == ("failed", "released")
    assert (recipient["status"], recipient["billing_status"], recipient["attempt_count"]) == ("bounced", "released", 1)
    assert recipient["bounced_at"] is not None
    assert made.events(message) == ["email.bounced"]
    assert made.rows("SELECT * FROM suppressions") == []
    return str(recipient["last_smtp_response"])


async def test_without_smtputf8_an_address_that_needs_it_bounces(tmp_path: Path) -> None:
    """Only that recipient: it is not even named to the server, the others of the message are served."""
    async with world(tmp_path, delays("1h")) as made:
        server = FakeMx(NO_SMTPUTF8)
        await made.domain("ascii.test", server)
        alone = await made.send("jürgen@ascii.test")
        assert "no SMTPUTF8 at the server" in await bounced(made, alone)
        assert "no SMTPUTF8 at the server" in await explanation(made, alone)
        assert asked(server) == []
        mixed = await made.send("ada@ascii.test", bcc=["jürgen@ascii.test"])
        await made.final(mixed)
        statuses = {address: found.status for address, found in made.recipients(mixed).items()}
        assert statuses == {"ada@ascii.test": "delivered", "jürgen@ascii.test": "bounced"}
        assert made.status(mixed) == "partial"
        assert made.credits() == CREDITS - 1
        assert [got.recipients for got in server.messages] == [("ada@ascii.test",)]
        assert server.messages[0].data.isascii()


async def test_without_8bitmime_too_it_bounces_as_well(tmp_path: Path) -> None:
    """A server of the last century has neither extension: that it lacks 8BITMIME is no reason to try for two days."""
    async with world(tmp_path, delays("1h")) as made:
        server = FakeMx(OLD)
        await made.domain("old.test", server)
        message = await made.send("jürgen@old.test")
        await made.tried(message)
        assert made.recipient(message).status == "bounced", made.recipient(message).response
        assert "no SMTPUTF8 at the server" in await bounced(made, message)
        assert asked(server) == []


async def test_what_does_not_need_an_extension_goes_without(tmp_path: Path) -> None:
    """8-bit text, a long line, a foreign domain arrive as they were, in seven bits; SMTPUTF8 is asked for if needed."""
    async with world(tmp_path, delays("1h")) as made:
        modern, old = FakeMx(SMTPUTF8), FakeMx(OLD)
        await made.domain("modern.test", modern)
        await made.domain("xn--bcher-kva.test", old)
        sent = [
            await made.send("Zoë <ada@bücher.test>", subject="Grüße", text=TEXT, html=f"<p>{TEXT}</p>"),
            await made.send("jürgen@modern.test"),
            await made.send("ada@modern.test", text=TEXT),
        ]
        await made.final(*sent)
        assert [made.status(message) for message in sent] == ["delivered"] * 3
        (got,) = old.messages
        assert got.recipients == ("ada@xn--bcher-kva.test",)
        assert text(got).replace("\r\n", "\n") == TEXT
        assert got.data.isascii()
        assert max(map(len, got.data.split(b"\r\n"))) <= 998
        assert not any("BODY=" in command for command in old.commands)
        assert {got.recipients: "SMTPUTF8" in got.mail.split() for got in modern.messages} == {
            ("jürgen@modern.test",): True,
            ("ada@modern.test",): False,
        }


async def test_a_message_that_is_too_large_bounces(tmp_path: Path) -> None:
    """By the server's own SIZE, without asking it; the words name both numbers, and a smaller message goes."""
    async with world(tmp_path, delays("1h")) as made:
        server, unlimited = FakeMx(("PIPELINING", "SIZE 20000")), FakeMx(("PIPELINING", "SIZE 0"))
        await made.domain("small.test", server)
        await made.domain("unlimited.test", unlimited)
        large = await made.send("ada@small.test", text="a line of text\n" * 2_000)
        words = await bounced(made, large)
        assert "the server takes 20000" in words
        assert words.partition(" has ")[2].split()[0].isdigit()
        assert "the server takes 20000" in await explanation(made, large)
        assert asked(server) == []
        sent = [
            await made.send("ada@small.test"),
            await made.send("ada@unlimited.test", text="a line of text\n" * 2_000),
        ]
        await made.final(*sent)
        assert [made.status(message) for message in sent] == ["delivered"] * 2
        assert made.credits() == CREDITS - 2


async def test_what_no_server_said_is_not_put_into_its_mouth(tmp_path: Path) -> None:
    """`last_smtp_code` is the last code from the destination's server: where it was not asked, there is none."""
    async with world(tmp_path, delays("1h")) as made:
        server = FakeMx(("PIPELINING", "SIZE 1000"))
        await made.domain("small.test", server)
        message = await made.send("ada@small.test", text="a line of text\n" * 200)
        await made.final(message)
        assert asked(server) == []
        assert (await polled_recipient(made, message))["last_smtp_code"] is None
        assert "mx0.small.test said" not in await explanation(made, message)
