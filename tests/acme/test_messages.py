"""What an authority says: times to wait, and texts that are safe to show."""

import pytest

from appliance.acme.messages import DETAIL_LIMIT, MAX_RETRY_AFTER, Problem, explain, retry_after_seconds

NOW = 1_794_700_000.0  # 2026-11-14 23:46:40


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("99999999999999999999", MAX_RETRY_AFTER),
        ("Sat, 14 Nov 2026 23:47:40 GMT", 60.0),
        ("Sat, 14 Nov 2026 23:00:00 GMT", 0.0),
        ("Sat, 14 Nov 2026 23:47:40 -0000", 60.0),
        ("-5", None),
        ("²", None),
        ("soon", None),
        ("", None),
    ],
)
def test_how_long_to_wait(value: str, seconds: float | None) -> None:
    """A number or a date, never a time that has passed, and a week at most."""
    assert retry_after_seconds(value, NOW) == seconds


def test_a_detail_cannot_drive_a_terminal() -> None:
    """It is one line of printable characters, and no novel."""
    failed = explain(Problem("urn:ietf:params:acme:error:caa", "a\x1b[31m\r\nb\u202e " + "x" * 9999), ["a.test"])
    assert str(failed).isprintable()
    assert str(failed).endswith("…")
    assert len(str(failed)) < DETAIL_LIMIT + 100


def test_braces_in_a_name_or_detail_stay_as_they_are() -> None:
    """What comes from outside is never a format."""
    failed = explain(Problem("urn:ietf:params:acme:error:dns", "{0} {x}"), ["{0}.test"])
    assert "{0}.test" in str(failed)
    assert str(failed).endswith("{0} {x}")
