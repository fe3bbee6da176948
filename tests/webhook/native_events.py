"""One event of each kind, as it is stored: the input of the other providers' formats."""

import json
from typing import Any

MESSAGE_ID = "msg_18de7680f36e000d7a0be14ea5e5ab65"
EVENT_ID = "evt_18de768175090030e8b3aabfc2b7e9ca"
# Name of the case: type, SMTP code, reply and bounce class.
CASES: dict[str, tuple[str, int | None, str, str]] = {
    "delivered": ("email.delivered", 250, "250 2.0.0 OK: queued as 4XyZ9", ""),
    "bounced": ("email.bounced", 550, "550 5.1.1 No such user here", "invalid_recipient"),
    "refused": ("email.bounced", 550, "550 5.7.1 Not from you", "policy"),
    "suppressed": ("email.bounced", None, "suppressed: this address is on the account's suppression list", "other"),
    "failed": ("email.failed", 451, "451 4.7.1 Try again later", ""),
    "unreached": ("email.failed", None, "no server accepted a connection", ""),
    "delayed": ("email.delayed", 452, "452 4.2.2 The mailbox is full", "mailbox_full"),
    "late_bounced": ("email.late_bounced", 550, "550 5.1.1 No such user here", "invalid_recipient"),
    "late_full": ("email.late_bounced", 552, "552 5.2.2 The mailbox is full", "mailbox_full"),
    "complained": ("email.complained", None, "", ""),
}
LABELS: dict[str, Any] = {
    "message_id": "18ddef94796@example.com",
    "tags": ["receipt", "eu"],
    "metadata": {"order": "10045"},
}


def native(case: str, **data: Any) -> bytes:
    """The body of an event; an empty field is missing, as always."""
    kind, code, reply, bounce_class = CASES[case]
    about = {"email_id": MESSAGE_ID, "recipient_id": "rcp_1", "to": "ada@example.net", "from": "orders@example.com"}
    result = {"subject": "Your order", "smtp_code": code, "smtp_response": reply, "bounce_class": bounce_class}
    filled = {name: value for name, value in (about | result | LABELS | data).items() if value}
    event = {"id": EVENT_ID, "type": kind, "created_at": "2025-06-15T15:06:40.123Z", "data": filled}
    return json.dumps(event).encode()
