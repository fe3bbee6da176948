"""Accepts messages into the store, hands them to delivery, and reads them back with every attempt at each recipient.

Invariant: a message is handed over only after its commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import apsw

from appliance.concurrency.wake import Wake
from appliance.model.mail import (
    Attempt,
    Billing,
    Message,
    MessageRecord,
    MessageStatus,
    NewMessage,
    OutgoingSession,
    Recipient,
    RecipientStatus,
    RememberedSend,
    Source,
    TriedRecipient,
)
from appliance.outside import identifier_time
from appliance.store.accepting import accept, refusal_now
from appliance.store.body_parts import INLINE, BodyParts, whole
from appliance.store.engine import StorePart
from appliance.store.new_mail import NewMail
from appliance.store.sql import first, one, rows
from appliance.store.webhook_posts import WebhookPosts

_REMEMBERED = """SELECT k.fingerprint, m.request_id, b.receipt, m.id FROM idempotency_keys k
    JOIN messages m ON m.account_id = :account_id AND m.id = k.message_id
    JOIN message_bodies b ON b.message_id = k.message_id
    WHERE k.scope = :scope AND k.key = :key AND k.expires_at > :now"""
_MESSAGE = """SELECT id, status, source, sender, subject, billing_status, recipient_count, credits_reserved, created_at
    FROM messages WHERE id = :id AND account_id = :account_id"""
_RECIPIENTS = """SELECT id, address, status, billing_status, attempt_count, last_smtp_code, last_smtp_response,
    delivered_at, bounced_at FROM recipients WHERE message_id = :id ORDER BY id"""
_TO_SEND = """SELECT CASE WHEN length(mime) + parts_size <= :most THEN mime END, signature, length(mime) + parts_size
    FROM message_bodies WHERE message_id = :id"""
_NEWEST = "SELECT max(message_id) FROM recipients"  # the end of the table: ids sort by time
_MIME = "SELECT mime, parts_size FROM message_bodies WHERE message_id = :id AND length(mime) > 0"

WRITTEN_ON_LOOP = 64 * 1024  # bytes of a message; copying more than this into the log would hold up the event loop
READ_ON_LOOP = 256 * 1024  # bytes of a message; reading more than this would hold up the event loop


class ToSend(NamedTuple):
    """A message that is not final yet: its bytes unless they are too many to be read at once, and its signature."""

    mime: bytes | None
    signature: bytes | None  # if that has been made before
    size: int


@dataclass(frozen=True, slots=True)
class Messages(StorePart):
    parts: BodyParts
    posts: WebhookPosts
    new_mail: NewMail  # for delivery
    new_simulated_mail: Wake  # for its simulation

    async def accept(self, new: NewMessage) -> int | None:
        """Write message, recipients, credits and idempotency row together, then hand the message to delivery.

        On disk when this returns what each recipient was charged; None when some were bounced at once, as suppressed,
        and are not to be tried.
        """
        if new.simulated:
            charged = await self._write(new)
            self.new_simulated_mail.set()
        else:
            charged = await self._write_and_offer(new)
        if charged is None:
            self.posts.add_new([new.account_id])  # its webhook may have to hear of those
        return charged

    async def _write_and_offer(self, new: NewMessage) -> int | None:
        self.new_mail.expect(new.id)  # before the commit: a poll between it and the offer leaves the message alone
        try:
            charged = await self._write(new)
        except BaseException:
            self.new_mail.give_up(new.id)
            raise
        self.new_mail.offer(new, charged)
        return charged

    async def _write(self, new: NewMessage) -> int | None:
        if len(new.mime) > INLINE:
            return await self._write_in_parts(new)
        return await self.engine.write_item(self._accept, new, large=len(new.mime) > WRITTEN_ON_LOOP)

    async def _write_in_parts(self, new: NewMessage) -> int | None:
        if (refusal := self.engine.snapshot(lambda c: refusal_now(c, new))) is not None:
            try:
                raise refusal
            finally:
                del refusal  # or it and this frame would keep each other, and the message, until the collector comes
        async with self.parts.written(new):
            return await self.engine.write_item(self._accept, new)

    def _accept(self, c: apsw.Connection, news: Sequence[NewMessage]) -> list[int | Exception | None]:
        return accept(c, self.outside, news)

    def remembered(self, account_id: str, scope: str, key: str) -> RememberedSend | None:
        wanted = {"account_id": account_id, "scope": scope, "key": key, "now": self.outside.now()}
        return self.engine.one(RememberedSend, _REMEMBERED, wanted)

    def read(self, account_id: str, message_id: str) -> Message | None:
        """A message of this account; another account's is as absent as one that never was."""
        return self.engine.snapshot(lambda c: read_message(c, account_id, message_id))

    def to_send(self, message_id: str) -> ToSend:
        """A message that is not final yet; where its bytes are too many, `content` reads them."""
        (found,) = self.engine.all(ToSend, _TO_SEND, {"id": message_id, "most": READ_ON_LOOP})
        return found

    async def content(self, message_id: str) -> bytes:
        """The bytes of a message that is not final yet, read off the event loop."""
        found = await self.engine.scanner.read(lambda c: read_mime(c, message_id))
        if found is None:
            raise LookupError(f"there are no bytes of {message_id}")
        return found

    def mime(self, message_id: str) -> bytes | None:
        """The message's bytes, while they are kept; on this thread."""
        return self.engine.snapshot(lambda c: read_mime(c, message_id))

    def newest_at(self) -> int | None:
        ((newest,),) = self.engine.rows(_NEWEST, {})
        return None if newest is None else identifier_time(newest)


