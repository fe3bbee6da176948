"""Times are written as the interface wants them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.times import rfc3339


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (999, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999_999, "2023-11-14T22:13:20.999Z"),
        (4_102_444_800_000_000, "2100-01-01T00:00:00.000Z"),
    ],
)
def test_times_are_utc_to_the_millisecond(microseconds: int, text: str) -> None:
    """RFC 3339, rounded down, with a Z."""
    assert rfc3339(microseconds) == text


@given(st.integers(0, 7_258_118_400_000_000))
def test_times_are_those_of_the_standard_library(microseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert rfc3339(microseconds) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
