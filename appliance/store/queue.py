"""The queue of recipients: finds those that are due, and records the outcome of attempts.

An outcome is attempt, recipient, message, credit, suppression, event and post in one transaction.

A lane is one account's mail for one domain. Due mail is normally so little that one query by time reads all of it. When
it does not fit, lanes are visited instead, each by index, so that neither an account nor a domain with a hundred
thousand messages is read to its end before the next one's first is seen.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import apsw
from msgspec.structs import astuple

from appliance.model.mail import Billing, DueRecipient, LedgerKind, MessageStatus, Outcome, RecipientStatus
from appliance.model.webhooks import EVENT_TYPES, envelope
from appliance.outside import Outside
from appliance.store.accounts import write_ledger
from appliance.store.engine import StorePart
from appliance.store.sql import Many, Row, first, rows, run
from appliance.store.suppressions import suppress
from appliance.store.webhooks import WebhookPosts, post_events

# What every query for due mail selects; each adds its own WHERE.
SELECT_DUE = """SELECT r.id, r.message_id, r.account_id, r.address, r.domain, r.attempt_count, r.last_smtp_code,
        r.last_smtp_response, m.envelope_from, m.subject, m.recipient_count, r.charged, m.sender
    FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id"""
_DUE = f"""{SELECT_DUE} WHERE r.simulated = :simulated AND r.next_attempt_at BETWEEN :since AND :now
    ORDER BY r.next_attempt_at LIMIT :most"""
_NEXT_DUE = "SELECT min(next_attempt_at) FROM recipients WHERE simulated = :simulated AND next_attempt_at > :now"
# Its columns from the third on are the fields of an Attempt.
_INSERT_ATTEMPTS = Many("""INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code,
        smtp_response, pool, mx_host, mx_address, tls, decision, dialogue)
    VALUES {(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)}""")
_UPDATE_RECIPIENTS = Many("""
WITH new (message_id, id, attempts_before, status, billing, attempt_count, code, response, delivered_at, bounced_at,
    next_attempt_at) AS (VALUES {(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)})
UPDATE recipients SET status = new.status, billing_status = new.billing, attempt_count = new.attempt_count,
    last_smtp_code = new.code, last_smtp_response = new.response, delivered_at = new.delivered_at,
    bounced_at = new.bounced_at, next_attempt_at = new.next_attempt_at
FROM new WHERE recipients.message_id = new.message_id AND recipients.id = new.id
    AND recipients.next_attempt_at IS NOT NULL AND recipients.attempt_count = new.attempts_before
RETURNING message_id, id
""")
_NOTE_FAILURE = "UPDATE recipients SET failed_at = :at WHERE message_id = :message_id AND id = :id"
_KEEP_SIGNATURE = "UPDATE message_bodies SET signature = :signature WHERE message_id = :id AND signature IS NULL"
_INSERT_EVENTS = Many("""INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    VALUES {(?, ?, ?, ?, ?, ?, ?)}""")
_RETURN_CREDIT = """UPDATE accounts SET credits = credits + 1 WHERE id = :account_id AND credits IS NOT NULL
    RETURNING credits"""
_RECIPIENT_COUNTS = """SELECT status, count(*), count(CASE WHEN billing_status = 'released' THEN 1 END) FROM recipients
    WHERE message_id = :id GROUP BY status"""
_UPDATE_MESSAGES = Many("""WITH new (account_id, id, status, billing) AS (VALUES {(?, ?, ?, ?)})
    UPDATE messages SET status = new.status, billing_status = new.billing
    FROM new WHERE messages.account_id = new.account_id AND messages.id = new.id""")

# What a result means for the recipient's credit; a deferral leaves it reserved.
BILLING = {
    RecipientStatus.DEFERRED: Billing.RESERVED,
    RecipientStatus.DELIVERED: Billing.SETTLED,
    RecipientStatus.FAILED: Billing.SETTLED,
    RecipientStatus.BOUNCED: Billing.RELEASED,
}


def billing_of(result: Outcome) -> Billing:
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
class Queue(StorePart):
    posts: WebhookPosts

    def due(self, *, simulated: bool, most: int, since: int = 0) -> list[DueRecipient]:
        """Recipients whose time has come (at `since` or later), the longest waiting first."""
        wanted = {"simulated": int(simulated), "since": since, "now": self.outside.now(), "most": most}
        return self.engine.all(DueRecipient, _DUE, wanted)

    def next_due(self, *, simulated: bool, after: int | None = None) -> int | None:
        """When the first recipient is due after `after`, or after now.

        What becomes due between two reads must not be missed by both: ask for it before a poll, or with its time.
        """
        wanted = {"simulated": int(simulated), "now": self.outside.now() if after is None else after}
        due_at: int | None = self.engine.rows(_NEXT_DUE, wanted)[0][0]
        return due_at

    async def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write results ahead of other writes: what a server has taken must not be sent twice."""
        if accounts := await self.engine.write_item(self._record, outcomes, urgent=True):
            self.posts.add_new(accounts)

    def _record(self, c: apsw.Connection, several: Sequence[Sequence[Outcome]]) -> list[set[str]]:
        return [record(c, self.outside, chain.from_iterable(several))] * len(several)


