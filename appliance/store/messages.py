"""In charge of messages in the store: accepting one in a single transaction, and reading it back."""

from dataclasses import dataclass

import apsw
import msgspec

from appliance.errors import Code, Refused
from appliance.model import (
    Billing,
    DueRecipient,
    LedgerKind,
    Message,
    MessageStatus,
    NewMessage,
    NewRecipient,
    Outcome,
    Recipient,
    RecipientStatus,
    RememberedSend,
    Source,
)
from appliance.outside import Outside
from appliance.store.accounts import DAY, write_ledger
from appliance.store.engine import Engine
from appliance.store.outcomes import record
from appliance.store.sql import Row, first, rows, run

# All that may forbid a message, read before anything of it is written: a refusal then leaves nothing to roll back.
# An expired key is as good as none, whether or not the janitor has come by.
_MAY_SEND = """
SELECT a.credits, a.daily_cap, a.suspended,
    EXISTS (SELECT 1 FROM suppressions s WHERE s.account_id = a.id),
    EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.scope = :scope AND k.key = :key AND k.expires_at > :now),
    (SELECT recipients FROM daily_volume v WHERE v.account_id = a.id AND v.day = :day)
FROM accounts a WHERE a.id = :account_id
"""
_CLAIM_KEY = """
INSERT INTO idempotency_keys (scope, key, fingerprint, message_id, expires_at)
VALUES (:scope, :key, :fingerprint, :message_id, :expires_at)
ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint, message_id = excluded.message_id,
    expires_at = excluded.expires_at
"""
_REMEMBERED = """
SELECT k.fingerprint, m.request_id, b.receipt FROM idempotency_keys k
JOIN messages m ON m.account_id = :account_id AND m.id = k.message_id
JOIN message_bodies b ON b.message_id = k.message_id
WHERE k.scope = :scope AND k.key = :key AND k.expires_at > :now
"""
_TAKE_CREDITS = "UPDATE accounts SET credits = credits - :amount WHERE id = :account_id"
_COUNT_DAY = """
INSERT INTO daily_volume (account_id, day, recipients) VALUES (:account_id, :day, :recipients)
ON CONFLICT (account_id, day) DO UPDATE SET recipients = recipients + excluded.recipients
"""
_INSERT_MESSAGE = """
INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender, envelope_from, subject, tags,
    template_alias, template_version, recipient_count, credits_reserved, size, created_at)
VALUES (:account_id, :id, :request_id, :source, 'queued', 'reserved', :sender, :envelope_from, :subject, :tags,
    :template_alias, :template_version, :recipient_count, :credits, :size, :created_at)
"""
_INSERT_BODY = "INSERT INTO message_bodies (message_id, mime, receipt) VALUES (:id, :mime, :receipt)"
_INSERT_RECIPIENT = """
INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status, billing_status,
    next_attempt_at)
VALUES (:message_id, :id, :account_id, :address, :domain, :simulated, :charged, 'queued', 'reserved', :now)
"""
_SUPPRESSED = "SELECT address FROM suppressions WHERE account_id = :account_id AND address = :address"
_MESSAGE = """
SELECT id, status, source, sender, subject, billing_status, recipient_count, credits_reserved, created_at
FROM messages WHERE id = :id AND account_id = :account_id
"""
_RECIPIENTS = """
SELECT id, address, status, billing_status, attempt_count, last_smtp_code, last_smtp_response, delivered_at, bounced_at
FROM recipients WHERE message_id = :id ORDER BY id
"""
_TO_SEND = "SELECT mime, signature FROM message_bodies WHERE message_id = :id"
_MIME = "SELECT mime FROM message_bodies WHERE message_id = :id"
LARGE = 64 * 1024  # bytes of a message; copying more than this into the log would hold up the event loop
SUPPRESSED_NOTE = "suppressed: this address is on the account's suppression list"


