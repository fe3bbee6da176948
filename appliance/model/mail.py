"""Accounts, credentials, messages, recipients and attempts, as all packages know them: enums and frozen records.

Records that are made for every message are msgspec structs: making one costs a tenth of what a frozen dataclass does.
None of them can be part of a reference cycle, so the garbage collector need not track them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from appliance.times import HOUR


class MessageStatus(StrEnum):
    """The status of a message; `queued` until every recipient is final."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    FAILED = "failed"


class RecipientStatus(StrEnum):
    """The status of one recipient; `deferred` was tried and will be tried again."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"


class RecipientOutcome(StrEnum):
    """What became of one recipient in one word: its status, apart from what was never tried, or was given up."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    SUPPRESSED = "suppressed"
    CANCELLED = "cancelled"


class FailureReason(StrEnum):
    """Why a recipient bounced or failed although no server decided it."""

    SUPPRESSED = "suppressed"  # bounced without an attempt
    CANCELLED = "cancelled"  # failed by request


class BounceClass(StrEnum):
    """What a server refuses a message for, by the table `feedback/reply_rules.toml`."""

    INVALID_RECIPIENT = "invalid_recipient"
    MAILBOX_FULL = "mailbox_full"
    POLICY = "policy"
    REPUTATION = "reputation"
    CONTENT = "content"
    AUTHENTICATION = "authentication"
    TEMPORARY = "temporary"
    OTHER = "other"


class Billing(StrEnum):
    """The state of a reserved credit."""

    RESERVED = "reserved"
    SETTLED = "settled"
    RELEASED = "released"


class Source(StrEnum):
    """How a message came in."""

    API = "api"
    SMTP = "smtp"
    TEST = "test"


class Scope(StrEnum):
    """What an API key may do: send, read what became of messages, both, or that and what a developer may do in /v1."""

    SEND = "send"
    READ = "read"
    FULL = "full"
    MANAGE = "manage"


class Role(StrEnum):
    """Whether a user of the dashboard administers the installation."""

    CUSTOMER = "customer"
    ADMIN = "admin"


class AccountRole(StrEnum):
    """What a user may do in the account: all, all but what concerns its people, or only read."""

    OWNER = "owner"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Permission(StrEnum):
    """What an operation under /v1 needs: each is declared with exactly one, and a user or a key has several."""

    VIEW = "view"  # read what belongs to the account
    DEVELOP = "develop"  # change it: domains, templates, keys, the webhook, suppressions; cancel and test mail
    OWN = "own"  # manage the people of the account
    ADMINISTER = "administer"  # manage all accounts, the queue and the nodes


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
    """An authenticated sender; the store's data may be half a second old."""

    account_id: str
    kind: CredentialKind
    idempotency_scope: str  # the SMTP credential, the API key, or the account of a token
    may_read: bool
    test: bool
    suspended: bool
    domains: frozenset[str]  # usable From domains, A-labels, lower case
    unsubscribe_tags: frozenset[str] = frozenset()  # messages with one of these get a link to unsubscribe
    return_paths: dict[str, str] = {}  # those in use, by their domain
    may_send: bool = True
    key: "KeyPrincipal | None" = None


class Principal(Protocol):
    """Who makes a request under /v1: a person who has logged in, or a program with an API key."""

    @property
    def id(self) -> str:
        """Of the user or the key."""

    @property
    def account_id(self) -> str:
        """Whose data it may reach."""

    @property
    def permissions(self) -> frozenset[Permission]:
        """What it may do with them."""


_DEVELOPER = frozenset({Permission.VIEW, Permission.DEVELOP})
_PERMISSIONS = {
    AccountRole.OWNER: _DEVELOPER | {Permission.OWN},
    AccountRole.DEVELOPER: _DEVELOPER,
    AccountRole.VIEWER: frozenset({Permission.VIEW}),
}


@dataclass(frozen=True, slots=True)
class User:
    """A person, as a principal."""

    id: str
    account_id: str
    account_name: str
    email: str
    role: Role
    password_hash: str
    token_epoch: int
    account_role: AccountRole = AccountRole.OWNER
    has_totp: bool = False  # a second factor is in force
    must_enrol: bool = False  # nothing else may be done before it is

    @property
    def permissions(self) -> frozenset[Permission]:
        in_account = _PERMISSIONS[self.account_role]
        return in_account | {Permission.ADMINISTER} if self.role is Role.ADMIN else in_account


