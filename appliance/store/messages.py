"""In charge of messages in the store: accepting one in a single transaction, and reading it back."""

from dataclasses import dataclass
from typing import Any

import apsw
import msgspec

from appliance.errors import Code, Refused
from appliance.model import (
    Billing,
    LedgerKind,
    Message,
    MessageStatus,
    NewMessage,
    Outcome,
    Recipient,
    RecipientStatus,
    RememberedSend,
    Source,
)
from appliance.outside import Outside
from appliance.store.accounts import write_ledger
from appliance.store.engine import Engine
from appliance.store.outcomes import record

DAY = 86_400_000_000  # microseconds

# An expired key is as good as none, whether or not the janitor has come by.
_CLAIM_KEY = """
INSERT INTO idempotency_keys (scope, key, fingerprint, message_id, request_id, response, expires_at)
VALUES (:scope, :key, :fingerprint, :message_id, :request_id, :response, :expires_at)
ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint, message_id = excluded.message_id,
    request_id = excluded.request_id, response = excluded.response, expires_at = excluded.expires_at
WHERE idempotency_keys.expires_at <= :now
RETURNING message_id
"""
_REMEMBERED = """
SELECT fingerprint, message_id, request_id, response FROM idempotency_keys
WHERE scope = :scope AND key = :key AND expires_at > :now
"""
_ACCOUNT = "SELECT credits, daily_cap, suspended FROM accounts WHERE id = :account_id"
_TAKE_CREDITS = "UPDATE accounts SET credits = credits - :amount WHERE id = :account_id"
_COUNT_DAY = """
INSERT INTO daily_volume (account_id, day, recipients) VALUES (:account_id, :day, :recipients)
ON CONFLICT (account_id, day) DO UPDATE SET recipients = recipients + excluded.recipients
RETURNING recipients
"""
_INSERT_MESSAGE = """
INSERT INTO messages (id, account_id, request_id, source, simulated, status, billing_status, sender, envelope_from,
    subject, tags, template_alias, template_version, recipient_count, credits_reserved, size, created_at)
VALUES (:id, :account_id, :request_id, :source, :simulated, 'queued', 'reserved', :sender, :envelope_from,
    :subject, :tags, :template_alias, :template_version, :recipient_count, :credits, :size, :created_at)
"""
_INSERT_BODY = "INSERT INTO message_bodies (message_id, mime) VALUES (:id, :mime)"
_INSERT_RECIPIENT = """
INSERT INTO recipients (id, message_id, address, domain, simulated, status, billing_status, next_attempt_at)
VALUES (:id, :message_id, :address, :domain, :simulated, 'queued', 'reserved', :now)
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
_MIME = "SELECT mime FROM message_bodies WHERE message_id = :id"
SUPPRESSED_NOTE = "suppressed: this address is on the account's suppression list"


class KeyTaken(Exception):
    """Another message got this idempotency key first; nothing of ours was written."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of all accounts."""

    engine: Engine
    outside: Outside

    async def accept(self, new: NewMessage) -> None:
        """Write message, recipients, credits and idempotency row together; on disk when this returns."""
        await self.engine.write(lambda c: _accept(c, self.outside, new))

    def remembered(self, scope: str, key: str) -> RememberedSend | None:
        """The earlier send under this idempotency key, while it is valid."""
        wanted = {"scope": scope, "key": key, "now": self.outside.now()}
        row = self.engine.read(lambda c: c.execute(_REMEMBERED, wanted).fetchone())
        return None if row is None else RememberedSend(*row)

    def read(self, account_id: str, message_id: str) -> Message | None:
        """A message of this account; another account's is as absent as one that never was."""
        return self.engine.snapshot(lambda c: _read(c, account_id, message_id))

    def mime(self, message_id: str) -> bytes | None:
        """The message's bytes, while they are kept."""
        row = self.engine.read(lambda c: c.execute(_MIME, {"id": message_id}).fetchone())
        return None if row is None else bytes(row[0])


