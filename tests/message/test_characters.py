"""Which characters a body may hold: the quick way by octets finds what the plain rule by characters finds."""

import re
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message import characters
from appliance.message.characters import fault_in_body
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
def test_every_character_is_judged_by_the_rule(around: str) -> None:
    """One by one, alone and beside text of one, two, three and four octets."""
    for code in (*range(0x300), *range(0x2000, 0x2100), *range(0xD7F0, 0xE010), 0x1F600, 0x10FFFF):
        text = f"{around}{chr(code)}{around}"
        assert (fault_in_body(text) is not None) is (FAULT.search(text) is not None), hex(code)


@given(any_text | hostile_text, st.sampled_from([1, 2, 3, 7, 64 * 1024]))
def test_any_text_is_judged_by_the_rule(text: str, block: int) -> None:
    """Whatever the text, and wherever it is cut into blocks."""
    with patch.object(characters, "_BLOCK", block):
        assert (fault_in_body(text) is not None) is (FAULT.search(text) is not None)
