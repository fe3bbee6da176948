"""In charge of the words the floors share: enums and frozen records, with no behaviour of their own.

The records that are made for every message are msgspec structs, frozen as the others are: to make one costs a tenth of
what a frozen dataclass does. None of them can be part of a cycle, so the garbage collector need not know them.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct


class MessageStatus(StrEnum):
    """Where a message stands; `queued` until every recipient is final."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    FAILED = "failed"


class RecipientStatus(StrEnum):
    """Where one recipient stands; `deferred` was tried and will be tried again."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"


class Billing(StrEnum):
    """What became of a reserved credit."""

    RESERVED = "reserved"
    SETTLED = "settled"
    RELEASED = "released"


class Source(StrEnum):
    """By which door a message came in."""

    API = "api"
    SMTP = "smtp"
    TEST = "test"


class Scope(StrEnum):
    """What an API key may do: only send, or also read."""

    SEND = "send"
    FULL = "full"


class Role(StrEnum):
    """What a user of the dashboard may do."""

    CUSTOMER = "customer"
    ADMIN = "admin"


class LedgerKind(StrEnum):
    """Why a balance changed."""

    GRANT = "grant"
    RESERVE = "reserve"
    RELEASE = "release"


# ---- who is calling


class CredentialKind(StrEnum):
    """How a caller proved who they are."""

    SMTP = "smtp"
    KEY = "key"
    TOKEN = "token"  # noqa: S105 - the word, not a secret


class Caller(Struct, frozen=True, gc=False):
    """An authenticated sender, as the store knew the account a moment ago."""

    account_id: str
    kind: CredentialKind
    idempotency_scope: str  # the SMTP credential, the API key, or the account of a token
    may_read: bool
    test: bool
    suspended: bool
    domains: frozenset[str]  # usable From domains, A-labels, lower case


@dataclass(frozen=True, slots=True)
class User:
    """A person who logs in to the dashboard."""

    id: str
    account_id: str
    account_name: str
    email: str
    role: Role
    password_hash: str
    token_epoch: int


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the operator sees it; `credits` is None when unlimited."""

    id: str
    name: str
    email: str
    credits: int | None
    daily_cap: int | None
    suspended: bool
    created_at: int
    stored_bytes: int = 0  # of messages and templates


@dataclass(frozen=True, slots=True)
class Domain:
    """A registered From domain; `verified_at` is None when DNS has not proven it."""

    name: str
    usable: bool
    created_at: int
    verified_at: int | None = None


@dataclass(frozen=True, slots=True)
class SmtpCredential:
    """An SMTP login; the password itself is known to nobody but its owner."""

    username: str
    created_at: int
    revoked_at: int | None
    name: str = ""  # what its owner calls it
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key by its id; `hint` is its last four characters."""

    id: str
    account_name: str
    hint: str
    scope: Scope
    test: bool
    created_at: int
    revoked_at: int | None
    name: str = ""  # what its owner calls it
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One change of a balance."""

    id: str
    kind: LedgerKind
    amount: int
    balance: int
    message_id: str | None
    recipient_id: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Suppression:
    """An address an account no longer sends to."""

    address: str
    reason: str
    created_at: int


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """The current version of a template."""

    alias: str
    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: int  # of its first version
    updated_at: int  # of this one


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """What a template was at one time."""

    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class StoredDkimKey:
    """A signing key of a domain; the private half is sealed."""

    selector: str
    algorithm: str
    private_key: bytes = field(repr=False)
    record: str  # the TXT record to publish
    created_at: int = 0
    retired_at: int | None = None


# ---- a message on its way in


class NewRecipient(Struct, frozen=True, gc=False):
    """One unique recipient of a message to be stored."""

    id: str
    address: str  # as the caller spelled it
    key: str  # lower case, A-labels: what suppression compares
    domain: str


class IdempotencyClaim(Struct, frozen=True, gc=False):
    """The key a client chose, with the fingerprint of the body it came with."""

    scope: str
    key: str
    fingerprint: bytes
    expires_at: int


@dataclass(frozen=True, slots=True)
class RememberedSend:
    """An earlier 202, or 250, under the same idempotency key."""

    fingerprint: bytes
    request_id: str
    receipt: bytes | None
    message_id: str


class NewMessage(Struct, frozen=True, gc=False):
    """Everything one accepting transaction writes."""

    id: str
    account_id: str
    request_id: str
    source: Source
    simulated: bool
    sender: str
    envelope_from: str
    subject: str
    tags: tuple[str, ...]
    template_alias: str | None
    template_version: int | None
    mime: bytes
    receipt: bytes | None  # the 202's fields as JSON: what a retry is told; none over SMTP, where the id is told
    recipients: tuple[NewRecipient, ...]
    credits: int  # to reserve: one a recipient, or 0 for a test
    created_at: int
    idempotency: IdempotencyClaim | None
    may_store: int | None = None  # bytes the account may keep, with this message; None: any number

    def __repr__(self) -> str:
        """Only the id: what a customer wrote stays out of logs and tracebacks."""
        return f"NewMessage(id={self.id!r})"


