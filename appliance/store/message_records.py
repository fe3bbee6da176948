"""Reads messages back: recipients, bytes, all attempts, and the texts that a search reads."""

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from appliance.concurrency.fair_share import SERVER_WORK
from appliance.message.search_words import folded, holds, terms
from appliance.model.dashboard import ExportedRecipient
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
    RecordedComplaint,
    Source,
    TriedRecipient,
)
from appliance.store.body_parts import whole
from appliance.store.engine import StorePart, Tx, first, one, rows
from appliance.telemetry.log import get_logger

log = get_logger("store")

_MESSAGE = """SELECT id, status, source, sender, subject, billing_status, recipient_count, credits_reserved, created_at,
        metadata, scheduled_at, credential, stream FROM messages WHERE id = :id AND account_id = :account_id"""
# A RecipientStatus. A scheduled recipient is stored as `queued` without a next attempt.
SHOWN_STATUS = "CASE WHEN r.status = 'queued' AND r.next_attempt_at IS NULL THEN 'scheduled' ELSE r.status END"
_RECIPIENTS = f"""SELECT r.id, r.address, {SHOWN_STATUS}, r.billing_status, r.attempt_count, r.last_smtp_code,
        r.last_smtp_response, r.delivered_at, r.bounced_at, r.bounce_class, r.late_bounce, r.failure, c.at, c.kind
    FROM recipients r LEFT JOIN complaints c ON c.account_id = r.account_id AND c.recipient_id = r.id
    WHERE r.message_id = :id ORDER BY r.id"""
_MIME = "SELECT mime, parts_size FROM message_bodies WHERE message_id = :id AND length(mime) > 0"
_ABOVE = "SELECT id FROM messages WHERE account_id = :account_id AND id > :after ORDER BY id LIMIT :most"
TO_SEND = """SELECT CASE WHEN length(mime) + parts_size <= :most THEN mime END, signature, length(mime) + parts_size
    FROM message_bodies WHERE message_id = :id"""
READ_ON_LOOP = 256 * 1024  # bytes; reading more would block the event loop
_late_bounces = msgspec.json.Decoder(LateBounce)


class ToSend(NamedTuple):
    """An unfinished message: its signature, and its bytes unless they are too many to read at once."""

    mime: bytes | None
    signature: bytes | None  # if it was made before
    size: int


def read_mime(tx: Tx, message_id: str) -> bytes | None:
    return one(tx, partial(whole, tx, message_id), _MIME, {"id": message_id})


def read_message(tx: Tx, account_id: str, message_id: str) -> Message | None:
    row = first(tx, _MESSAGE, {"id": message_id, "account_id": account_id})
    if row is None:
        return None
    results, status, source, sender, subject, billing, recipient_count, reserved, created_at, metadata, *others = row
    recipients = tuple(_recipient(*row) for row in rows(tx, _RECIPIENTS, {"id": message_id}))
    head = results, MessageStatus(status), Source(source), sender, subject, Billing(billing)
    return Message(*head, recipient_count, reserved, created_at, recipients, readable_metadata(metadata), *others)


def _recipient(id_: str, email: str, status: str, billing: str, *columns: Any) -> Recipient:
    *attempts, bounce_class, late_bounce, failure, complained_at, complaint = columns
    head = id_, email, RecipientStatus(status), Billing(billing)
    reason = None if bounce_class is None else BounceClass(bounce_class)
    late = None if late_bounce is None else _late_bounces.decode(late_bounce)
    failed = None if failure is None else FailureReason(failure)
    returned = None if complained_at is None else RecordedComplaint(complained_at, complaint)
    return Recipient(*(*head, *attempts, reason, late, failed, returned))


# ---- all that is known of one message: its recipients, and every attempt at each

# Messages are indexed by account and recipients by message, so the account comes from a recipient.
_ACCOUNT = """SELECT r.account_id, a.name FROM recipients r JOIN accounts a ON a.id = r.account_id
    WHERE r.message_id = :message_id LIMIT 1"""
_WAYS = "SELECT id, domain, simulated, next_attempt_at, '', route FROM recipients WHERE message_id = :message_id"
_WAYS_BY_NODE = """SELECT r.id, r.domain, r.simulated, r.next_attempt_at, coalesce(n.name, ''), r.route
    FROM recipients r LEFT JOIN nodes n ON n.owner = r.owner WHERE r.message_id = :message_id"""
