"""Writes the rows of new messages, and large ones in parts; counts the bytes of each account for its quota.

Parts are committed a few at a time, before the message is accepted: one commit of 10 MiB would delay other writers by
tens of milliseconds. The commit of the message makes them durable, too. `message_bodies.mime` has the first `HEAD`
bytes of such a message, `message_body_parts` the rest.

Invariants, at every commit:
- Every part belongs to a message whose `parts_size` is not 0 (in `message_bodies`; of received mail in `feedback_mail`,
  then `received_messages`), or is listed in `loose_parts`, which are deleted a few at a time: after a crash between the
  parts and the message, and after retention.
- `parts_size` is the number of bytes in the parts of that message; the accepting transaction checks it.
- `accounts.stored_bytes` equals the sum that migration 0007 computes, plus `of_metadata`. A transaction that adds or
  deletes messages, their bytes, template versions or suppressions updates it.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import trio
from msgspec import field

from appliance.environment import Environment, identifier_from
from appliance.errors import Code, PublicError, Refused
from appliance.message.addresses import Address
from appliance.model.mail import NewMessage, NewRecipient, Source
from appliance.store.engine import NEWEST, Bulk, Row, Slice, StorePart, Tx, changed, rows, run, timed
from appliance.times import HOUR

# ---- bytes that are kept

# Fixed size of a message's other rows: the true one is known only later, and varies little.
MESSAGE = 1_024  # bytes: the record and the idempotency key
RECIPIENT = 2_048  # its record, attempts, event and webhook delivery; measured without a webhook: 1.0 KiB
TEMPLATE_VERSION = 512
SUPPRESSION = 512

EXACT = 10 * 2**20  # bytes from which sizes are shown in MiB
QUOTA_RETRY_AFTER = 600  # seconds; space is freed slowly, as old messages are deleted

_ADD = "UPDATE accounts SET stored_bytes = stored_bytes + :count WHERE id = :account_id"
_KEPT = "SELECT stored_bytes FROM accounts WHERE id = :account_id"
_BODIES = Bulk("""SELECT (SELECT r.account_id FROM recipients r WHERE r.message_id = b.message_id LIMIT 1),
        sum(length(b.mime) + b.parts_size), sum(coalesce(length(b.receipt), 0))
    FROM message_bodies b WHERE b.message_id IN ({?}) GROUP BY 1""")


def of_record(recipients: int) -> int:
    return MESSAGE + RECIPIENT * recipients


def of_metadata(size: int, recipients: int) -> int:
    """The record stores metadata, and so do the event and the webhook delivery of each recipient."""
    return size * (1 + 2 * recipients)


def of_message(new: NewMessage) -> int:
    recipients, metadata = len(new.recipients), len((new.metadata or "").encode())
    return len(new.mime) + len(new.receipt or b"") + of_record(recipients) + of_metadata(metadata, recipients)


def written_bytes(new: NewMessage) -> int:
    """The bytes that a transaction can write for a message: a suppressed recipient has an event and a post at once."""
    return len(new.mime) + of_metadata(len((new.metadata or "").encode()), len(new.recipients))


def of_template(subject: str | None, text: str | None, html: str | None) -> int:
    return TEMPLATE_VERSION + sum(len(part.encode()) for part in (subject, text, html) if part is not None)


def check_room(tx: Tx, account_id: str, count: int, limit: int | None) -> None:
    """Refuse `count` more bytes above the account's limit, in the transaction that would write them."""
    ((kept,),) = rows(tx, _KEPT, {"account_id": account_id})
    if limit is not None and kept + count > limit:
        raise over_quota(kept, limit)


def add(tx: Tx, account_id: str, count: int) -> None:
    run(tx, _ADD, {"account_id": account_id, "count": count})


def give_back(tx: Tx, freed: Mapping[str, int]) -> None:
    for account_id, count in freed.items():
        add(tx, account_id, -count)