def record(c: apsw.Connection, outside: Outside, outcomes: Iterable[Outcome]) -> set[str]:
    """Apply each outcome to a recipient that still waits as it did; one that was recorded meanwhile stays as it is.

    Returned are the accounts whose webhook is to hear of it.
    """
    accounts: set[str] = set()
    for together in _rounds(list(outcomes)):
        accounts |= _record_together(c, outside, together)
    return accounts


def _rounds(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """The outcomes so that no recipient is met twice in a round: the second one finds what the first has made of it."""
    if len({result.recipient.id for result in outcomes}) == len(outcomes):  # as nearly always
        return [outcomes]
    rounds: list[list[Outcome]] = []
    met: Counter[str] = Counter()
    for result in outcomes:
        number = met[result.recipient.id]
        met[result.recipient.id] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(result)
    return rounds


def _record_together(c: apsw.Connection, outside: Outside, outcomes: Sequence[Outcome]) -> set[str]:
    waited = set(_UPDATE_RECIPIENTS.run(c, [_recipient_row(result) for result in outcomes]))
    changed = [result for result in outcomes if (result.recipient.message_id, result.recipient.id) in waited]
    attempts = [
        (result.recipient.id, number, *astuple(attempt))
        for result in changed
        for number, attempt in enumerate(result.attempts, result.recipient.attempt_count + 1)
    ]
    _INSERT_ATTEMPTS.run(c, attempts)
    events = [_event_row(outside, result) for result in changed if result.status in EVENT_TYPES]
    _INSERT_EVENTS.run(c, events)
    for result in changed:
        _write_rare(c, outside, result)
    last = {result.recipient.message_id: result for result in changed}
    _UPDATE_MESSAGES.run(c, [row for result in last.values() for row in _message_rows(c, result)])
    return post_events(c, outside, events)


def _last_words(result: Outcome) -> tuple[int | None, str | None]:
    if result.attempts:
        return result.attempts[-1].smtp_code, result.attempts[-1].smtp_response
    if result.note is not None:
        return None, result.note
    return result.recipient.last_smtp_code, result.recipient.last_smtp_response


def _recipient_row(result: Outcome) -> Row:
    recipient, status, before = result.recipient, result.status, result.recipient.attempt_count
    row = recipient.message_id, recipient.id, before, status.value, billing_of(result).value
    delivered_at = result.at if status is RecipientStatus.DELIVERED else None
    bounced_at = result.at if status is RecipientStatus.BOUNCED else None
    last_words = _last_words(result)
    return *row, before + len(result.attempts), *last_words, delivered_at, bounced_at, result.next_attempt_at


def _event_row(outside: Outside, result: Outcome) -> Row:
    recipient, event_id = result.recipient, outside.identifier("evt")
    code, response = _last_words(result)
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
        smtp_response=response,
    )
    of = recipient.account_id, recipient.message_id, recipient.id
    return event_id, *of, EVENT_TYPES[result.status], body, result.at


