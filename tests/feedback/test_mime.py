"""Received mail is opened: its header, the content of its parts, the header of the message inside, blocks of fields."""

import io
import os
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.mime import (
    CONTENT_BYTES,
    EXPANDED_BYTES,
    GROUPS,
    READ_CHARACTERS,
    VALUE_CHARACTERS,
    UnreadableReport,
    expanded,
    field_groups,
    open_mail,
    report_file,
)
from appliance.message.reader import read_parts
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped

HEAD = b'Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: multipart/report; boundary="b"\r\n\r\n'


def test_parts_have_their_content() -> None:
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
    for start in (b"", b"\r\n", b"From a Mon Nov 16 2026\r\n"):
        part = b"--b\r\nContent-Type: message/rfc822\r\n\r\n" + start + b"Message-ID: <a@b>\r\n\r\nX: y\r\n--b--"
        mail = open_mail(HEAD + part)
        assert mail.embedded == [("Message-ID", "<a@b>")]
    assert open_mail(b"Subject: x\r\n\r\ny").embedded == []


def test_what_a_person_reads() -> None:
    html = b"--b\r\nContent-Type: text/html\r\n\r\n<p>Not <b>delivered</b></p>\r\n"
    assert open_mail(HEAD + html + b"--b--").text == "Not delivered"
    assert open_mail(HEAD + html + b"--b\r\n\r\nplain\r\n--b--").text == "plain"
    assert open_mail(HEAD + b"--b\r\nContent-Type: a/b\r\n\r\nx\r\n--b--").text == ""
    assert len(open_mail(b"\r\n" + b"x" * 10 * READ_CHARACTERS).text) == READ_CHARACTERS


def test_fields_of_a_header_are_bounded() -> None:
    assert len(open_mail(b"Subject: " + b"x" * 100_000 + b"\r\n\r\n").header("subject")) == VALUE_CHARACTERS


def test_groups_of_fields() -> None:
    """Divided by empty lines, unfolded, decoded; the first of a name counts, and what is no field is passed over."""
    block = "A: 1\nB : x\n  y\n\n\n \t\nno field\nC: =?utf-8?q?=C3=BC?=\nc: 2\nD:\n\n folded"
    assert field_groups(block) == [{"a": "1", "b": "x y"}, {"c": "ü", "d": ""}]
    assert field_groups("") == []
    assert len(field_groups("A: 1\n\n" * (GROUPS + 50))) == GROUPS
    assert len(field_groups(f"A: {'x' * 10_000}")[0]["a"]) == VALUE_CHARACTERS


def test_a_large_part_is_cut() -> None:
    (part,) = open_mail(b"\r\n" + b"x" * (CONTENT_BYTES + 1)).parts
    assert (len(part.content), part.complete) == (CONTENT_BYTES, False)


@given(st.text())
def test_any_text_is_a_block(text: str) -> None:
    for group in field_groups(text):
        for name, value in group.items():
            assert name == name.lower()
            assert "\n" not in value


@given(st.binary(max_size=2_000).filter(lambda data: not data.startswith((b"\x1f\x8b", b"PK\x03\x04"))))
def test_every_form_expands_to_the_same(content: bytes) -> None:
    for packed in (content, gzipped(content), zipped(content), zipped(content, method=zipfile.ZIP_STORED)):
        assert expanded(packed) == content


def test_the_file_is_found() -> None:
    for mime in (as_mail(gzipped(b"<a/>"), "application/gzip"), alone(zipped(b"<a/>"), "application/zip")):
        assert report_file(mime, ("application/gzip", "application/zip"), ("-",)) == b"<a/>"


def test_a_large_file_in_many_steps() -> None:
    noise, text = os.urandom(1_500_000), b"<row>192.0.2.1</row>" * 50_000
    for content in (noise, text + noise[:100_000]):
        assert expanded(gzipped(content)) == content
        assert expanded(zipped(content)) == content


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzipped(b"x" * 100)[:-12], "ends too early"),
        (gzipped(b"x" * 100)[:5], "ends too early"),
        (b"\x1f\x8b" + b"\xff" * 50, "is damaged"),
        (zipped(b"x", files=2), "must have one file"),
        (zipped(b"x", files=0) and b"PK\x03\x04" + zipped(b"x", files=0), "must have one file"),
        (zipped(b"x" * 100)[:-30], "has no directory"),
        (b"PK\x03\x04PK\x05\x06", "is cut off"),
        (b"PK\x03\x04" + b"\0" * 100, "has no directory"),
        (b"\0" * (CONTENT_BYTES + 1), "is larger than"),
        (gzipped(b"\0" * (EXPANDED_BYTES + 1)), "expands to more than"),
        (zipped(b"\0" * (EXPANDED_BYTES + 1)), "expands to more than"),
        (gzipped(b"\0" * 5_000_000), "expands to more than"),  # by its ratio
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableReport, match=reason):
        expanded(data)


def _changed(at_end: int, form: str, value: int) -> bytes:
    data = bytearray(zipped(b"x" * 100))
    entry = data.rfind(b"PK\x01\x02")
    struct.pack_into(form, data, entry + at_end, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        _changed(8, "<H", 1),  # encrypted
        _changed(10, "<H", 12),  # bzip2
        _changed(16, "<I", 7),  # its checksum
        _changed(20, "<I", 3),  # its size, packed
        _changed(42, "<I", 5),  # where it is
        _changed(42, "<I", 2**32 - 1),
        _changed(24, "<I", 2**32 - 1),  # its size, as in zip64
    ],
)
def test_an_archive_that_lies(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        expanded(data)


def test_a_mail_without_a_file() -> None:
    with pytest.raises(UnreadableReport, match="no report is attached"):
        report_file(b"Subject: x\r\n\r\nhello", ("application/zip",), (".zip",))
    with pytest.raises(UnreadableReport, match="larger than"):
        report_file(as_mail(b"\0" * (CONTENT_BYTES + 1), "application/zip"), (), ("report",))


def test_memory_is_bounded() -> None:
    bomb = gzipped(b"\0" * 2 * EXPANDED_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableReport):
            expanded(bomb)
        assert tracemalloc.get_traced_memory()[1] < EXPANDED_BYTES + 2**20
    finally:
        tracemalloc.stop()


def test_an_archive_with_a_comment() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.xml", b"<a/>")
        opened.comment = b"made by a provider"
    assert expanded(archive.getvalue()) == b"<a/>"
