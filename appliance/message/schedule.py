"""Reads the time when a scheduled message is due: `scheduled_at`, or HOLDUNTIL over SMTP. No I/O, no state.

A refusal names the field.
"""

import re
from datetime import datetime

from appliance.errors import Refused, invalid
from appliance.message.header_lines import date
from appliance.message.limits import SCHEDULED_AHEAD
from appliance.times import DAY, SECOND, rfc3339

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DAYS = SCHEDULED_AHEAD // DAY
EXAMPLE = "2026-11-15T13:00:00+01:00"


def due_time(text: str, now: int, field: str = "scheduled_at") -> int:
    """Read an RFC 3339 time with an offset, after now and at most SCHEDULED_AHEAD later."""
    due_at = microseconds(text, field)
    if due_at <= now:
        raise invalid(field, f"{text} is in the past. Send a later time, or leave the field out.")
    if due_at > now + SCHEDULED_AHEAD:
        raise invalid(field, f"must be at most {_DAYS} days ahead, that is until {rfc3339(now + SCHEDULED_AHEAD)}")
    return due_at


def microseconds(text: str, field: str) -> int:
    """Read any RFC 3339 time with an offset."""
    fault: Refused = invalid(field, f"expected an RFC 3339 time with an offset, such as {EXAMPLE}")
    if not _DATE_TIME.fullmatch(text):
        raise fault
    try:
        return round(datetime.fromisoformat(text.upper()).timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise fault from None


def redated(mime: bytes, before: int, after: int) -> bytes | None:
    """Replace the Date that the server wrote, in seconds; None without one. `mime` may be the first bytes only."""
    at = 0
    if mime.startswith(b"Received:"):  # submitted: ours follows the two lines of our Received; a client's Date stays
        at = mime.find(b"\r\n", mime.find(b"\r\n") + 2) + 2
    old = date(before).encode()
    return b"".join([mime[:at], date(after).encode(), mime[at + len(old) :]]) if mime.startswith(old, at) else None
