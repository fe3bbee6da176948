"""Debian's Postfix, which shares no code with us, holds the very bytes that we signed and sent."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.delivery.postfix import postfix
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx
from tests.programs import needs

pytestmark = [needs("postfix"), pytest.mark.skipif(os.geteuid() != 0, reason="only root can start postfix")]

OWN_FIELDS = (
    b"Return-Path:",
    b"X-Original-To:",
    b"Delivered-To:",
    b"Received:",
)  # what Postfix writes before a message

FILE = {"filename": "Rechnung März.bin", "content": base64.b64encode(bytes(range(256)) * 40).decode()}
MESSAGES: dict[str, dict[str, Any]] = {
    "dots": {"text": ".\n..\n.leading\n\n.\n.\n"},
    "the longest line": {"text": "x" * 998 + "\n." + "y" * 997 + "\n"},
    "too long a line": {"text": "." + "z " * 4_000 + "\n"},
    "8-bit text": {"text": "Grüße an 漢字\n.\n€\n" * 30, "html": "<p>Grüße</p>\n.\n"},
    "a file": {"text": "see there", "attachments": [FILE]},
    "spaces": {"text": "  a  b\t\n \n\t\n\n\n\n"},
    "headers": {
        "headers": {"X-Long": "word " * 150, "List-Unsubscribe": "<https://example.com/u>"},
        "tags": ["a", "b"],
    },
    "From at the beginning of a line": {"text": "From here\n>From there\n"},
}


def as_it_came(file: bytes) -> bytes:
    """What a file of the Maildir holds below the fields that Postfix wrote, with the line ends of the wire."""
    lines = file.split(b"\n")
    while lines[0].startswith((*OWN_FIELDS, b" ", b"\t")):
        del lines[0]
    return b"\r\n".join(lines)


async def test_postfix_gets_it_byte_for_byte(tmp_path: Path) -> None:
    """Each message goes to Postfix and to a scripted server: the same bytes at both, with two good signatures."""
    async with world(tmp_path, delays("1h")) as made:
        scripted = FakeMx()
        await made.domain("scripted.test", scripted)
        address = await made.host("mx0.postfix.test", None)
        made.publish("postfix.test", MX=["10 mx0.postfix.test."])
        async with postfix("postfix.test", address, made.mx_port) as mailbox:
            sent = [
                await made.send(
                    f"user{number}@postfix.test", bcc=[f"user{number}@scripted.test"], subject=name, **fields
                )
                for number, (name, fields) in enumerate(MESSAGES.items())
            ]
            # The only one whose bytes are more than ASCII on the wire: a local part that needs SMTPUTF8.
            sent.append(await made.send("jürgen@postfix.test", bcc=["jürgen@scripted.test"], subject="SMTPUTF8"))
            await made.final(*sent)
            for message in sent:
                told = {address: found.response for address, found in made.recipients(message).items()}
                assert made.status(message) == "delivered", told
            await made.until(lambda: len(mailbox.files()) == len(sent))
            files = mailbox.files()
            held = sorted(map(as_it_came, files))
            assert mailbox.log().count("status=sent (delivered to maildir)") == len(sent)
        assert held == sorted(got.data for got in scripted.messages)
        assert all(file.startswith(b"Return-Path: <shop@example.com>\n") for file in files)
        assert sum(not got.isascii() for got in held) == 1
        records = published(made)
        for got in held:
            assert signatures(got) == 2
            assert [verifies(got, number, records) for number in range(2)] == [True, True], got[:3000]
        for file in files:  # and so they do below what the receiver has written above them
            assert verifies(file.replace(b"\n", b"\r\n"), 0, records)
