"""Rates and their marks: what they divide, where a line begins, and that too little mail is not judged."""

import pytest

from appliance.model.numbers import BOUNCE_MARKS, JUDGED_FROM, NUMBERS, RateMark, mark, rates


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [
        (0, 0, RateMark.TOO_FEW),
        (199, 199, RateMark.TOO_FEW),
        (9, 200, RateMark.GOOD),
        (10, 200, RateMark.HIGH),
        (19, 200, RateMark.HIGH),
        (20, 200, RateMark.TOO_HIGH),
    ],
)
def test_a_rate_is_marked_from_its_line_on(count: int, total: int, expected: RateMark) -> None:
    assert mark(count, total, BOUNCE_MARKS, JUDGED_FROM) == expected


def test_rates_divide_by_what_servers_decided() -> None:
    counts = dict(zip(NUMBERS, (900, 285, 10, 5, 500, 100, 3, 1), strict=True))
    assert rates(counts) == {
        "bounce_rate": 0.03333,
        "bounce_mark": RateMark.GOOD,
        "complaint_rate": 0.00351,
        "complaint_mark": RateMark.TOO_FEW,
    }
    assert rates({})["bounce_rate"] is rates({})["complaint_rate"] is None
