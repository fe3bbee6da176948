"""Statistics of an account: sums by day and hour, rates, and delivery times."""

import pytest

from appliance.model.dashboard import AccountStatistics, CountsByValue
from appliance.model.mail import BounceClass
from appliance.times import HOUR, rfc3339
from appliance.web.api.stats import quantile, stats

MIDNIGHT = 24 * 20_000  # in hours


def test_days_are_the_sum_of_their_hours() -> None:
    by_hour = {
        (MIDNIGHT - 24, "sent"): 1,
        (MIDNIGHT - 1, "sent"): 2,
        (MIDNIGHT, "sent"): 4,
        (MIDNIGHT + 1, "bounced"): 1,
        (MIDNIGHT + 2, "delivered"): 3,
        (MIDNIGHT + 3, "delivered"): 9,  # an hour that began since
    }
    told = stats(AccountStatistics(by_hour, {}, ()), MIDNIGHT - 24, MIDNIGHT + 2, 2, "req_1")
    assert [day.sent for day in told.days] == [3, 4]
    assert len(told.hours) == 27
    assert [told.hours[0].sent, told.hours[23].sent, told.hours[24].sent] == [1, 2, 4]
    assert (told.totals.sent, told.totals.delivered, told.totals.bounced) == (7, 3, 1)
    assert told.totals.bounce_rate == 0.25


def test_refusals_are_told_by_class() -> None:
    by_class = {BounceClass.POLICY: (0, 0), BounceClass.CONTENT: (2, 0), BounceClass.TEMPORARY: (0, 3)}
    told = stats(AccountStatistics({}, {}, (), 0, by_class), MIDNIGHT, MIDNIGHT, 1, "req_1").bounce_classes
    assert [(each.bounce_class, each.bounced, each.failed) for each in told] == [("content", 2, 0), ("temporary", 0, 3)]


def test_simulated_mail_that_waits_is_told() -> None:
    assert stats(AccountStatistics({}, {}, (), 16), MIDNIGHT, MIDNIGHT, 1, "req_1").sandbox == 16


@pytest.mark.parametrize(
    ("by_bucket", "share", "expected"),
    [
        ({}, 0.5, None),
        ({10: 0}, 0.5, None),
        ({0: 1}, 0.5, 1),
        ({10: 1, 50: 1}, 0.5, 3),
        ({10: 1, 50: 2}, 0.5, 123),
        ({10: 95, 50: 5}, 0.95, 3),
        ({10: 94, 50: 6}, 0.95, 123),
    ],
)
def test_a_share_is_done_within_a_time(by_bucket: dict[int, int], share: float, expected: int | None) -> None:
    assert quantile(by_bucket, share) == expected


def test_the_period_before_is_told_if_it_is_known() -> None:
    numbers = AccountStatistics({(MIDNIGHT + 2, "sent"): 8}, {}, (), previous={"sent": 3, "bounced": 1})
    told = stats(numbers, MIDNIGHT, MIDNIGHT + 2, 1, "req_1")
    assert told.previous is not None
    assert (told.totals.sent, told.previous.sent) == (8, 3)
    assert (told.totals.bounce_rate, told.previous.bounce_rate) == (None, 1.0)
    assert told.previous.start == rfc3339((MIDNIGHT - 24) * HOUR)
    assert stats(AccountStatistics({}, {}, ()), MIDNIGHT, MIDNIGHT, 1, "req_1").previous is None


def test_numbers_are_told_by_value() -> None:
    parts = CountsByValue({"order": {"sent": 7}, "": {"sent": 10, "delivered": 3, "bounced": 5}}, MIDNIGHT * HOUR)
    told = stats(AccountStatistics({}, {}, ()), MIDNIGHT, MIDNIGHT, 1, "req_1", parts)
    assert told.breakdown is not None
    assert [(each.value, each.sent, each.bounce_rate) for each in told.breakdown] == [
        ("order", 7, None),
        (None, 10, 0.625),
    ]
    assert told.breakdown_until == rfc3339(MIDNIGHT * HOUR)
    assert stats(AccountStatistics({}, {}, ()), MIDNIGHT, MIDNIGHT, 1, "req_1").breakdown is None
