"""Sums of what came back: by day, by provider and by class."""

import pytest

from appliance.concurrency.fair_share import ON_LOOP
from appliance.model.dashboard import FeedbackKind
from appliance.model.reports import DmarcDay, DmarcSource, DmarcStanding, DomainReports, SeenSource, TlsDay, TlsStanding
from appliance.web.api.feedback import (
    BounceClassesObject,
    by_day,
    by_provider,
    classes,
    encoded_feedback,
    feedback_cost,
)
from tests.cpu_time import cpu_seconds

NONE = BounceClassesObject(0, 0, 0, 0, 0, 0, 0, 0)
COUNTS = {
    FeedbackKind(10, "delivered", "", "google"): 3000,
    FeedbackKind(11, "delivered", "", "google"): 1000,
    FeedbackKind(11, "delivered", "", ""): 9000,
    FeedbackKind(11, "delivered", "", "yahoo"): 5,
    FeedbackKind(11, "complained", "", "google"): 6,
    FeedbackKind(11, "bounced", "policy", "yahoo"): 2,
    FeedbackKind(11, "bounced", "", "yahoo"): 1,
    FeedbackKind(12, "failed", "temporary", "apple"): 4,
    FeedbackKind(12, "late_bounced", "mailbox_full", "google"): 7,
    FeedbackKind(12, "complained", "", "apple"): 1,
}


def test_each_day_has_a_line() -> None:
    days = by_day(COUNTS, range(10, 14))
    assert [each.start[:10] for each in days] == ["1970-01-11", "1970-01-12", "1970-01-13", "1970-01-14"]
    assert [each.delivered for each in days] == [3000, 10_005, 0, 0]
    assert [each.complained for each in days] == [0, 6, 1, 0]
    assert (days[1].bounced, days[2].failed, days[2].late_bounced) == (3, 4, 7)
    assert (days[0].classes, days[3].classes) == (NONE, NONE)
    assert (days[1].classes.policy, days[2].classes.temporary, days[2].classes.mailbox_full) == (2, 4, 7)
    assert [each.delivered for each in by_day(COUNTS, range(11, 12))] == [10_005]


def test_providers_and_their_complaints() -> None:
    found = by_provider(COUNTS)
    assert [(each.provider, each.delivered, each.complained, each.complaint_rate) for each in found] == [
        ("google", 4000, 6, 0.0015),
        ("yahoo", 5, 0, 0.0),
        ("apple", 0, 1, None),
        (None, 9000, 0, 0.0),
    ]
    assert [each.classes.mailbox_full for each in found] == [7, 0, 0, 0]
    assert by_provider({}) == []


def test_classes_are_summed() -> None:
    assert classes(COUNTS) == BounceClassesObject(0, 7, 2, 0, 0, 0, 4, 0)
    assert classes({}) == NONE


def counts_of(days: int) -> dict[FeedbackKind, int]:
    classed = [("bounced", each) for each in ("policy", "other", "content", "mailbox_full", "reputation")]
    kinds = [("delivered", ""), ("failed", "temporary"), *classed]
    return {
        FeedbackKind(day, kind, named, f"provider{provider}"): 5
        for day in range(days)
        for kind, named in kinds
        for provider in range(12)
    }


def reports_of(days: int, domains: int) -> list[DomainReports]:
    source = SeenSource(DmarcSource("192.0.2.1", 9, 9, 9, 9, 0, 0), 3, days)
    dmarc = DmarcStanding(900, (DmarcDay(1, 100, 99, "none", 100),) * days, (source,) * days)
    tls = TlsStanding(900, (TlsDay(1, 5, 1),) * days)
    return [DomainReports(f"{each}.example.com", "bounces.example.com", dmarc, tls) for each in range(domains)]


@pytest.mark.parametrize(("days", "counted", "domains"), [(90, 90, 0), (90, 0, 50), (1, 4, 0), (30, 0, 3), (90, 0, 0)])
def test_what_is_called_cheap_is_cheap(days: int, counted: int, domains: int) -> None:
    """What the event loop would do takes it less than 5 ms, and what takes longer is left to a worker."""
    counts, reports = counts_of(counted), reports_of(days, domains)
    took = cpu_seconds(lambda: encoded_feedback(True, counts, range(days), reports, reports, "req_1"))
    assert took < 0.005 or feedback_cost(counts, days, reports) > ON_LOOP
