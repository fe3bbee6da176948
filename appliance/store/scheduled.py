"""Scheduled messages: stored complete, but not in the queue before they are due.

A scheduled message has a row in `scheduled_messages`, and its recipients are `queued` without a next attempt, so no
index of the queue has them. When it is due, one transaction deletes the row, checks account, domain and suppressions
again, and queues the recipients for the node that runs it. Invariant: the transaction that deletes the row decides
about the message, so it is queued, or cancelled, exactly once. Messages of a suspended account are held (`due_at` is
NULL) until it is resumed, and of a deleted account are cancelled. A message that fails is postponed alone.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct

from appliance.concurrency.wake import Wake
from appliance.errors import Code, Refused, StorageFault, StorageUnavailable
from appliance.message.addresses import parse
from appliance.message.schedule import redated
from appliance.model.mail import BounceClass, DueRecipient, FailureReason, NewRecipient, Outcome, RecipientStatus
from appliance.store.engine import START, Bulk, Row, StorePart, Tx, one, rows, run
from appliance.store.new_mail import NewMail
from appliance.store.queue import SELECT_DUE, record
from appliance.store.search_index import note_changes
from appliance.store.suppressions import Addressed, suppression_notes
from appliance.store.webhooks import WebhookPosts
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import SCHEDULED_POSTPONED
from appliance.times import HOUR, SECOND

RELEASED_TOGETHER = 50  # messages, or recipients of several messages, in one transaction: some milliseconds of the loop
METADATA_TOGETHER = 2**20  # bytes of metadata, for each recipient, of several messages: events and posts have it
HELD_TOGETHER = 1_000  # messages of a deleted account, in one transaction
POSTPONED = HOUR  # microseconds until a message that failed is tried again: by a later version, perhaps

_NEXT_DUE = "SELECT min(due_at) FROM scheduled_messages WHERE due_at IS NOT NULL"
_COUNT = "SELECT count(*) FROM scheduled_messages"
# Accounts with held messages, from one to the next by the index.
_HELD_ACCOUNTS = """WITH RECURSIVE held (account_id) AS (
    SELECT min(account_id) FROM scheduled_messages WHERE due_at IS NULL
    UNION ALL
    SELECT (SELECT min(s.account_id) FROM scheduled_messages s
        WHERE s.due_at IS NULL AND s.account_id > held.account_id)
    FROM held WHERE held.account_id IS NOT NULL
)
SELECT held.account_id FROM held CROSS JOIN accounts a ON a.id = held.account_id
    WHERE a.suspended = 0 OR NOT EXISTS (SELECT 1 FROM users u WHERE u.account_id = a.id) LIMIT 1"""
_SELECT = """SELECT s.account_id, s.message_id, a.suspended,
        NOT EXISTS (SELECT 1 FROM users u WHERE u.account_id = a.id),
        m.recipient_count, coalesce(octet_length(m.metadata), 0), m.sender, m.envelope_from, m.tags, m.template_alias,
        m.stream,
        EXISTS (SELECT 1 FROM suppressions p WHERE p.account_id = a.id),
        EXISTS (SELECT 1 FROM unsubscriptions u WHERE u.account_id = a.id)
    FROM scheduled_messages s CROSS JOIN accounts a ON a.id = s.account_id
    CROSS JOIN messages m ON m.account_id = s.account_id AND m.id = s.message_id"""
_DUE = f"{_SELECT} WHERE s.due_at <= :now ORDER BY s.due_at LIMIT :most"
_HELD = f"{_SELECT} WHERE s.due_at IS NULL AND s.account_id = :account_id ORDER BY s.message_id LIMIT :most"
_HOLD_OF_ACCOUNT = """UPDATE scheduled_messages SET due_at = NULL WHERE (account_id, message_id) IN
        (SELECT s.account_id, s.message_id FROM scheduled_messages s
        WHERE s.account_id = :account_id AND s.message_id > :after ORDER BY s.message_id LIMIT :most)
    RETURNING message_id"""
_ALONE = f"""{_SELECT} WHERE s.account_id = :account_id AND s.message_id = :message_id
    AND (s.due_at IS NULL OR s.due_at <= :now)"""
_POSTPONE = """UPDATE scheduled_messages SET due_at = :later
    WHERE account_id = :account_id AND message_id = :message_id AND (due_at IS NULL OR due_at <= :now)"""
_FOR_ONE_NODE = " FOR UPDATE OF s SKIP LOCKED"  # on PostgreSQL: nodes take different messages
_HOLD = Bulk("UPDATE scheduled_messages SET due_at = NULL WHERE (account_id, message_id) IN (VALUES {(?, ?)})")
_FORGET = Bulk("""DELETE FROM scheduled_messages WHERE (account_id, message_id) IN (VALUES {(?, ?)})
    RETURNING message_id""")
_DOMAINS = Bulk("SELECT account_id, name FROM domains WHERE usable = 1 AND (account_id, name) IN (VALUES {(?, ?)})")
_QUEUED = """WITH new (message_id, now) AS (VALUES {{(?, ?i)}})
    UPDATE recipients SET next_attempt_at = new.now{owner} FROM new
    WHERE recipients.message_id = new.message_id AND recipients.status = 'queued' AND recipients.next_attempt_at IS NULL
    RETURNING recipients.message_id, recipients.id, recipients.address, recipients.domain, recipients.simulated"""
_QUEUE = Bulk(_QUEUED.format(owner=""))
_QUEUE_HERE = Bulk(_QUEUED.format(owner=", owner = DEFAULT"))
_RECIPIENTS = Bulk(f"{SELECT_DUE} WHERE r.message_id IN ({{?}}) AND r.status = 'queued' ORDER BY r.message_id, r.id")

_MOVE = """UPDATE scheduled_messages SET due_at = :due_at
    WHERE account_id = :account_id AND message_id = :message_id AND due_at > :now RETURNING message_id"""
_COMPOSED = """SELECT m.scheduled_at, b.mime FROM messages m CROSS JOIN message_bodies b ON b.message_id = m.id
    WHERE m.account_id = :account_id AND m.id = :message_id"""
_REDATE = "UPDATE message_bodies SET mime = :mime WHERE message_id = :message_id"
_MOVE_MESSAGE = "UPDATE messages SET scheduled_at = :due_at WHERE account_id = :account_id AND id = :message_id"

_tags = msgspec.json.Decoder(tuple[str, ...])
log = get_logger("store")


class _Scheduled(NamedTuple):
    account_id: str
    message_id: str
    is_suspended: int
    is_deleted: int  # the account
    recipients: int
    metadata_size: int
    sender: str
    envelope_from: str
    tags: str
    template_alias: str | None
    stream: str
    has_suppressions: int
    has_unsubscriptions: int

    @property
    def key(self) -> Row:
        return self.account_id, self.message_id

    @property
    def is_held(self) -> bool:
        return bool(self.is_suspended and not self.is_deleted)

    def domains(self) -> set[str]:
        addresses = self.sender.rstrip("> "), self.envelope_from
        return {parse(f"x@{address.rpartition('@')[2]}", "from").domain for address in addresses}


class Released(Struct, frozen=True):
    messages: int  # that are queued, held or failed now
    accounts: frozenset[str] = frozenset()  # with new posts
    real: bool = False  # whether delivery has new recipients
    simulated: bool = False  # whether the sandbox has


def forget_scheduled(tx: Tx, messages: Sequence[Row]) -> list[Row]:
    """Delete the rows of messages (account and id) that became final before they were due; the ids of those deleted."""
    return _FORGET.run(tx, messages)


class ScheduledMail(StorePart):
    posts: WebhookPosts
    new_mail: NewMail
    new_simulated_mail: Wake

    async def next_due(self) -> int | None:
        due_at: int | None = (await self.engine.rows(_NEXT_DUE, {}))[0][0]
        return due_at

    async def count(self) -> int:
        return await self.engine.scan(lambda tx: one(tx, int, _COUNT, {}) or 0)

    def now(self) -> int:
        """The time by which messages are due: that of the database, so that no node is early."""
        return self.engine.shared_clock(self.env.now())

    async def release_due(self) -> int:
        """Queue some due messages, the longest overdue first; return how many."""
        return await self._release_some(_DUE, {"now": self.now(), "most": RELEASED_TOGETHER})

    async def release_held(self) -> int:
        """Queue, or cancel, some held messages of an account that was resumed or deleted; return how many."""
        account_id = await self.engine.one(str, _HELD_ACCOUNTS, {})
        held: dict[str, object] = {"account_id": account_id, "most": RELEASED_TOGETHER}
        return 0 if account_id is None else await self._release_some(_HELD, held)

    async def give_up(self, account_id: str) -> None:
        """Hold the messages of a deleted account, so that `release_held` cancels them before they are due."""
        row: dict[str, object] = {"account_id": account_id, "after": START, "most": HELD_TOGETHER}
        while held := await self.engine.change(_HOLD_OF_ACCOUNT, row):
            row["after"] = max(message_id for (message_id,) in held)

    async def _release_some(self, query: str, bindings: dict[str, object]) -> int:
        try:
            return await self._release(query, bindings)
        except (StorageUnavailable, StorageFault):
            raise
        except Exception:  # a message that cannot be read, for example, must not keep the others from going
            selected = await self.engine.rows(query, bindings)
        for account_id, message_id, *_ in selected:
            await self._release_alone({"account_id": account_id, "message_id": message_id, "now": self.now()})
        return len(selected)

    async def _release_alone(self, message: dict[str, object]) -> None:
        try:
            await self._release(_ALONE, message)
        except (StorageUnavailable, StorageFault):
            raise
        except Exception as fault:
            await self.engine.change(_POSTPONE, message | {"later": self.now() + POSTPONED})
            SCHEDULED_POSTPONED.add("")
            text = "scheduled message postponed for an hour: it cannot be processed"
            log.error(text, message_id=message["message_id"], reason=f"{type(fault).__name__}: {fault}")

    async def _release(self, query: str, bindings: dict[str, object]) -> int:
        released = await self.engine.write(partial(self._take, query=query, bindings=bindings), bulk=True, locks=True)
        self.posts.add_new(released.accounts)
        if released.real:
            self.new_mail.request_poll()
        if released.simulated:
            self.new_simulated_mail.set()
        return released.messages

    def _take(self, tx: Tx, query: str, bindings: dict[str, object]) -> Released:
        query += _FOR_ONE_NODE if self.engine.is_shared else ""
        due = _together([_Scheduled(*row) for row in rows(tx, query, bindings)])
        if not due:
            return Released(0)
        _HOLD.run(tx, [message.key for message in due if message.is_held])
        active = [message for message in due if not message.is_held]
        _FORGET.run(tx, [message.key for message in active])
        queued = (_QUEUE_HERE if self.engine.is_shared else _QUEUE).run(
            tx, [(message.message_id, self.env.now()) for message in active]
        )
        notes = _cancelled(tx, active, queued) | _suppressed(tx, active, queued)
        accounts = record(tx, self.env, self._outcomes(tx, notes)) if notes else set()
        note_changes(tx, self.env, [(message.account_id, message.message_id) for message in active])
        simulated = {bool(row[4]) for row in queued}
        return Released(len(due), frozenset(accounts), real=False in simulated, simulated=True in simulated)

    def _outcomes(self, tx: Tx, notes: dict[tuple[str, str], tuple[FailureReason, str]]) -> Iterable[Outcome]:
        """The outcomes of recipients, by message and id, that are not to be tried."""
        now = self.env.now()
        for row in _RECIPIENTS.run(tx, [(message_id,) for message_id in sorted({key[0] for key in notes})]):
            recipient = DueRecipient(*row)
            if (reason := notes.get((recipient.message_id, recipient.id))) is not None:
                failure, note = reason
                bounced = failure is FailureReason.SUPPRESSED
                status = RecipientStatus.BOUNCED if bounced else RecipientStatus.FAILED
                bounce_class = BounceClass.OTHER if bounced else None
                outcome = partial(Outcome, recipient, status, (), now, note=note, failure=failure)
                yield outcome(bounce_class=bounce_class)

    async def move(self, account_id: str, message_id: str, due_at: int) -> None:
        """Schedule a message that is not due yet for another time; the Date that it was composed with follows."""
        await self.engine.write(partial(self._move, account_id, message_id, due_at), large=True)

    def _move(self, account_id: str, message_id: str, due_at: int, tx: Tx) -> None:
        row = {"account_id": account_id, "message_id": message_id, "due_at": due_at, "now": self.now()}
        if not rows(tx, _MOVE, row):
            text = f"Message {message_id} is not scheduled, or it is due already. Nothing was changed."
            raise Refused(Code.CONFLICT, text)
        for before, mime in rows(tx, _COMPOSED, row):
            if (moved := redated(mime, before // SECOND, due_at // SECOND)) is not None:
                run(tx, _REDATE, {"message_id": message_id, "mime": moved})
        run(tx, _MOVE_MESSAGE, row)


Notes = dict[tuple[str, str], tuple[FailureReason, str]]


def _together(due: list[_Scheduled]) -> list[_Scheduled]:
    """The first messages, as many as one transaction may have, but at least one."""
    recipients = metadata = 0
    for number, message in enumerate(due):
        recipients += message.recipients
        metadata += message.recipients * message.metadata_size
        if number and (recipients > RELEASED_TOGETHER or metadata > METADATA_TOGETHER):
            return due[:number]
    return due


def _cancelled(tx: Tx, messages: Sequence[_Scheduled], recipients: Sequence[Row]) -> Notes:
    """Why recipients fail: the account, or their message's domain, was removed since it was accepted."""
    needed = {message.message_id: [(message.account_id, name) for name in message.domains()] for message in messages}
    usable = set(_DOMAINS.run(tx, sorted({pair for pairs in needed.values() for pair in pairs})))
    removed = {
        message_id: f"the domain {name} was removed from the account"
        for message_id, pairs in needed.items()
        for account_id, name in pairs
        if (account_id, name) not in usable
    }
    removed |= {message.message_id: "the account was deleted" for message in messages if message.is_deleted}
    return {
        (message_id, recipient_id): (
            FailureReason.CANCELLED,
            f"cancelled: {removed[message_id]} before the message was due",
        )
        for message_id, recipient_id, *_ in recipients
        if message_id in removed
    }


def _suppressed(tx: Tx, messages: Sequence[_Scheduled], recipients: Sequence[Row]) -> Notes:
    checked = {item.message_id: item for item in messages if item.has_suppressions or item.has_unsubscriptions}
    if not checked:
        return {}
    by_message: dict[str, list[NewRecipient]] = {}
    for message_id, recipient_id, address, domain, _ in recipients:
        if message_id in checked:
            known = NewRecipient(recipient_id, address, parse(address, "to").key, domain)
            by_message.setdefault(message_id, []).append(known)
    addressed = {
        message_id: Addressed(
            item.account_id, by_message.get(message_id, ()), _tags.decode(item.tags), item.template_alias, item.stream
        )
        for message_id, item in checked.items()
    }
    notes = suppression_notes(
        tx,
        [addressed[item.message_id] for item in checked.values() if item.has_suppressions],
        [addressed[item.message_id] for item in checked.values() if item.has_unsubscriptions],
    )
    return {
        (message_id, known.id): (FailureReason.SUPPRESSED, notes[known.id])
        for message_id, several in by_message.items()
        for known in several
        if known.id in notes
    }
