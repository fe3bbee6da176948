"""Characters and line ends: the quick way by octets or blocks finds what the plain rule finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.characters import (
    fault_in_body,
    has_dot_line,
    has_lone_line_end,
    joined,
    number_of_long_line,
    replaced,
)
from tests.message.samples import hostile_text

# The rule itself: what stands in no body, and a carriage return that ends no line.
FAULT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]|\r(?!\n)")

any_text = st.lists(
    st.sampled_from(
        ["\x00", "\t", "\n", "\r", "\r\n", "\x7f", "\x80", "\x9f", "\xa0", "é", "\ud800", "漢", "😀", "abc"]
    )
    | st.text(max_size=3)
).map("".join)


@pytest.mark.parametrize("around", ["", "plain", "é", "漢字", "😀"])
def test_every_character_is_checked_by_the_rule(around: str) -> None:
    for code in (*range(0x300), *range(0x2000, 0x2100), *range(0xD7F0, 0xE010), 0x1F600, 0x10FFFF):
        text = f"{around}{chr(code)}{around}"
        assert (fault_in_body(text) is not None) is (FAULT.search(text) is not None), hex(code)


@given(any_text | hostile_text, st.sampled_from([1, 2, 3, 7, 64 * 1024]))
def test_any_text_is_checked_by_the_rule(text: str, block: int) -> None:
    assert (fault_in_body(text, block) is not None) is (FAULT.search(text) is not None)


@given(
    st.lists(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r", b"\n", b"a", b".", b"\x0b", b"\x85"])).map(b"".join),
    st.sampled_from([1, 2, 3, 5, 64 * 1024]),
)
def test_lone_line_ends_are_those_that_a_search_finds(message: bytes, block: int) -> None:
    """Wherever a message is cut into blocks, it is refused exactly when some CR or LF has no partner beside it."""
    assert has_lone_line_end(message, block) is (re.search(rb"\r(?!\n)|(?<!\r)\n", message) is not None)


@given(
    st.lists(st.sampled_from([b"\r\n", b"\r\n.", b".", b"a", b"ab"])).map(b"".join),
    st.sampled_from([1, 2, 3, 5, 64 * 1024]),
)
def test_lines_with_a_dot_are_those_that_a_search_finds(message: bytes, block: int) -> None:
    assert has_dot_line(message, block) is ((b"\r\n" + message).find(b"\r\n.") >= 0)


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (b"", None),
        (b"x" * 998, None),
        (b"x" * 998 + b"\r\n", None),
        (b"x" * 999, 1),
        (b"x" * 999 + b"\r\n", 1),
        (b"x" * 1000, 1),
        (b"x" * 998 + b"\r\n" + b"y" * 998 + b"\r\n", None),
        (b"a\r\nb\r\n" + b"x" * 999 + b"\r\nc\r\n", 3),
        (b"a\r\n" * 999 + b"x" * 2000, 1000),
        (b"\r\n" * 5000, None),
    ],
)
def test_the_first_long_line_is_named_by_its_number(message: bytes, number: int | None) -> None:
    assert number_of_long_line(message) == number


@given(st.lists(st.integers(990, 1005) | st.integers(0, 40), max_size=12), st.booleans())
def test_long_lines_are_those_that_splitting_finds(lengths: list[int], ended: bool) -> None:
    message = b"\r\n".join(b"x" * length for length in lengths) + (b"\r\n" if ended else b"")
    long = [number for number, line in enumerate(message.split(b"\r\n"), start=1) if len(line) > 998]
    assert number_of_long_line(message) == (long[0] if long else None)


@pytest.mark.parametrize(("old", "new"), [(b"\r\n.", b"\r\n"), (b"\r\n.", b"\r\n.."), (b"\n", b"\r\n")])
@given(
    data=st.lists(st.sampled_from([b"\r\n.", b"\r\n.", b"\r", b"\n", b".", b"a"])).map(b"".join),
    block=st.sampled_from([3, 4, 5, 7, 64 * 1024]),
)
def test_replacing_in_blocks_is_replacing(old: bytes, new: bytes, data: bytes, block: int) -> None:
    for given_as in (data, bytearray(data)):
        assert b"".join(replaced(given_as, old, new, block)) == data.replace(old, new)


@given(
    st.lists(st.binary(max_size=20) | st.binary(max_size=20).map(lambda each: memoryview(each))),
    st.sampled_from([1, 2, 7, 64 * 1024]),
)
def test_joining_in_blocks_is_joining(parts: list[bytes | memoryview], block: int) -> None:
    assert joined(parts, block) == b"".join(parts)
