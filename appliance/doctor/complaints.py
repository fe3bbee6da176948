"""Judges the rate of complaints by provider, by the lines that large mailbox providers publish for bulk senders."""

from collections.abc import Iterable
from typing import Final

from appliance.doctor import Finding, fault, ok, warning
from appliance.model.feedback import ComplaintRate
from appliance.times import DAY

COMPLAINTS_SINCE: Final = 7 * DAY
ENOUGH_DELIVERED: Final = 1_000  # recipients: with fewer a single complaint would be above the first line
WARNING_RATE, FAULT_RATE = 0.001, 0.003

_ADVICE: Final = (
    "Send only what recipients asked for, and let them unsubscribe with one click."
    " Above 0.3 % large providers refuse mail."
)


def judge_complaints(rates: Iterable[ComplaintRate]) -> list[Finding]:
    """A line for each provider that took enough mail and whose users complained."""
    found = []
    for each in rates:
        if each.delivered < ENOUGH_DELIVERED or not each.complaints:
            continue
        rate = each.complaints / each.delivered
        subject = each.provider or "other providers"
        text = f"{each.complaints:,} complaints of {each.delivered:,} delivered in 7 days: {rate:.2%}"
        if rate > FAULT_RATE:
            found.append(fault("complaints", subject, text, _ADVICE))
        elif rate > WARNING_RATE:
            found.append(warning("complaints", subject, text, _ADVICE))
        else:
            found.append(ok("complaints", subject, text))
    return found
