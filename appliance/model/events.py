"""The JSON body of a webhook event. Made when the result is recorded, so all attempts post the same bytes. No I/O."""

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.json import Encoder

from appliance.model.mail import RecipientStatus
from appliance.model.webhooks import EventType
from appliance.times import rfc3339

EVENT_SUBJECT_CHARACTERS = 200  # of the subject in an event
EVENT_RESPONSE_CHARACTERS = 500  # of the server's reply in an event, by the interface

EVENT_TYPES = {
    RecipientStatus.DELIVERED: EventType.DELIVERED.value,
    RecipientStatus.BOUNCED: EventType.BOUNCED.value,
    RecipientStatus.FAILED: EventType.FAILED.value,
}
PING_TYPE = "webhook.test"
PING_SUBJECT = "Test event: your webhook works"

_ENCODER = Encoder()


class _Data(Struct, gc=False):
    """The data of one recipient; what is unset is left out."""

    email_id: str | UnsetType
    recipient_id: str | UnsetType
    to: str | UnsetType
    sender: str | UnsetType = field(name="from")
    subject: str | UnsetType
    smtp_code: int | UnsetType
    smtp_response: str | UnsetType
    test: bool | UnsetType = UNSET


class _Envelope(Struct, gc=False):
    id: str
    type: str
    created_at: str
    data: _Data


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
    data = _Data(
        email_id or UNSET,
        recipient_id or UNSET,
        to or UNSET,
        envelope_from or UNSET,
        subject[:EVENT_SUBJECT_CHARACTERS] or UNSET,
        UNSET if smtp_code is None else smtp_code,
        (smtp_response or "")[:EVENT_RESPONSE_CHARACTERS] or UNSET,
    )
    return _ENCODER.encode(_Envelope(event_id, EVENT_TYPES[status], rfc3339(created_at), data))


def ping_envelope(event_id: str, created_at: int) -> bytes:
    data = _Data(UNSET, UNSET, UNSET, UNSET, PING_SUBJECT, UNSET, UNSET, test=True)
    return _ENCODER.encode(_Envelope(event_id, PING_TYPE, rfc3339(created_at), data))
