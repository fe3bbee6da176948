"""Writes accepted messages: everything one message means in one transaction, or a refusal before anything is written.

Messages that wait together are written together, with a statement or two for each table. The result is the same as one
after the other: each message finds its account as those before it leave it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import apsw
import msgspec

from appliance.errors import Code, Refused
from appliance.model.mail import LedgerKind, NewMessage, Outcome, RecipientStatus, Source
from appliance.outside import Outside
from appliance.store.accounts import LedgerLine, write_ledger
from appliance.store.body_parts import are_there, head_of, refer
from appliance.store.faults import busy
from appliance.store.new_mail import Fresh, due_recipients
from appliance.store.queue import record
from appliance.store.sql import Many, Row, run
from appliance.store.stored_bytes import of_message, over_quota
from appliance.store.suppressions import suppressed
from appliance.times import DAY, SECOND

# All that may forbid a message, read before anything of it is written: a refusal then leaves nothing to roll back.
# An expired key counts as none, deleted or not.
_MAY_SEND = Many("""WITH new (number, account_id, scope, key, now, day) AS (VALUES {(?, ?, ?, ?, ?, ?)})
SELECT new.number, a.credits, a.daily_cap, a.suspended, a.stored_bytes,
    EXISTS (SELECT 1 FROM suppressions s WHERE s.account_id = a.id),
    EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.scope = new.scope AND k.key = new.key AND k.expires_at > new.now),
    (SELECT recipients FROM daily_volume v WHERE v.account_id = a.id AND v.day = new.day)