# ---- accepting, as a list of steps inside one transaction


def _accept(c: apsw.Connection, outside: Outside, new: NewMessage) -> None:
    _claim_key(c, new)
    _charge(c, outside, new)
    _insert(c, new)
    _bounce_suppressed(c, outside, new)


def _claim_key(c: apsw.Connection, new: NewMessage) -> None:
    claim = new.idempotency
    if claim is None:
        return
    row = {"scope": claim.scope, "key": claim.key, "fingerprint": claim.fingerprint, "response": claim.response}
    row |= {"message_id": new.id, "request_id": new.request_id, "expires_at": claim.expires_at, "now": new.created_at}
    if c.execute(_CLAIM_KEY, row).fetchone() is None:
        raise KeyTaken


def _charge(c: apsw.Connection, outside: Outside, new: NewMessage) -> None:
    """Check the account as it is now, not as it was when the caller was let in, and take what the message costs."""
    balance, daily_cap, suspended = c.execute(_ACCOUNT, {"account_id": new.account_id}).fetchone()
    if suspended:
        raise Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
    if new.source is Source.TEST:
        return
    _count_day(c, new, daily_cap)
    if balance is None or new.credits == 0:
        return
    if balance < new.credits:
        raise Refused(
            Code.INSUFFICIENT_CREDITS,
            f"This message needs {new.credits} credits and the account has {balance}. Add credits and send it again.",
        )
    c.execute(_TAKE_CREDITS, {"account_id": new.account_id, "amount": new.credits})
    write_ledger(c, outside, new.account_id, LedgerKind.RESERVE, -new.credits, balance - new.credits, new.id)


def _count_day(c: apsw.Connection, new: NewMessage, daily_cap: int | None) -> None:
    day, today = divmod(new.created_at, DAY)
    row = {"account_id": new.account_id, "day": day, "recipients": len(new.recipients)}
    (volume,) = c.execute(_COUNT_DAY, row).fetchall()[0]
    if daily_cap is not None and volume > daily_cap:
        raise Refused(
            Code.WARMUP_LIMITED,
            f"The account's daily cap of {daily_cap} recipients leaves no room for this message today (UTC).",
            retry_after=max(1, (DAY - today) // 1_000_000),
        )


def _insert(c: apsw.Connection, new: NewMessage) -> None:
    c.execute(
        _INSERT_MESSAGE,
        {
            "id": new.id,
            "account_id": new.account_id,
            "request_id": new.request_id,
            "source": new.source.value,
            "simulated": int(new.simulated),
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
    c.execute(_INSERT_BODY, {"id": new.id, "mime": new.mime})
    shared = {"message_id": new.id, "simulated": int(new.simulated), "now": new.created_at}
    for recipient in new.recipients:
        row = {"id": recipient.id, "address": recipient.address, "domain": recipient.domain, **shared}
        c.execute(_INSERT_RECIPIENT, row)


def _bounce_suppressed(c: apsw.Connection, outside: Outside, new: NewMessage) -> None:
    outcomes = []
    for recipient in new.recipients:
        if c.execute(_SUPPRESSED, {"account_id": new.account_id, "address": recipient.key}).fetchone() is not None:
            outcomes.append(
                Outcome(recipient.id, RecipientStatus.BOUNCED, (), at=new.created_at, note=SUPPRESSED_NOTE)
            )
    if outcomes:
        record(c, outside, outcomes)


# ---- reading


def _read(c: apsw.Connection, account_id: str, message_id: str) -> Message | None:
    row = c.execute(_MESSAGE, {"id": message_id, "account_id": account_id}).fetchone()
    if row is None:
        return None
    found, status, source, sender, subject, billing, recipient_count, reserved, created_at = row
    recipients = tuple(_recipient(entry) for entry in c.execute(_RECIPIENTS, {"id": message_id}))
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


def _recipient(row: tuple[Any, ...]) -> Recipient:
    return Recipient(row[0], row[1], RecipientStatus(row[2]), Billing(row[3]), *row[4:])
