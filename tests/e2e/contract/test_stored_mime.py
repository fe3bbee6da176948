"""What goes on the wire: the server writes every byte of it."""

import base64
import re
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.e2e.contract.service import Caller

PNG = base64.b64encode(bytes(range(256)) * 20).decode()
EVERYTHING: dict[str, Any] = {
    "from_": "Grüße vom Shop <shop@example.com>",
    "to": ["Ada Lovelace <ada@example.net>", '"Hopper, Grace" <grace@example.net>'],
    "cc": ["cc@example.net"],
    "bcc": ["secret@example.net", "Hidden Name <hidden@example.net>"],
    "reply_to": "help@example.org",
    "subject": "Ihre Bestellung 4711 – vielen Dank für alles, was Sie uns anvertrauen 😀" * 3,
    "text": "Grüße\n.\n..\nFrom me\n" + "x" * 2000 + "\n",
    "html": '<p>Grüße</p>\r\n<img src="cid:logo">' + "<br>" * 500,
    "headers": {
        "X-Order": "4711",
        "List-Unsubscribe": "<https://example.com/u/" + "x" * 200 + ">",
        "X-Note": "für Ada",
    },
    "tags": ["order", "eu-west", "Summer Sale!"],
    "attachments": [
        {"filename": "logo.png", "content": PNG, "content_id": "logo"},
        {"filename": "Rechnung für Ähnliches.pdf", "content": PNG},
    ],
}
HEADERS = [
    "From",
    "To",
    "Cc",
    "Reply-To",
    "Subject",
    "Date",
    "Message-ID",
    "X-Order",
    "List-Unsubscribe",
    "X-Note",
    "X-Service-Tag",
    "MIME-Version",
    "Content-Type",
]


@pytest.fixture(scope="module")
def data(caller: Caller) -> bytes:
    """The bytes of a message with everything in it."""
    return caller.mime(caller.send(**EVERYTHING)["id"])


@pytest.fixture(scope="module")
def built(data: bytes) -> EmailMessage:
    """The same, as the standard library reads it."""
    found = message_from_bytes(data, policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


def test_it_parses_without_defects(built: EmailMessage) -> None:
    """No part of it makes a parser complain."""
    assert [part.defects for part in built.walk() if part.defects] == []


def test_it_has_exactly_the_headers_asked_for(built: EmailMessage) -> None:
    """Ours and the caller's, each once, and no other."""
    assert sorted(built.keys()) == sorted(HEADERS)


def test_bcc_is_nowhere(data: bytes) -> None:
    """Neither the header nor any of its addresses or names is in the bytes."""
    assert not re.search(rb"^(resent-)?bcc:", data, re.IGNORECASE | re.MULTILINE)
    for trace in (b"secret@example.net", b"hidden@example.net", b"Hidden Name"):
        assert trace not in data


def test_the_headers_say_what_was_asked(built: EmailMessage) -> None:
    """Names, addresses, subject, tags and custom headers come out as they went in."""
    assert str(built["From"]) == "Grüße vom Shop <shop@example.com>"
    assert [each.addr_spec for each in built["To"].addresses] == ["ada@example.net", "grace@example.net"]
    assert [each.display_name for each in built["To"].addresses] == ["Ada Lovelace", "Hopper, Grace"]
    assert str(built["Cc"]) == "cc@example.net"
    assert str(built["Reply-To"]) == "help@example.org"
    assert built["Subject"] == EVERYTHING["subject"]
    assert built["X-Service-Tag"] == "order, eu-west, Summer Sale!"
    for name, value in EVERYTHING["headers"].items():
        assert built[name] == value


def test_date_and_message_id_are_ours(built: EmailMessage) -> None:
    """There is a date, and a Message-ID under the sender's domain."""
    assert parsedate_to_datetime(built["Date"]).utcoffset() is not None
    assert re.fullmatch(r"<[^@<>\s]+@example\.com>", built["Message-ID"])


def test_lines_are_what_smtp_can_carry(data: bytes) -> None:
    """7-bit, CRLF only, no line over 998 octets, and CRLF at the end."""
    assert data.isascii()
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)", data)
    assert b"\0" not in data
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert data.endswith(b"\r\n")


def test_the_parts_hold_what_was_sent(built: EmailMessage) -> None:
    """Text, html, inline image and file come out byte for byte, save for how a line ends."""
    plain, html = built.get_body(("plain",)), built.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content().splitlines() == EVERYTHING["text"].splitlines()
    assert html.get_content().splitlines() == EVERYTHING["html"].splitlines()
    inline, file = (part for part in built.walk() if part.get_filename())
    assert inline["Content-ID"] == "<logo>"
    assert file.get_filename() == "Rechnung für Ähnliches.pdf"
    assert inline.get_content() == file.get_content() == base64.b64decode(PNG)


def test_the_part_with_the_html_names_its_images_beside_it(built: EmailMessage) -> None:
    """mixed(alternative(text, related(html, image)), file): the way every reader of mail expects it."""
    kinds = [part.get_content_type() for part in built.walk()]
    assert kinds == [
        "multipart/mixed",
        "multipart/alternative",
        "text/plain",
        "multipart/related",
        "text/html",
        "image/png",
        "application/pdf",
    ]


def test_only_the_envelope_knows_bcc(caller: Caller) -> None:
    """A message whose only further recipient is in bcc is delivered to it, too."""
    found = caller.delivered(bcc="secret@example.net")
    assert [each["email"] for each in found["recipients"]] == ["ada@example.net", "secret@example.net"]
    assert b"secret" not in caller.mime(found["id"])


@pytest.mark.parametrize("text", ["\n.\n", "\r\n.\r\n", "a\n.\r\nb", ".", "..\n", "\n.\nMAIL FROM:<x@example.org>\n"])
def test_dots_are_text(caller: Caller, text: str) -> None:
    """What would end a message in SMTP is text like any other; it is stuffed when it is sent."""
    built = message_from_bytes(caller.mime(caller.send(text=text)["id"]), policy=policy.default)
    assert isinstance(built, EmailMessage)
    assert built.get_content().rstrip("\n").splitlines() == text.replace("\r\n", "\n").rstrip("\n").splitlines()
