"""What the dashboard shows beyond the records of mail: sessions, lists, searches and statistics. Frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from appliance.model.mail import (
    BounceClass,
    MessageStatus,
    RecipientOutcome,
    RecipientStatus,
    Source,
    Suppression,
    SuppressionOrigin,
)


@dataclass(frozen=True, slots=True)
class LoginSession:
    """A user's session; only the cookie of this `generation` renews it."""

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
    """Which messages of an account are wanted; None: any."""

    status: MessageStatus | None = None
    source: Source | None = None
    recipient: str | None = None  # an address, or a domain in A-labels if it has no `@` but in front; lower case
    sender: str | None = None  # the same, its domain as written
    tag: str | None = None
    words: tuple[str, ...] = ()  # that it has, see message/search_words.py
    outcome: RecipientOutcome | None = None  # of one of its recipients
    since: int | None = None  # when it was accepted, at the earliest
    until: int | None = None  # and before which time


@dataclass(frozen=True, slots=True)
class SuppressionFilter:
    """Which entries of a suppression list are wanted; empty and None: any."""

    text: str = ""  # part of the address or the reason, in lower case
    origin: SuppressionOrigin | None = None

    def matches(self, entry: Suppression) -> bool:
        return (self.origin is None or entry.origin is self.origin) and (
            self.text in entry.address or self.text in entry.reason.lower()
        )


class ListedRecipient(Struct, frozen=True, gc=False):
    email: str
    status: RecipientStatus
    outcome: RecipientOutcome


class ListedMessage(Struct, frozen=True):
    id: str
    status: MessageStatus
    source: Source
    sender: str
    subject: str
    tags: tuple[str, ...]
    recipient_count: int
    created_at: int
    recipients: tuple[ListedRecipient, ...]  # the first of them


@dataclass(frozen=True, slots=True)
class MailPage:
    """Some messages, newest first; `next` is where the search goes on, None when it is complete."""

    messages: tuple[ListedMessage, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class FoundMail:
    """The newest messages of several accounts, each with its account's id; `searched_to` tells of an unfinished search.

    Nothing that was accepted after that time is missing; what is older was not looked at.
    """

    messages: tuple[tuple[str, ListedMessage], ...]
    searched_to: int | None


class MailProblem(NamedTuple):
    """A recipient that did not get its mail, or not yet."""

    message_id: str
    recipient_id: str
    email: str
    subject: str
    source: str
    outcome: str
    last_smtp_code: int | None
    last_smtp_response: str | None
    bounce_class: str | None
    happened_at: int
    next_attempt_at: int | None


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What the page of a message shows beside the message's own record."""

    envelope_from: str
    tags: tuple[str, ...]
    template_alias: str | None
    template_version: int | None
    size: int
    request_id: str
    body_kept: bool
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class WaitingInPool:
    """How much of an account's mail waits for one pool; None: its domain was not looked up yet."""

    pool: str | None
    due: int
    deferred: int


@dataclass(frozen=True, slots=True)
class AccountStatistics:
    """Recipients by hour (since 1970) and result, deliveries by how long they took, bounces by class, what waits.

    An hour may stand for its day. `previous` are the results of the period before; None: not all of it is kept.
    """

    by_hour: Mapping[tuple[int, str], int]
    by_bucket: Mapping[int, int]
    waiting: tuple[WaitingInPool, ...]
    simulated: int = 0  # recipients that wait in the sandbox, in no pool
    by_class: Mapping[BounceClass, tuple[int, int]] = field(default_factory=dict)  # how many bounced, and failed
    previous: Mapping[str, int] | None = None


class Dimension(StrEnum):
    """By what statistics are broken down."""

    DOMAIN = "domain"  # of the sender
    TAG = "tag"
    TEMPLATE = "template"
    PROVIDER = "provider"


class CountsByValue(NamedTuple):
    """Recipients by one dimension's values, the largest first, and by what became of them; empty: all others, last.

    `until`: what was written after that time is not counted yet; None: everything is.
    """

    by_value: Mapping[str, Mapping[str, int]]
    until: int | None


class FeedbackKind(NamedTuple):
    """What became of recipients on one day (days since 1970, UTC)."""

    day: int
    kind: str  # delivered, bounced, failed, late_bounced, complained
    bounce_class: str  # empty: none
    provider: str  # a pool with a name of its own; empty: all others


class Actor(NamedTuple):
    """Who changes something: a user by address, an API key by id and name, the operator by the system's user, or the
    service itself by the name of its part.
    """

    kind: str  # user, key, operator, service
    id: str
    name: str = ""


class AuditEntry(NamedTuple):
    """One line of the audit log."""

    id: str
    created_at: int
    actor_kind: str
    actor: str
    actor_name: str
    action: str
    object: str
    details: dict[str, str]
    address: str  # the client's, or `cli`
    account_id: str
