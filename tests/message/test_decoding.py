"""Decoding header text: what RFC 2047 says, what clients really write, and what attackers do."""

import email.utils
import inspect
from email.header import decode_header, make_header
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message import decoding, header_lines
from appliance.message.addresses import parse
from appliance.message.characters import fault_in_line
from appliance.message.decoding import header_text, read_from
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
    assert header_text(f" =?{name}?q?Hello_=41?=".encode()) == "Hello A"


@given(line_text)
def test_what_we_write_we_read(text: str) -> None:
    """A subject as the HTTP API writes it is read back as it was."""
    line = header_lines.subject(text)
    assert header_text(line.removeprefix("Subject:").removesuffix("\r\n").encode()) == text.strip(" ")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40))
def test_the_standard_library_reads_the_same(text: str) -> None:
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
    text = header_text(value)
    assert fault_in_line(text) is None
    text.encode("utf-8")


@pytest.mark.parametrize(
    "piece",
    [b"=?", b"=?utf-8?q?", b"=?utf-8?q?a?=", b"=?utf-8?b?QQ==?= ", b"?=", b"=?a", b"=?utf-8*" + b"e" * 20, b" ", b"="],
)
def test_a_megabyte_takes_no_time(piece: bytes) -> None:
    value = piece * (1_000_000 // len(piece))
    assert cpu_seconds(lambda: header_text(value)) < 0.1


@pytest.mark.parametrize(
    ("value", "address", "text"),
    [
        (b" shop@example.com", "shop@example.com", "shop@example.com"),
        (b"<shop@example.com>", "shop@example.com", "shop@example.com"),
        (b" < Shop@Example.com >", "Shop@example.com", "Shop@Example.com"),
        (b" Shop <shop@example.com>", "shop@example.com", "Shop <shop@example.com>"),
        (b" Shop\r\n\t<shop@example.com>", "shop@example.com", "Shop <shop@example.com>"),
        (b" J. R. Shop <shop@example.com>", "shop@example.com", "J. R. Shop <shop@example.com>"),
        (b" [Shop] <shop@example.com>", "shop@example.com", "[Shop] <shop@example.com>"),
        (b' "Shop, Inc." <shop@example.com>', "shop@example.com", '"Shop, Inc." <shop@example.com>'),
        (b' "Shop" Team <shop@example.com>', "shop@example.com", "Shop Team <shop@example.com>"),
        (b' "a \\"b\\" <c@d.e>" <shop@example.com>', "shop@example.com", '"a \\"b\\" <c@d.e>" <shop@example.com>'),
        (b" =?utf-8?q?Caf=C3=A9?= <shop@example.com>", "shop@example.com", "Café <shop@example.com>"),
        (b' "=?utf-8?q?Caf=C3=A9?=" <shop@example.com>', "shop@example.com", "Café <shop@example.com>"),
        (b" =?utf-8?q?a=2C_b=22?= <shop@example.com>", "shop@example.com", '"a, b\\"" <shop@example.com>'),
        (b" =?utf-8?q?a=0D=0ABcc=3A_x?= <shop@example.com>", "shop@example.com", "a  Bcc: x <shop@example.com>"),
        ("Café <shop@example.com>".encode(), "shop@example.com", "Café <shop@example.com>"),
        (b" Shop (UK) <shop@example.com>", "shop@example.com", "Shop (UK) <shop@example.com>"),
        (b" shop@example.com (The Shop)", "shop@example.com", "The Shop <shop@example.com>"),
        (b" Shop <shop@example.com> (UK)", "shop@example.com", "Shop <shop@example.com>"),
        (b" shop@example.com <shop@EXAMPLE.com>", "shop@example.com", "shop@example.com <shop@EXAMPLE.com>"),
        ("shop@bücher.example".encode(), "shop@xn--bcher-kva.example", "shop@bücher.example"),
        ("jürgen@example.com".encode(), "jürgen@example.com", "jürgen@example.com"),
    ],
)
def test_one_mailbox_is_read_as_people_see_it(value: bytes, address: str, text: str) -> None:
    read = read_from(value)
    assert (read.wire, read.text) == (address, text)
    assert parse(read.text, "from").wire == address  # delivery reads the text again, to find the keys that sign


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" \r\n ",
        b" shop",
        b" <>",
        b" Shop <shop@example.com>, Other <other@example.com>",
        b" shop@example.com, other@example.com",
        b" Shop, Inc. <shop@example.com>",
        b" undisclosed-recipients:;",
        b" Group: shop@example.com;",
        b" <@relay.example:shop@example.com>",
        b" ceo@bank.example <shop@example.com>",
        b" <ceo@bank.example> <shop@example.com>",
        b" shop@example.com <ceo@bank.example>",
        b" (ceo@bank.example) shop@example.com",
        b" shop@example.com (<ceo@bank.example>)",
        b" shop@example.com (a (b) c)",
        b' "shop <shop@example.com>',
        b' shop" <shop@example.com>',
        b" shop@example.com>",
        b" <shop@example.com",
        b" shop@example.com ceo@bank.example",
        b' "shop"@example.com',
        b" shop@[192.0.2.1]",
        b" shop@localhost",
        b" shop@example.com\\",
        b" =?utf-8?q?ceo=40bank.example?=@example.com",
        b" <=?utf-8?q?ceo=40bank.example=3E?=@example.com>",
        b" sh op@example.com",
        b" Shop <shop @example.com>",
        b" Shop: Orders <shop@example.com>",
        "shop@example.com\u200b".encode(),
        "shop@ＥＸＡＭＰＬＥ.com".encode(),
        "shop@example。com".encode(),
        "shop@bu\u0308cher.example".encode(),
        b" =?utf-8?q?Shop,_Inc.?= <shop@example.com>",
        b'"ceo@bank.example"[ <shop@example.com>',
        b'[News] "ceo@bank.example" <shop@example.com>',
        b" " + b"x" * 5000 + b" <shop@example.com>",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(value: bytes) -> None:
    """Lists, groups, routes, nested comments, and names that look like addresses: no reader has to guess."""
    with pytest.raises(Refused) as refused:
        read_from(value)
    assert refused.value.code is Code.INVALID_REQUEST
    assert refused.value.text.startswith("From: ")
    assert refused.value.text.isascii()


@given(line_text.filter(lambda text: len(text) < 200))
def test_a_from_that_we_write_we_read(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    address = parse(f'"{quoted}" <shop@example.com>', "from")
    line = header_lines.mailboxes("From", [address])
    read = read_from(line.removeprefix("From:").removesuffix("\r\n").encode())
    assert (read.name.split(), read.wire) == (address.name.split(), "shop@example.com")


PIECES = [
    "shop@example.com", "ceo@bank.example", "<", ">", '"', "\\", "(", ")", ",", ";", ":", "@", " ", ".", "Shop", "[",
    "]", "<shop@example.com>", "<ceo@bank.example>", "=?utf-8?q?a=40b?=", "\r\n ", "é", "'", "\t",
]  # fmt: skip

# Newer Pythons, and Debian's 3.11.2, name no address at all where they doubt one; what they would read is asked for.
_PARAMETERS = inspect.signature(email.utils.getaddresses).parameters
NOT_STRICT: dict[str, Any] = {"strict": False} if "strict" in _PARAMETERS else {}


@example("[<shop@example.com>")
@example("[Shop] News <shop@example.com>")
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_the_standard_library_sees_the_same_address(text: str) -> None:
    try:
        read = read_from(text.encode())
    except Refused:
        return
    assert parse(read.text, "from").wire == read.wire
    value = text.replace("\r\n", "").replace("\t", " ")
    found = {address.replace(" ", "") for _, address in email.utils.getaddresses([value], **NOT_STRICT)}
    # Its parser takes an address in front of `<…>` for the whole; ours lets that pass only when both are the same. And
    # it cuts names at brackets into pieces without a domain, which are no address.
    seen = {address for address in found if "@" in address}
    assert seen
    assert seen <= {read.wire, read.spelling}


@pytest.mark.parametrize(
    "piece",
    ["a ", '"', "\\", "(", "()", '"a" ', "<", "a@", "a@b ", "a,", "<a@b.c>", '"\\', "(a", "=?utf-8?q?a?= ", "a"],
)
def test_no_value_takes_long(piece: str) -> None:
    values = [(piece * (4000 // len(piece)) + end).encode() for end in ("", "<a@b.c>", ">", "\\", '"')]

    def read_all() -> None:
        for value in values:
            with pytest.raises(Refused):
                read_from(value[:4096] + b"\\")

    assert cpu_seconds(read_all) < 0.2
