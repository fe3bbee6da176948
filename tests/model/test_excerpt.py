"""In charge of excerpts: the beginning of a body, as text, within its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.model.webhooks import EXCERPT_BYTES, excerpt


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b"ok", "ok"),
        ("Grüße".encode(), "Grüße"),
        (b"\xff\x00", "\ufffd\x00"),
        (b"a" * EXCERPT_BYTES, "a" * EXCERPT_BYTES),
        (b"a" * 5000, "a" * EXCERPT_BYTES),
        (b"a" * (EXCERPT_BYTES - 1) + "ü".encode(), "a" * (EXCERPT_BYTES - 1)),
        (b"a" * (EXCERPT_BYTES - 1) + "😀".encode(), "a" * (EXCERPT_BYTES - 1)),
    ],
)
def test_what_is_shown_of_a_body(body: bytes, shown: str) -> None:
    """Text as it is, what is none as U+FFFD, and no half of a character at the cut."""
    assert excerpt(body) == shown


@given(st.binary(max_size=5000))
def test_it_stays_within_its_limit(body: bytes) -> None:
    """However many replacements there are, the text has at most 2 KiB, and can be written as UTF-8."""
    assert len(excerpt(body).encode()) <= EXCERPT_BYTES
