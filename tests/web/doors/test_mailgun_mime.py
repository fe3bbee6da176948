"""A complete message with recipient-variables: header, texts and files of each recipient's message."""

from email.message import EmailMessage
from typing import Any

import pytest

from appliance.errors import Refused
from appliance.web.doors.mailgun import MAILGUN
from tests.web.doors.test_mutations import Sample, in_form

FORM = {
    "to": ["Ada <ada@example.net>", "bob@example.net"],
    "recipient-variables": '{"ada@example.net": {"name": "Zoë", "id": 1}, "bob@example.net": {"name": "Bob", "id": 2}}',
    "o:tag": ["news"],
    "v:reader": "%recipient.id%",
}


def message() -> EmailMessage:
    made = EmailMessage()
    made["From"] = '"Doe, Zoë" <shop@example.com>'
    made["To"] = "%recipient%"
    made["Subject"] = "Grüße, %recipient.name%"
    made["Reply-To"] = "help@example.com"
    made["X-Order"] = "number %recipient.id%"
    made["Message-ID"], made["Date"] = "<1@example.com>", "Fri, 14 Nov 2025 13:00:00 +0000"
    made.set_content("Hi %recipient.name% =\n" + "é" * 200, charset="iso-8859-1", cte="quoted-printable")
    made.add_alternative("<p>%recipient.name%</p><img src='cid:logo'>", subtype="html", cte="base64")
    made.get_payload()[1].add_related(b"png", "image", "png", cid="<logo>", filename="logo.png")  # type: ignore[union-attr, index]
    made.add_attachment("%recipient.name%", filename="a.csv", subtype="csv", charset="utf-8")
    return made


def parsed(mime: bytes, **changes: Any) -> Any:
    """The requests of the two messages, or the refusal's text."""
    sample = Sample(MAILGUN, "/v3/example.com/messages.mime", {}, encode=in_form)
    result = sample.parsed(FORM | {"message": mime.decode()} | changes)
    return result.text if isinstance(result, Refused) else result


def test_each_recipient_gets_a_message_of_their_own() -> None:
    ada, bob = parsed(bytes(message()))
    assert (ada["to"], bob["to"]) == (["Ada <ada@example.net>"], ["bob@example.net"])
    assert (ada["subject"], bob["subject"]) == ("Grüße, Zoë", "Grüße, Bob")
    assert (ada["from"], ada["headers"], ada["reply_to"]) == (
        '"Doe, Zoë" <shop@example.com>',
        {"X-Order": "number 1"},
        ["help@example.com"],
    )
    assert ada["text"] == f"Hi Zoë =\r\n{'é' * 200}\r\n"
    assert bob["html"] == "<p>Bob</p><img src='cid:logo'>\n"
    assert (bob["metadata"], bob["tags"]) == ({"reader": "2"}, ["news"])
    assert ada["attachments"] == [
        {"filename": "a.csv", "content": "JXJlY2lwaWVudC5uYW1lJQ0K", "content_type": 'text/csv; charset="utf-8"'},
        {"filename": "logo.png", "content": "cG5n", "content_type": "image/png", "content_id": "logo"},
    ]


PLAIN = "From: shop@example.com\r\nSubject: Hi\r\n"
SIGNED = 'Content-Type: multipart/signed; boundary="b"\r\n\r\n--b\r\n\r\nHi\r\n--b\r\nContent-Type: application/'
REFUSED = [
    (f"{PLAIN}Cc: c@example.net\r\n\r\nHi", "Cc: with recipient-variables, each message has one recipient"),
    (f"{PLAIN}{SIGNED}pgp-signature\r\n\r\nx\r\n--b--\r\n", "message: it is signed or encrypted"),
    (f"{PLAIN}DKIM-Signature: v=1\r\n\r\nHi", "headers.DKIM-Signature: this header is reserved"),
    (f"{PLAIN}X-A: 1\r\nX-A: 2\r\n\r\nHi", "h:X-A: this field occurs twice"),
    (f"{PLAIN}Content-Type: text/calendar\r\n\r\nHi", "message: a part of the type text/calendar has no file name"),
    (f"{PLAIN}Content-Type: text/plain; charset=utf-7\r\n\r\né", "message: the text is not valid in its charset"),
    (f"{PLAIN}\r\n{'a' * 1_048_577}", "message: has a text over 1 MiB"),
    (f"{PLAIN}\r\n%recipient.city%", "recipient-variables: ada@example.net has no value for %recipient.city%"),
    ("Subject: Hi\r\n\r\nHi", "from: this field is required"),
]  # fmt: skip


@pytest.mark.parametrize(("mime", "expected"), REFUSED)
def test_content_that_a_form_cannot_have_is_refused(mime: str, expected: str) -> None:
    refusal = parsed(mime.encode())
    assert isinstance(refusal, str), refusal
    assert expected in refusal


def test_a_line_end_in_a_value_stays_out_of_the_header() -> None:
    values = '{"ada@example.net": {"name": "x\\r\\nBcc: eve@example.net"}, "bob@example.net": {"name": "B"}}'
    assert "emails[0].subject: must not contain" in parsed(
        (PLAIN.replace("Hi", "%recipient.name%") + "\r\nHi").encode(), **{"recipient-variables": values, "v:reader": ""}
    )
