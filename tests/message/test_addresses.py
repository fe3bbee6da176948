"""What the one address parser takes, and in which words it refuses the rest."""

import re
import string
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message import addresses
from appliance.message.addresses import Address, parse
from tests.message.samples import hostile_text

LABEL = "a" * 63


def reason(text: str) -> str:
    with pytest.raises(Refused) as caught:
        parse(text, "to[0]")
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.text


@pytest.mark.parametrize(
    ("text", "name", "wire"),
    [
        ("a@b.c", "", "a@b.c"),
        ("  a@b.c ", "", "a@b.c"),
        ("Ada.L+x@Example.COM", "", "Ada.L+x@example.com"),
        ("<a@b.c>", "", "a@b.c"),
        ("Ada <a@b.c>", "Ada", "a@b.c"),
        ("Ada Lovelace<a@b.c>", "Ada Lovelace", "a@b.c"),
        ('"Lovelace, Ada" <a@b.c>', "Lovelace, Ada", "a@b.c"),
        (r'"a \"b\" \\c" <a@b.c>', r'a "b" \c', "a@b.c"),
        ("Acme (Billing) <a@b.c>", "Acme (Billing)", "a@b.c"),
        ("a@b.c <a@b.c>", "a@b.c", "a@b.c"),
        ("Zoë 😀 <a@b.c>", "Zoë 😀", "a@b.c"),
        ("=?utf-8?q?a?= <a@b.c>", "=?utf-8?q?a?=", "a@b.c"),
        ("a@müller.example", "", "a@xn--mller-kva.example"),
        ("a@MÜLLER.example", "", "a@xn--mller-kva.example"),
        ("a@例え。テスト", "", "a@xn--r8jz45g.xn--zckzah"),
        ("a@xn--mller-kva.example", "", "a@xn--mller-kva.example"),
        ("jürgen@example.com", "", "jürgen@example.com"),
        ("ju\u0308rgen@example.com", "", "jürgen@example.com"),
        ("a@b.test", "", "a@b.test"),
        ("a@mail.local", "", "a@mail.local"),
        ("a@x.invalid", "", "a@x.invalid"),
        ("!#$%&'*+-/=?^_`{|}~@b.c", "", "!#$%&'*+-/=?^_`{|}~@b.c"),
        ("a@1.2.3.com", "", "a@1.2.3.com"),
        (f"{'a' * 64}@b.c", "", f"{'a' * 64}@b.c"),
    ],
)
def test_accepted(text: str, name: str, wire: str) -> None:
    address = parse(text, "to")
    assert (address.name, address.wire, address.text) == (name, wire, text.strip())


def test_parts() -> None:
    assert parse("Ada <Ada@EXAMPLE.com>", "to") == Address(
        name="Ada", local="Ada", domain="example.com", text="Ada <Ada@EXAMPLE.com>", spelling="Ada@EXAMPLE.com"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a@b.c, d@e.f", "array"),
        ("a@b.c,d@e.f", "array"),
        ("a@b.c; d@e.f", "array"),
        ("A <a@b.c>, B <d@e.f>", "array"),
        ("Lovelace, Ada <a@b.c>", "double quotes"),
        ("ada", "needs an @"),
        ("a@b@c.d", "exactly one @"),
        ("@b.c", "before the @ is empty"),
        ("a@", "after the @ is empty"),
        ("a b@c.d", "space"),
        ("a @b.c", "space"),
        ("<a@b.c", "expected"),
        ("Ada <a@b.c> x", "expected"),
        ('"Ada <a@b.c>', "expected"),
        ("A <<a@b.c>>", "expected"),
        ('"a b"@c.d', "quoted local part"),
        ('"ab"@c.d', "quoted local part"),
        ('"a,b;c"@c.d', "quoted local part"),
        ('"a@b"@c.d', "quoted local part"),
        ('"a<b"@c.d', "quoted local part"),
        ('"a>"@c.d', "quoted local part"),
        ('Ada <"a b"@c.d>', "quoted local part"),
        ('"Lovelace, Ada" a@b.c', "array"),
        ('"ab@c.d', "before the @"),
        ("a@[127.0.0.1]", "IP address"),
        ("a@127.0.0.1", "not a domain"),
        ("a@localhost", "with a dot"),
        ("a@b.c.", "not a domain"),
        ("a@.b.c", "not a domain"),
        ("a@b..c", "not a domain"),
        ("a@-b.c", "not a domain"),
        ("a@b-.c", "not a domain"),
        ("a@b_c.d", "not a domain"),
        ("a@ab--c.d", "not a domain"),
        ("a@xn--zzzzzzzzz.d", "not a domain"),
        ("a@😀.example", "not a domain"),
        (f"a@{LABEL}a.c", "not a domain"),
        (".a@b.c", "before the @"),
        ("a.@b.c", "before the @"),
        ("a..b@b.c", "before the @"),
        ("a(b)@b.c", "before the @"),
        ("a\u00a0b@b.c", "before the @"),
        ("a\u200bb@b.c", "before the @"),
        ("a＠b.c", "needs an @"),
        (f"{'a' * 65}@b.c", "64 octets"),
        (f"{'é' * 33}@b.c", "64 octets"),
        (f"a@{'.'.join([LABEL] * 4)}.c", "253 octets"),
        (f"{'a' * 64}@{'.'.join([LABEL] * 3)}.c", "254 octets"),
        (f"{'n' * 256} <a@b.c>", "255 characters"),
        ("a\r@b.c", "carriage return"),
        ("a@b.c\n", "line feed"),
        ("a\x00@b.c", "NUL"),
        ("a@b\x7f.c", "U+007F"),
        ("a@b\x85.c", "U+0085"),
        ("A\tB <a@b.c>", "tab"),
        ("A\u2028B <a@b.c>", "U+2028"),
        ("A\ud800 <a@b.c>", "surrogate"),
    ],
)
def test_refused(text: str, words: str) -> None:
    sentence = reason(text)
    assert sentence.startswith("to[0]: ")
    assert words in sentence


