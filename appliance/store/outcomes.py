"""In charge of recording results: attempt, recipient, message, credit, suppression and event, all in one transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw

from appliance.events import TYPES, envelope
from appliance.model import (
    Billing,
    DueRecipient,
    LedgerKind,
    MessageStatus,
    Outcome,
    RecipientStatus,
)
from appliance.outside import Outside
from appliance.store.accounts import write_ledger
from appliance.store.engine import Engine
from appliance.store.suppressions import ADD_SUPPRESSION

_DUE = """
SELECT id, message_id, address, domain, attempt_count FROM recipients
WHERE simulated = :simulated AND next_attempt_at <= :now ORDER BY next_attempt_at LIMIT :most
"""
_NEXT_DUE = """
SELECT min(next_attempt_at) FROM recipients WHERE simulated = :simulated AND next_attempt_at > :now
"""
_CONTEXT = """
SELECT r.message_id, r.address, r.attempt_count, r.last_smtp_code, r.last_smtp_response,
    m.account_id, m.envelope_from, m.subject, m.recipient_count, m.credits_reserved
FROM recipients r JOIN messages m ON m.id = r.message_id
WHERE r.id = :id AND r.next_attempt_at IS NOT NULL
"""
_INSERT_ATTEMPT = """
INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code, smtp_response)
VALUES (:recipient_id, :number, :started_at, :finished_at, :smtp_code, :smtp_response)
"""
_UPDATE_RECIPIENT = """
UPDATE recipients SET status = :status, billing_status = :billing, attempt_count = :attempt_count,
    last_smtp_code = :code, last_smtp_response = :response, delivered_at = :delivered_at, bounced_at = :bounced_at,
    next_attempt_at = :next_attempt_at
WHERE id = :id
"""
_INSERT_EVENT = """
INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
VALUES (:id, :account_id, :message_id, :recipient_id, :type, :body, :now)
"""
_RETURN_CREDIT = """
UPDATE accounts SET credits = credits + 1 WHERE id = :account_id AND credits IS NOT NULL RETURNING credits
"""
_RECIPIENT_COUNTS = "SELECT status, count(*) FROM recipients WHERE message_id = :id GROUP BY status"
_UPDATE_MESSAGE = "UPDATE messages SET status = :status, billing_status = :billing WHERE id = :id"

# What a result means for the recipient's credit; a deferral leaves it reserved.
BILLING = {
    RecipientStatus.DEFERRED: Billing.RESERVED,
    RecipientStatus.DELIVERED: Billing.SETTLED,
    RecipientStatus.FAILED: Billing.SETTLED,
    RecipientStatus.BOUNCED: Billing.RELEASED,
}


def message_result(counts: dict[RecipientStatus, int]) -> tuple[MessageStatus, Billing]:
    """What a message's recipients make of the message: queued until all are final, then their sum."""
    if counts.get(RecipientStatus.QUEUED) or counts.get(RecipientStatus.DEFERRED):
        return MessageStatus.QUEUED, Billing.RESERVED
    total, delivered = sum(counts.values()), counts.get(RecipientStatus.DELIVERED, 0)
    billing = Billing.RELEASED if counts.get(RecipientStatus.BOUNCED) == total else Billing.SETTLED
    if delivered == total:
        return MessageStatus.DELIVERED, billing
    return (MessageStatus.PARTIAL if delivered else MessageStatus.FAILED), billing


