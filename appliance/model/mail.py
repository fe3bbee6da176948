"""Messages, recipients and attempts as all packages know them: enums and frozen records.

Records made for every message are msgspec structs, which cost a tenth of a frozen dataclass. None of them can be part
of a reference cycle, so the garbage collector does not track them.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from appliance.model.streams import TRANSACTIONAL
from appliance.times import HOUR


class MessageStatus(StrEnum):
    """The status of a message; `queued` until every recipient is final."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    FAILED = "failed"


class RecipientStatus(StrEnum):
    """The status of one recipient; `deferred` means waiting for a retry. `scheduled` is stored as `queued`."""

    SCHEDULED = "scheduled"  # not due yet
    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"


class RecipientOutcome(StrEnum):
    """The status of one recipient, why it was never attempted, or what came back after its delivery."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    SUPPRESSED = "suppressed"
    CANCELLED = "cancelled"
    LATE_BOUNCED = "late_bounced"  # a bounce by mail, after delivery
    COMPLAINED = "complained"  # reported as spam, after delivery


class FailureReason(StrEnum):
    SUPPRESSED = "suppressed"  # bounced without an attempt
    CANCELLED = "cancelled"  # failed by request


class BounceClass(StrEnum):
    """Why a server refused a message, by `feedback/reply_rules.toml`."""

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
    """The source of a message."""

    API = "api"
    SMTP = "smtp"
    TEST = "test"


class SuppressionOrigin(StrEnum):
    """What put an address on a suppression list."""

    BOUNCE = "bounce"
    LATE_BOUNCE = "late_bounce"
    COMPLAINT = "complaint"
    UNSUBSCRIBE = "unsubscribe"
    MANUAL = "manual"
    IMPORT = "import"


class Suppression(Struct, frozen=True):
    """An address an account no longer sends to, at all or messages of one list."""

    address: str
    reason: str
    created_at: int
    origin: SuppressionOrigin = SuppressionOrigin.BOUNCE
    mail_list: str = ""  # the list it unsubscribed from

    @property
    def tag(self) -> str | None:
        return self._named("tag")

    @property
    def template(self) -> str | None:
        return self._named("template")

    @property
    def stream(self) -> str | None:
        return self._named("stream")

    def _named(self, list_kind: str) -> str | None:
        kind, _, name = self.mail_list.partition(":")
        return name if kind == list_kind else None


def lists_of(tags: Sequence[str], template_alias: str | None, stream: str | None) -> list[str]:
    """Return the lists of a message that a recipient can unsubscribe from, such as `tag:NAME`."""
    lists = [f"tag:{tag}" for tag in tags]
    if template_alias is not None:
        lists.append(f"template:{template_alias}")
    if stream is not None:
        lists.append(f"stream:{stream}")
    return lists


class StoredTemplate(Struct, frozen=True):
    """The current version of a template."""

    alias: str
    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: int  # of its first version
    updated_at: int  # of this one
    unsubscribe: bool = False  # its messages get an unsubscribe link
    stream: str | None = None  # of its messages, unless the request names one


class TemplateVersion(Struct, frozen=True):
    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: int


# ---- incoming messages


class DsnCondition(StrEnum):
    """When the sender requests a notification (RFC 3461 4.1)."""

    SUCCESS = "success"
    FAILURE = "failure"
    DELAY = "delay"


class DsnRequest(Struct, frozen=True, gc=False, omit_defaults=True):
    """The notification that an SMTP client requested for one recipient; stored as JSON."""

    notify: tuple[DsnCondition, ...]
    original: str = ""  # ORCPT, decoded: an address type, a semicolon and an address
    full: bool = False  # RET=FULL
    envelope_id: str = ""  # ENVID, decoded
    reporter: str = ""  # the host name of the accepting server


class NewRecipient(Struct, frozen=True, gc=False):
    id: str
    address: str  # as the caller spelled it
    key: str  # lower case, A-labels: what suppression compares
    domain: str
    dsn: DsnRequest | None = None
    bucket: int | None = None  # of the ramp; None: it was off


KEY_LIFETIME = 24 * HOUR  # microseconds, by the interface


class IdempotencyClaim(Struct, frozen=True, gc=False):
    """An Idempotency-Key and the fingerprint of its request; expires after KEY_LIFETIME."""

    scope: str
    key: str
    fingerprint: bytes
    expires_at: int


class RememberedSend(Struct, frozen=True):
    """The earlier acceptance (202 or 250) under the same idempotency key."""

    fingerprint: bytes
    request_id: str
    receipt: bytes | None
    message_id: str


class NewMessage(Struct, frozen=True, gc=False):
    """Everything that the accepting transaction writes."""

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
    receipt: bytes | None  # the 202 as JSON, for a retry; None over SMTP
    recipients: tuple[NewRecipient, ...]
    credits: int  # to reserve: one per recipient, or 0 for a test
    created_at: int
    idempotency: IdempotencyClaim | None
    may_store: int | None = None  # bytes that the account may store, including this message; None: unlimited
    credential: str | None = None  # the API key's id or the SMTP username; None: a login, or the service itself
    scheduled_at: int | None = None  # when it is due; None: at once
    metadata: str | None = None  # JSON
    header_id: str | None = None  # the Message-ID without brackets; None: `header_id_of` the envelope sender's domain
    stream: str = TRANSACTIONAL.name
    low: int = 0  # 1: of a stream with low priority
    in_parts: bool = False  # write it in parts although it is small, because it is one of many

    def __repr__(self) -> str:
        """Omit the content: it stays out of logs and tracebacks."""
        return f"NewMessage(id={self.id!r})"


# ---- stored messages


class LateBounce(Struct, frozen=True, gc=False, rename={"bounce_class": "class"}):
    """A bounce by mail after the recipient's server accepted the message; stored as JSON."""

    at: int
    code: int | None
    response: str
    bounce_class: BounceClass


