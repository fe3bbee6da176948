"""The queue of recipients: finds due recipients, and records the outcome of attempts.

- A lane is one account's mail with one priority for one domain. One query by time reads all due mail, or lane by lane
  if that does not fit, so that no account or domain with a hundred thousand messages delays the next one.
- An outcome is attempt, recipient, message, credit, suppression, event, post and delivery report in one transaction.
- The first deferral an hour or more after the acceptance sets `recipients.delayed_at` and posts `email.delayed`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from msgspec.structs import astuple

from appliance.environment import Environment, identifier_time
from appliance.model.mail import (
    Billing,
    DsnCondition,
    DueRecipient,
    FailureReason,
    MessageLabels,
    MessageStatus,
    Outcome,
    RecipientStatus,
)
from appliance.model.webhooks import EVENT_TYPES, EventType
from appliance.store.accounts import LedgerLine, return_credits, write_ledger
from appliance.store.body_parts import add
from appliance.store.delivery_reports import Reportable, write_reports
from appliance.store.engine import Bulk, Row, StorePart, Tx, owned, rows, run
from appliance.store.ramp import note_results
from appliance.store.search_index import CHANGES_NOTED_AFTER, note_changes
from appliance.store.suppressions import suppress
from appliance.store.webhooks import INSERT_EVENTS, WebhookPosts, event_row, labels_of, post_events
from appliance.times import HOUR

# ---- mail under delivery

# A cancelled recipient gets its credit back, so it must not be cancelled while a server takes the message.
CANCELLED_KEPT = 10_000  # messages: far more than are cancelled while an envelope is pending


class UnderDelivery:
    """Recipients in an SMTP transaction, and messages that were or are being cancelled."""

    def __init__(self, kept: int = CANCELLED_KEPT) -> None:
        self._kept = kept
        self._recipients: set[str] = set()
        self._cancelling: Counter[str] = Counter()
        self._cancelled: dict[str, None] = {}

    # ---- for delivery

    def was_cancelled(self, message_id: str) -> bool:
        """Whether a message was cancelled lately, so that a copy of its state may be outdated."""
        return message_id in self._cancelled

    def is_being_cancelled(self, message_id: str) -> bool:
        """Whether a message is being cancelled, so that no attempt may start."""
        return message_id in self._cancelling

    def begin(self, recipients: Iterable[str]) -> None:
        self._recipients.update(recipients)

    def end(self, recipients: Iterable[str]) -> None:
        """Their outcome is stored, or there was no attempt: they can be cancelled again."""
        self._recipients.difference_update(recipients)

    def count(self) -> int:
        return len(self._recipients)

    # ---- for cancelling

    def __contains__(self, recipient: object) -> bool:
        return recipient in self._recipients

    @contextmanager
    def cancelling(self, message_id: str) -> Iterator[None]:
        """No attempt at the message starts inside, and none later without a check."""
        self._cancelled[message_id] = None
        if len(self._cancelled) > self._kept:
            del self._cancelled[next(iter(self._cancelled))]
        self._cancelling[message_id] += 1
        try:
            yield
        finally:
            self._cancelling[message_id] -= 1
            if not self._cancelling[message_id]:
                del self._cancelling[message_id]


# ---- due mail, and outcomes

# Every query for due mail adds its own WHERE.
SELECT_DUE = """SELECT r.id, r.message_id, r.account_id, r.address, r.domain, r.attempt_count, r.last_smtp_code,
        r.last_smtp_response, m.envelope_from, m.subject, m.recipient_count, r.charged, m.sender,
        coalesce(octet_length(m.metadata), 0), m.scheduled_at, r.low, r.bucket, r.route, m.stream
    FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id"""
_DUE = f"""{SELECT_DUE} WHERE r.simulated = :simulated AND r.low = :low
        AND r.next_attempt_at BETWEEN :since AND :now AND {owned("r")}
    ORDER BY r.next_attempt_at LIMIT :most"""
_DUE_RETRIES = _DUE.replace("ORDER BY", "AND r.attempt_count > 0 ORDER BY")
_NEXT_DUE = f"""SELECT min(next_attempt_at) FROM recipients
    WHERE simulated = :simulated AND low = :low AND next_attempt_at > :now AND {owned("recipients")}"""
# Its columns from the third on are the fields of an Attempt.
_INSERT_ATTEMPTS = Bulk("""INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code,
        smtp_response, pool, mx_host, mx_address, tls, decision, dialogue, route, source)
    VALUES {(?, ?i, ?i, ?i, ?i, ?, ?, ?, ?, ?, ?, ?, ?, ?)}""")
_UPDATE_RECIPIENTS = Bulk("""
WITH new (message_id, id, attempts_before, status, billing, attempt_count, code, response, delivered_at, bounced_at,
    failed_at, next_attempt_at, bounce_class, delayed_at, failure, route)
    AS (VALUES {(?, ?, ?i, ?, ?, ?i, ?i, ?, ?i, ?i, ?i, ?i, ?, ?i, ?, ?)})
