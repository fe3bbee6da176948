"""Texts that hold an end of data in every spelling (threats.md 5): refused, or one message that arrives as it was."""

import email
import email.policy
from email.message import EmailMessage
from pathlib import Path

from tests.e2e.delivery.world import SENDER, delays, world
from tests.fakes.mx import FakeMx

ENVELOPE = (
    "MAIL FROM:<evil@example.com>\r\nRCPT TO:<victim@strict.test>\r\nDATA\r\nSubject: smuggled\r\n\r\nevil\r\n.\r\n"
)
NEUTRALISED = ("\n.\r\n", "\n.\n", "\r\n.\n", "\r\n.\r\n", "\r\n.\r\n.\r\n")
REFUSED = ("\r.\r", "\r.\r\n", "\n.\r", "\r.\n", "\r\r\n.\r\r\n", "\0\n.\n")
# Which encoding a text gets decides whether its line ends stand there as they are.
PADDING = {"7bit": "", "quoted-printable": "é", "long": "x" * 2_000, "base64": "漢字" * 100}


def read(data: bytes, kind: str) -> str:
    message = email.message_from_bytes(data, _class=EmailMessage, policy=email.policy.default)
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content()).replace("\r\n", "\n")


async def test_nothing_is_smuggled_out(tmp_path: Path) -> None:
    """A lone CR is a 400; all else is one transaction each, without a lone CR or LF on the wire, and reads the same."""
    async with world(tmp_path, delays("1h"), "[delivery.pools.default]\nconcurrency = 1") as made:
        server = FakeMx()
        await made.domain("strict.test", server)
        for end in REFUSED:
            text = f"Hello{end}{ENVELOPE}"
            answer = await made.post({"from": SENDER, "to": "ada@strict.test", "subject": "s", "text": text})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), repr(end)
            assert "text" in answer.json()["error"], repr(end)
        for place in ("subject", "headers"):
            value = f"Hello{NEUTRALISED[0]}{ENVELOPE}"
            await made.send("ada@strict.test", expect=400, **{place: {"X-A": value} if place == "headers" else value})
        texts = {
            f"{name} {number}": f"Hello {padding}{end}{ENVELOPE}"
            for name, padding in PADDING.items()
            for number, end in enumerate(NEUTRALISED)
        }
        sent = [await made.send("ada@strict.test", subject=name, text=text, html=text) for name, text in texts.items()]
        await made.final(*sent)
        assert {made.status(message) for message in sent} == {"delivered"}
        wire = b"".join(server.chunks)  # of one session after the other
        assert b"evil@example.com" in wire
        assert not wire.replace(b"\r\n", b"").count(b"\r")
        assert not wire.replace(b"\r\n", b"").count(b"\n")
        assert wire.count(b"\r\n.\r\n") == len(sent)
        assert [got.recipients for got in server.messages] == [("ada@strict.test",)] * len(sent)
        assert sum(command.startswith("MAIL") for command in server.commands) == len(sent)
        assert {command for command in server.commands if command.startswith("RCPT")} == {"RCPT TO:<ada@strict.test>"}
        for got in server.messages:
            name = str(email.message_from_bytes(got.data, policy=email.policy.default)["Subject"])
            for kind in ("plain", "html"):
                assert read(got.data, kind).rstrip("\n") == texts[name].replace("\r\n", "\n").rstrip("\n"), name
