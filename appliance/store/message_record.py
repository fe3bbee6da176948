"""Reads all that is known of one message: its recipients, and every attempt at each."""

from dataclasses import dataclass

import apsw

from appliance.model.mail import Attempt, Message, MessageRecord, OutgoingSession, Recipient, TriedRecipient
from appliance.store.background_reader import Scanner
from appliance.store.engine import Engine
from appliance.store.messages import read_message
from appliance.store.sql import first, rows

# Messages are found by account, and recipients by message: so the account of a message is that of its recipients.
_ACCOUNT = """SELECT r.account_id, a.name FROM recipients r JOIN accounts a ON a.id = r.account_id
    WHERE r.message_id = :message_id LIMIT 1"""
_WAYS = "SELECT id, domain, simulated, next_attempt_at FROM recipients WHERE message_id = :message_id"
_ATTEMPTS = f"""SELECT {", ".join(Attempt.__struct_fields__)} FROM attempts
    WHERE recipient_id = :recipient_id ORDER BY number"""  # noqa: S608 - the names of our own columns

_SESSION = """SELECT recipient_id, host, address, started_at, awaits, since FROM smtp_sessions
    WHERE recipient_id = :recipient_id"""


@dataclass(frozen=True, slots=True)
class MessageRecords:
    engine: Engine
    scanner: Scanner

    def of(self, message_id: str, account_id: str | None = None) -> MessageRecord | None:
        """Everything about a message of any account, or of this one only; None when there is none."""
        return self.engine.snapshot(lambda c: _record(c, message_id, account_id))

    async def off_loop(self, message_id: str, account_id: str) -> MessageRecord | None:
        """The same, read on a thread: the dialogues of many attempts may be megabytes."""
        return await self.scanner.read(lambda c: _record(c, message_id, account_id), account_id)


def _record(c: apsw.Connection, message_id: str, account_id: str | None) -> MessageRecord | None:
    row = first(c, _ACCOUNT, {"message_id": message_id})
    if row is None or account_id not in (None, row[0]):
        return None
    message = read_message(c, row[0], message_id)
    if message is None:
        return None
    return MessageRecord(row[1], message, _recipients(c, message), row[0])


def _recipients(c: apsw.Connection, message: Message) -> tuple[TriedRecipient, ...]:
    ways = {recipient_id: way for recipient_id, *way in rows(c, _WAYS, {"message_id": message.id})}
    return tuple(_tried(c, recipient, *ways[recipient.id]) for recipient in message.recipients)


def _tried(
    c: apsw.Connection, recipient: Recipient, domain: str, simulated: int, next_attempt_at: int | None
) -> TriedRecipient:
    attempts = tuple(Attempt(*row) for row in rows(c, _ATTEMPTS, {"recipient_id": recipient.id}))
    row = None if next_attempt_at is None else first(c, _SESSION, {"recipient_id": recipient.id})
    session = None if row is None else OutgoingSession(*row)
    return TriedRecipient(recipient, domain, bool(simulated), next_attempt_at, attempts, session)
