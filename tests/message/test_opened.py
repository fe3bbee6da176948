"""In charge of reading stored messages back: what was written is shown, and nothing makes it fail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.opened import TEXT_BYTES, open_message

HEAD = b"From: a@example.com\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"


def test_a_plain_message() -> None:
    """Its header is decoded, its text is the text."""
    opened = open_message(HEAD + b"X-Long: a\r\n b\r\n\r\nHello")
    assert opened.headers == [("From", "a@example.com"), ("Subject", "Grüße"), ("X-Long", "a b")]
    assert (opened.text, opened.html, opened.attachments) == ("Hello", None, [])


def test_parts_are_told_apart() -> None:
    """The first text of each kind is shown; files, and further texts, are attached."""
    mime = (
        HEAD
        + b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
        + b"--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\nH\xe4llo\r\n"
        + b"--b\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: base64\r\n\r\nPHA+SGk8L3A+\r\n"
        + b"--b\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename=a.txt\r\n\r\nfile\r\n"
        + b"--b\r\nContent-Type: image/png\r\nContent-ID: <logo>\r\n\r\npng\r\n--b--\r\n"
    )
    opened = open_message(mime)
    assert (opened.text, opened.html) == ("Hällo", "<p>Hi</p>")
    assert [(each.filename, each.content_type, each.size, each.content_id) for each in opened.attachments] == [
        ("a.txt", "text/plain", 4, None),
        ("", "image/png", 3, "logo"),
    ]


def test_utf8_in_a_header_is_read() -> None:
    """As SMTPUTF8 allows it."""
    assert open_message("Subject: Grüße\r\n\r\n".encode()).headers == [("Subject", "Grüße")]


def test_a_long_text_is_cut() -> None:
    """And says so."""
    opened = open_message(HEAD + b"\r\n" + b"x" * (TEXT_BYTES + 1))
    assert opened.text is not None
    assert (len(opened.text), opened.truncated) == (TEXT_BYTES, True)


@pytest.mark.parametrize(
    "mime",
    [
        b"",
        b"\xff\xfe",
        b"Subject: =?nonsense?q?x?=\r\n\r\n",
        b"Subject: =?utf-8?b?!!!?=\r\n\r\n",
        b"Content-Type: text/plain; charset=nonsense\r\n\r\nx",
        b"Content-Type: text/plain; charset=\x00\r\n\r\nx",
        b"Content-Type: text/plain; charset=rot13\r\n\r\nx",
        b"Content-Type: multipart/mixed\r\n\r\nx",
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n--b\r\n',
        b"Content-Transfer-Encoding: base64\r\n\r\n!!!",
        b"Content-Disposition: attachment; filename*=utf-8''%ff%fe\r\n\r\nx",
        b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nx",
    ],
)
def test_what_is_strange_is_shown_as_it_is(mime: bytes) -> None:
    """Nothing that somebody may have submitted raises, and everything shown can be written as JSON."""
    opened = open_message(mime)
    for text in (opened.text or "", opened.html or "", *(value for _, value in opened.headers)):
        text.encode("utf-8")


@given(st.binary(max_size=400))
def test_any_bytes_can_be_opened(mime: bytes) -> None:
    """Whatever is stored."""
    for name, value in open_message(mime).headers:
        (name + value).encode("utf-8")
