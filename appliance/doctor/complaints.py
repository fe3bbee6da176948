"""Judges the rate of complaints by provider, by the lines that large mailbox providers publish for bulk senders."""

from collections.abc import Iterable
from typing import Final

from appliance.doctor import Finding, fault, ok, warning
from appliance.model.feedback import COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM, ComplaintRate
from appliance.times import DAY

COMPLAINTS_SINCE: Final = 7 * DAY
WARNING_RATE, FAULT_RATE = COMPLAINT_MARKS

_ADVICE: Final = (
    "Send only what recipients asked for, and let them unsubscribe with one click."
    " Above 0.3 % large providers refuse mail."
)


def judge_complaints(rates: Iterable[ComplaintRate]) -> list[Finding]:
    """A line for each provider that took enough mail and whose users complained."""
    found = []
    for each in rates:
        if each.delivered < COMPLAINTS_JUDGED_FROM or not each.complaints:
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
