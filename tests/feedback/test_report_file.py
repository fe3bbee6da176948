"""The file in a message: found, expanded within limits, and refused where it is damaged or more than one."""

import io
import os
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.report_file import COMPRESSED_BYTES, EXPANDED_BYTES, UnreadableReport, expanded, report_file
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped


@given(st.binary(max_size=2_000).filter(lambda data: not data.startswith((b"\x1f\x8b", b"PK\x03\x04"))))
def test_every_form_expands_to_the_same(content: bytes) -> None:
    """As it is, gzip, zip, and a zip that only stores."""
    for packed in (content, gzipped(content), zipped(content), zipped(content, method=zipfile.ZIP_STORED)):
        assert expanded(packed) == content


def test_the_file_is_found() -> None:
    """Behind a text, or alone."""
    for mime in (as_mail(gzipped(b"<a/>"), "application/gzip"), alone(zipped(b"<a/>"), "application/zip")):
        assert report_file(mime, lambda part: part.kind.startswith("application/")) == b"<a/>"


def test_a_large_file_in_many_steps() -> None:
    """What does not compress and what compresses well both come out whole."""
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
        (b"\0" * (COMPRESSED_BYTES + 1), "is larger than"),
        (gzipped(b"\0" * (EXPANDED_BYTES + 1)), "expands to more than"),
        (zipped(b"\0" * (EXPANDED_BYTES + 1)), "expands to more than"),
        (gzipped(b"\0" * 5_000_000), "expands to more than"),  # by its ratio
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    """Each with its reason."""
    with pytest.raises(UnreadableReport, match=reason):
        expanded(data)


def _changed(at_end: int, form: str, value: int) -> bytes:
    """An archive whose directory has one field changed."""
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
    """Encryption, other methods, wrong sizes, places and checksums are refused."""
    with pytest.raises(UnreadableReport):
        expanded(data)


def test_a_mail_without_a_file() -> None:
    """And one with a file that is too large to be read whole."""
    with pytest.raises(UnreadableReport, match="no report is attached"):
        report_file(b"Subject: x\r\n\r\nhello", lambda part: part.kind == "application/zip")
    with pytest.raises(UnreadableReport, match="larger than"):
        report_file(as_mail(b"\0" * (COMPRESSED_BYTES + 1), "application/zip"), lambda part: part.filename == "report")


def test_memory_is_bounded() -> None:
    """A bomb takes no more than the limit, and little besides."""
    bomb = gzipped(b"\0" * 2 * EXPANDED_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableReport):
            expanded(bomb)
        assert tracemalloc.get_traced_memory()[1] < EXPANDED_BYTES + 2**20
    finally:
        tracemalloc.stop()


def test_an_archive_with_a_comment() -> None:
    """The directory is found behind which a comment stands."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.xml", b"<a/>")
        opened.comment = b"made by a provider"
    assert expanded(archive.getvalue()) == b"<a/>"