class KeyPrincipal(Struct, frozen=True, gc=False):
    """An API key, as a principal. It never has more than a developer has, even if an administrator made it."""

    id: str
    account_id: str
    name: str
    scope: Scope
    domain: str | None = None  # the only one that it may send from
    expires_at: int | None = None  # of the key, or of a secret that was replaced
    replaced: bool = False  # by a newer secret
    test: bool = False  # whose mail is simulated
    created_by: str | None = None  # the user whose key it is; keys that it creates are that user's, too

    @property
    def permissions(self) -> frozenset[Permission]:
        return _DEVELOPER if self.scope is Scope.MANAGE and not self.test else frozenset()

    def covers(self, domain: str | None, expires_at: int | None) -> bool:
        """Whether a key with these limits may do no more than this one."""
        ends_first = self.expires_at is None or (expires_at is not None and expires_at <= self.expires_at)
        return self.reaches(domain) and ends_first

    def reaches(self, domain: str | None) -> bool:
        """Whether the key's domain limit allows something of this domain; None: something of the whole account."""
        return self.domain is None or domain == self.domain


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


class RecordStatus(StrEnum):
    """What DNS shows of a record that is to be published."""

    OK = "ok"
    MISSING = "missing"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # the lookup failed


@dataclass(frozen=True, slots=True)
class DomainDns:
    """What DNS showed of a domain's records when it was last asked: of several records of a kind, the worst."""

    checked_at: int
    spf: RecordStatus
    dkim: RecordStatus
    dmarc: RecordStatus
    return_path: RecordStatus | None = None  # None: nothing takes mail there
    unknown_since: int | None = None  # the first of the last checks in each of which a lookup failed

    @property
    def is_good(self) -> bool:
        return self._states() <= {RecordStatus.OK, None}

    @property
    def is_unknown(self) -> bool:
        return RecordStatus.UNKNOWN in self._states()

    def _states(self) -> set[RecordStatus | None]:
        return {self.spf, self.dkim, self.dmarc, self.return_path}


@dataclass(frozen=True, slots=True)
class Domain:
    """A registered From domain; `verified_at` is None when DNS has not proven it."""

    name: str
    usable: bool
    created_at: int
    verified_at: int | None = None
    return_path: str = ""  # the name that what comes back of its mail is sent to
    return_path_at: int | None = None  # since when DNS shows its records, and mail leaves with it
    dns: DomainDns | None = None  # None: not asked yet


@dataclass(frozen=True, slots=True)
class SmtpCredential:
    """An SMTP login; of its password only a hash is stored."""

    username: str
    created_at: int
    revoked_at: int | None
    name: str = ""  # chosen by its owner
    last_used_at: int | None = None
    created_by: str | None = None  # a user's address; None: the operator's shell, or unknown


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
    name: str = ""  # chosen by its owner
    last_used_at: int | None = None
    last_used_from: str | None = None  # a client's address
    domain: str | None = None  # the only one that it may send from
    expires_at: int | None = None
    previous_hint: str | None = None  # of the secret before this one, while that is good
    previous_expires_at: int | None = None
    created_by: str | None = None  # a user's address; None: the operator's shell, or unknown


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    id: str
    kind: LedgerKind
    amount: int
    balance: int
    message_id: str | None
    recipient_id: str | None
    created_at: int


class SuppressionOrigin(StrEnum):
    """What put an address on a suppression list."""

    BOUNCE = "bounce"
    LATE_BOUNCE = "late_bounce"
    COMPLAINT = "complaint"
    UNSUBSCRIBE = "unsubscribe"
    MANUAL = "manual"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Suppression:
    """An address an account no longer sends to, at all or messages of one list."""

    address: str
    reason: str
    created_at: int
    origin: SuppressionOrigin = SuppressionOrigin.BOUNCE
    mail_list: str = ""  # that it has unsubscribed from

    @property
    def tag(self) -> str | None:
        return self._named("tag")

    @property
    def template(self) -> str | None:
        return self._named("template")

    def _named(self, wanted: str) -> str | None:
        kind, _, name = self.mail_list.partition(":")
        return name if kind == wanted else None


def lists_of(tags: Sequence[str], template_alias: str | None) -> list[str]:
    """What one can unsubscribe from: `tag:NAME` for each tag of a message, and `template:ALIAS`."""
    lists = [f"tag:{tag}" for tag in tags]
    return lists if template_alias is None else [*lists, f"template:{template_alias}"]


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
    unsubscribe: bool = False  # messages with it get a link to unsubscribe


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """An earlier or the current content of a template."""

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
    pending: bool = False  # made by a rotation, and signs once DNS shows its record

    @property
    def signs(self) -> bool:
        return self.retired_at is None and not self.pending


