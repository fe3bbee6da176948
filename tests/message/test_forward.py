"""A received message is forwarded with its texts and files, however it was written."""

import random

import pytest

from appliance.errors import Refused
from appliance.message.compose import compose, draft
from appliance.message.forward import forwarded
from appliance.message.limits import ATTACHMENTS
from appliance.message.reader import read_attachments, read_message

RECEIVED = "inb_1"
SENDER, TO = "Support <support@acme.example>", ["grace@example.net"]
MAIL = b"""From: =?utf-8?q?Ada_L=C3=B6w?= <ada@example.net>\r
To: support@in.acme.example\r
Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r
Date: Tue, 17 Nov 2026 10:00:00 +0000\r
Message-ID: <one@example.net>\r
MIME-Version: 1.0\r
Content-Type: multipart/mixed; boundary=b\r
\r
--b\r
Content-Type: text/plain; charset=iso-8859-1\r
\r
caf\xe9 \x07 here\rthere\r
--b\r
Content-Type: text/html\r
\r
<!doctype html><html><body class="x"><p>Hi <img src="cid:logo"></p></body></html>\r
--b\r
Content-Type: image/png; name="../lo\xffgo.png"\r
Content-ID: <logo>\r
Content-Transfer-Encoding: base64\r
\r
iVBORw0KGgo=\r
--b\r
Content-Type: message/rfc822\r
\r
Subject: inner\r
\r
inner\r
--b--\r
"""


def written(mime: bytes) -> bytes:
    """The new message as the intake stores it, which checks every rule of a request."""
    drafted = draft(forwarded(mime, RECEIVED, SENDER, TO), None)
    return compose(drafted, message_id="new@acme.example", date_seconds=0, text_from_html=True, unsubscribe_urls=())


def test_texts_files_and_sender_are_kept() -> None:
    mime = written(MAIL)
    view, contents = read_message(mime), [content for _, content in read_attachments(mime, 1_000)]
    headers = {name.lower(): value for name, value in view.headers}
    assert headers["from"] == SENDER
    assert headers["to"] == "grace@example.net"
    assert headers["reply-to"] == "Ada Löw <ada@example.net>"
    assert headers["subject"] == "Fwd: Grüße"
    assert headers["references"] == "<one@example.net>"
    shown = "From: Ada Löw <ada@example.net>\r\nDate: Tue, 17 Nov 2026 10:00:00 +0000\r\nSubject: Grüße"
    assert view.text is not None
    assert view.html is not None
    assert shown in view.text.replace("\r\n", "\n").replace("\n", "\r\n")
    assert "café � here\nthere" in view.text.replace("\r\n", "\n")
    head, _, body = view.html.partition('<body class="x">')
    assert "<html>" in head
    assert body.startswith("<div>---------- Forwarded message ----------<br>")
    assert "Ada Löw &lt;ada@example.net&gt;" in body
    assert body.index("</div>") < body.index("<p>Hi")
    named = [(file.filename, file.content_type, file.content_id) for file in view.attachments]
    assert named[0][0].startswith(".._lo")
    assert named[0][1:] == ("image/png", "logo")
    assert named[1] == ("file-2", "application/octet-stream", None)
    assert contents == [b"\x89PNG\r\n\x1a\n", b"Subject: inner\r\n\r\ninner"]


def test_only_html_gets_its_text_from_the_html() -> None:
    view = read_message(written(b"From: a@b.example\r\nContent-Type: text/html\r\n\r\n<p>Hello"))
    assert "Forwarded message" in (view.text or "")
    assert "Hello" in (view.text or "")


def test_no_message_breaks_the_rules_of_a_request() -> None:
    """Damaged copies of a message are still forwarded."""
    chance = random.Random(43)
    for _ in range(400):
        damaged = bytearray(MAIL)
        for _ in range(chance.randrange(1, 20)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
        written(bytes(damaged))


def test_too_many_files_are_refused() -> None:
    part = b"--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n"
    mime = b"From: a@b.example\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" + part * (ATTACHMENTS + 1)
    with pytest.raises(Refused, match="over 20 files"):
        forwarded(mime, RECEIVED, SENDER, TO)
