"""In charge of what an event says: the envelope's bytes, fixed when the result is recorded. PURE."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from appliance.model import RecipientStatus

SUBJECT_CHARACTERS = 200  # of the subject in an event
RESPONSE_CHARACTERS = 500  # of the server's reply in an event, by the interface

TYPES = {
    RecipientStatus.DELIVERED: "email.delivered",
    RecipientStatus.BOUNCED: "email.bounced",
    RecipientStatus.FAILED: "email.failed",
}


def rfc3339(microseconds: int) -> str:
    """A time as the interface writes it: UTC, RFC 3339, to the millisecond."""
    moment = datetime.fromtimestamp(microseconds // 1000 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def envelope(
    event_id: str,
    status: RecipientStatus,
    created_at: int,
    *,
    email_id: str,
    recipient_id: str,
    to: str,
    envelope_from: str,
    subject: str,
    smtp_code: int | None,
    smtp_response: str | None,
) -> bytes:
    """The JSON body of a recipient's final result; empty fields are left out."""
    data: dict[str, Any] = {
        "email_id": email_id,
        "recipient_id": recipient_id,
        "to": to,
        "from": envelope_from,
        "subject": subject[:SUBJECT_CHARACTERS],
        "smtp_code": smtp_code,
        "smtp_response": (smtp_response or "")[:RESPONSE_CHARACTERS],
    }
    data = {name: value for name, value in data.items() if value not in (None, "")}
    body = {"id": event_id, "type": TYPES[status], "created_at": rfc3339(created_at), "data": data}
    return msgspec.json.encode(body)
