"""Received messages: queued before their 250, stored with the result of their checks and the posts of their event.

The queue is that of feedback. A large message's parts are written once: the queued mail refers to them, later the
stored message. Its bytes count for the account from the 250 until retention deletes it, together with its posts, which
contain its text. Mail is read in turns: a turn is an account and a client network.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import msgspec

from appliance.concurrency.wake import Wake
from appliance.environment import identifier_from
from appliance.errors import Code, Refused
from appliance.model.feedback import QueueShare, ShareScope
from appliance.model.mail import header_id_of
from appliance.model.received import (
    AnsweredEmail,
    NewReceived,
    QueuedReceived,
    ReceivedEnvelope,
    ReceivedFacts,
    ReceivedMessage,
    WaitingReceived,
)
from appliance.model.webhooks import EventType
from appliance.store.body_parts import HEAD, BodyParts, loosen_parts, parts_are_there, split, unlist, whole
from appliance.store.body_parts import add as count_bytes
from appliance.store.engine import NEWEST, Bulk, Row, Slice, StorePart, Tx, changed, rows, run
from appliance.store.feedback import LARGE_MAIL, FeedbackStore, QueuedMail, put, take_out
from appliance.store.message_records import readable_metadata
from appliance.store.webhooks import WebhookPosts, post_events

RECORD = 4_096  # bytes of its rows without the message and the event
RECEIVED_SEARCHED = 500  # messages between two checks of the time: a few milliseconds
RECEIVED_SEARCH_TIME = 0.05  # seconds of searching for one page
PAGES_OF_MESSAGE = 16  # weight of a deleted message
RECEIVED_ON_LOOP = 32 * 1024  # bytes of a message, and of its event, that are written on the event loop

_COUNT_KEPT = """UPDATE accounts SET stored_bytes = stored_bytes + :count WHERE id = :account_id
    RETURNING stored_bytes"""
# SQLite stores `size` behind the message, and would read all of its pages for it.
_TURN = f"turn, id, CASE WHEN length(mime) <= {HEAD} THEN size ELSE length(mime) END, tries"
_QUEUED = f"SELECT {_TURN} FROM feedback_mail WHERE turn <> '' ORDER BY turn, tries, id LIMIT :most"
_NEXT_TURN = f"""SELECT {_TURN} FROM feedback_mail WHERE turn <> ''
        AND turn = (SELECT min(f.turn) FROM feedback_mail f WHERE f.turn <> '' AND f.turn > :after)
    ORDER BY tries, id LIMIT :most"""
_CLAIM = Bulk("""UPDATE feedback_mail SET tries = tries + 1 WHERE id IN ({?}) AND turn <> ''
    RETURNING id, turn, envelope, mime, parts_size, received_at, tries""")
_INSERT = Bulk("""INSERT INTO received_messages (account_id, id, received_at, envelope, sender, recipients, subject,
        spf, dkim, dmarc, auto_submitted, attachments, facts, size, counted, mime, parts_size)
    VALUES {(?, ?, ?i, ?, ?, ?, ?, ?, ?, ?, ?i, ?i, ?, ?i, ?i, ?b, ?i)}""")
_LISTED = "id, received_at, envelope, sender, subject, spf, dkim, dmarc, auto_submitted, attachments, size, facts"
_PAGE = f"""SELECT {_LISTED} FROM received_messages WHERE account_id = :account_id AND id < :before
    ORDER BY id DESC LIMIT :most"""
_ONE = f"SELECT {_LISTED} FROM received_messages WHERE account_id = :account_id AND id = :id"
_SOME = Bulk(f"SELECT {_LISTED} FROM received_messages WHERE (account_id, id) IN (VALUES {{(?, ?)}})")
_BLOCK = """SELECT id, sender, recipients, subject FROM received_messages
    WHERE account_id = :account_id AND id < :before ORDER BY id DESC LIMIT :most"""
_MIME = "SELECT mime, parts_size FROM received_messages WHERE account_id = :account_id AND id = :id"

_BY_ID = Bulk("SELECT id, envelope_from, header_id, metadata FROM messages WHERE (account_id, id) IN (VALUES {(?, ?)})")
_BY_HEADER_ID = Bulk("""SELECT id, envelope_from, header_id, metadata FROM messages
    WHERE (account_id, header_id) IN (VALUES {(?, ?)})""")

# A post that is still retried keeps its message.
_OLD = """SELECT r.account_id, r.id, r.counted, r.parts_size FROM received_messages r WHERE r.id < :before
    AND NOT EXISTS (SELECT 1 FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id AND d.message_id = r.id
        WHERE w.account_id = r.account_id AND d.next_attempt_at IS NOT NULL)
    ORDER BY r.id LIMIT :most"""
_ANY_OLD = "SELECT EXISTS (SELECT 1 FROM received_messages WHERE id < :before)"
_DELETE_POSTS = """DELETE FROM webhook_deliveries WHERE message_id = :id AND webhook_id IN
    (SELECT id FROM webhooks WHERE account_id = :account_id)"""
_DELETE = "DELETE FROM received_messages WHERE account_id = :account_id AND id = :id"

_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(ReceivedEnvelope)
_facts = msgspec.json.Decoder(ReceivedFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMessage:
    """A message whose sender is checked, and the body of its event."""

    sender: str
    subject: str
    auto_submitted: bool
    attachments: int
    facts: ReceivedFacts
    event_id: str
    event: bytes = field(repr=False)


class MailboxFull(Refused):
    """The account stores as many bytes as it may."""

    def __init__(self) -> None:
        super().__init__(Code.RATE_LIMITED, "The mailbox is full. Try again later.")


class ReceivedStore(StorePart):
    parts: BodyParts
    feedback: FeedbackStore  # the queue
    posts: WebhookPosts
    arrived: Wake = msgspec.field(default_factory=Wake)  # there may be mail to check

    # ---- the queue

    async def add(self, mails: Sequence[NewReceived], may_store: int | None) -> None:
        """Queue a message for each of these accounts in one transaction.

        Raises Refused over a limit of the queue, and MailboxFull for an account over `may_store` bytes.
        """
        queued = [(mail.account_id, _queued(mail)) for mail in mails]
        item = queued, may_store
        async with AsyncExitStack() as written:
            for new, (_, mail) in zip(mails, queued, strict=True):
                if mail.parts_size:
                    await written.enter_async_context(self.parts.written(mail.id, new.mime))
            size = sum(len(mail.mime) for _, mail in queued)
            if size > LARGE_MAIL:
                await self.engine.write(lambda tx: self._add(tx, [item]), bulk=True, locks=True)
            else:
                await self.engine.write_item(self._add, item, large=size > RECEIVED_ON_LOOP)
        self.arrived.set()

    def _add(self, tx: Tx, items: Sequence[tuple[list[tuple[str, QueuedMail]], int | None]]) -> list[None]:
        """Queue the mails of several calls together; a refusal is of all, so the engine then runs each alone."""
        put(tx, self.feedback.limits, [mail for queued, _ in items for _, mail in queued], self.env.now())
        counted, limits = Counter[str](), dict[str, int]()
        for queued, may_store in items:
            for account_id, mail in queued:
                counted[account_id] += RECORD + len(mail.mime) + mail.parts_size
                if may_store is not None:
                    limits[account_id] = min(may_store, limits.get(account_id, may_store))
                if mail.parts_size:
                    if not parts_are_there(tx, mail.id, mail.parts_size):
                        text = "The message was being stored for too long. Try again."
                        raise Refused(Code.SERVICE_UNAVAILABLE, text)
                    unlist(tx, mail.id)
        for account_id, count in sorted(counted.items()):
            ((kept,),) = rows(tx, _COUNT_KEPT, {"account_id": account_id, "count": count})
            if account_id in limits and kept > limits[account_id]:
                raise MailboxFull
        return [None] * len(items)

    async def queued(self, most: int) -> list[QueuedReceived]:
        """Return queued mails, in the order of turns."""
        return await self.engine.all(QueuedReceived, _QUEUED, {"most": most})

    async def next_turn(self, after: str, most: int) -> list[QueuedReceived]:
        """Return the first mails of the turn after this one."""
        return await self.engine.all(QueuedReceived, _NEXT_TURN, {"after": after, "most": most})

    async def claim(self, ids: Sequence[str], *, large: bool) -> list[WaitingReceived]:
        """Count one more try of each of these mails, and return those still queued."""

        def work(tx: Tx) -> list[WaitingReceived]:
            return [
                WaitingReceived(
                    mail_id,
                    turn_account(turn),
                    _envelopes.decode(envelope),
                    whole(tx, mail_id, bytes(head), parts_size),
                    received_at,
                    tries,
                )
                for mail_id, turn, envelope, head, parts_size, received_at, tries in _CLAIM.run(
                    tx, [(mail_id,) for mail_id in sorted(ids)]
                )
            ]

        return await self.engine.write(work, large=large, locks=True)

    async def finish(self, finished: Sequence[tuple[WaitingReceived, CheckedMessage]]) -> list[bool]:
        """Move messages out of the queue and write the posts of their events; False for one that another node moved.

        All messages that wait for this are written in one transaction.
        """
        large = max(len(mail.mime) + len(checked.event) for mail, checked in finished) > RECEIVED_ON_LOOP
        accounts = await self.engine.write_item(self._finish_several, finished, large=large)
        self.posts.add_new({account_id for account_id in accounts if account_id})
        return [account_id is not None for account_id in accounts]

    def _finish_several(
        self, tx: Tx, several: Sequence[Sequence[tuple[WaitingReceived, CheckedMessage]]]
    ) -> list[list[str | None]]:
        results = iter(self._finish(tx, [*chain.from_iterable(several)]))
        return [[*islice(results, len(finished))] for finished in several]

    def _finish(self, tx: Tx, finished: Sequence[tuple[WaitingReceived, CheckedMessage]]) -> list[str | None]:
        """Return for each message the account if it has a new post, "" without one, and None if it is gone."""
        gone = take_out(tx, [mail.id for mail, _ in finished])
        moved = [(mail, checked) for mail, checked in finished if mail.id in gone]
        _INSERT.run(tx, [_row(mail, checked) for mail, checked in moved])
        sizes = Counter[str]()
        for mail, checked in moved:
            sizes[mail.account_id] += len(checked.event)
        for account_id, size in sorted(sizes.items()):
            count_bytes(tx, account_id, size)
        now, kind = self.env.now(), EventType.RECEIVED.value
        events = [(item.event_id, mail.account_id, mail.id, None, kind, item.event, now) for mail, item in moved]
        posted = post_events(tx, self.env, events)
        return [
            (mail.account_id if mail.account_id in posted else "") if mail.id in gone else None for mail, _ in finished
        ]

    async def answered(self, account_id: str, header_ids: Sequence[str]) -> AnsweredEmail | None:
        """Return the message of the account with the first of these Message-IDs that one has."""

        def read(tx: Tx) -> AnsweredEmail | None:
            ids = [(account_id, f"msg_{item.partition('@')[0]}") for item in header_ids]
            stored = [*_BY_ID.run(tx, ids), *_BY_HEADER_ID.run(tx, [(account_id, item) for item in header_ids])]
            by_header_id = {
                header_id or header_id_of(message_id, sender.rpartition("@")[2]): (message_id, metadata)
                for message_id, sender, header_id, metadata in stored
            }
            for item in header_ids:
                if (message := by_header_id.get(item)) is not None:
                    message_id, metadata = message
                    return AnsweredEmail(message_id, {} if metadata is None else readable_metadata(metadata))
            return None

        return await self.engine.read(read) if header_ids else None

    # ---- stored messages

    async def page(self, account_id: str, before: str | None, most: int) -> list[ReceivedMessage]:
        bindings = {"account_id": account_id, "before": before or NEWEST, "most": most}
        return await self.engine.scan(lambda tx: [_message(*row) for row in rows(tx, _PAGE, bindings)], account_id)

    async def search(
        self,
        account_id: str,
        words: Sequence[str],
        before: str | None,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> tuple[list[ReceivedMessage], str | None]:
        """Messages with all of these words in sender, recipients or subject, and where to continue; bounded in time."""

        def look(tx: Tx) -> tuple[list[ReceivedMessage], str | None]:
            results, position, end = list[str](), before or NEWEST, clock() + RECEIVED_SEARCH_TIME
            following: str | None = position
            while following is not None and len(results) < most:
                block = rows(tx, _BLOCK, {"account_id": account_id, "before": following, "most": RECEIVED_SEARCHED})
                following = block[-1][0] if len(block) == RECEIVED_SEARCHED else None
                for message_id, *texts in block:
                    text = "\n".join(texts).lower()
                    if all(word in text for word in words):
                        results.append(message_id)
                        if len(results) == most:
                            following = message_id
                            break
                if clock() >= end:
                    break
            shown = _SOME.run(tx, [(account_id, message_id) for message_id in results])
            return sorted((_message(*row) for row in shown), key=lambda item: item.id, reverse=True), following

        return await self.engine.scan(look, account_id)

    async def find(self, account_id: str, message_id: str) -> ReceivedMessage | None:
        return await self.engine.one(_message, _ONE, {"account_id": account_id, "id": message_id})

    async def mime(self, account_id: str, message_id: str) -> bytes | None:
        def read(tx: Tx) -> bytes | None:
            stored = rows(tx, _MIME, {"account_id": account_id, "id": message_id})
            return whole(tx, message_id, bytes(stored[0][0]), stored[0][1]) if stored else None

        return await self.engine.scan(read, account_id)

    async def forget(self, before: int, budget: int) -> Slice:
        """Delete messages received before a time, with the posts of their events."""
        bindings = {"before": identifier_from("inb", before), "most": max(1, budget // PAGES_OF_MESSAGE)}
        if not (await self.engine.rows(_ANY_OLD, bindings))[0][0]:
            return Slice(0, 0.0, more=False)

        def work(tx: Tx) -> tuple[int, float]:
            began, old = time.perf_counter(), rows(tx, _OLD, bindings)
            for account_id, message_id, counted, parts_size in old:
                whose = {"account_id": account_id, "id": message_id}
                run(tx, _DELETE_POSTS, whose)
                if parts_size:
                    loosen_parts(tx, message_id)
                if changed(tx, _DELETE, whose):
                    count_bytes(tx, account_id, -counted)
            return len(old), time.perf_counter() - began

        deleted, seconds = await self.engine.write(work, large=True)
        return Slice(deleted, seconds, more=deleted > 0)


def _row(mail: WaitingReceived, checked: CheckedMessage) -> Row:
    head, parts_size = split(mail.mime)
    results, envelope = checked.facts.authentication, mail.envelope
    shown = checked.sender, ",".join(envelope.recipients), checked.subject
    verdicts = results.spf.result.value, results.dkim_result.value, results.dmarc.result.value
    counted = RECORD + len(mail.mime) + len(checked.event)
    return (
        *(mail.account_id, mail.id, mail.received_at, _encoder.encode(envelope).decode()),
        *(*shown, *verdicts, int(checked.auto_submitted), checked.attachments),
        *(_encoder.encode(checked.facts).decode(), len(mail.mime), counted, head, parts_size),
    )


def shares_of(network: str, account_id: str, addresses: Sequence[str]) -> set[QueueShare]:
    """Return the shares that a message to addresses of one account counts for."""
    return {
        QueueShare(ShareScope.NETWORK, network),
        QueueShare(ShareScope.RECEIVED_ACCOUNT, account_id),
        QueueShare(ShareScope.RECEIVED_FROM, f"{account_id} {network}"),
        *(QueueShare(ShareScope.RECEIVED_ADDRESS, address) for address in addresses),
    }


def turn_account(turn: str) -> str:
    return turn.partition(" ")[0]


def _queued(new: NewReceived) -> QueuedMail:
    head, parts_size = split(new.mime)
    return QueuedMail(
        id=new.id,
        addresses=new.envelope.recipients,
        mime=head,
        shares=new.shares,
        parts_size=parts_size,
        turn=f"{new.account_id} {new.network}",
        envelope=_encoder.encode(new.envelope).decode(),
    )


def _message(message_id: str, received_at: int, envelope: str, *rest: Any) -> ReceivedMessage:
    sender, subject, spf, dkim, dmarc, auto_submitted, attachments, size, facts = rest
    checks = spf, dkim, dmarc, bool(auto_submitted), attachments, size, _facts.decode(facts)
    return ReceivedMessage(message_id, received_at, _envelopes.decode(envelope), sender, subject, *checks)
