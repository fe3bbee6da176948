"""The From of a submitted message: read as every mail reader reads it, or refused."""

import email.utils
import inspect
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message import header_lines
from appliance.message.addresses import parse
from appliance.message.submitted_header import read_from
from tests.cpu_time import cpu_seconds
from tests.message.samples import line_text


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
    """The address is the one that replies go to, the name is decoded, and both are shown as over HTTP."""
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
def test_what_we_write_we_read(name: str) -> None:
    """Any name the HTTP API can write into a From is read back as it was."""
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
    """Whatever is let in is, to another parser of mail, the same one mailbox."""
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
    """The patterns never go back over what they took."""
    values = [(piece * (4000 // len(piece)) + end).encode() for end in ("", "<a@b.c>", ">", "\\", '"')]

    def read_all() -> None:
        for value in values:
            with pytest.raises(Refused):
                read_from(value[:4096] + b"\\")

    assert cpu_seconds(read_all) < 0.2