_ATTEMPTS = f"""SELECT {", ".join(Attempt.__struct_fields__)} FROM attempts
    WHERE recipient_id = :recipient_id ORDER BY number"""
_SESSION = """SELECT recipient_id, host, address, started_at, awaits, since FROM smtp_sessions
    WHERE recipient_id = :recipient_id"""


class MessageRecords(StorePart):
    async def of(
        self, message_id: str, account_id: str | None = None, *, off_loop: bool = False
    ) -> MessageRecord | None:
        """Return a message of any account, or of this one. Read many dialogues, which may be megabytes, `off_loop`."""
        work = partial(self._record, message_id=message_id, of_account=account_id)
        return await (self.engine.scan(work, account_id or SERVER_WORK) if off_loop else self.engine.snapshot(work))

    async def ids_above(self, account_id: str, message_id: str, most: int) -> list[str]:
        """The ids of the account's messages next to this one, towards newer ones."""
        return await self.engine.all(str, _ABOVE, {"account_id": account_id, "after": message_id, "most": most})

    def _record(self, tx: Tx, message_id: str, of_account: str | None) -> MessageRecord | None:
        account_id, name = first(tx, _ACCOUNT, {"message_id": message_id}) or ("", "")
        if of_account not in (None, account_id) or (message := read_message(tx, account_id, message_id)) is None:
            return None
        query = _WAYS_BY_NODE if self.engine.is_shared else _WAYS
        ways = {recipient_id: way for recipient_id, *way in rows(tx, query, {"message_id": message_id})}
        recipients = tuple(
            _tried(tx, recipient, message.scheduled_at, *ways[recipient.id]) for recipient in message.recipients
        )
        return MessageRecord(name, message, recipients, account_id)


def _tried(
    tx: Tx,
    recipient: Recipient,
    scheduled_at: int | None,
    domain: str,
    simulated: int,
    next_attempt_at: int | None,
    node: str,
    route: str | None,
) -> TriedRecipient:
    bindings = {"recipient_id": recipient.id}
    attempts = tuple(Attempt(*row) for row in rows(tx, _ATTEMPTS, bindings))
    session = None if next_attempt_at is None else one(tx, OutgoingSession, _SESSION, bindings)
    more = session, node, scheduled_at, route
    return TriedRecipient(recipient, domain, bool(simulated), next_attempt_at, attempts, *more)


# ---- the searched texts of a message, and their index terms

REPLY_LENGTH: Final = 200  # searched characters of a reply
SEARCHED_LENGTH: Final = 8_000  # searched characters of a message: strangers must not make the index grow without bound

RESULT = "coalesce(r.failure, r.status)"  # without later feedback; the index `recipients_problems` uses it
# The source address that a recipient's last attempt left from.
LAST_SOURCE = """(SELECT a.source FROM attempts a WHERE a.recipient_id = {recipient}
    ORDER BY a.number DESC LIMIT 1)"""
# A RecipientOutcome. A complaint is a row of its own, kept as long as the message or longer.
OUTCOME = f"""CASE WHEN r.status = 'delivered' AND EXISTS (SELECT 1 FROM complaints c
        WHERE c.account_id = r.account_id AND c.recipient_id = r.id) THEN 'complained'
    WHEN r.late_bounce IS NOT NULL THEN 'late_bounced' ELSE coalesce(r.failure, {SHOWN_STATUS}) END"""
_TEXTS = f"""SELECT json_group_array(json_object('id', m.id, 'status', m.status, 'source', m.source, 'texts',
        m.sender || ' ' || m.subject || ' ' || m.request_id || ' ' || coalesce(m.template_alias, ''),
        'tags', m.tags, 'metadata', m.metadata, 'recipients', json((
            SELECT json_group_array(json_object('outcome', {OUTCOME}, 'address', r.address || ' ' || r.domain,
                'replies', coalesce(CAST(r.last_smtp_code AS TEXT), '') || ' '
                || substr(coalesce(r.last_smtp_response, ''), 1, {REPLY_LENGTH}) || ' '
                || substr(coalesce(json_extract(r.late_bounce, '$.response'), ''), 1, {REPLY_LENGTH})))
            FROM recipients r WHERE r.message_id = m.id))))
    FROM json_each(:ids) wanted CROSS JOIN messages m ON m.account_id = :account_id AND m.id = wanted.value
    WHERE {{condition}}"""


