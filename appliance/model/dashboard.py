"""In charge of the words of the dashboard's resources: frozen records, with no behaviour of their own."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from appliance.model.mail import MessageStatus, RecipientStatus, Source


@dataclass(frozen=True, slots=True)
class Session:
    """A login that goes on; `generation` is that of the only cookie which renews it."""

    id: str
    user_id: str
    generation: int
    address: str
    user_agent: str
    created_at: int
    renewed_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class MailFilter:
    """Which messages of an account are wanted; None: whatever they are.

    `recipient` and `sender` are addresses, or domains when they have no `@` but in front, in lower case.
    The domain of a recipient is in A-labels.
    """

    status: MessageStatus | None = None
    source: Source | None = None
    recipient: str | None = None
    sender: str | None = None
    tag: str | None = None


class ListedRecipient(Struct, frozen=True, gc=False):
    """A recipient as a list of messages shows it."""

    email: str
    status: RecipientStatus


class ListedMessage(Struct, frozen=True):
    """A message as a list shows it, with the first of its recipients."""

    id: str
    status: MessageStatus
    source: Source
    sender: str
    subject: str
    tags: tuple[str, ...]
    recipient_count: int
    created_at: int
    recipients: tuple[ListedRecipient, ...]


@dataclass(frozen=True, slots=True)
class MailPage:
    """Some messages, newest first; the search goes on before `next`, unless there is nothing left to be searched."""

    messages: tuple[ListedMessage, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What a message's page shows beside what every reader of a message is told."""

    envelope_from: str
    tags: tuple[str, ...]
    template_alias: str | None
    template_version: int | None
    size: int
    request_id: str
    body_kept: bool


@dataclass(frozen=True, slots=True)
class WaitingInPool:
    """How much of an account's mail waits for one pool; None: for a domain that was not looked up yet."""

    pool: str | None
    due: int
    deferred: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """Recipients by hour (from 1970) and what became of them, deliveries by how long they took, and what waits."""

    by_hour: Mapping[tuple[int, str], int]
    by_bucket: Mapping[int, int]
    waiting: tuple[WaitingInPool, ...]
