"""Received mail is opened: its header, the content of its parts, the header of the message inside, blocks of fields."""

from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.mime import CONTENT_BYTES, GROUPS, READ_CHARACTERS, VALUE_CHARACTERS, field_groups, open_mail
from appliance.message.reader import read_parts

HEAD = b'Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: multipart/report; boundary="b"\r\n\r\n'


def test_parts_have_their_content() -> None:
    """Transfer encodings are removed, and a part that is longer than asked for says so."""
    mime = (
        HEAD
        + b"--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\nH\xe4llo\r\n"
        + b"--b\r\nContent-Type: application/zip; name=a.zip\r\nContent-Transfer-Encoding: base64\r\n\r\nUEsDBA==\r\n"
        + b"--b--\r\n"
    )
    headers, (text, file) = read_parts(mime, 5)
    assert headers[0] == ("Subject", "Grüße")
    assert (text.kind, text.text(100), text.complete) == ("text/plain", "Hällo", True)
    assert (file.kind, file.filename, file.content, file.complete) == ("application/zip", "a.zip", b"PK\x03\x04", True)
    cut = read_parts(mime, 4)[1]
    assert [(part.content, part.complete) for part in cut] == [(b"H\xe4ll", False), (b"PK\x03\x04", True)]
    assert text.text(2) == "Hä"


def test_the_message_inside() -> None:
    """Only its header is read; an mbox line in front of it is passed over."""
    for start in (b"", b"\r\n", b"From a Mon Nov 16 2026\r\n"):
        part = b"--b\r\nContent-Type: message/rfc822\r\n\r\n" + start + b"Message-ID: <a@b>\r\n\r\nX: y\r\n--b--"
        mail = open_mail(HEAD + part)
        assert mail.embedded == [("Message-ID", "<a@b>")]
    assert open_mail(b"Subject: x\r\n\r\ny").embedded == []


def test_what_a_person_reads() -> None:
    """The first text that is not empty, else the HTML as text, else nothing; and no more than is read."""
    html = b"--b\r\nContent-Type: text/html\r\n\r\n<p>Not <b>delivered</b></p>\r\n"
    assert open_mail(HEAD + html + b"--b--").text == "Not delivered"
    assert open_mail(HEAD + html + b"--b\r\n\r\nplain\r\n--b--").text == "plain"
    assert open_mail(HEAD + b"--b\r\nContent-Type: a/b\r\n\r\nx\r\n--b--").text == ""
    assert len(open_mail(b"\r\n" + b"x" * 10 * READ_CHARACTERS).text) == READ_CHARACTERS


def test_fields_of_a_header_are_bounded() -> None:
    """However long one is."""
    assert len(open_mail(b"Subject: " + b"x" * 100_000 + b"\r\n\r\n").header("subject")) == VALUE_CHARACTERS


def test_groups_of_fields() -> None:
    """Divided by empty lines, unfolded, decoded; the first of a name counts, and what is no field is passed over."""
    block = "A: 1\nB : x\n  y\n\n\n \t\nno field\nC: =?utf-8?q?=C3=BC?=\nc: 2\nD:\n\n folded"
    assert field_groups(block) == [{"a": "1", "b": "x y"}, {"c": "ü", "d": ""}]
    assert field_groups("") == []
    assert len(field_groups("A: 1\n\n" * (GROUPS + 50))) == GROUPS
    assert len(field_groups(f"A: {'x' * 10_000}")[0]["a"]) == VALUE_CHARACTERS


def test_a_large_part_is_cut() -> None:
    """At the size of the largest report."""
    (part,) = open_mail(b"\r\n" + b"x" * (CONTENT_BYTES + 1)).parts
    assert (len(part.content), part.complete) == (CONTENT_BYTES, False)


@given(st.text())
def test_any_text_is_a_block(text: str) -> None:
    """Names are in lower case, values on one line."""
    for group in field_groups(text):
        for name, value in group.items():
            assert name == name.lower()
            assert "\n" not in value
