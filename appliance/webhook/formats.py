"""Shapes events like other providers' webhooks, for receivers that were written for them. No I/O.

The body is made once, with the event's post, so retries and replays send the same bytes. Every format posts one event
per recipient, and leaves out what this service does not know. docs/webhook-formats.md documents each shape.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from appliance.environment import identifier_time
from appliance.model.mail import BounceClass
from appliance.model.streams import TRANSACTIONAL
from appliance.model.webhooks import EventType, WebhookFormat
from appliance.times import rfc3339

Json = dict[str, Any]

_ENHANCED = re.compile(r"[245][0-9][0-9] ([245]\.[0-9]{1,3}\.[0-9]{1,3})\b")  # RFC 3463, in front of a reply's text
POSTMARK_ID_BITS = 53  # as many as JavaScript reads exactly


class Data(Struct, gc=False):
    """The data of an event, with empty values for missing ones."""

    email_id: str = ""
    to: str = ""
    sender: str = field(name="from", default="")
    subject: str = ""
    smtp_code: int | None = None
    smtp_response: str = ""
    bounce_class: str = ""
    message_id: str = ""  # without brackets
    tags: list[str] = []
    metadata: dict[str, str] = {}
    stream: str = ""
    test: bool = False

    @property
    def is_hard(self) -> bool:
        """Whether a bounce is the address's fault, or of an unknown cause; otherwise later mail may arrive."""
        return self.bounce_class in ("", BounceClass.INVALID_RECIPIENT, BounceClass.OTHER)

    @property
    def is_unknown(self) -> bool:
        return self.bounce_class == BounceClass.INVALID_RECIPIENT

    @property
    def enhanced(self) -> str:
        match = _ENHANCED.match(self.smtp_response)
        return match[1] if match else ""

    @property
    def bracketed_id(self) -> str:
        return f"<{self.message_id}>" if self.message_id else ""


class Event(Struct, gc=False):
    id: str
    type: EventType
    created_at: str
    data: Data

    @property
    def is_suppressed(self) -> bool:
        """Whether the recipient bounced without an attempt; that has the class `other`, too."""
        no_reply = self.data.smtp_code is None and self.data.bounce_class in ("", BounceClass.OTHER)
        return no_reply and self.type is EventType.BOUNCED


class _Kind(Struct, gc=False):
    type: EventType


_DECODER = msgspec.json.Decoder(Event)
_KIND_DECODER = msgspec.json.Decoder(_Kind)
_ENCODER = msgspec.json.Encoder()


def shaped(format: WebhookFormat, body: bytes) -> bytes:
    """Return the body of a post in this format, from the native body of an event about a recipient."""
    if format is WebhookFormat.NATIVE:
        return body
    if _KIND_DECODER.decode(body).type is EventType.RECEIVED:
        return body
    event = _DECODER.decode(body)
    if event.data.test:
        event.data.metadata["test"] = "true"
    return _ENCODER.encode(_SHAPES[format](event, event.data))


# ---- Resend

# Others have the same name here.
_RESEND = {EventType.DELAYED: "email.delivery_delayed", EventType.LATE_BOUNCED: "email.bounced"}
_RESEND_SUBTYPES: dict[str, str] = {
    BounceClass.INVALID_RECIPIENT: "NoEmail",
    BounceClass.MAILBOX_FULL: "MailboxFull",
    BounceClass.CONTENT: "ContentRejected",
}


def _resend(event: Event, data: Data) -> Json:
    shown: Json = {
        "created_at": rfc3339(identifier_time(data.email_id)),
        "email_id": data.email_id,
        "message_id": data.bracketed_id,
        "from": data.sender,
        "to": [data.to],
        "subject": data.subject,
        "tags": dict.fromkeys(data.tags, "") | data.metadata,
    }
    kind = _RESEND.get(event.type, event.type.value)
    if kind == "email.bounced":
        shown["bounce"] = _resend_bounce(event, data)
    elif kind == "email.failed":
        shown["failed"] = {"reason": data.smtp_response}
    return {"type": kind, "created_at": event.created_at, "data": shown}


