"""In charge of lines on the wire: lone line ends and long lines are found wherever they stand."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message import line_ends


@given(
    st.lists(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r", b"\n", b"a", b".", b"\x0b", b"\x85"])).map(b"".join),
    st.sampled_from([1, 2, 3, 5, 64 * 1024]),
)
def test_lone_line_ends_are_those_that_counting_finds(message: bytes, block: int) -> None:
    """Wherever a message is cut into blocks, it is refused exactly when it has more CRs or LFs than CRLFs."""
    ends = message.count(b"\r\n")
    with patch.object(line_ends, "_BLOCK", block):
        assert line_ends.has_lone_line_end(message) is not (message.count(b"\r") == message.count(b"\n") == ends)


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
    """A line may have 998 octets beside its CRLF, the last one also without a CRLF."""
    assert line_ends.number_of_long_line(message) == number


@given(st.lists(st.integers(990, 1005) | st.integers(0, 40), max_size=12), st.booleans())
def test_long_lines_are_those_that_splitting_finds(lengths: list[int], ended: bool) -> None:
    """The steps of a thousand octets find what a look at every line finds."""
    message = b"\r\n".join(b"x" * length for length in lengths) + (b"\r\n" if ended else b"")
    long = [number for number, line in enumerate(message.split(b"\r\n"), start=1) if len(line) > 998]
    assert line_ends.number_of_long_line(message) == (long[0] if long else None)


@pytest.mark.parametrize(("old", "new"), [(b"\r\n.", b"\r\n"), (b"\r\n.", b"\r\n.."), (b"\n", b"\r\n")])
@given(
    data=st.lists(st.sampled_from([b"\r\n.", b"\r\n.", b"\r", b"\n", b".", b"a"])).map(b"".join),
    block=st.sampled_from([3, 4, 5, 7, 64 * 1024]),
)
def test_replacing_in_blocks_is_replacing(old: bytes, new: bytes, data: bytes, block: int) -> None:
    """Whatever lies across the border of two blocks, the pieces together are what replacing at once makes."""
    with patch.object(line_ends, "_BLOCK", block):
        for given_as in (data, bytearray(data)):
            assert b"".join(line_ends.replaced(given_as, old, new)) == data.replace(old, new)