# ---- reading


def read_mime(c: apsw.Connection, message_id: str) -> bytes | None:
    """A message's bytes, while they are kept, as a step of a reading that sees one state."""
    return one(c, partial(whole, c, message_id), _MIME, {"id": message_id})


def read_message(c: apsw.Connection, account_id: str, message_id: str) -> Message | None:
    """A message of this account with its recipients, as a step of a reading."""
    row = first(c, _MESSAGE, {"id": message_id, "account_id": account_id})
    if row is None:
        return None
    found, status, source, sender, subject, billing, recipient_count, reserved, created_at = row
    recipients = tuple(
        Recipient(recipient_id, address, RecipientStatus(state), Billing(credit), *rest)
        for recipient_id, address, state, credit, *rest in rows(c, _RECIPIENTS, {"id": message_id})
    )
    head = found, MessageStatus(status), Source(source), sender, subject, Billing(billing)
    return Message(*head, recipient_count, reserved, created_at, recipients)


# ---- all that is known of one message: its recipients, and every attempt at each

# Messages are found by account, and recipients by message: so the account of a message is that of its recipients.
_ACCOUNT = """SELECT r.account_id, a.name FROM recipients r JOIN accounts a ON a.id = r.account_id
    WHERE r.message_id = :message_id LIMIT 1"""
_WAYS = "SELECT id, domain, simulated, next_attempt_at FROM recipients WHERE message_id = :message_id"
_ATTEMPTS = f"""SELECT {", ".join(Attempt.__struct_fields__)} FROM attempts
    WHERE recipient_id = :recipient_id ORDER BY number"""  # noqa: S608 - the names of our own columns

_SESSION = """SELECT recipient_id, host, address, started_at, awaits, since FROM smtp_sessions
    WHERE recipient_id = :recipient_id"""


class MessageRecords(StorePart):
    def of(self, message_id: str, account_id: str | None = None) -> MessageRecord | None:
        """Everything about a message of any account, or of this one only; None when there is none."""
        return self.engine.snapshot(lambda c: _record(c, message_id, account_id))

    async def off_loop(self, message_id: str, account_id: str) -> MessageRecord | None:
        """The same, read on a thread: the dialogues of many attempts may be megabytes."""
        return await self.engine.scanner.read(lambda c: _record(c, message_id, account_id), account_id)


def _record(c: apsw.Connection, message_id: str, account_id: str | None) -> MessageRecord | None:
    row = first(c, _ACCOUNT, {"message_id": message_id})
    if row is None or account_id not in (None, row[0]):
        return None
    if (message := read_message(c, row[0], message_id)) is None:
        return None
    ways = {recipient_id: way for recipient_id, *way in rows(c, _WAYS, {"message_id": message_id})}
    recipients = tuple(_tried(c, recipient, *ways[recipient.id]) for recipient in message.recipients)
    return MessageRecord(row[1], message, recipients, row[0])


def _tried(
    c: apsw.Connection, recipient: Recipient, domain: str, simulated: int, next_attempt_at: int | None
) -> TriedRecipient:
    wanted = {"recipient_id": recipient.id}
    attempts = tuple(Attempt(*row) for row in rows(c, _ATTEMPTS, wanted))
    session = None if next_attempt_at is None else one(c, OutgoingSession, _SESSION, wanted)
    return TriedRecipient(recipient, domain, bool(simulated), next_attempt_at, attempts, session)