def _resend_bounce(event: Event, data: Data) -> Json:
    if event.is_suppressed:
        message = f"The server has suppressed sending to this address: {data.smtp_response}"
        return {"type": "Permanent", "subType": "Suppressed", "message": message}
    return {
        "type": "Permanent" if data.is_hard else "Transient",
        "subType": _RESEND_SUBTYPES.get(data.bounce_class, "General"),
        "message": f"The recipient's server sent a bounce message: {data.smtp_response}",
        "diagnosticCode": [f"smtp; {data.smtp_response}"],
    }


# ---- Postmark
class PostmarkBounce(NamedTuple):
    """A type of bounce, as Postmark numbers them. listmonk refuses some others, such as `Blocked`."""

    type: str
    code: int
    name: str
    description: str

    @property
    def shown(self) -> Json:
        return {"Type": self.type, "TypeCode": self.code, "Name": self.name, "Description": self.description}


HARD_BOUNCE = PostmarkBounce("HardBounce", 1, "Hard bounce", "The recipient's server permanently rejected the message.")
SOFT_BOUNCE = PostmarkBounce(
    "SoftBounce", 4096, "Soft bounce", "The message was not delivered; the address may be valid."
)
TRANSIENT_BOUNCE = PostmarkBounce("Transient", 2, "Message delayed", "The message is deferred and still being retried.")
_SUPPRESSED = PostmarkBounce("ManuallyDeactivated", 100_002, "Manually deactivated", "The address is suppressed.")
_COMPLAINT = PostmarkBounce("SpamComplaint", 100_001, "Spam complaint", "The recipient marked the message as spam.")
_POSTMARK = {
    EventType.BOUNCED: HARD_BOUNCE,
    EventType.FAILED: SOFT_BOUNCE,
    EventType.DELAYED: TRANSIENT_BOUNCE,
    EventType.LATE_BOUNCED: HARD_BOUNCE,
    EventType.COMPLAINED: _COMPLAINT,
}


def _postmark(event: Event, data: Data) -> Json:
    bounce = _postmark_bounce(event, data)
    shown: Json = {
        "RecordType": "Delivery" if bounce is None else "SpamComplaint" if bounce is _COMPLAINT else "Bounce",
        "ServerID": 0,
        "MessageStream": "outbound" if data.stream in ("", TRANSACTIONAL.name) else data.stream,
        "MessageID": data.email_id,
        "Tag": data.tags[0] if data.tags else "",
        "Metadata": data.metadata,
        "Details": data.smtp_response,
    }
    if bounce is None:
        return shown | {"Recipient": data.to, "DeliveredAt": event.created_at}
    is_inactive = (bounce is HARD_BOUNCE and data.is_unknown) or bounce in (_SUPPRESSED, _COMPLAINT)
    return shown | {
        "ID": int(event.id.rpartition("_")[2], 16) % 2**POSTMARK_ID_BITS,
        **bounce.shown,
        "Email": data.to,
        "From": data.sender,
        "BouncedAt": event.created_at,
        "DumpAvailable": False,
        "Inactive": is_inactive,
        "CanActivate": is_inactive,
        "Subject": data.subject,
    }


def _postmark_bounce(event: Event, data: Data) -> PostmarkBounce | None:
    if event.is_suppressed:
        return _SUPPRESSED
    bounce = _POSTMARK.get(event.type)
    return SOFT_BOUNCE if bounce is HARD_BOUNCE and not data.is_hard else bounce


# ---- Mailgun
class _Failure(NamedTuple):
    """What Mailgun says of a recipient that did not get the message."""

    severity: str
    reason: str
    code: int  # Mailgun's own, if no server replied


_MAILGUN_SUPPRESSED = _Failure("permanent", "suppress-bounce", 605)
_MAILGUN = {
    EventType.BOUNCED: _Failure("permanent", "bounce", 550),
    EventType.FAILED: _Failure("permanent", "old", 602),
    EventType.DELAYED: _Failure("temporary", "generic", 499),
    EventType.LATE_BOUNCED: _Failure("permanent", "bounce", 550),
}


