"""In charge of the words for webhooks that the floors share: frozen records, with no behaviour of their own."""

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct


class EventType(StrEnum):
    """What a webhook may ask for."""

    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"


class Trigger(StrEnum):
    """Why something is posted."""

    EVENT = "event"
    PING = "ping"
    REPLAY = "replay"


class PostStatus(StrEnum):
    """Where a post stands; `pending` until it is answered with a 2xx or given up."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where an account wants its events."""

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
    """What an account says of its webhook."""

    url: str
    events: tuple[EventType, ...]
    enabled: bool


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A signing secret as it is stored."""

    sealed: bytes = field(repr=False)
    hint: str


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One post of one event, as the history shows it."""

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
    """One webhook's posts of one cause, which are begun in order."""

    webhook_id: str
    trigger: Trigger


class DuePost(Struct, frozen=True, gc=False):
    """A post whose next attempt has come."""

    lane: Lane
    id: str
    attempt: int  # how many there were
    body: bytes
    event_id: str = ""
    message_id: str | None = None  # a ping is about no message
    recipient_id: str | None = None


class PostResult(Struct, frozen=True, gc=False):
    """What came of one attempt."""

    post: DuePost
    status: PostStatus
    url: str
    response_status: int | None
    response_body: str | None
    error: str | None
    duration_ms: int
    attempted_at: int
    next_attempt_at: int | None  # set exactly when `status` is pending
