"""In charge of recording results: attempt, recipient, message, credit, suppression and event in one transaction."""

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
from appliance.store.sql import Row, first, rows, run
from appliance.store.suppressions import ADD_SUPPRESSION

# What every query for due mail selects; each adds its own WHERE.
SELECT_DUE = """
SELECT r.id, r.message_id, r.account_id, r.address, r.domain, r.attempt_count, r.last_smtp_code, r.last_smtp_response,
    m.envelope_from, m.subject, m.recipient_count, r.charged
FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
"""
_DUE = (
    SELECT_DUE
    + """
WHERE r.simulated = :simulated AND r.next_attempt_at BETWEEN :since AND :now ORDER BY r.next_attempt_at LIMIT :most
"""
)
_NEXT_DUE = """
SELECT min(next_attempt_at) FROM recipients WHERE simulated = :simulated AND next_attempt_at > :now
"""
_INSERT_ATTEMPT = """
INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code, smtp_response, pool, mx_host,
    mx_address, tls, decision, dialogue)
VALUES (:recipient_id, :number, :started_at, :finished_at, :smtp_code, :smtp_response, :pool, :mx_host,
    :mx_address, :tls, :decision, :dialogue)
"""
_UPDATE_RECIPIENT = """
UPDATE recipients SET status = :status, billing_status = :billing, attempt_count = :attempt_count,
    last_smtp_code = :code, last_smtp_response = :response, delivered_at = :delivered_at, bounced_at = :bounced_at,
    next_attempt_at = :next_attempt_at
WHERE message_id = :message_id AND id = :id AND next_attempt_at IS NOT NULL AND attempt_count = :attempts_before
"""
_KEEP_SIGNATURE = "UPDATE message_bodies SET signature = :signature WHERE message_id = :id AND signature IS NULL"
_INSERT_EVENT = """
INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
VALUES (:id, :account_id, :message_id, :recipient_id, :type, :body, :now)
"""
_RETURN_CREDIT = """
UPDATE accounts SET credits = credits + 1 WHERE id = :account_id AND credits IS NOT NULL RETURNING credits
"""
_RECIPIENT_COUNTS = """
SELECT status, count(*), count(CASE WHEN billing_status = 'released' THEN 1 END) FROM recipients
WHERE message_id = :id GROUP BY status
"""
_UPDATE_MESSAGE = """
UPDATE messages SET status = :status, billing_status = :billing WHERE account_id = :account_id AND id = :id
"""

# What a result means for the recipient's credit; a deferral leaves it reserved.
BILLING = {
    RecipientStatus.DEFERRED: Billing.RESERVED,
    RecipientStatus.DELIVERED: Billing.SETTLED,
    RecipientStatus.FAILED: Billing.SETTLED,
    RecipientStatus.BOUNCED: Billing.RELEASED,
}


def billing_of(result: Outcome) -> Billing:
    """What a result means for the recipient's credit."""
    return Billing.RELEASED if result.releases else BILLING[result.status]


def message_result(counts: dict[RecipientStatus, int], released: int | None = None) -> tuple[MessageStatus, Billing]:
    """What a message's recipients make of the message: queued until all are final, then their sum.

    `released` are those that gave their credit back: the bounced ones, unless something was cancelled.
    """
    if counts.get(RecipientStatus.QUEUED) or counts.get(RecipientStatus.DEFERRED):
        return MessageStatus.QUEUED, Billing.RESERVED
    total, delivered = sum(counts.values()), counts.get(RecipientStatus.DELIVERED, 0)
    released = counts.get(RecipientStatus.BOUNCED, 0) if released is None else released
    billing = Billing.RELEASED if released == total else Billing.SETTLED
    if delivered == total:
        return MessageStatus.DELIVERED, billing
    return (MessageStatus.PARTIAL if delivered else MessageStatus.FAILED), billing