def _mailgun(event: Event, data: Data) -> Json:
    """The event without `signature`, which `signatures.py` adds at each attempt."""
    failure = _MAILGUN_SUPPRESSED if event.is_suppressed else _MAILGUN.get(event.type)
    level = "warn" if event.type in (EventType.DELAYED, EventType.COMPLAINED) else "error" if failure else "info"
    headers = {"to": data.to, "from": data.sender, "subject": data.subject, "message-id": data.message_id}
    shown: Json = {
        "id": event.id,
        "timestamp": identifier_time(event.id) / 1_000_000,
        "log-level": level,
        "event": "failed" if failure else event.type.removeprefix("email."),
        "recipient": data.to,
        "recipient-domain": data.to.rpartition("@")[2],
        "domain": {"name": data.sender.rpartition("@")[2]},
        "envelope": {"sender": data.sender, "targets": data.to, "transport": "smtp"},
        "message": {"headers": headers, "attachments": []},
        "flags": {"is-routed": False, "is-authenticated": True, "is-system-test": False, "is-test-mode": data.test},
        "campaigns": [],
        "tags": data.tags,
        "user-variables": data.metadata,
    }
    if event.type is not EventType.COMPLAINED:
        text = {"message": data.smtp_response, "description": "", "enhanced-code": data.enhanced}
        shown["delivery-status"] = {"code": data.smtp_code, **text}
    if failure is not None:
        shown |= {"severity": failure.severity, "reason": failure.reason}
        is_hard = failure.reason == "bounce" and data.is_hard
        shown["delivery-status"] |= {
            "code": data.smtp_code or failure.code,
            "bounce-type": "hard" if is_hard else "soft",
        }
    return {"event-data": shown}


# ---- SendGrid

_SENDGRID = {
    EventType.DELIVERED: "delivered",
    EventType.BOUNCED: "bounce",
    EventType.FAILED: "bounce",
    EventType.DELAYED: "deferred",
    EventType.LATE_BOUNCED: "bounce",
    EventType.COMPLAINED: "spamreport",
}
# listmonk counts `technical` and `content` as soft bounces, and all others as hard ones.
_SENDGRID_CLASSES: dict[str, str] = {
    "": "unclassified",
    BounceClass.INVALID_RECIPIENT: "invalid",
    BounceClass.OTHER: "unclassified",
    BounceClass.POLICY: "content",
    BounceClass.CONTENT: "content",
}


def _sendgrid(event: Event, data: Data) -> list[Json]:
    shown: Json = data.metadata | {
        "email": data.to,
        "timestamp": identifier_time(event.id) // 1_000_000,
        "event": "dropped" if event.is_suppressed else _SENDGRID[event.type],
        "sg_event_id": event.id,
        "sg_message_id": data.email_id,
    }
    if data.message_id:
        shown["smtp-id"] = data.bracketed_id
    if data.tags:
        shown["category"] = data.tags
    if event.type in (EventType.DELIVERED, EventType.DELAYED):
        shown["response"] = data.smtp_response
    elif event.type is not EventType.COMPLAINED:
        shown["reason"] = data.smtp_response
    if shown["event"] == "bounce":
        is_last = event.type is EventType.FAILED
        shown["type"] = "bounce" if data.is_hard and not is_last else "blocked"
        known = "technical" if is_last else _SENDGRID_CLASSES.get(data.bounce_class, "technical")
        shown["bounce_classification"] = known
        shown["status"] = data.enhanced or ("4.0.0" if is_last else "5.0.0")
    return [shown]


_SHAPES: dict[WebhookFormat, Callable[[Event, Data], Any]] = {
    WebhookFormat.RESEND: _resend,
    WebhookFormat.POSTMARK: _postmark,
    WebhookFormat.MAILGUN: _mailgun,
    WebhookFormat.SENDGRID: _sendgrid,
}