def test_longest_address() -> None:
    domain = ".".join([LABEL, LABEL, LABEL])[: 254 - 63 - 3] + ".c"
    assert len(f"{LABEL}@{domain}") == 254
    assert parse(f"{LABEL}@{domain}", "to").domain == domain
    assert "254" in reason(f"{LABEL}x@{domain}")


def test_key_ignores_case_and_spelling() -> None:
    assert parse("ADA@EXAMPLE.com", "to").key == parse("x <ada@example.COM>", "to").key
    assert parse("a@MÜLLER.example", "to").key == parse("A@xn--mller-kva.example", "to").key
    assert parse("JÜRGEN@example.com", "to").key == parse("ju\u0308rgen@example.com", "to").key
    assert parse("straße@example.com", "to").key != parse("strasse@example.com", "to").key


def test_only_the_local_part_needs_smtputf8() -> None:
    assert parse("a@müller.example", "to").wire.isascii()
    assert not parse("jürgen@example.com", "to").wire.isascii()


NEAR_ADDRESS = st.text(st.sampled_from(string.ascii_letters[:6] + '01.-_@+<>" ,'), max_size=20)


@given(st.one_of(NEAR_ADDRESS, st.emails(), st.tuples(NEAR_ADDRESS, NEAR_ADDRESS).map("@".join)))
@example("a@b.1")
@example("a@b.c-")
def test_fast_and_slow_way_agree(text: str) -> None:
    plain = addresses._PLAIN.fullmatch(text)
    try:
        slow = addresses._read_unusual(text) if text.count("@") == 1 else None
    except addresses._NotAnAddress:
        slow = None
    if plain and len(plain[1]) <= 64:
        assert slow == (plain[1], plain[2].lower())
    elif slow is not None:
        assert "--" in slow[1]


@given(st.one_of(hostile_text, st.text(), st.emails(), NEAR_ADDRESS))
def test_whatever_is_accepted_is_safe(text: str) -> None:
    """Any text is refused by a Refused, or becomes an address without a character that could end a command."""
    try:
        address = parse(text, "to")
    except Refused:
        return
    assert not set(address.wire) & set('\r\n\x00 <>"\\\u2028\u2029')
    assert address.domain.isascii()
    assert address.domain == address.domain.lower()
    assert len(address.wire.encode()) <= 254
    assert address.name.isprintable() or not address.name.isascii()
    assert parse(address.wire, "to").key == address.key


@given(st.one_of(hostile_text, st.emails(), NEAR_ADDRESS, st.emails().map("Ada <{}>".format)))
def test_a_cached_address_is_the_one_that_was_read(text: str) -> None:
    """Whether an address is read anew, for the first time or once more, it is the same, and so is the refusal."""

    def read(how: Callable[[str], Address]) -> Address | str:
        try:
            return how(text)
        except addresses._NotAnAddress as fault:
            return str(fault)

    assert read(addresses._read) == read(addresses._cached) == read(addresses._cached)


def test_a_refusal_names_the_field_that_asked() -> None:
    for field in ("from", "to[3]", "from"):
        with pytest.raises(Refused, match=re.escape(f"{field}: an address needs an @")):
            parse("ada", field)


def test_long_texts_are_not_cached() -> None:
    """A client cannot fill memory: neither a long text nor a refused one is cached."""
    kept = addresses._cached.cache_info().currsize
    assert parse(f"{'n' * 255} {' ' * 70}<a@b.c>", "to").name == "n" * 255
    with pytest.raises(Refused):
        parse("a text that is no address", "to")
    assert addresses._cached.cache_info().currsize == kept


@given(st.text(st.sampled_from('a.@-b<>", '), min_size=2000, max_size=4000))
def test_long_input_is_cheap(text: str) -> None:
    with pytest.raises(Refused):
        parse(text, "to")
