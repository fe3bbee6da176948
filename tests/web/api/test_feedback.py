"""Sums of what came back: by day, by provider and by class."""

from appliance.model.dashboard import FeedbackKind
from appliance.web.api.feedback import BounceClassesObject, by_day, by_provider, classes

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
    """Also those without mail, oldest first; what is of another day is left out."""
    days = by_day(COUNTS, range(10, 14))
    assert [each.start[:10] for each in days] == ["1970-01-11", "1970-01-12", "1970-01-13", "1970-01-14"]
    assert [each.delivered for each in days] == [3000, 10_005, 0, 0]
    assert [each.complained for each in days] == [0, 6, 1, 0]
    assert (days[1].bounced, days[2].failed, days[2].late_bounced) == (3, 4, 7)
    assert (days[0].classes, days[3].classes) == (NONE, NONE)
    assert (days[1].classes.policy, days[2].classes.temporary, days[2].classes.mailbox_full) == (2, 4, 7)
    assert [each.delivered for each in by_day(COUNTS, range(11, 12))] == [10_005]


def test_providers_and_their_complaints() -> None:
    """The largest first, all without a name last; a rate needs deliveries."""
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
    """Whatever has none is not among them."""
    assert classes(COUNTS) == BounceClassesObject(0, 7, 2, 0, 0, 0, 4, 0)
    assert classes({}) == NONE
