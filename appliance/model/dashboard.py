"""Records of the dashboard beyond mail itself: sessions, lists, searches and statistics."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from appliance.model.mail import (
    BounceClass,
    MessageStatus,
    RecipientOutcome,
    RecipientStatus,
    Source,
    Suppression,
    SuppressionOrigin,
)
from appliance.model.streams import TRANSACTIONAL


class LoginSession(Struct, frozen=True):
    """A user's session; only the cookie of this `generation` renews it."""

    id: str
    user_id: str
    generation: int
    address: str
    user_agent: str
    created_at: int
    renewed_at: int
    expires_at: int


class MailFilter(Struct, frozen=True):
    """A filter for messages of an account; None matches any."""

    status: MessageStatus | None = None
    source: Source | None = None
    recipient: str | None = None  # a lower-case address, or a domain in A-labels, with or without a leading `@`
    sender: str | None = None  # the same, its domain as written
    tag: str | None = None
    words: tuple[str, ...] = ()  # see message/search_words.py
    outcome: RecipientOutcome | None = None  # of one of its recipients
    waiting: bool = False  # only with a recipient that is queued or deferred
    address_part: str | None = None  # of a recipient's address, ASCII letters in lower case
    provider: str | None = None  # the pool of a recipient's domain
    credential: str | None = None  # the API key's id or the SMTP username that sent it
    since: int | None = None  # accepted at or after
    until: int | None = None  # accepted before
    metadata: tuple[str, str] | None = None  # a key and its value
    stream: str | None = None


class SuppressionFilter(Struct, frozen=True):
    """A filter for suppressions; empty and None match any."""

    text: str = ""  # part of the address or the reason, in lower case
    origin: SuppressionOrigin | None = None
    mail_list: str | None = None  # only unsubscriptions from it

    def matches(self, entry: Suppression) -> bool:
        return (
            (self.origin is None or entry.origin is self.origin)
            and self.mail_list in (None, entry.mail_list)
            and (self.text in entry.address or self.text in entry.reason.lower())
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
    recipients: tuple[ListedRecipient, ...]  # the first ones
    outcomes: dict[RecipientOutcome, int]  # of all recipients
    scheduled_at: int | None = None
    stream: str = TRANSACTIONAL.name


class MailPage(Struct, frozen=True):
    messages: tuple[ListedMessage, ...]
    next: str | None  # the cursor of the next page


class MailCount(Struct, frozen=True):
    """The number of matching messages before a cursor, down to `next`; None: all are counted."""

    count: int
    next: str | None


class ExportedRecipient(NamedTuple):
    """One recipient of a message, as a line of an export."""

    message_id: str
    recipient_id: str
    created_at: int
    source: str
    sender: str
    subject: str
    tags: str  # JSON
    credential: str | None
    email: str
    outcome: str
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: int | None
    metadata: str | None  # JSON
    scheduled_at: int | None
    stream: str


class SavedView(Struct, frozen=True):
    """A user's named filters of the message list."""

    id: str
    name: str
    filters: Mapping[str, str]
    created_at: int


class FoundMail(Struct, frozen=True):
    """The newest messages of several accounts, with account ids.

    `searched_to`: an unfinished search covers only messages accepted after this time.
    """

    messages: tuple[tuple[str, ListedMessage], ...]
    searched_to: int | None


class MailProblem(NamedTuple):
    """A recipient whose mail was not delivered, or not yet."""

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
    pool: str  # of its domain; empty: not looked up
    envelope_from: str
    template_alias: str | None
    stream: str


class MessageFacts(Struct, frozen=True):
    envelope_from: str
    tags: tuple[str, ...]
    template_alias: str | None
    template_version: int | None
    size: int
    request_id: str
    metadata: str | None  # JSON
    stream: str
    body_kept: bool
    simulated: bool = False


class WaitingInPool(Struct, frozen=True):
    """An account's queue in one pool; None: the domain is not looked up yet."""

    pool: str | None
    due: int
    deferred: int


class AccountStatistics(Struct, frozen=True):
    """Recipients by hour (since 1970) and result. An hour may stand for its day; `previous` is None if not stored."""

    by_hour: Mapping[tuple[int, str], int]
    by_bucket: Mapping[int, int]
    waiting: tuple[WaitingInPool, ...]
    simulated: int = 0  # queued recipients of the sandbox, in no pool
    by_class: Mapping[BounceClass, tuple[int, int]] = field(default_factory=dict)  # bounced and failed
    previous: Mapping[str, int] | None = None
    returned: Mapping[str, int] = field(default_factory=dict)  # late_bounced and complained, on the days of that time


class Dimension(StrEnum):
    DOMAIN = "domain"  # of the sender
    TAG = "tag"
    TEMPLATE = "template"
    PROVIDER = "provider"
    STREAM = "stream"  # counted by store/statistics.py


class Pairing(StrEnum):
    """What is also counted together with the provider."""

    DOMAIN = "domain_provider"
    TEMPLATE = "template_provider"
    STREAM = "stream_provider"  # not of the default stream, whose numbers are the difference


class Deliverability(NamedTuple):
    """Recipients by provider and by day (since 1970): the kinds of store/breakdown.py. `until`: see CountsByValue."""

    by_provider: Mapping[str, Mapping[str, int]]
    by_day: Mapping[int, Mapping[str, int]]
    until: int | None


class CountsByValue(NamedTuple):
    """Recipients by value of a dimension, largest first, and by result; the empty value stands for all others.

    `until`: results after this time are not counted yet; None: all are counted.
    """

    by_value: Mapping[str, Mapping[str, int]]
    until: int | None


class FeedbackKind(NamedTuple):
    day: int
    kind: str  # delivered, bounced, failed, suppressed, cancelled, late_bounced, complained
    bounce_class: str  # empty: no class
    provider: str  # a named pool; empty: all others


class Actor(NamedTuple):
    """The author of a change: a user by address, an API key by id and name, the operator by system user, or the service
    itself by component.
    """

    kind: str  # user, key, operator, service
    id: str
    name: str = ""


class AuditEntry(NamedTuple):
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


class LoggedRequest(Struct, frozen=True, gc=False, array_like=True):
    """A submission by HTTP or SMTP, accepted or refused."""

    request_id: str
    at: int
    source: str  # api, smtp
    route: str  # the operation, or the SMTP command
    key: str | None  # the API key's id or the SMTP credential's username; None: a user's token
    client: str  # its address
    status: int  # of HTTP, or the code of the SMTP reply
    code: str | None  # of the error; None: accepted, or an error of SMTP alone
    error: str | None
    message_id: str | None
    size: int  # of the request's body or the message, in bytes
    body: str  # the start of the request's JSON, or the SMTP envelope as JSON; no secrets


class RequestFilter(NamedTuple):
    """Only requests that match all of these; None and empty match every request."""

    status: int | None = None
    accepted: bool | None = None
    key: str | None = None
    text: str = ""  # lower case; anywhere in the request
