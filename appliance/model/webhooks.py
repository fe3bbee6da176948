"""Webhooks, their posts and the delivery history: enums and frozen records.

The JSON body of an event is made when the result is recorded, so all attempts post the same bytes. No I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from appliance.model.feedback import FeedbackRecipient
from appliance.model.mail import DueRecipient, MessageLabels, RecipientStatus
from appliance.model.streams import TRANSACTIONAL
from appliance.times import rfc3339

WEBHOOK_URL_LENGTH = 2048  # characters; some software cuts longer ones
EVENT_SUBJECT_CHARACTERS = 200  # of the subject in an event
EVENT_RESPONSE_CHARACTERS = 500  # of the server's reply in an event, by the interface
PING_TYPE = "webhook.test"
PING_SUBJECT = "Test event: your webhook works"
EXCERPT_BYTES = 2048  # of a body in the history of deliveries, by the interface


class EventType(StrEnum):
    """The events a webhook can subscribe to."""

    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"
    DELAYED = "email.delayed"
    LATE_BOUNCED = "email.late_bounced"
    COMPLAINED = "email.complained"
    RECEIVED = "email.received"


# The final results, which a webhook gets by default. The interface defines the fields of their bodies.
RESULT_EVENTS = (EventType.DELIVERED, EventType.BOUNCED, EventType.FAILED)
EVENT_TYPES = {RecipientStatus(event.removeprefix("email.")): event for event in RESULT_EVENTS}


class Trigger(StrEnum):
    """Why an event is posted."""

    EVENT = "event"
    PING = "ping"
    REPLAY = "replay"


class WebhookFormat(StrEnum):
    """The provider whose shape the posted events have."""

    NATIVE = "native"
    RESEND = "resend"
    POSTMARK = "postmark"
    MAILGUN = "mailgun"
    SENDGRID = "sendgrid"


class PostStatus(StrEnum):
    """The status of a post; `pending` until a 2xx or the last attempt."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Webhook:
    id: str
    account_id: str
    url: str
    events: tuple[EventType, ...]
    enabled: bool
    secret: bytes = field(repr=False)  # sealed
    secret_hint: str
    created_at: int
    updated_at: int
    last_success_at: int | None
    last_failure_at: int | None
    format: WebhookFormat = WebhookFormat.NATIVE


class WebhookOptions(Struct, frozen=True):
    url: str
    events: tuple[EventType, ...]
    enabled: bool
    format: WebhookFormat = WebhookFormat.NATIVE


@dataclass(frozen=True, slots=True)
class SealedSecret:
    sealed: bytes = field(repr=False)
    hint: str


class WebhookDelivery(Struct, frozen=True):
    id: str
    event_id: str
    type: str
    message_id: str | None
    recipient_id: str | None
    url: str
    trigger: Trigger
    status: PostStatus
    attempt: int
    request_body: bytes
    response_status: int | None
    response_body: str | None
    error: str | None
    duration_ms: int | None
    created_at: int
    attempted_at: int | None
    next_attempt_at: int | None
    format: WebhookFormat


class Lane(Struct, frozen=True, order=True, gc=False):
    """One webhook's posts of one trigger, sent in order."""

    webhook_id: str
    trigger: Trigger


class DuePost(Struct, frozen=True, gc=False):
    lane: Lane
    id: str
    attempt: int  # attempts so far
    body: bytes
    event_id: str = ""
    message_id: str | None = None  # a ping is about no message
    recipient_id: str | None = None
    format: WebhookFormat = WebhookFormat.NATIVE
    type: str = ""  # of the event


class PostOutcome(StrEnum):
    """What an attempt brought: a 2xx, another response by its class, or none."""

    SUCCESS = "success"
    REDIRECT = "redirect"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    NO_RESPONSE = "no_response"


_OUTCOMES = {3: PostOutcome.REDIRECT, 4: PostOutcome.CLIENT_ERROR, 5: PostOutcome.SERVER_ERROR}


class WebhookHour(Struct, frozen=True):
    """The attempts of one hour that had the same outcome."""

    hour: int  # since 1970
    outcome: PostOutcome
    attempts: int
    total_ms: int
    slowest_ms: int