def bodies(tx: Tx, messages: Sequence[Row], *, receipts: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    for account_id, mime, receipt in _BODIES.run(tx, messages):
        counts[account_id] += mime + (receipt if receipts else 0)
    return counts


def over_quota(kept: int, limit: int) -> Refused:
    return Refused(
        Code.RATE_LIMITED,
        f"This account keeps {readable(kept)} of messages and templates and may keep {readable(limit)}."
        " Room is made as the contents of old messages are deleted. Retry later.",
        retry_after=QUOTA_RETRY_AFTER,
    )


def readable(count: int) -> str:
    return f"{count:,} bytes" if count < EXACT else f"{count / 2**20:,.1f} MiB"


# ---- parts

INLINE = 512 * 1024  # bytes of a message that is stored whole
HEAD = 16 * 1024  # bytes of a larger message that are stored with its record
PART = 128 * 1024  # bytes
PARTS_PER_COMMIT = 4  # as many bytes as a message that is stored whole
PAGE_BYTES = 4_096  # bytes; a deletion is weighed by the pages it touches
FORGOTTEN_AT_ONCE = 8  # parts deleted in one transaction when their message was refused
PART_REST = 1.0  # times the duration of a commit of parts, before the next one, if others write, too
LONGEST_PART_REST = 0.02  # seconds
IN_HAND = HOUR  # microseconds after which no other node is still writing parts of a message

_LIST = "INSERT INTO loose_parts (message_id) VALUES (:id) ON CONFLICT DO NOTHING"
_INSERT = "INSERT INTO message_body_parts (message_id, number, content) VALUES (:id, :number, :content)"
_SIZE = "SELECT coalesce(sum(length(content)), 0) FROM message_body_parts WHERE message_id = :id"
_CONTENTS = "SELECT content FROM message_body_parts WHERE message_id = :id ORDER BY number"
_UNLIST = "DELETE FROM loose_parts WHERE message_id = :id"
_LOOSEN = Bulk("""INSERT INTO loose_parts (message_id)
    SELECT message_id FROM message_bodies WHERE message_id IN ({?}) AND parts_size > 0""")
# By the time in an id, whatever its prefix of four characters.
_LOOSE = "SELECT message_id FROM loose_parts WHERE substr(message_id, 5) < :before ORDER BY message_id LIMIT :most"
_LISTED = Bulk("SELECT message_id FROM loose_parts WHERE message_id IN ({?})")
_DELETE = """DELETE FROM message_body_parts
    WHERE message_id = :id AND EXISTS (SELECT 1 FROM loose_parts WHERE message_id = :id)
        AND number IN (SELECT number FROM message_body_parts WHERE message_id = :id ORDER BY number DESC LIMIT :most)"""
_DELETE_LOOSE = """DELETE FROM loose_parts WHERE message_id = :id
        AND NOT EXISTS (SELECT 1 FROM message_body_parts WHERE message_id = :id)"""


class PartsMissing(Exception):
    """Some bytes of a message are missing: another program changed the database."""


# ---- steps of a transaction, or of a reading
def head_of(new: NewMessage) -> tuple[bytes, int]:
    """Return the bytes stored with the record, and how many are stored in parts."""
    return split(new.mime, in_parts=new.in_parts)


def split(mime: bytes, *, in_parts: bool = False) -> tuple[bytes, int]:
    size = len(mime)
    return (mime, 0) if size <= INLINE and not in_parts else (mime[:HEAD], size - HEAD)


def are_there(tx: Tx, new: NewMessage) -> bool:
    """Whether all parts of a new message are written; none is deleted before the transaction ends."""
    parts_size = head_of(new)[1]
    return not parts_size or parts_are_there(tx, new.id, parts_size)


def parts_are_there(tx: Tx, message_id: str, parts_size: int) -> bool:
    tx.lock(_LISTED, [(message_id,)])
    return rows(tx, _SIZE, {"id": message_id}) == [(parts_size,)]


def unlist(tx: Tx, message_id: str) -> None:
    """Keep the parts of a message: from now on it refers to them."""
    run(tx, _UNLIST, {"id": message_id})


def loosen(tx: Tx, messages: Sequence[Row]) -> None:
    _LOOSEN.run(tx, messages)


def loosen_parts(tx: Tx, message_id: str) -> None:
    run(tx, _LIST, {"id": message_id})


def whole(tx: Tx, message_id: str, head: bytes, parts_size: int) -> bytes:
    if not parts_size:
        return head
    parts = [content for (content,) in rows(tx, _CONTENTS, {"id": message_id})]
    if sum(map(len, parts)) != parts_size:
        raise PartsMissing(f"{message_id}: {parts_size} bytes are wanted, {sum(map(len, parts))} are there")
    return b"".join([head, *parts])


# ---- the rows of new messages

_INSERT_MESSAGES = Bulk("""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender,
    envelope_from, subject, tags, template_alias, template_version, recipient_count, credits_reserved, size, created_at,
    credential, metadata, header_id, scheduled_at, stream)
    VALUES {(?, ?, ?, ?, 'queued', 'reserved', ?, ?, ?, ?, ?, ?i, ?i, ?i, ?i, ?i, ?, ?, ?, ?i, ?)}""")
_INSERT_BODIES = Bulk("INSERT INTO message_bodies (message_id, mime, receipt, parts_size) VALUES {(?, ?b, ?b, ?i)}")
_INSERT_RECIPIENTS = Bulk("""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged,
        status, billing_status, next_attempt_at, dsn, low, bucket)
    VALUES {(?, ?, ?, ?, ?, ?i, ?i, 'queued', 'reserved', ?i, ?, ?i, ?i)}""")
_INSERT_SCHEDULED = Bulk("INSERT INTO scheduled_messages (account_id, message_id, due_at) VALUES {(?, ?, ?i)}")

_SET_CONFIDENTIAL = "UPDATE messages SET confidential = 1 WHERE account_id = :account_id AND id = :id"
_encoder = msgspec.json.Encoder()


def insert(tx: Tx, messages: Sequence[tuple[NewMessage, int]]) -> None:
    _INSERT_MESSAGES.run(tx, [_message_row(new) for new, _ in messages])
    bodies = [(new, *head_of(new)) for new, _ in messages]
    _INSERT_BODIES.run(tx, [(new.id, head, new.receipt, parts_size) for new, head, parts_size in bodies])
    recipients = []
    for new, charged in messages:
        state = int(new.simulated), charged, None if new.scheduled_at else new.created_at
        low = 0 if new.simulated else new.low
        for recipient in new.recipients:
            dsn = None if recipient.dsn is None else _encoder.encode(recipient.dsn).decode()
            whose = new.id, recipient.id, new.account_id, recipient.address, recipient.domain
            recipients.append((*whose, *state, dsn, low, recipient.bucket))
    _INSERT_RECIPIENTS.run(tx, recipients)
    if scheduled := [(new.account_id, new.id, new.scheduled_at) for new, _ in messages if new.scheduled_at]:
        _INSERT_SCHEDULED.run(tx, scheduled)
    for new, _, parts_size in bodies:
        if parts_size:
            unlist(tx, new.id)


def write_system_message(
    tx: Tx,
    env: Environment,
    account_id: str,
    message_id: str,
    *,
    sender: str,
    recipient: Address,
    subject: str,
    mime: bytes,
    now: int,
    simulated: bool = False,
    confidential: bool = False,
) -> int:
    """Queue free mail of an account, whose empty envelope sender keeps it out of statistics; return its bytes.

    Only the recipient can read a `confidential` message, such as one with a link that sets a password.
    """
    new = NewMessage(
        id=message_id,
        account_id=account_id,
        request_id=env.identifier("req"),
        source=Source.SMTP,
        simulated=simulated,
        sender=sender,
        envelope_from="",
        subject=subject,
        tags=(),
        template_alias=None,
        template_version=None,
        mime=mime,
        receipt=None,
        recipients=(NewRecipient(env.identifier("rcp"), recipient.spelling, recipient.key, recipient.domain),),
        credits=0,
        created_at=now,
        idempotency=None,
    )
    insert(tx, [(new, 0)])
    if confidential:
        run(tx, _SET_CONFIDENTIAL, {"account_id": account_id, "id": message_id})
    return of_message(new)


def _message_row(new: NewMessage) -> Row:
    tags = _encoder.encode(new.tags).decode()
    sender = new.account_id, new.id, new.request_id, str(new.source), new.sender, new.envelope_from
    content = new.subject, tags, new.template_alias, new.template_version
    numbers = len(new.recipients), new.credits, len(new.mime), new.created_at
    others = new.credential, new.metadata, new.header_id, new.scheduled_at, new.stream
    return *sender, *content, *numbers, *others


# ---- transactions
class BodyParts(StorePart):
    _in_hand: set[str] = field(default_factory=set)  # messages being accepted

    @asynccontextmanager
    async def written(self, message_id: str, mime: bytes) -> AsyncIterator[None]:
        """Write the parts of a message that is accepted inside. If that fails, delete them."""
        self._in_hand.add(message_id)
        try:
            await self._write(message_id, mime)
            yield
        except BaseException:
            with trio.CancelScope(shield=True), suppress(PublicError):  # `clear` deletes the rest
                while (await self._delete(message_id, FORGOTTEN_AT_ONCE))[0]:
                    pass
            raise
        finally:
            self._in_hand.discard(message_id)

    async def _write(self, message_id: str, mime: bytes) -> None:
        view = memoryview(mime)
        parts = [view[start : start + PART] for start in range(HEAD, len(view), PART)]
        for first in range(0, len(parts), PARTS_PER_COMMIT):
            together = enumerate(parts[first : first + PARTS_PER_COMMIT], first + 1)
            rows = [{"id": message_id, "number": number, "content": content} for number, content in together]
            began, others = trio.current_time(), self.engine.ordinary_writes
            await self.engine.write_ahead(partial(_insert, parts=rows))
            if self.engine.ordinary_writes != others and first + PARTS_PER_COMMIT < len(parts):
                await trio.sleep(min(PART_REST * (trio.current_time() - began), LONGEST_PART_REST))

    async def clear(self, budget: int) -> Slice:
        oldest_in_hand = identifier_from("", self.env.now() - IN_HAND).removeprefix("_")
        before = oldest_in_hand if self.engine.is_shared else NEWEST
        selected = await self.engine.all(str, _LOOSE, {"before": before, "most": len(self._in_hand) + 1})
        message_id = next((item for item in selected if item not in self._in_hand), None)
        if message_id is None:
            return Slice(0, 0.0, more=False)
        deleted, seconds = await self._delete(message_id, max(1, budget * PAGE_BYTES // PART))
        return Slice(deleted, seconds, more=True)

    async def _delete(self, message_id: str, most: int) -> tuple[int, float]:
        bindings = {"id": message_id, "most": most}

        def work(tx: Tx) -> int:
            tx.lock(_LISTED, [(message_id,)])
            return sum(changed(tx, query, bindings) for query in (_DELETE, _DELETE_LOOSE))

        return await self.engine.write(timed(work), bulk=True)


def _insert(tx: Tx, parts: Sequence[dict[str, object]]) -> None:
    if parts[0]["number"] == 1:
        run(tx, _LIST, parts[0])
    for part in parts:
        run(tx, _INSERT, part)