UPDATE recipients SET status = new.status, billing_status = new.billing, attempt_count = new.attempt_count,
    last_smtp_code = new.code, last_smtp_response = new.response, delivered_at = new.delivered_at,
    bounced_at = new.bounced_at, failed_at = new.failed_at, next_attempt_at = new.next_attempt_at,
    bounce_class = new.bounce_class, delayed_at = coalesce(recipients.delayed_at, new.delayed_at),
    failure = new.failure, route = coalesce(recipients.route, new.route)
FROM new WHERE recipients.message_id = new.message_id AND recipients.id = new.id
    AND recipients.status IN ('queued', 'deferred') AND recipients.attempt_count = new.attempts_before
RETURNING recipients.message_id, recipients.id, recipients.delayed_at, recipients.dsn, recipients.simulated
""")
_POSTPONE = Bulk(
    """WITH new (message_id, id, due_at) AS (VALUES {(?, ?, ?i)})
    UPDATE recipients SET next_attempt_at = new.due_at FROM new
    WHERE recipients.message_id = new.message_id AND recipients.id = new.id
        AND recipients.next_attempt_at IS NOT NULL AND """
    + owned("recipients")
)
_KEEP_SIGNATURE = "UPDATE message_bodies SET signature = :signature WHERE message_id = :id AND signature IS NULL"
# Two transactions that finish two recipients of a message would each count the other's as queued.
_LOCK_MESSAGES = Bulk("""SELECT id FROM messages WHERE (account_id, id) IN (VALUES {(?, ?)})
    ORDER BY account_id, id""")
_RECIPIENT_COUNTS = """SELECT status, count(*), count(CASE WHEN billing_status = 'released' THEN 1 END) FROM recipients
    WHERE message_id = :id GROUP BY status"""
_UPDATE_MESSAGES = Bulk("""WITH new (account_id, id, status, billing) AS (VALUES {(?, ?, ?, ?)})
    UPDATE messages SET status = new.status, billing_status = new.billing
    FROM new WHERE messages.account_id = new.account_id AND messages.id = new.id""")

_NO_BOUNCE = (EventType.DELIVERED, EventType.FAILED)  # their events have no bounce class
WRITTEN_ON_LOOP = 64 * 1024  # bytes; copying more into the log would block the event loop
DELAYED_AFTER = HOUR  # from the first possible attempt until a deferred recipient gets `email.delayed`

# The effect of a result on the recipient's credit.
BILLING = {
    RecipientStatus.DEFERRED: Billing.RESERVED,
    RecipientStatus.DELIVERED: Billing.SETTLED,
    RecipientStatus.FAILED: Billing.SETTLED,
    RecipientStatus.BOUNCED: Billing.RELEASED,
}
# Results that a sender may have requested a report of.
DSN_CONDITIONS = {
    RecipientStatus.DELIVERED: DsnCondition.SUCCESS,
    RecipientStatus.BOUNCED: DsnCondition.FAILURE,
    RecipientStatus.FAILED: DsnCondition.FAILURE,
}


def waiting_since(recipient: DueRecipient) -> int:
    """When delivery could first try a recipient: at acceptance, or at the scheduled time."""
    return recipient.scheduled_at or identifier_time(recipient.message_id)


def billing_of(result: Outcome) -> Billing:
    return Billing.RELEASED if result.failure is FailureReason.CANCELLED else BILLING[result.status]


def message_result(counts: dict[RecipientStatus, int], released: int | None = None) -> tuple[MessageStatus, Billing]:
    if counts.get(RecipientStatus.QUEUED) or counts.get(RecipientStatus.DEFERRED):
        return MessageStatus.QUEUED, Billing.RESERVED
    total, delivered = sum(counts.values()), counts.get(RecipientStatus.DELIVERED, 0)
    released = counts.get(RecipientStatus.BOUNCED, 0) if released is None else released
    billing = Billing.RELEASED if released == total else Billing.SETTLED
    if delivered == total:
        return MessageStatus.DELIVERED, billing
    return (MessageStatus.PARTIAL if delivered else MessageStatus.FAILED), billing


class Queue(StorePart):
    posts: WebhookPosts

    async def due(
        self, *, simulated: bool, most: int, since: int = 0, low: int = 0, retries: bool = False
    ) -> list[DueRecipient]:
        """Recipients of one priority due at `since` or later, oldest first; `retries`: only those, recent ones."""
        bindings = {"simulated": int(simulated), "low": low, "since": since, "now": self.env.now(), "most": most}
        return await self.engine.all(DueRecipient, _DUE_RETRIES if retries else _DUE, bindings)

    async def next_due(self, *, simulated: bool, after: int | None = None) -> int | None:
        """Return the first due time after `after` (default: now). Ask before a poll, so that none is missed."""
        bindings = {"simulated": int(simulated), "now": self.env.now() if after is None else after}
        times = [(await self.engine.rows(_NEXT_DUE, {**bindings, "low": low}))[0][0] for low in (0, 1)]
        return min((at for at in times if at is not None), default=None)

    async def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record results ahead of other writes: a message that a server accepted must not be sent twice."""
        size = sum(2 * result.recipient.metadata_size for result in outcomes)  # in events and posts
        if accounts := await self.engine.write_item(self._record, outcomes, urgent=True, large=size > WRITTEN_ON_LOOP):
            self.posts.add_new(accounts)

    async def postpone(self, recipients: Iterable[tuple[DueRecipient, int]]) -> None:
        """Make waiting recipients due at a later time. Uses up no attempt, and they keep their status."""
        values = sorted((recipient.message_id, recipient.id, at) for recipient, at in recipients)
        await self.engine.write(lambda tx: _POSTPONE.run(tx, values), urgent=True, locks=True)

    def _record(self, tx: Tx, several: Sequence[Sequence[Outcome]]) -> list[set[str]]:
        return [record(tx, self.env, chain.from_iterable(several))] * len(several)


