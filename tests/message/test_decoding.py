"""Decoding header text: what RFC 2047 says, what clients really write, and what attackers do."""

from email.header import decode_header, make_header

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message import decoding, header_lines
from appliance.message.characters import fault_in_line
from appliance.message.decoding import header_text
from tests.cpu_time import cpu_seconds
from tests.message.samples import line_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b" Hello", "Hello"),
        (b"", ""),
        (b" \t ", ""),
        (b" a\r\n b\r\n\tc", "a b c"),
        (b" =?utf-8?q?caf=C3=A9?=", "café"),
        (b" =?UTF-8?B?Y2Fmw6k=?= au lait", "café au lait"),
        (b" =?utf-8?B?Y2Fmw6k?=", "café"),  # the padding is missing
        (b" =?utf-8*fr?q?caf=C3=A9?=", "café"),  # RFC 2231 5: a language
        (b" =?utf-8?q?a?= =?utf-8?q?b?=", "ab"),  # RFC 2047 6.2
        (b" =?utf-8?q?a?=\r\n =?utf-8?q?b?=", "ab"),
        (b" =?utf-8?q?a?= x =?utf-8?q?b?=", "a x b"),
        (b" =?utf-8?q?caf=C3?= =?utf-8?q?=A9?=", "café"),  # one character in two words
        (b" =?iso-8859-1?q?caf=E9?= =?utf-8?q?=C3=A9?=", "caféé"),
        (b" =?iso-2022-jp?b?GyRCRnxLXBsoQg==?=", "日本"),
        (b" =?gb2312?b?1tDOxA==?=", "中文"),
        (b" =?windows-1252?q?=93x=94?=", "“x”"),
        (b" =?utf-8?q?a_b=20c?=", "a b c"),
        (b" =?utf-8?q?100=?=", "100="),
        (b" =?utf-8?q?=ff=fe?=", "\ufffd\ufffd"),
        (b" =?utf-8?b?!?=", ""),
        (b" =?utf-8?b?A?=", ""),
        (b" =?x-unknown?q?a?=", "=?x-unknown?q?a?="),
        (b" =?x-unknown?q?a?= =?utf-8?q?b?=", "=?x-unknown?q?a?= b"),
        (b" =?idna?q?xn--a?=", "=?idna?q?xn--a?="),
        (b" =?utf-8?x?a?=", "=?utf-8?x?a?="),
        (b" =?utf-8?q?a", "=?utf-8?q?a"),
        (b" =?=?=?", "=?=?=?"),
        (b" =?utf-8?q?a=0ABcc:_x?=", "a Bcc: x"),
        (b" =?utf-8?b?DQpCY2M6IHg=?=", "Bcc: x"),
        (b" =?utf-8?q?a=00b=E2=80=A8c?=", "a b c"),
        ("  Grüße".encode(), "Grüße"),
    ],
)
def test_what_a_field_says(value: bytes, text: str) -> None:
    """Words are decoded, joined as RFC 2047 says, and never bring a line break; what is broken stays as written."""
    assert header_text(value) == text


@pytest.mark.parametrize("name", decoding._CODECS)
def test_every_charset_of_the_list_can_be_read(name: str) -> None:
    """No name stands for a codec that does not exist, or that needs more than bytes."""
    assert header_text(f" =?{name}?q?Hello_=41?=".encode()) == "Hello A"


@given(line_text)
def test_what_we_write_we_read(text: str) -> None:
    """A subject as the HTTP API writes it is read back as it was."""
    line = header_lines.subject(text)
    assert header_text(line.removeprefix("Subject:").removesuffix("\r\n").encode()) == text.strip(" ")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40))
def test_the_standard_library_reads_the_same(text: str) -> None:
    """Well-formed words mean here what they mean to others."""
    line = header_lines.subject(f"é{text}é").removeprefix("Subject: ").removesuffix("\r\n")
    assert header_text(line.encode()) == str(make_header(decode_header(line.replace("\r\n", ""))))


@given(
    st.lists(
        st.sampled_from([b"=?", b"?=", b"?q?", b"?b?", b"utf-8", b"idna", b"punycode", b"zlib", b"unicode_escape",
                         b"utf-7", b"iso-2022-jp", b"gb18030", b"\x1b$B", b"=", b"=0A", b"_", b" ", b"\r\n ", b"\xff",
                         b"*en", b"A===", b"\xed\xa0\x80", b"x" * 50]) | st.binary(max_size=6),
        max_size=30,
    ).map(b"".join)
)  # fmt: skip
def test_whatever_comes_in_a_line_of_text_comes_out(value: bytes) -> None:
    """No value whatsoever raises, and none gives a text that could not stand on one line or in a database."""
    text = header_text(value)
    assert fault_in_line(text) is None
    text.encode("utf-8")


@pytest.mark.parametrize(
    "piece",
    [b"=?", b"=?utf-8?q?", b"=?utf-8?q?a?=", b"=?utf-8?b?QQ==?= ", b"?=", b"=?a", b"=?utf-8*" + b"e" * 20, b" ", b"="],
)
def test_a_megabyte_takes_no_time(piece: bytes) -> None:
    """However a field is made up, reading it is bounded by what is looked at."""
    value = piece * (1_000_000 // len(piece))
    assert cpu_seconds(lambda: header_text(value)) < 0.1