class PostResult(Struct, frozen=True, gc=False):
    post: DuePost
    status: PostStatus
    url: str
    response_status: int | None
    response_body: str | None
    error: str | None
    duration_ms: int
    attempted_at: int
    next_attempt_at: int | None  # set exactly when `status` is pending

    @property
    def outcome(self) -> PostOutcome:
        if self.status is PostStatus.SUCCESS:
            return PostOutcome.SUCCESS
        return _OUTCOMES.get((self.response_status or 0) // 100, PostOutcome.NO_RESPONSE)


def excerpt(body: bytes) -> str:
    """Return the start of a body for the delivery history; invalid UTF-8 becomes U+FFFD."""
    text = body[:EXCERPT_BYTES].decode("utf-8", "replace")
    if len(body) >= EXCERPT_BYTES:  # perhaps cut within a character
        text = text.removesuffix("\ufffd")
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")


# ---- the body of an event

_ENCODER = msgspec.json.Encoder()


class WebhookEventData(Struct, gc=False):
    """The data of an event: one recipient and its result, without empty fields."""

    email_id: Annotated[str | UnsetType, Meta(description="Message id, as in `GET /emails/{id}`.")] = UNSET
    recipient_id: Annotated[str | UnsetType, Meta(description="Recipient id.")] = UNSET
    to: Annotated[str | UnsetType, Meta(description="Recipient address.")] = UNSET
    sender: Annotated[str | UnsetType, Meta(description="Envelope sender (MAIL FROM).")] = msgspec.field(
        name="from", default=UNSET
    )
    subject: Annotated[str | UnsetType, Meta(description="First 200 characters of the subject.")] = UNSET
    smtp_code: Annotated[int | UnsetType, Meta(description="SMTP reply code; omitted if no server replied.")] = UNSET
    smtp_response: Annotated[str | UnsetType, Meta(description="First 500 characters of the SMTP reply or error.")] = (
        UNSET
    )
    bounce_class: Annotated[
        str | UnsetType,
        Meta(description="Class of the refusal. Only in `email.bounced`, `email.late_bounced` and `email.delayed`."),
    ] = UNSET
    message_id: Annotated[str | UnsetType, Meta(description="`Message-ID` of the message, without brackets.")] = UNSET
    tags: Annotated[Sequence[str] | UnsetType, Meta(description="Tags of the message.")] = UNSET
    metadata: Annotated[dict[str, str] | UnsetType, Meta(description="Metadata of the message.")] = UNSET
    stream: Annotated[str | UnsetType, Meta(description="Stream of the message.")] = UNSET
    test: Annotated[bool | UnsetType, Meta(description="True in test events; omitted otherwise.")] = UNSET


class WebhookEvent(Struct, gc=False):
    """The body of a post to a webhook."""

    id: Annotated[str, Meta(description="Event id, `evt_…`. Retries and replays keep it.")]
    type: Annotated[str, Meta(extra_json_schema={"enum": [*EventType, PING_TYPE]}, description="Event type.")]
    created_at: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}, description="Time of the result. Retries and replays keep it."),
    ]
    data: Annotated[WebhookEventData, Meta(description="The recipient and its result.")]


def envelope(
    event_id: str,
    kind: EventType,
    created_at: int,
    recipient: DueRecipient | FeedbackRecipient,
    labels: MessageLabels,
    code: int | None = None,
    response: str | None = None,
    bounce_class: str | None = None,
) -> bytes:
    """Return the JSON body of an event; `code` and `response` are of the SMTP reply."""
    data = WebhookEventData(
        recipient.message_id or UNSET,
        recipient.id or UNSET,
        recipient.address or UNSET,
        recipient.envelope_from or UNSET,
        recipient.subject[:EVENT_SUBJECT_CHARACTERS] or UNSET,
        UNSET if code is None else code,
        (response or "")[:EVENT_RESPONSE_CHARACTERS] or UNSET,
        bounce_class or UNSET,
        labels.header_id or UNSET,
        labels.tags or UNSET,
        labels.metadata or UNSET,
        labels.stream or UNSET,
    )
    return _ENCODER.encode(WebhookEvent(event_id, str(kind), rfc3339(created_at), data))


# The result in the example of each event: SMTP code, response and bounce class.
_EXAMPLES: dict[EventType, tuple[int | UnsetType, str | UnsetType, str | UnsetType]] = {
    EventType.DELIVERED: (250, "250 2.0.0 OK: queued as 4XyZ9", UNSET),
    EventType.BOUNCED: (550, "550 5.1.1 No such user here", "invalid_recipient"),
    EventType.FAILED: (451, "451 4.7.1 Try again later", UNSET),
    EventType.DELAYED: (452, "452 4.2.2 The mailbox is full", "mailbox_full"),
    EventType.LATE_BOUNCED: (550, "550 5.1.1 No such user here", "invalid_recipient"),
    EventType.COMPLAINED: (UNSET, UNSET, UNSET),
}


def example_envelope(event_id: str, kind: EventType | None, created_at: int) -> bytes:
    """Return the JSON body of a test event: `webhook.test`, or an example of this kind about no real message."""
    if kind is None:
        data = WebhookEventData(UNSET, UNSET, UNSET, UNSET, PING_SUBJECT, UNSET, UNSET, test=True)
    else:
        message = "msg_00000000000000000000000000000000", "rcp_00000000000000000000000000000000"
        mail = "ada@example.net", "orders@example.com", "Your order"
        code, response, bounce_class = _EXAMPLES[kind]
        data = WebhookEventData(*message, *mail, code, response, bounce_class, test=True)
        data.message_id, data.tags, data.metadata = f"{'0' * 32}@example.com", ["order"], {"order": "10045"}
        data.stream = TRANSACTIONAL.name
    return _ENCODER.encode(WebhookEvent(event_id, kind or PING_TYPE, rfc3339(created_at), data))
