"""Webhooks, their posts and the history of deliveries, as all packages know them: enums and frozen records."""

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

EXCERPT_BYTES = 2048  # of a body in the history of deliveries, by the interface


class EventType(StrEnum):
    """The events a webhook can subscribe to."""

    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"


class Trigger(StrEnum):
    """Why an event is posted."""

    EVENT = "event"
    PING = "ping"
    REPLAY = "replay"


class PostStatus(StrEnum):
    """The status of a post; `pending` until it is answered with a 2xx or given up."""

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


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The fields of a webhook that its account sets."""

    url: str
    events: tuple[EventType, ...]
    enabled: bool


@dataclass(frozen=True, slots=True)
class SealedSecret:
    sealed: bytes = field(repr=False)
    hint: str


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One post of one event, as the history of deliveries shows it."""

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


class Lane(Struct, frozen=True, order=True, gc=False):
    """One webhook's posts of one trigger, which begin in order."""

    webhook_id: str
    trigger: Trigger


class DuePost(Struct, frozen=True, gc=False):
    lane: Lane
    id: str
    attempt: int  # how many there were
    body: bytes
    event_id: str = ""
    message_id: str | None = None  # a ping is about no message
    recipient_id: str | None = None


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


def excerpt(body: bytes) -> str:
    """The beginning of a body, as the history of deliveries shows it; what is not UTF-8 becomes U+FFFD."""
    text = body[:EXCERPT_BYTES].decode("utf-8", "replace")
    if len(body) >= EXCERPT_BYTES:  # perhaps cut within a character
        text = text.removesuffix("\ufffd")
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")