class RecordedComplaint(Struct, frozen=True, gc=False):
    at: int
    kind: str  # `abuse` and others, RFC 5965 7.3


class Recipient(Struct, frozen=True):
    id: str
    email: str
    status: RecipientStatus
    billing_status: Billing
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: int | None
    bounced_at: int | None
    bounce_class: BounceClass | None = None  # of the last reply, unless it was a success
    late_bounce: LateBounce | None = None
    failure: FailureReason | None = None
    complaint: RecordedComplaint | None = None

    @property
    def outcome(self) -> RecipientOutcome:
        """As `OUTCOME` in store/message_records.py."""
        if self.complaint is not None and self.status is RecipientStatus.DELIVERED:
            return RecipientOutcome.COMPLAINED
        if self.late_bounce is not None:
            return RecipientOutcome.LATE_BOUNCED
        return RecipientOutcome(self.failure or self.status)


class Message(Struct, frozen=True):
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
    metadata: dict[str, str] = {}
    scheduled_at: int | None = None
    credential: str | None = None  # that sent it, as in NewMessage
    stream: str = TRANSACTIONAL.name


def header_id_of(message_id: str, domain: str) -> str:
    """The Message-ID, without brackets, of a message that came without one."""
    return f"{message_id.removeprefix('msg_')}@{domain}"


class MessageLabels(Struct, frozen=True, gc=False):
    """What an event says of its message, apart from the result."""

    header_id: str | None = None  # the Message-ID without brackets; None: unknown
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    stream: str = ""  # unknown


# ---- outgoing messages


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
    charged: int  # credits that a bounce releases: 1, or 0 for a test or an unlimited account
    sender: str = ""  # the From; its domain may differ from the envelope's
    metadata_size: int = 0  # bytes
    scheduled_at: int | None = None
    low: int = 0  # 1: of a stream with low priority
    bucket: int | None = None  # of the ramp; None: accepted while it was off
    route: str | None = None  # a Via: under the ramp, the only route that may take it
    stream: str = TRANSACTIONAL.name


class Attempt(Struct, frozen=True, gc=False):
    started_at: int
    finished_at: int
    smtp_code: int | None
    smtp_response: str | None
    pool: str | None = None
    mx_host: str | None = None
    mx_address: str | None = None
    tls: str | None = None  # version and verification; None: plaintext, or no connection
    decision: str | None = None  # the consequence, in words
    dialogue: str | None = None  # the SMTP transcript: a JSON array of lines
    route: str | None = None  # a Via; None: simulated, or recorded by an older version
    source: str | None = None  # the name of the source address; None: the system chose the address


class Outcome(Struct, frozen=True, gc=False):
    """The result of the latest attempts for one recipient."""

    recipient: DueRecipient
    status: RecipientStatus
    attempts: tuple[Attempt, ...]
    at: int
    next_attempt_at: int | None = None  # set exactly when `status` is deferred
    note: str | None = None  # shown as the response if no server was contacted ("suppressed: …")
    suppress: Suppression | None = None  # set when the address itself is at fault
    failure: FailureReason | None = None  # set when no server decided it; a cancelled recipient gets its credit back
    signature: bytes | None = None  # the DKIM-Signature fields, stored for the next attempt
    bounce_class: BounceClass | None = None  # of the last reply, unless it was a success
    mail_from: str | None = None  # the return path used instead of the envelope's sender, for the log
    provider: str | None = None  # under the ramp: whose figures count the result


# ---- messages for operators


class OutgoingSession(Struct, frozen=True):
    """An open SMTP session for a recipient, and its current step."""

    recipient_id: str
    host: str
    address: str
    started_at: int
    awaits: str  # "connection", "handshake" or a stage of the dialogue
    since: int


class TriedRecipient(Struct, frozen=True):
    """A recipient with all its attempts; `next_attempt_at` is None if final or scheduled."""

    recipient: Recipient
    domain: str
    simulated: bool
    next_attempt_at: int | None
    attempts: tuple[Attempt, ...]
    session: OutgoingSession | None = None  # open now, if it is slow
    node: str = ""  # that delivers it, if several share the database
    scheduled_at: int | None = None
    route: str | None = None  # as in DueRecipient


class MessageRecord(Struct, frozen=True):
    account_name: str
    message: Message
    recipients: tuple[TriedRecipient, ...]
    account_id: str = ""