@dataclass(frozen=True, slots=True)
class Queue:
    """Recipients that wait, by when they are due, and what became of them."""

    engine: Engine
    outside: Outside

    def due(self, *, simulated: bool, most: int) -> list[DueRecipient]:
        """Recipients whose time has come, the longest waiting first."""
        wanted = {"simulated": int(simulated), "now": self.outside.now(), "most": most}
        return self.engine.read(lambda c: [DueRecipient(*row) for row in c.execute(_DUE, wanted)])

    def next_due(self, *, simulated: bool) -> int | None:
        """When the next recipient that is not due yet will be."""
        wanted = {"simulated": int(simulated), "now": self.outside.now()}
        row = self.engine.read(lambda c: c.execute(_NEXT_DUE, wanted).fetchone())
        return None if row is None else row[0]

    async def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write results ahead of other writes: what a server has taken must not be sent twice."""
        await self.engine.write(lambda c: record(c, self.outside, outcomes), urgent=True)


def record(c: apsw.Connection, outside: Outside, outcomes: Iterable[Outcome]) -> None:
    """Apply each outcome to a recipient that still waits; one that is final already stays as it is."""
    changed: dict[str, tuple[int, RecipientStatus]] = {}
    for result in outcomes:
        context = c.execute(_CONTEXT, {"id": result.recipient_id}).fetchone()
        if context is not None:
            message_id, recipient_count = _record_one(c, outside, result, context)
            changed[message_id] = (recipient_count, result.status)
    for message_id, (recipient_count, status) in changed.items():
        _update_message(c, message_id, recipient_count, status)


def _record_one(
    c: apsw.Connection,
    outside: Outside,
    result: Outcome,
    context: tuple[str, str, int, int | None, str | None, str, str, str, int, int],
) -> tuple[str, int]:
    message_id, address, count, code, response, account_id, envelope_from, subject, recipient_count, reserved = context
    for number, attempt in enumerate(result.attempts, count + 1):
        code, response = attempt.smtp_code, attempt.smtp_response
        row = {"recipient_id": result.recipient_id, "number": number, "smtp_code": code, "smtp_response": response}
        c.execute(_INSERT_ATTEMPT, row | {"started_at": attempt.started_at, "finished_at": attempt.finished_at})
    if result.note is not None:
        code, response = None, result.note
    _update_recipient(c, result, count + len(result.attempts), code, response)
    if result.status in TYPES:
        event_id = outside.identifier("evt")
        body = envelope(
            event_id,
            result.status,
            result.at,
            email_id=message_id,
            recipient_id=result.recipient_id,
            to=address,
            envelope_from=envelope_from,
            subject=subject,
            smtp_code=code,
            smtp_response=response,
        )
        event = {"id": event_id, "account_id": account_id, "message_id": message_id, "type": TYPES[result.status]}
        c.execute(_INSERT_EVENT, event | {"recipient_id": result.recipient_id, "body": body, "now": result.at})
    if result.status is RecipientStatus.BOUNCED and reserved:
        _return_credit(c, outside, account_id, message_id, result.recipient_id)
    if result.suppress is not None:
        entry = {"account_id": account_id, "address": result.suppress.address, "reason": result.suppress.reason}
        c.execute(ADD_SUPPRESSION, entry | {"now": result.at}).fetchall()
    return message_id, recipient_count


def _update_recipient(
    c: apsw.Connection, result: Outcome, attempt_count: int, code: int | None, response: str | None
) -> None:
    c.execute(
        _UPDATE_RECIPIENT,
        {
            "id": result.recipient_id,
            "status": result.status.value,
            "billing": BILLING[result.status].value,
            "attempt_count": attempt_count,
            "code": code,
            "response": response,
            "delivered_at": result.at if result.status is RecipientStatus.DELIVERED else None,
            "bounced_at": result.at if result.status is RecipientStatus.BOUNCED else None,
            "next_attempt_at": result.next_attempt_at,
        },
    )


def _return_credit(c: apsw.Connection, outside: Outside, account_id: str, message_id: str, recipient_id: str) -> None:
    row = c.execute(_RETURN_CREDIT, {"account_id": account_id}).fetchone()
    if row is not None:
        write_ledger(c, outside, account_id, LedgerKind.RELEASE, 1, row[0], message_id, recipient_id)


def _update_message(c: apsw.Connection, message_id: str, recipient_count: int, last: RecipientStatus) -> None:
    counts = {last: 1}
    if recipient_count > 1:
        rows = c.execute(_RECIPIENT_COUNTS, {"id": message_id})
        counts = {RecipientStatus(status): count for status, count in rows}
    status, billing = message_result(counts)
    if status is not MessageStatus.QUEUED:
        c.execute(_UPDATE_MESSAGE, {"id": message_id, "status": status.value, "billing": billing.value})