class KeyTaken(Exception):
    """Another message got this idempotency key first; nothing of ours was written."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of all accounts."""

    engine: Engine
    outside: Outside

    async def accept(self, new: NewMessage) -> int | None:
        """Write message, recipients, credits and idempotency row together; on disk when this returns.

        What each recipient was charged; None when some were bounced at once, as suppressed, and are not to be tried.
        """
        return await self.engine.write(lambda c: _accept(c, self.outside, new), large=len(new.mime) > LARGE)

    def remembered(self, account_id: str, scope: str, key: str) -> RememberedSend | None:
        """The earlier send under this idempotency key, while it is valid."""
        wanted = {"account_id": account_id, "scope": scope, "key": key, "now": self.outside.now()}
        row = self.engine.read(lambda c: first(c, _REMEMBERED, wanted))
        return None if row is None else RememberedSend(*row)

    def read(self, account_id: str, message_id: str) -> Message | None:
        """A message of this account; another account's is as absent as one that never was."""
        return self.engine.snapshot(lambda c: read_message(c, account_id, message_id))

    def to_send(self, message_id: str) -> tuple[bytes, bytes | None]:
        """The bytes of a message that is not final yet, and its signature if that has been made before."""
        ((mime, signature),) = self.engine.read(lambda c: rows(c, _TO_SEND, {"id": message_id}))
        return mime, signature

    def mime(self, message_id: str) -> bytes | None:
        """The message's bytes, while they are kept."""
        row = self.engine.read(lambda c: first(c, _MIME, {"id": message_id}))
        return None if row is None else bytes(row[0])


# ---- accepting, as a list of steps inside one transaction


@dataclass(frozen=True, slots=True)
class _Standing:
    """The account as it is in this transaction, not as it was when the caller was let in."""

    balance: int | None
    daily_cap: int | None
    suspended: bool
    has_suppressions: bool
    key_taken: bool
    sent_today: int


def _accept(c: apsw.Connection, outside: Outside, new: NewMessage) -> int | None:
    standing = _standing(c, new)
    _check(new, standing)
    _claim_key(c, new)
    charged = _charge(c, outside, new, standing)
    _insert(c, new, charged)
    if standing.has_suppressions and _bounce_suppressed(c, outside, new, charged):
        return None
    return charged


