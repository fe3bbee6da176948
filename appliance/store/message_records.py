"""Reads messages back: their recipients, their bytes, and every attempt at each recipient."""

from functools import partial
from typing import NamedTuple

import msgspec

from appliance.model.mail import (
    Attempt,
    Billing,
    BounceClass,
    FailureReason,
    LateBounce,
    Message,
    MessageRecord,
    MessageStatus,
    OutgoingSession,
    Recipient,
    RecipientStatus,
    Source,
    TriedRecipient,
)
from appliance.store.body_parts import whole
from appliance.store.engine import StorePart, Tx, first, one, rows

_MESSAGE = """SELECT id, status, source, sender, subject, billing_status, recipient_count, credits_reserved, created_at
    FROM messages WHERE id = :id AND account_id = :account_id"""
_RECIPIENTS = """SELECT id, address, status, billing_status, attempt_count, last_smtp_code, last_smtp_response,
    delivered_at, bounced_at, bounce_class, late_bounce, failure FROM recipients WHERE message_id = :id ORDER BY id"""
_MIME = "SELECT mime, parts_size FROM message_bodies WHERE message_id = :id AND length(mime) > 0"
_late_bounces = msgspec.json.Decoder(LateBounce)


def read_mime(tx: Tx, message_id: str) -> bytes | None:
    return one(tx, partial(whole, tx, message_id), _MIME, {"id": message_id})


def read_message(tx: Tx, account_id: str, message_id: str) -> Message | None:
    row = first(tx, _MESSAGE, {"id": message_id, "account_id": account_id})
    if row is None:
        return None
    results, status, source, sender, subject, billing, recipient_count, reserved, created_at = row
    recipients = tuple(_recipient(_RecipientRow(*row)) for row in rows(tx, _RECIPIENTS, {"id": message_id}))
    head = results, MessageStatus(status), Source(source), sender, subject, Billing(billing)
    return Message(*head, recipient_count, reserved, created_at, recipients)


class _RecipientRow(NamedTuple):
    id: str
    email: str
    status: str
    billing_status: str
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: int | None
    bounced_at: int | None
    bounce_class: str | None
    late_bounce: str | None
    failure: str | None


def _recipient(row: _RecipientRow) -> Recipient:
    return Recipient(
        row.id,
        row.email,
        RecipientStatus(row.status),
        Billing(row.billing_status),
        row.attempt_count,
        row.last_smtp_code,
        row.last_smtp_response,
        row.delivered_at,
        row.bounced_at,
        None if row.bounce_class is None else BounceClass(row.bounce_class),
        None if row.late_bounce is None else _late_bounces.decode(row.late_bounce),
        None if row.failure is None else FailureReason(row.failure),
    )


# ---- all that is known of one message: its recipients, and every attempt at each

# Messages are found by account, and recipients by message: so the account of a message is that of its recipients.
_ACCOUNT = """SELECT r.account_id, a.name FROM recipients r JOIN accounts a ON a.id = r.account_id
    WHERE r.message_id = :message_id LIMIT 1"""
_WAYS = "SELECT id, domain, simulated, next_attempt_at, '' FROM recipients WHERE message_id = :message_id"
_WAYS_BY_NODE = """SELECT r.id, r.domain, r.simulated, r.next_attempt_at, coalesce(n.name, '') FROM recipients r
    LEFT JOIN nodes n ON n.owner = r.owner WHERE r.message_id = :message_id"""
_ATTEMPTS = f"""SELECT {", ".join(Attempt.__struct_fields__)} FROM attempts
    WHERE recipient_id = :recipient_id ORDER BY number"""

_SESSION = """SELECT recipient_id, host, address, started_at, awaits, since FROM smtp_sessions
    WHERE recipient_id = :recipient_id"""


class MessageRecords(StorePart):
    async def of(self, message_id: str, account_id: str | None = None) -> MessageRecord | None:
        """Everything about a message of any account, or of this one only; None if the message does not exist."""
        return await self.engine.snapshot(lambda tx: self._record(tx, message_id, account_id))

    async def off_loop(self, message_id: str, account_id: str) -> MessageRecord | None:
        """The same, read on a thread: the dialogues of many attempts may be megabytes."""
        return await self.engine.scan(lambda tx: self._record(tx, message_id, account_id), account_id)

    def _record(self, tx: Tx, message_id: str, account_id: str | None) -> MessageRecord | None:
        row = first(tx, _ACCOUNT, {"message_id": message_id})
        if row is None or account_id not in (None, row[0]):
            return None
        if (message := read_message(tx, row[0], message_id)) is None:
            return None
        query = _WAYS_BY_NODE if self.engine.is_shared else _WAYS
        ways = {recipient_id: way for recipient_id, *way in rows(tx, query, {"message_id": message_id})}
        recipients = tuple(_tried(tx, recipient, *ways[recipient.id]) for recipient in message.recipients)
        return MessageRecord(row[1], message, recipients, row[0])


def _tried(
    tx: Tx, recipient: Recipient, domain: str, simulated: int, next_attempt_at: int | None, node: str
) -> TriedRecipient:
    bindings = {"recipient_id": recipient.id}
    attempts = tuple(Attempt(*row) for row in rows(tx, _ATTEMPTS, bindings))
    session = None if next_attempt_at is None else one(tx, OutgoingSession, _SESSION, bindings)
    return TriedRecipient(recipient, domain, bool(simulated), next_attempt_at, attempts, session, node)
