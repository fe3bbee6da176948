"""The numbers of an account's mail, and the one definition of each: docs/dashboard.md has them in words.

The API, the dashboard, the command line and the metrics use these names, rates and marks. Every number counts
recipients. Test mail and the service's own mail are in none of them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

RESULTS = ("delivered", "bounced", "failed", "suppressed", "cancelled")  # final; a recipient has one of them
RETURNED = ("late_bounced", "complained")  # after delivery, in addition to `delivered`
COUNTED = ("sent", *RESULTS)
NUMBERS = (*COUNTED, *RETURNED)

BOUNCE_MARKS = (0.05, 0.1)  # bounce rates that are high and too high
COMPLAINT_MARKS = (0.001, 0.003)  # complaint rates at which large mailbox providers warn, and refuse, bulk senders
JUDGED_FROM = 200  # recipients whose server decided: below, one or two bounces would decide
COMPLAINTS_JUDGED_FROM = 1_000  # deliveries: below, a single complaint would exceed the first rate


class RateMark(StrEnum):
    """Rating of a bounce or complaint rate."""

    GOOD = "good"
    HIGH = "high"
    TOO_HIGH = "too_high"
    TOO_FEW = "too_few"  # too little mail to rate


def tried(counts: Mapping[str, int]) -> int:
    """Return the recipients whose servers accepted or refused the message, or never decided."""
    return sum(counts.get(result, 0) for result in ("delivered", "bounced", "failed"))


def rates(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the bounce and complaint rate of these counts, each with its mark."""
    bounced, complained, delivered = (counts.get(name, 0) for name in ("bounced", "complained", "delivered"))
    return {
        "bounce_rate": rate(bounced, tried(counts)),
        "bounce_mark": mark(bounced, tried(counts), BOUNCE_MARKS, JUDGED_FROM),
        "complaint_rate": rate(complained, delivered),
        "complaint_mark": mark(complained, delivered, COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM),
    }


def rate(count: int, total: int) -> float | None:
    return round(count / total, 5) if total else None


def mark(count: int, total: int, marks: tuple[float, float], judged_from: int) -> RateMark:
    high, too_high = marks
    if total < judged_from:
        return RateMark.TOO_FEW
    if count < high * total:
        return RateMark.GOOD
    return RateMark.HIGH if count < too_high * total else RateMark.TOO_HIGH