class _RecipientTexts(msgspec.Struct, frozen=True, gc=False):
    outcome: str
    address: str
    replies: str


_tags = msgspec.json.Decoder(tuple[str, ...])
_metadata = msgspec.json.Decoder(dict[str, str])


def readable_tags(text: str) -> tuple[str, ...]:
    """The tags of a message; none if another version stored them in an unreadable form."""
    try:
        return tuple(dict.fromkeys(_tags.decode(text)))
    except msgspec.DecodeError as fault:
        log.warning("unreadable tags skipped", reason=str(fault))
        return ()


def readable_metadata(text: str | None) -> dict[str, str]:
    """The metadata of a message, likewise."""
    try:
        return {} if text is None else _metadata.decode(text)
    except msgspec.DecodeError as fault:
        log.warning("unreadable metadata skipped", reason=str(fault))
        return {}


class MessageTexts(msgspec.Struct, frozen=True):
    id: str
    status: str
    source: str
    texts: str
    tags: str
    metadata: str | None
    recipients: tuple[_RecipientTexts, ...] | None  # none while it is being deleted

    def whole(self) -> str:
        """Addresses before replies, each reply once: the text of remote servers is bounded."""
        recipients = self.recipients or ()
        texts = [
            *(recipient.address for recipient in recipients),
            *dict.fromkeys(recipient.replies for recipient in recipients),
        ]
        return folded(" ".join([self.texts, *readable_tags(self.tags), *texts])[:SEARCHED_LENGTH])

    def has(self, words: Iterable[str]) -> bool:
        text = self.whole()
        return all(holds(text, word) for word in words)

    def terms(self) -> set[str]:
        """Words, and terms for filters, which start with a sign that no word has."""
        results = set(terms(self.whole()))
        results.add(status_term(self.status))
        results.add(source_term(self.source))
        results.update(outcome_term(recipient.outcome) for recipient in self.recipients or ())
        results.update(metadata_term(*pair) for pair in readable_metadata(self.metadata).items())
        return results


def status_term(status: str) -> str:
    return f"~{status}"


def source_term(source: str) -> str:
    return f"^{source}"


def outcome_term(outcome: str) -> str:
    return f"={outcome}"


def metadata_term(key: str, value: str) -> str:
    """A digest: entries are long and must match as a whole."""
    return f"#{blake2b(f'{key}:{value}'.encode(), digest_size=8).hexdigest()}"


_messages = msgspec.json.Decoder(list[MessageTexts])


def read_texts(
    tx: Tx, account_id: str, ids: Sequence[str], condition: str = "TRUE", bindings: dict[str, object] | None = None
) -> list[MessageTexts]:
    query_values = {**(bindings or {}), "account_id": account_id, "ids": msgspec.json.encode(ids).decode()}
    ((selected,),) = rows(tx, _TEXTS.format(condition=condition), query_values)
    return _messages.decode(selected or "[]")


# ---- exports

_EXPORTED = f"""SELECT m.id AS message_id, r.id AS recipient_id, m.created_at, m.source, m.sender, m.subject, m.tags,
        m.credential, r.address AS email, {OUTCOME} AS outcome, r.attempt_count, r.last_smtp_code,
        r.last_smtp_response, r.delivered_at, m.metadata, m.scheduled_at, m.stream
    FROM json_each(:ids) wanted CROSS JOIN messages m ON m.account_id = :account_id AND m.id = wanted.value
    CROSS JOIN recipients r ON r.message_id = m.id"""
_EXPORTED_COLUMNS = ", ".join(ExportedRecipient._fields)


def read_exported(tx: Tx, account_id: str, ids: Sequence[str]) -> list[ExportedRecipient]:
    bindings = {"account_id": account_id, "ids": msgspec.json.encode(ids).decode()}
    lines = [ExportedRecipient(*row) for row in tx.gather(_EXPORTED, _EXPORTED_COLUMNS, bindings)]
    lines.sort(key=attrgetter("recipient_id"))
    lines.sort(key=attrgetter("message_id"), reverse=True)
    return lines
