"""Judges complaint rates per provider, by the limits that large mailbox providers publish for bulk senders."""

from collections.abc import Iterable
from typing import Final

from appliance.doctor import Finding, fault, ok, warning
from appliance.model.feedback import COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM, ComplaintRate
from appliance.times import DAY

COMPLAINTS_SINCE: Final = 7 * DAY
WARNING_RATE, FAULT_RATE = COMPLAINT_MARKS

_ADVICE: Final = (
    "Send only mail that recipients requested, and let them unsubscribe with one click."
    " Above 0.3 % large providers reject mail."
)


def judge_complaints(rates: Iterable[ComplaintRate]) -> list[Finding]:
    """Return a finding for each provider with complaints and enough delivered mail."""
    findings = []
    for provider in rates:
        if provider.delivered < COMPLAINTS_JUDGED_FROM or not provider.complaints:
            continue
        rate = provider.complaints / provider.delivered
        subject = provider.provider or "other providers"
        text = f"{provider.complaints:,} complaints of {provider.delivered:,} delivered in 7 days: {rate:.2%}"
        if rate > FAULT_RATE:
            findings.append(fault("complaints", subject, text, _ADVICE))
        elif rate > WARNING_RATE:
            findings.append(warning("complaints", subject, text, _ADVICE))
        else:
            findings.append(ok("complaints", subject, text))
    return findings
