"""Feedback mail, the recipient it is about, and its result."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class FeedbackResult(StrEnum):
    LATE_BOUNCED = "late_bounced"
    COMPLAINED = "complained"
    UNSUBSCRIBED = "unsubscribed"
    REPEATED = "repeated"  # not the first for this recipient, or already unsubscribed
    NOT_DELIVERED = "not_delivered"  # the recipient has another result and is unchanged
    UNMATCHED = "unmatched"  # no such recipient of an account with this return path
    NO_COMPLAINT = "no_complaint"  # a report of another kind, such as `not-spam`
    NOT_VERIFIED = "not_verified"  # a complaint without a token or a copy that we signed: kept in the inbox
    NOT_UNDERSTOOD = "not_understood"
    KEPT = "kept"  # in the inbox, for a person to read
    FORWARDED = "forwarded"  # kept in the inbox, and sent to the operator's address
    GIVEN_UP = "given_up"  # processing failed repeatedly


class ShareScope(StrEnum):
    """What queued feedback is counted by; the limits are in store/feedback.py."""

    ALL = "all"
    WITHOUT_TOKEN = "without_token"  # noqa: S105 - a scope
    NETWORK = "network"  # of the client
    ACCOUNT = "account"  # owner of the return path: mail with a token
    ACCOUNT_WITHOUT_TOKEN = "account_without_token"  # noqa: S105 - a scope: its other mail, which anyone can send
    ADDRESS = "address"  # such as dmarc@bounces.example.com
    TOKEN = "token"  # noqa: S105 - a scope
    RECEIVED = "received"  # all mail for receiving addresses
    RECEIVED_ACCOUNT = "received_account"
    RECEIVED_FROM = "received_from"  # a client network, for one account
    RECEIVED_ADDRESS = "received_address"


class QueueShare(NamedTuple):
    scope: ShareScope
    name: str  # within the scope


@dataclass(frozen=True, slots=True)
class FeedbackMail:
    id: str
    addresses: tuple[str, ...]  # recipients
    mime: bytes = field(repr=False)
    received_at: int
    tries: int  # including this one


NO_SINGLE_OWNER = ""  # of mail to a return path of no account or several


@dataclass(frozen=True, slots=True)
class KeptMail:
    """A mail to be kept in the feedback inbox; the texts have no control characters."""

    id: str
    kind: str  # the local part of the address
    address: str  # recipient
    sender: str
    subject: str
    received_at: int
    mime: bytes = field(repr=False)


class InboxMail(Struct, frozen=True):
    id: str
    account_id: str  # NO_SINGLE_OWNER: only administrators see it
    kind: str
    address: str
    sender: str
    subject: str
    result: str  # a FeedbackResult
    received_at: int
    size: int  # of the whole mail in bytes


class FeedbackRecipient(Struct, frozen=True):
    """The recipient that a mail is about; `sent_from` is the domain of the return path."""

    id: str
    message_id: str
    account_id: str
    address: str
    domain: str
    envelope_from: str
    subject: str
    sent_from: str
    lists: tuple[str, ...]  # of its message, for unsubscribing


class NewComplaint(Struct, frozen=True):
    kind: str  # `abuse` and others, RFC 5965 7.3
    reporter: str


class ComplaintRate(Struct, frozen=True):
    """Complaints from users of one provider, and its deliveries in the same time; "": all others."""

    provider: str
    complaints: int
    delivered: int