def _write_rare(c: apsw.Connection, outside: Outside, result: Outcome) -> None:
    """When a recipient has failed, a signature to keep, a credit that goes back, an address to suppress."""
    recipient = result.recipient
    if result.status is RecipientStatus.FAILED:
        run(c, _NOTE_FAILURE, {"message_id": recipient.message_id, "id": recipient.id, "at": result.at})
    if result.signature is not None:
        run(c, _KEEP_SIGNATURE, {"id": recipient.message_id, "signature": result.signature})
    if billing_of(result) is Billing.RELEASED and recipient.charged:
        account_id, message_id = recipient.account_id, recipient.message_id
        if (row := first(c, _RETURN_CREDIT, {"account_id": account_id})) is not None:
            write_ledger(c, outside, [(account_id, LedgerKind.RELEASE, 1, row[0], message_id, recipient.id)])
    if result.suppress is not None:
        entry = {"account_id": recipient.account_id, "address": result.suppress.address, "now": result.at}
        suppress(c, entry | {"reason": result.suppress.reason})


def _message_rows(c: apsw.Connection, last: Outcome) -> list[Row]:
    """The state of a message after its last outcome; none while a recipient still waits."""
    recipient, counts = last.recipient, {last.status: 1}
    released = int(billing_of(last) is Billing.RELEASED)
    if recipient.recipient_count > 1:
        found = rows(c, _RECIPIENT_COUNTS, {"id": recipient.message_id})
        counts = {RecipientStatus(status): count for status, count, _ in found}
        released = sum(given_back for _, _, given_back in found)
    status, billing = message_result(counts, released)
    if status is MessageStatus.QUEUED:
        return []
    return [(recipient.account_id, recipient.message_id, status.value, billing.value)]


# ---- waiting mail by account and domain

# SQLite has no skip scan over a partial index, so these walk it from one value to the next.
_ACCOUNTS = """
WITH RECURSIVE waiting (account_id) AS (
    SELECT min(account_id) FROM recipients WHERE simulated = 0 AND next_attempt_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.account_id) FROM recipients r
        WHERE r.simulated = 0 AND r.next_attempt_at IS NOT NULL AND r.account_id > waiting.account_id)
    FROM waiting WHERE waiting.account_id IS NOT NULL
)
SELECT account_id FROM waiting WHERE account_id IS NOT NULL
"""
_DOMAINS = """
WITH RECURSIVE waiting (domain) AS (
    SELECT min(domain) FROM recipients
    WHERE simulated = 0 AND next_attempt_at IS NOT NULL AND account_id = :account_id AND domain > :after
    UNION ALL
    SELECT (SELECT min(r.domain) FROM recipients r WHERE r.simulated = 0 AND r.next_attempt_at IS NOT NULL
        AND r.account_id = :account_id AND r.domain > waiting.domain)
    FROM waiting WHERE waiting.domain IS NOT NULL LIMIT :most
)
SELECT domain FROM waiting WHERE domain IS NOT NULL
"""
_LANE = f"""{SELECT_DUE} WHERE r.simulated = 0 AND r.account_id = :account_id AND r.domain = :domain
    AND r.next_attempt_at <= :now ORDER BY r.next_attempt_at LIMIT :most"""


class Lanes(StorePart):
    def accounts(self) -> list[str]:
        return self.engine.all(str, _ACCOUNTS, {})

    def domains(self, account_id: str, after: str, most: int) -> list[str]:
        """Domains this account has mail waiting for, in order, from the one after `after`."""
        return self.engine.all(str, _DOMAINS, {"account_id": account_id, "after": after, "most": most})

    def due(self, account_id: str, domain: str, most: int) -> list[DueRecipient]:
        """The due recipients of one lane, the longest waiting first."""
        wanted = {"account_id": account_id, "domain": domain, "now": self.outside.now(), "most": most}
        return self.engine.all(DueRecipient, _LANE, wanted)