def record(tx: Tx, env: Environment, outcomes: Iterable[Outcome]) -> set[str]:
    """Record outcomes of recipients that still wait; return the accounts with new posts."""
    accounts: set[str] = set()
    for together in _rounds(outcomes):
        accounts |= _record_together(tx, env, together)
    return accounts


def _rounds(outcomes: Iterable[Outcome]) -> Iterable[list[Outcome]]:
    """Split outcomes into rounds with each recipient at most once: a second outcome depends on the first."""
    met, rounds = Counter[str](), defaultdict[int, list[Outcome]](list)
    for result in outcomes:
        rounds[met[result.recipient.id]].append(result)
        met[result.recipient.id] += 1
    return rounds.values()


def _record_together(tx: Tx, env: Environment, outcomes: Sequence[Outcome]) -> set[str]:
    updated = _UPDATE_RECIPIENTS.run(tx, sorted(_recipient_row(result) for result in outcomes))
    waited = {(message_id, recipient_id): delayed_at for message_id, recipient_id, delayed_at, _, _ in updated}
    asked = {recipient_id: (dsn, bool(simulated)) for _, recipient_id, _, dsn, simulated in updated if dsn is not None}
    changed = [result for result in outcomes if (result.recipient.message_id, result.recipient.id) in waited]
    attempts = [
        (result.recipient.id, number, *astuple(attempt))
        for result in changed
        for number, attempt in enumerate(result.attempts, result.recipient.attempt_count + 1)
    ]
    _INSERT_ATTEMPTS.run(tx, attempts)
    kinds = [(EVENT_TYPES.get(result.status), result) for result in changed if result.recipient.envelope_from]
    labels = labels_of(tx, {(result.recipient.account_id, result.recipient.message_id) for _, result in kinds})
    final = [(kind, result) for kind, result in kinds if kind is not None]
    events = [
        _event_row(event_id, kind, result, labels)
        for event_id, (kind, result) in zip(env.identifiers("evt", len(final)), final, strict=True)
    ]
    INSERT_EVENTS.run(tx, events)
    for result in changed:
        if result.signature is not None:
            run(tx, _KEEP_SIGNATURE, {"id": result.recipient.message_id, "signature": result.signature})
    written = [(result.recipient.account_id, result.recipient.message_id) for result in changed]
    noted_until = env.now() - CHANGES_NOTED_AFTER
    if any(identifier_time(message_id) <= noted_until for _, message_id in written):
        note_changes(tx, env, written)
    last = {result.recipient.message_id: result for result in changed}
    of_several = [result.recipient for result in last.values() if result.recipient.recipient_count > 1]
    if of_several:
        tx.lock(_LOCK_MESSAGES, [(recipient.account_id, recipient.message_id) for recipient in of_several])
    _UPDATE_MESSAGES.run(tx, [row for result in last.values() for row in _message_rows(tx, result)])
    delayed = [
        result
        for result in changed
        if (at := _delayed_at(result)) is not None
        and at == waited[result.recipient.message_id, result.recipient.id]  # else an earlier attempt set it
        and result.recipient.envelope_from
    ]
    entries = [_event_row(env.identifier("evt"), EventType.DELAYED, result, labels) for result in delayed]
    accounts = post_events(tx, env, events + entries)
    reports = _reportable(changed, delayed, asked) if asked else []
    if any(result.provider is not None for result in changed):
        note_results(tx, env, changed)
    _change_accounts(tx, env, changed, write_reports(tx, env, reports) if reports else {})
    return accounts


