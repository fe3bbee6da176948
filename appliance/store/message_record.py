"""Reads all that is known of one message: its recipients, and every attempt at each."""

import apsw

from appliance.model.mail import Attempt, MessageRecord, OutgoingSession, Recipient, TriedRecipient
from appliance.store.engine import StorePart
from appliance.store.messages import read_message
from appliance.store.sql import first, one, rows

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