def _standing(c: apsw.Connection, new: NewMessage) -> _Standing:
    claim = new.idempotency
    wanted = {"account_id": new.account_id, "now": new.created_at, "day": new.created_at // DAY}
    wanted |= {"scope": claim.scope if claim else None, "key": claim.key if claim else None}
    ((balance, daily_cap, suspended, suppressions, taken, today),) = rows(c, _MAY_SEND, wanted)
    return _Standing(balance, daily_cap, bool(suspended), bool(suppressions), bool(taken), today or 0)


def _check(new: NewMessage, standing: _Standing) -> None:
    if standing.key_taken:
        raise KeyTaken
    if standing.suspended:
        raise Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
    if new.source is Source.TEST:
        return
    if standing.daily_cap is not None and standing.sent_today + len(new.recipients) > standing.daily_cap:
        raise Refused(
            Code.WARMUP_LIMITED,
            f"The account may send to {standing.daily_cap} recipients a day (UTC) while it warms up,"
            f" and has sent to {standing.sent_today} today. Retry tomorrow.",
            retry_after=-((new.created_at % DAY - DAY) // 1_000_000),  # rounded up
        )
    if standing.balance is not None and standing.balance < new.credits:
        raise Refused(
            Code.INSUFFICIENT_CREDITS,
            f"This message needs {new.credits} credits and the account has {standing.balance}."
            " Add credits and send it again.",
        )


def _claim_key(c: apsw.Connection, new: NewMessage) -> None:
    claim = new.idempotency
    if claim is None:
        return
    run(
        c,
        _CLAIM_KEY,
        {
            "scope": claim.scope,
            "key": claim.key,
            "fingerprint": claim.fingerprint,
            "message_id": new.id,
            "expires_at": claim.expires_at,
        },
    )


def _charge(c: apsw.Connection, outside: Outside, new: NewMessage, standing: _Standing) -> int:
    """Take what the message costs; how many credits that was for each recipient."""
    if new.source is Source.TEST:
        return 0
    if standing.daily_cap is not None:
        row = {"account_id": new.account_id, "day": new.created_at // DAY, "recipients": len(new.recipients)}
        run(c, _COUNT_DAY, row)
    if standing.balance is None or not new.credits:
        return 0
    run(c, _TAKE_CREDITS, {"account_id": new.account_id, "amount": new.credits})
    balance = standing.balance - new.credits
    write_ledger(c, outside, new.account_id, LedgerKind.RESERVE, -new.credits, balance, new.id)
    return 1


def _insert(c: apsw.Connection, new: NewMessage, charged: int) -> None:
    run(
        c,
        _INSERT_MESSAGE,
        {
            "account_id": new.account_id,
            "id": new.id,
            "request_id": new.request_id,
            "source": new.source.value,
            "sender": new.sender,
            "envelope_from": new.envelope_from,
            "subject": new.subject,
            "tags": msgspec.json.encode(new.tags).decode(),
            "template_alias": new.template_alias,
            "template_version": new.template_version,
            "recipient_count": len(new.recipients),
            "credits": new.credits,
            "size": len(new.mime),
            "created_at": new.created_at,
        },
    )
    run(c, _INSERT_BODY, {"id": new.id, "mime": new.mime, "receipt": new.receipt})
    shared = {"message_id": new.id, "account_id": new.account_id, "simulated": int(new.simulated), "charged": charged}
    for recipient in new.recipients:
        row = {"id": recipient.id, "address": recipient.address, "domain": recipient.domain, "now": new.created_at}
        run(c, _INSERT_RECIPIENT, row | shared)


def _bounce_suppressed(c: apsw.Connection, outside: Outside, new: NewMessage, charged: int) -> bool:
    """Bounce those on the suppression list; whether there were any."""
    bounced = []
    for recipient in new.recipients:
        wanted = {"account_id": new.account_id, "address": recipient.key}
        if first(c, _SUPPRESSED, wanted) is not None:
            bounced.append(_suppressed(new, recipient, charged))
    if bounced:
        record(c, outside, bounced)
    return bool(bounced)


def _suppressed(new: NewMessage, recipient: NewRecipient, charged: int) -> Outcome:
    due = DueRecipient(
        id=recipient.id,
        message_id=new.id,
        account_id=new.account_id,
        address=recipient.address,
        domain=recipient.domain,
        attempt_count=0,
        last_smtp_code=None,
        last_smtp_response=None,
        envelope_from=new.envelope_from,
        subject=new.subject,
        recipient_count=len(new.recipients),
        charged=charged,
    )
    return Outcome(due, RecipientStatus.BOUNCED, (), at=new.created_at, note=SUPPRESSED_NOTE)


# ---- reading


def read_message(c: apsw.Connection, account_id: str, message_id: str) -> Message | None:
    """A message of this account with its recipients, as a step of a reading."""
    row = first(c, _MESSAGE, {"id": message_id, "account_id": account_id})
    if row is None:
        return None
    found, status, source, sender, subject, billing, recipient_count, reserved, created_at = row
    recipients = tuple(_recipient(entry) for entry in rows(c, _RECIPIENTS, {"id": message_id}))
    return Message(
        found,
        MessageStatus(status),
        Source(source),
        sender,
        subject,
        Billing(billing),
        recipient_count,
        reserved,
        created_at,
        recipients,
    )


def _recipient(row: Row) -> Recipient:
    return Recipient(row[0], row[1], RecipientStatus(row[2]), Billing(row[3]), *row[4:])