def _reportable(
    changed: Iterable[Outcome], delayed: Iterable[Outcome], asked: Mapping[str, tuple[str, bool]]
) -> list[Reportable]:
    results = [(result, DSN_CONDITIONS[result.status]) for result in changed if result.status in DSN_CONDITIONS]
    results += [(result, DsnCondition.DELAY) for result in delayed]
    reports: list[Reportable] = []
    for result, condition in results:
        if (request := asked.get(result.recipient.id)) is None:
            continue
        recipient, (code, response) = result.recipient, _last_words(result)
        (dsn, simulated), last = request, result.attempts[-1] if result.attempts else None
        about = recipient.message_id, recipient.account_id, recipient.envelope_from, simulated, condition, result.at
        host, at = (None, None) if last is None else (last.mx_host, last.finished_at)
        expired = result.status is RecipientStatus.FAILED and last is not None
        reports.append(Reportable(*about, recipient.address, dsn, code, response or "", host, at, expired))
    return reports


def _change_accounts(tx: Tx, env: Environment, outcomes: Iterable[Outcome], stored: Mapping[str, int]) -> None:
    """Suppress, return credits and count bytes: last, because other transactions wait for the accounts' rows."""
    released: dict[str, list[DueRecipient]] = {}
    to_suppress: dict[str, list[Row]] = {}
    for result in outcomes:
        if billing_of(result) is Billing.RELEASED and result.recipient.charged:
            released.setdefault(result.recipient.account_id, []).append(result.recipient)
        if result.suppress is not None:
            row = result.suppress.address, result.suppress.reason, result.at, result.suppress.origin.value
            to_suppress.setdefault(result.recipient.account_id, []).append(row)
    lines: list[LedgerLine] = []
    for account_id in sorted(released.keys() | to_suppress.keys() | stored.keys()):
        if account_id in stored:
            add(tx, account_id, stored[account_id])
        for address, reason, at, origin in to_suppress.get(account_id, ()):
            entry = {"account_id": account_id, "address": address, "reason": reason, "now": at, "origin": origin}
            suppress(tx, entry)
        if recipients := released.get(account_id):
            lines += return_credits(tx, account_id, [(recipient.message_id, recipient.id) for recipient in recipients])
    if lines:
        write_ledger(tx, env, lines)


def _last_words(result: Outcome) -> tuple[int | None, str | None]:
    if result.attempts:
        return result.attempts[-1].smtp_code, result.attempts[-1].smtp_response
    if result.note is not None:
        return None, result.note
    return result.recipient.last_smtp_code, result.recipient.last_smtp_response


def _recipient_row(result: Outcome) -> Row:
    recipient, status, before = result.recipient, result.status, result.recipient.attempt_count
    row = recipient.message_id, recipient.id, before, str(status), str(billing_of(result))
    delivered_at = result.at if status is RecipientStatus.DELIVERED else None
    bounced_at = result.at if status is RecipientStatus.BOUNCED else None
    failed_at = result.at if status in (RecipientStatus.FAILED, RecipientStatus.DEFERRED) else None
    entries = before + len(result.attempts), *_last_words(result), delivered_at, bounced_at, failed_at
    bounce_class = None if result.bounce_class is None else result.bounce_class.value
    failure = None if result.failure is None else result.failure.value
    tried = result.attempts[-1].route if result.attempts and recipient.bucket is not None else None
    return *row, *entries, result.next_attempt_at, bounce_class, _delayed_at(result), failure, tried


def _delayed_at(result: Outcome) -> int | None:
    """The time a recipient counts as delayed: deferred by an attempt, DELAYED_AFTER or more after it could go."""
    if result.status is not RecipientStatus.DEFERRED or not result.attempts:
        return None
    return result.at if result.at - waiting_since(result.recipient) >= DELAYED_AFTER else None


def _event_row(event_id: str, kind: EventType, result: Outcome, labels: Mapping[str, MessageLabels]) -> Row:
    recipient, bounce_class = result.recipient, None if kind in _NO_BOUNCE else result.bounce_class
    return event_row(event_id, kind, result.at, recipient, labels, *_last_words(result), bounce_class)


def _message_rows(tx: Tx, last: Outcome) -> list[Row]:
    """The final state of a message after its last outcome; none while a recipient is queued."""
    recipient, counts = last.recipient, {last.status: 1}
    released = int(billing_of(last) is Billing.RELEASED)
    if recipient.recipient_count > 1:
        selected = rows(tx, _RECIPIENT_COUNTS, {"id": recipient.message_id})
        counts = {RecipientStatus(status): count for status, count, _ in selected}
        released = sum(given_back for _, _, given_back in selected)
    status, billing = message_result(counts, released)
    if status is MessageStatus.QUEUED:
        return []
    return [(recipient.account_id, recipient.message_id, str(status), str(billing))]