FROM new CROSS JOIN accounts a ON a.id = new.account_id""")
_CLAIM_KEYS = Many("""INSERT INTO idempotency_keys (scope, key, fingerprint, message_id, expires_at)
    VALUES {(?, ?, ?, ?, ?)} ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint,
        message_id = excluded.message_id, expires_at = excluded.expires_at""")
_UPDATE_ACCOUNT = """UPDATE accounts SET credits = credits - :amount, stored_bytes = stored_bytes + :stored
    WHERE id = :account_id"""
_COUNT_DAY = """INSERT INTO daily_volume (account_id, day, recipients) VALUES (:account_id, :day, :recipients)
    ON CONFLICT (account_id, day) DO UPDATE SET recipients = recipients + excluded.recipients"""
_INSERT_MESSAGES = Many("""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender,
    envelope_from, subject, tags, template_alias, template_version, recipient_count, credits_reserved, size, created_at)
    VALUES {(?, ?, ?, ?, 'queued', 'reserved', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)}""")
_INSERT_BODIES = Many("INSERT INTO message_bodies (message_id, mime, receipt, parts_size) VALUES {(?, ?, ?, ?)}")
_INSERT_RECIPIENTS = Many("""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged,
        status, billing_status, next_attempt_at)
    VALUES {(?, ?, ?, ?, ?, ?, ?, 'queued', 'reserved', ?)}""")

SUPPRESSED_NOTE = "suppressed: this address is on the account's suppression list"

_encoder = msgspec.json.Encoder()


class KeyTaken(Exception):
    """Another message got this idempotency key first; nothing of ours was written."""


@dataclass(slots=True)
class _Standing:
    """The account as this message finds it in this transaction, not as it was when the caller was let in."""

    balance: int | None
    daily_cap: int | None
    suspended: int
    stored_bytes: int
    has_suppressions: int
    key_taken: int
    sent_today: int | None
    suppressed: set[str] = field(default_factory=set)  # ids of recipients of this message
    size: int = 0  # what this message adds to stored_bytes


_Accepted = tuple[NewMessage, _Standing, int]  # with the credits for each recipient


def accept(c: apsw.Connection, outside: Outside, news: Sequence[NewMessage]) -> list[int | Exception | None]:
    """Write these messages; for each why it was refused, and then nothing of it has been written, or what was charged.

    That is for each recipient; None when some of them were bounced at once, as suppressed, and are not to be tried.
    """
    standings, earlier = _standings(c, news), _Earlier()
    results: list[int | Exception | None] = [None] * len(news)
    accepted, by_themselves = list[_Accepted](), list[int]()
    for number, (new, standing) in enumerate(zip(news, standings, strict=True)):
        if standing is None:
            results[number] = LookupError(f"there is no account {new.account_id}")
        elif len(news) > 1 and (standing.daily_cap is not None or standing.suppressed):
            by_themselves.append(number)  # it can do more to its account than to lower the balance
        else:
            earlier.change(standing, new)
            refusal = _refusal(new, standing) or (None if are_there(c, new) else busy())
            if refusal is not None:
                results[number] = refusal
                continue
            charged = 0 if new.source is Source.TEST or standing.balance is None or not new.credits else 1
            accepted.append((new, standing, charged))
            earlier.add(new, standing, charged)
            results[number] = None if standing.suppressed else charged
    _write(c, outside, accepted)
    for number in by_themselves:
        (results[number],) = accept(c, outside, [news[number]])
    return results


def refusal_now(c: apsw.Connection, new: NewMessage) -> Exception | None:
    """Why a message would be refused now: asked before its parts are written, and again when it is accepted."""
    (standing,) = _standings(c, [new])
    if standing is None:
        return None  # the transaction says so
    standing.size = of_message(new)
    return _refusal(new, standing)


# ---- what decides


def _standings(c: apsw.Connection, news: Sequence[NewMessage]) -> list[_Standing | None]:
    wanted = []
    for number, new in enumerate(news):
        claim = new.idempotency
        scope, key = (None, None) if claim is None else (claim.scope, claim.key)
        wanted.append((number, new.account_id, scope, key, new.created_at, new.created_at // DAY))
    found: list[_Standing | None] = [None] * len(news)
    for number, *columns in _MAY_SEND.run(c, wanted):
        found[number] = _Standing(*columns)
    pairs = zip(news, found, strict=True)
    suspects = [(new, standing) for new, standing in pairs if standing and standing.has_suppressions]
    keys = [(new.account_id, recipient.key) for new, _ in suspects for recipient in new.recipients]
    listed = suppressed(c, keys)
    for new, standing in suspects:
        standing.suppressed = {each.id for each in new.recipients if (new.account_id, each.key) in listed}
    return found


@dataclass(slots=True)
class _Earlier:
    """What the messages of the same transaction that stand before this one have taken."""

    credits: Counter[str] = field(default_factory=Counter)  # by account
    bytes: Counter[str] = field(default_factory=Counter)  # by account
    keys: dict[tuple[str, str], int] = field(default_factory=dict)  # until when

    def add(self, new: NewMessage, standing: _Standing, charged: int) -> None:
        self.credits[new.account_id] += charged * new.credits
        self.bytes[new.account_id] += standing.size
        if new.idempotency is not None:
            self.keys[new.idempotency.scope, new.idempotency.key] = new.idempotency.expires_at

    def change(self, standing: _Standing, new: NewMessage) -> None:
        """Apply what earlier messages of this transaction took."""
        standing.size = of_message(new)
        standing.stored_bytes += self.bytes[new.account_id]
        if standing.balance is not None:
            standing.balance -= self.credits[new.account_id]
        if new.idempotency is not None:
            taken_until = self.keys.get((new.idempotency.scope, new.idempotency.key), 0)
            standing.key_taken |= taken_until > new.created_at


def _refusal(new: NewMessage, standing: _Standing) -> Exception | None:
    if standing.key_taken:
        return KeyTaken()
    if standing.suspended:
        return Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
    if new.may_store is not None and standing.stored_bytes + standing.size > new.may_store:
        return over_quota(standing.stored_bytes, new.may_store)
    if new.source is Source.TEST:
        return None
    sent_today = standing.sent_today or 0
    if standing.daily_cap is not None and sent_today + len(new.recipients) > standing.daily_cap:
        text = f"The account may send to {standing.daily_cap} recipients a day (UTC) while it warms up,"
        text += f" and has sent to {sent_today} today. Retry tomorrow."
        seconds = -((new.created_at % DAY - DAY) // SECOND)  # rounded up
        return Refused(Code.WARMUP_LIMITED, text, retry_after=seconds)
    if standing.balance is not None and standing.balance < new.credits:
        text = f"This message needs {new.credits} credits and the account has {standing.balance}."
        return Refused(Code.INSUFFICIENT_CREDITS, f"{text} Add credits and send it again.")
    return None


# ---- what is written, as a list of steps


def _write(c: apsw.Connection, outside: Outside, accepted: Sequence[_Accepted]) -> None:
    keys = [
        (claim.scope, claim.key, claim.fingerprint, new.id, claim.expires_at)
        for new, _, _ in accepted
        if (claim := new.idempotency) is not None
    ]
    _CLAIM_KEYS.run(c, keys)
    for new, standing, _ in accepted:
        if standing.daily_cap is not None and new.source is not Source.TEST:
            row = {"account_id": new.account_id, "day": new.created_at // DAY, "recipients": len(new.recipients)}
            run(c, _COUNT_DAY, row)
    _charge(c, outside, accepted)
    _INSERT_MESSAGES.run(c, [_message_row(new) for new, _, _ in accepted])
    bodies = [(new, *head_of(new)) for new, _, _ in accepted]
    _INSERT_BODIES.run(c, [(new.id, head, new.receipt, parts_size) for new, head, parts_size in bodies])
    recipients = [
        (new.id, each.id, new.account_id, each.address, each.domain, int(new.simulated), charged, new.created_at)
        for new, _, charged in accepted
        for each in new.recipients
    ]
    _INSERT_RECIPIENTS.run(c, recipients)
    for new, standing, charged in accepted:
        if standing.suppressed:
            due = [each for each in due_recipients(Fresh(new, charged)) if each.id in standing.suppressed]
            at, note = new.created_at, SUPPRESSED_NOTE
            record(c, outside, [Outcome(each, RecipientStatus.BOUNCED, (), at, note=note) for each in due])
        refer(c, new)


def _charge(c: apsw.Connection, outside: Outside, accepted: Iterable[_Accepted]) -> None:
    """Count the bytes and take the credits, with one statement an account; note for each message what it left."""
    lines, taken, stored = list[LedgerLine](), Counter[str](), Counter[str]()
    for new, standing, charged in accepted:
        stored[new.account_id] += standing.size
        if not charged:
            continue
        assert standing.balance is not None  # noqa: S101 - or nothing would be charged
        taken[new.account_id] += new.credits
        balance = standing.balance - new.credits
        lines.append((new.account_id, LedgerKind.RESERVE, -new.credits, balance, new.id, None))
    for account_id, count in stored.items():
        run(c, _UPDATE_ACCOUNT, {"account_id": account_id, "amount": taken[account_id], "stored": count})
    write_ledger(c, outside, lines)


def _message_row(new: NewMessage) -> Row:
    tags = _encoder.encode(new.tags).decode()
    sender = new.account_id, new.id, new.request_id, new.source.value, new.sender, new.envelope_from
    content = new.subject, tags, new.template_alias, new.template_version
    return *sender, *content, len(new.recipients), new.credits, len(new.mime), new.created_at