@dataclass(frozen=True, slots=True)
class Queue:
    """Recipients that wait, by when they are due, and what became of them."""

    engine: Engine
    outside: Outside

    def due(self, *, simulated: bool, most: int, since: int = 0) -> list[DueRecipient]:
        """Recipients whose time has come (at `since` or later), the longest waiting first."""
        wanted = {"simulated": int(simulated), "since": since, "now": self.outside.now(), "most": most}
        return self.engine.read(lambda c: [due_recipient(row) for row in rows(c, _DUE, wanted)])

    def next_due(self, *, simulated: bool) -> int | None:
        """When the next recipient that is not due yet will be."""
        wanted = {"simulated": int(simulated), "now": self.outside.now()}
        row = self.engine.read(lambda c: first(c, _NEXT_DUE, wanted))
        return None if row is None else row[0]

    async def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write results ahead of other writes: what a server has taken must not be sent twice."""
        await self.engine.write(lambda c: record(c, self.outside, outcomes), urgent=True)


def due_recipient(row: Row) -> DueRecipient:
    """A recipient out of the columns every query for due mail selects."""
    return DueRecipient(*row)


def record(c: apsw.Connection, outside: Outside, outcomes: Iterable[Outcome]) -> None:
    """Apply each outcome to a recipient that still waits as it did; one that was recorded meanwhile stays as it is."""
    changed: dict[str, Outcome] = {}
    for result in outcomes:
        if _record_one(c, outside, result):
            changed[result.recipient.message_id] = result
    for result in changed.values():
        _update_message(c, result)


def _record_one(c: apsw.Connection, outside: Outside, result: Outcome) -> bool:
    recipient = result.recipient
    code, response = recipient.last_smtp_code, recipient.last_smtp_response
    if result.attempts:
        code, response = result.attempts[-1].smtp_code, result.attempts[-1].smtp_response
    elif result.note is not None:
        code, response = None, result.note
    if not _update_recipient(c, result, code, response):
        return False
    _insert_attempts(c, result)
    if result.signature is not None:
        run(c, _KEEP_SIGNATURE, {"id": recipient.message_id, "signature": result.signature})
    if result.status in TYPES:
        _insert_event(c, outside, result, code, response)
    if billing_of(result) is Billing.RELEASED and recipient.charged:
        _return_credit(c, outside, recipient)
    if result.suppress is not None:
        entry = {"account_id": recipient.account_id, "address": result.suppress.address, "now": result.at}
        rows(c, ADD_SUPPRESSION, entry | {"reason": result.suppress.reason})
    return True


def _update_recipient(c: apsw.Connection, result: Outcome, code: int | None, response: str | None) -> bool:
    recipient = result.recipient
    run(
        c,
        _UPDATE_RECIPIENT,
        {
            "message_id": recipient.message_id,
            "id": recipient.id,
            "status": result.status.value,
            "billing": billing_of(result).value,
            "attempts_before": recipient.attempt_count,
            "attempt_count": recipient.attempt_count + len(result.attempts),
            "code": code,
            "response": response,
            "delivered_at": result.at if result.status is RecipientStatus.DELIVERED else None,
            "bounced_at": result.at if result.status is RecipientStatus.BOUNCED else None,
            "next_attempt_at": result.next_attempt_at,
        },
    )
    return c.changes() == 1


def _insert_attempts(c: apsw.Connection, result: Outcome) -> None:
    for number, attempt in enumerate(result.attempts, result.recipient.attempt_count + 1):
        run(
            c,
            _INSERT_ATTEMPT,
            {
                "recipient_id": result.recipient.id,
                "number": number,
                "started_at": attempt.started_at,
                "finished_at": attempt.finished_at,
                "smtp_code": attempt.smtp_code,
                "smtp_response": attempt.smtp_response,
                "pool": attempt.pool,
                "mx_host": attempt.mx_host,
                "mx_address": attempt.mx_address,
                "tls": attempt.tls,
                "decision": attempt.decision,
                "dialogue": attempt.dialogue,
            },
        )


def _insert_event(c: apsw.Connection, outside: Outside, result: Outcome, code: int | None, text: str | None) -> None:
    recipient, event_id = result.recipient, outside.identifier("evt")
    body = envelope(
        event_id,
        result.status,
        result.at,
        email_id=recipient.message_id,
        recipient_id=recipient.id,
        to=recipient.address,
        envelope_from=recipient.envelope_from,
        subject=recipient.subject,
        smtp_code=code,
        smtp_response=text,
    )
    run(
        c,
        _INSERT_EVENT,
        {
            "id": event_id,
            "account_id": recipient.account_id,
            "message_id": recipient.message_id,
            "recipient_id": recipient.id,
            "type": TYPES[result.status],
            "body": body,
            "now": result.at,
        },
    )


def _return_credit(c: apsw.Connection, outside: Outside, recipient: DueRecipient) -> None:
    row = first(c, _RETURN_CREDIT, {"account_id": recipient.account_id})
    if row is not None:
        write_ledger(
            c, outside, recipient.account_id, LedgerKind.RELEASE, 1, row[0], recipient.message_id, recipient.id
        )


def _update_message(c: apsw.Connection, last: Outcome) -> None:
    recipient, counts = last.recipient, {last.status: 1}
    released = int(billing_of(last) is Billing.RELEASED)
    if recipient.recipient_count > 1:
        found = rows(c, _RECIPIENT_COUNTS, {"id": recipient.message_id})
        counts = {RecipientStatus(status): count for status, count, _ in found}
        released = sum(given_back for _, _, given_back in found)
    status, billing = message_result(counts, released)
    if status is not MessageStatus.QUEUED:
        change = {"account_id": recipient.account_id, "id": recipient.message_id}
        run(c, _UPDATE_MESSAGE, change | {"status": status.value, "billing": billing.value})
