"""Mail that came back, the recipient it is about, and what came of it: as the store and the worker know them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FeedbackResult(StrEnum):
    """What one address of a mail led to."""

    LATE_BOUNCED = "late_bounced"
    COMPLAINED = "complained"
    UNSUBSCRIBED = "unsubscribed"
    REPEATED = "repeated"  # for that recipient another one came before, or the address has unsubscribed already
    NOT_DELIVERED = "not_delivered"  # the recipient has another result, so it is not changed
    UNMATCHED = "unmatched"  # it leads to no recipient of an account with that return path
    NO_COMPLAINT = "no_complaint"  # a report of another kind, such as `not-spam`
    NOT_VERIFIED = "not_verified"  # a complaint without a token or a signed copy of ours: kept in the inbox
    NOT_UNDERSTOOD = "not_understood"
    KEPT = "kept"  # in the inbox, for a person to read
    FORWARDED = "forwarded"  # kept in the inbox, and sent to the operator's address
    GIVEN_UP = "given_up"  # it could not be read, however often


# What large mailbox providers publish for bulk senders: complaints a delivery from which on they warn, and refuse.
COMPLAINT_MARKS = (0.001, 0.003)
COMPLAINTS_JUDGED_FROM = 1_000  # deliveries: with fewer a single complaint would be above the first line


class ShareScope(StrEnum):
    """What a mail in the queue is counted by; the limits are in store/feedback_shares.py."""

    ALL = "all"
    WITHOUT_TOKEN = "without_token"  # noqa: S105 - a scope
    NETWORK = "network"  # of the client
    ACCOUNT = "account"  # that owns the return path: its mail with a token
    ACCOUNT_WITHOUT_TOKEN = "account_without_token"  # noqa: S105 - a scope: its other mail, which anyone can send
    ADDRESS = "address"  # such as dmarc@bounces.example.com
    TOKEN = "token"  # noqa: S105 - a scope


class QueueShare(NamedTuple):
    scope: ShareScope
    name: str  # within the scope


@dataclass(frozen=True, slots=True)
class FeedbackMail:
    """A mail that waits to be read."""

    id: str
    addresses: tuple[str, ...]  # it was sent to
    mime: bytes = field(repr=False)
    received_at: int
    tries: int  # at reading it, with this one


NO_SINGLE_OWNER = ""  # owns the mail of a return path that no account, or several accounts, have


@dataclass(frozen=True, slots=True)
class KeptMail:
    """A mail to be kept in the feedback inbox; the texts have no control characters."""

    id: str
    kind: str  # the local part of the address
    address: str  # it was sent to
    sender: str
    subject: str
    received_at: int
    mime: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InboxMail:
    """A mail in the feedback inbox, without its content."""

    id: str
    account_id: str  # NO_SINGLE_OWNER: only administrators see it
    kind: str
    address: str
    sender: str
    subject: str
    result: str  # a FeedbackResult
    received_at: int
    size: int  # of the whole mail in bytes


@dataclass(frozen=True, slots=True)
class FeedbackRecipient:
    """The recipient that a mail is about; `sent_from` is the account's domain whose return path was written to."""

    id: str
    message_id: str
    account_id: str
    address: str
    domain: str
    envelope_from: str
    subject: str
    sent_from: str
    lists: tuple[str, ...]  # of its message, that one can unsubscribe from


@dataclass(frozen=True, slots=True)
class NewComplaint:
    kind: str  # `abuse` and others, RFC 5965 7.3
    reporter: str


@dataclass(frozen=True, slots=True)
class ComplaintRate:
    """Complaints from the users of one provider, and what it took in the same time; "": all others together."""

    provider: str
    complaints: int
    delivered: int