# ---- a message as it is read back


@dataclass(frozen=True, slots=True)
class Recipient:
    """One recipient's record."""

    id: str
    email: str
    status: RecipientStatus
    billing_status: Billing
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: int | None
    bounced_at: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One message's record with all its recipients."""

    id: str
    status: MessageStatus
    source: Source
    sender: str
    subject: str
    billing_status: Billing
    recipient_count: int
    credits_reserved: int
    created_at: int
    recipients: tuple[Recipient, ...]


# ---- a message on its way out


class DueRecipient(Struct, frozen=True, gc=False):
    """A recipient whose next attempt has come, with what its message says about every recipient."""

    id: str
    message_id: str
    account_id: str
    address: str
    domain: str
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    envelope_from: str
    subject: str
    recipient_count: int
    charged: int  # credits taken for it, which a bounce gives back: 1, or 0 for a test or an unlimited account
    sender: str = ""  # the From, whose domain may be another than the envelope's


class Attempt(Struct, frozen=True, gc=False):
    """One try at one recipient, and what the other side said."""

    started_at: int
    finished_at: int
    smtp_code: int | None
    smtp_response: str | None
    pool: str | None = None
    mx_host: str | None = None
    mx_address: str | None = None
    tls: str | None = None  # version and verification in words; None: plaintext, or no connection
    decision: str | None = None  # what we made of it, in words
    dialogue: str | None = None  # what was said: a JSON array of lines


class Outcome(Struct, frozen=True, gc=False):
    """What the latest attempts mean for one recipient."""

    recipient: DueRecipient
    status: RecipientStatus
    attempts: tuple[Attempt, ...]
    at: int
    next_attempt_at: int | None = None  # set exactly when `status` is deferred
    note: str | None = None  # what to show as the response when no server was asked ("suppressed: …")
    suppress: Suppression | None = None  # when the address itself is at fault
    releases: bool = False  # the credit goes back although it failed, because nobody wants it any more
    signature: bytes | None = None  # the message's DKIM fields, to be kept for the next attempt


# ---- what the operator sees of it


@dataclass(frozen=True, slots=True)
class OutgoingSession:
    """An SMTP session under way for a recipient, and what it waits for."""

    recipient_id: str
    host: str
    address: str
    started_at: int
    awaits: str  # "connection", "handshake" or a stage of the dialogue
    since: int


@dataclass(frozen=True, slots=True)
class TriedRecipient:
    """A recipient with all that was tried, and when it is tried next (None: final)."""

    recipient: Recipient
    domain: str
    simulated: bool
    next_attempt_at: int | None
    attempts: tuple[Attempt, ...]
    session: OutgoingSession | None = None  # under way now, if it has taken a while


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """All that is known of a message."""

    account_name: str
    message: Message
    recipients: tuple[TriedRecipient, ...]
    account_id: str = ""


@dataclass(frozen=True, slots=True)
class WaitingMail:
    """How much mail waits for a pool, or within it for one domain.

    `due` is mail whose time has come: it waits for its turn. `deferred` is mail to be tried later.
    """

    pool: str | None  # None: not looked up yet
    domain: str | None  # None: all of the pool
    due: int
    deferred: int
    oldest_at: int  # when the oldest message of it was accepted
    next_attempt_at: int | None  # of what is deferred


@dataclass(frozen=True, slots=True)
class AllWaiting:
    """How much mail waits in all, by recipients, simulated mail too."""

    due: int
    deferred: int
    oldest_at: int | None  # when the oldest message of it was accepted


@dataclass(frozen=True, slots=True)
class PoolHold:
    """A pool whose mail is held, and why; one that holds itself has a time at which one message goes as a probe."""

    pool: str
    reason: str
    held_at: int
    probe_at: int | None = None  # None: it is the operator's, and only the operator ends it
    probes: int = 0  # that reached a server, and were not delivered


@dataclass(frozen=True, slots=True)
class SlowedAccount:
    """An account whose mail to a pool waits, because the servers there asked that of its mail."""

    account_id: str
    until: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolState:
    """How a pool of the running server stands."""

    pool: str
    in_use: int
    allowed: int
    slowed_until: int | None
    slowed_by: str | None
    updated_at: int
    slowed_accounts: tuple[SlowedAccount, ...] = ()