# ---- a message on its way in


class DsnCondition(StrEnum):
    """When the sender of a message wants to be told by mail, RFC 3461 4.1."""

    SUCCESS = "success"
    FAILURE = "failure"
    DELAY = "delay"


class DsnRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an SMTP client has asked to be told of one recipient; stored as JSON."""

    notify: tuple[DsnCondition, ...]
    original: str = ""  # ORCPT, decoded: an address type, a semicolon and an address
    full: bool = False  # RET=FULL
    envelope_id: str = ""  # ENVID, decoded
    reporter: str = ""  # the host name of the server that took the message


class NewRecipient(Struct, frozen=True, gc=False):
    id: str
    address: str  # as the caller spelled it
    key: str  # lower case, A-labels: what suppression compares
    domain: str
    dsn: DsnRequest | None = None


KEY_LIFETIME = 24 * HOUR  # microseconds, by the interface


class IdempotencyClaim(Struct, frozen=True, gc=False):
    """The key a client chose, with the fingerprint of the body it came with; it expires KEY_LIFETIME after that."""

    scope: str
    key: str
    fingerprint: bytes
    expires_at: int


@dataclass(frozen=True, slots=True)
class RememberedSend:
    """The earlier acceptance (202 or 250) under the same idempotency key."""

    fingerprint: bytes
    request_id: str
    receipt: bytes | None
    message_id: str


class NewMessage(Struct, frozen=True, gc=False):
    """All that the transaction writes which accepts a message."""

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
    receipt: bytes | None  # the fields of the 202 as JSON, for a retry; over SMTP the id is enough
    recipients: tuple[NewRecipient, ...]
    credits: int  # to reserve: one a recipient, or 0 for a test
    created_at: int
    idempotency: IdempotencyClaim | None
    may_store: int | None = None  # bytes the account may keep, with this message; None: any number

    def __repr__(self) -> str:
        """Only the id: content of messages stays out of logs and tracebacks."""
        return f"NewMessage(id={self.id!r})"


# ---- a message as it is read back


class LateBounce(Struct, frozen=True, gc=False, rename={"bounce_class": "class"}):
    """A bounce that came by mail after the recipient's server had taken the message; stored as JSON."""

    at: int
    code: int | None
    response: str
    bounce_class: BounceClass


@dataclass(frozen=True, slots=True)
class Recipient:
    id: str
    email: str
    status: RecipientStatus
    billing_status: Billing
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: int | None
    bounced_at: int | None
    bounce_class: BounceClass | None = None  # of the last reply, unless that was a success
    late_bounce: LateBounce | None = None
    failure: FailureReason | None = None

    @property
    def outcome(self) -> RecipientOutcome:
        return RecipientOutcome(self.failure or self.status)


@dataclass(frozen=True, slots=True)
class Message:
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
    """A recipient whose next attempt is due, with the fields of its message that delivery needs."""

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
    started_at: int
    finished_at: int
    smtp_code: int | None
    smtp_response: str | None
    pool: str | None = None
    mx_host: str | None = None
    mx_address: str | None = None
    tls: str | None = None  # version and verification; None: plaintext, or no connection
    decision: str | None = None  # what follows from it, in words
    dialogue: str | None = None  # the SMTP transcript: a JSON array of lines


class Outcome(Struct, frozen=True, gc=False):
    """What the latest attempts mean for one recipient."""

    recipient: DueRecipient
    status: RecipientStatus
    attempts: tuple[Attempt, ...]
    at: int
    next_attempt_at: int | None = None  # set exactly when `status` is deferred
    note: str | None = None  # shown as the response when no server was asked ("suppressed: …")
    suppress: Suppression | None = None  # set when the address itself is at fault
    failure: FailureReason | None = None  # set when no server decided it; a cancelled recipient gets its credit back
    signature: bytes | None = None  # the DKIM-Signature fields, stored for the next attempt
    bounce_class: BounceClass | None = None  # of the last reply, unless that was a success
    mail_from: str | None = None  # the return path that took the place of the envelope's sender, for the log


# ---- a message as operators see it


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
    """A recipient with all its attempts, and when the next is due (None: final)."""

    recipient: Recipient
    domain: str
    simulated: bool
    next_attempt_at: int | None
    attempts: tuple[Attempt, ...]
    session: OutgoingSession | None = None  # under way now, if it has taken a while
    node: str = ""  # that delivers it, where several share the database


@dataclass(frozen=True, slots=True)
class MessageRecord:
    account_name: str
    message: Message
    recipients: tuple[TriedRecipient, ...]
    account_id: str = ""
