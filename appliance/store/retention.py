"""In charge of deleting old mail: the bytes of a message, later its record, and what was written on the side of it.

Ids sort by time, and what is old enough is soon gone: so the oldest rows of each table are those to be looked at, in
the order of a key that is there anyway. No index is kept for this, which every message would have to pay for. What may
not go yet is passed over, and met again when somebody walks through the table once more.

Rows are looked for beside the writer, and the writer only deletes. In between a message can become final, but never
the other way, and the writer asks again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import apsw

from appliance.outside import identifier_from
from appliance.store.background_reader import Scanner
from appliance.store.body_parts import loosen
from appliance.store.engine import Engine
from appliance.store.slices import Slice, timed
from appliance.store.sql import Many, Row, gathered
from appliance.store.statistics import counted_all_before
from appliance.store.stored_bytes import bodies, give_back, of_record
from appliance.times import HOUR

LOOK = 1_000  # rows looked at beside the writer at once, at most
WEIGHT = 4  # of the smallest message, with its recipient and an attempt
PAGE = 4_096  # bytes; what is deleted is weighed by how many pages that may touch
RECEIPT = 24 * HOUR + 60_000_000  # microseconds for which a request can be repeated, and a little more

# When the last recipient became final; NULL while one is not. Failures from before `failed_at` go by their attempts.
_FINAL_AT = """CASE WHEN count(r.next_attempt_at) = 0 THEN max(coalesce(r.delivered_at, r.bounced_at, r.failed_at,
    (SELECT max(a.finished_at) FROM attempts a WHERE a.recipient_id = r.id), 0)) END"""
FIND_BODIES = f"""
SELECT b.message_id, length(b.mime) AS size,
    (SELECT {_FINAL_AT} FROM recipients r WHERE r.message_id = b.message_id) AS final_at
FROM message_bodies b WHERE b.message_id > :after AND b.message_id < :limit ORDER BY b.message_id LIMIT :most
"""  # noqa: S608 - our own words, as below
FIND_MAIL = f"""
SELECT r.message_id, count(*) + sum(r.attempt_count) AS weight, {_FINAL_AT} AS final_at, r.account_id
FROM recipients r WHERE r.message_id > :after AND r.message_id < :limit
GROUP BY r.message_id ORDER BY r.message_id LIMIT :most
"""  # noqa: S608
FIND_EVENTS = """
SELECT e.id, EXISTS (SELECT 1 FROM messages m WHERE m.account_id = e.account_id AND m.id = e.message_id) AS kept
FROM events e WHERE e.id > :after AND e.id < :limit ORDER BY e.id LIMIT :most
"""

_UNDELIVERED = Many(
    "SELECT DISTINCT message_id FROM recipients WHERE message_id IN ({rows}) AND next_attempt_at IS NOT NULL", "?"
)
_EMPTY_BODIES = Many(
    "UPDATE message_bodies SET mime = x'', signature = NULL, parts_size = 0 WHERE message_id IN ({rows})", "?"
)
_DELETE_BODIES = Many("DELETE FROM message_bodies WHERE message_id IN ({rows})", "?")
_DELETE_ATTEMPTS = Many(
    "DELETE FROM attempts WHERE recipient_id IN (SELECT id FROM recipients WHERE message_id IN ({rows}))", "?"
)
_DELETE_RECIPIENTS = Many("DELETE FROM recipients WHERE message_id IN ({rows}) AND next_attempt_at IS NULL", "?")
_DELETE_MESSAGES = Many(
    """
DELETE FROM messages WHERE (account_id, id) IN (VALUES {rows}) AND status <> 'queued'
RETURNING account_id, recipient_count
""",
    "(?, ?)",
)
_DELETE_EVENTS = Many("DELETE FROM events WHERE id IN ({rows})", "?")

Found = tuple[list[Row], str, bool]  # rows to be deleted, where to go on, and whether there is more at once


@dataclass(frozen=True, slots=True)
class Clearing:
    """Old mail of all accounts. Of large messages the parts stay, loose, for `BodyParts.clear`."""

    engine: Engine
    scanner: Scanner

    def is_counted(self, before: int) -> bool:
        """Whether the numbers of all mail until then are known: only then may it be deleted."""
        return self.engine.read(lambda c: counted_all_before(c, before + HOUR))

    async def bodies(self, after: str, final_before: int, now: int, budget: int) -> Slice:
        """Delete what messages say that were final by then; while a request may be repeated its receipt stays."""
        limit = identifier_from("msg", final_before)
        receipts_from = identifier_from("msg", max(0, now - RECEIPT))

        def find(c: apsw.Connection) -> Found:
            most = min(LOOK, budget)
            looked = gathered(
                c, FIND_BODIES, "message_id, size, final_at", {"after": after, "limit": limit, "most": most}
            )
            old = [
                (
                    message_id,
                    1 + size // PAGE,
                    is_final(final_at, final_before) and (size or message_id < receipts_from),
                )
                for message_id, size, final_at in looked
            ]
            return within(budget, old, after, more=len(looked) == most)

        def delete(c: apsw.Connection, found: Sequence[Row]) -> int:
            final = _final(c, [message_id for (message_id, *_) in found])
            young = [row for row in final if row[0] >= receipts_from]
            old = [row for row in final if row[0] < receipts_from]
            give_back(c, bodies(c, young, receipts=False) + bodies(c, old, receipts=True))
            loosen(c, final)
            return _EMPTY_BODIES.count(c, young) + _DELETE_BODIES.count(c, old)

        return await self._slice(find, delete)

    async def mail(self, after: str, final_before: int, budget: int) -> Slice:
        """Delete messages that were final by then, with their recipients, attempts and bytes; see `is_counted`."""
        limit = identifier_from("msg", final_before)

        def find(c: apsw.Connection) -> Found:
            most = max(1, min(LOOK, budget // WEIGHT))
            looked = gathered(
                c, FIND_MAIL, "message_id, weight, final_at, account_id", {"after": after, "limit": limit, "most": most}
            )
            old = [
                (message_id, 2 + weight, is_final(final_at, final_before), account_id)
                for message_id, weight, final_at, account_id in looked
            ]
            return within(budget, old, after, more=len(looked) == most)

        return await self._slice(find, _delete_mail)

    async def events(self, after: str, before: int, budget: int) -> Slice:
        """Delete the events of messages that are gone."""
        limit = identifier_from("evt", before)

        def find(c: apsw.Connection) -> Found:
            most = min(LOOK, budget)
            looked = gathered(c, FIND_EVENTS, "id, kept", {"after": after, "limit": limit, "most": most})
            gone = [(event_id, 1, not kept) for event_id, kept in looked]
            return within(budget, gone, after, more=len(looked) == most)

        def delete(c: apsw.Connection, found: Sequence[Row]) -> int:
            return _DELETE_EVENTS.count(c, [(event_id,) for (event_id, *_) in found])

        return await self._slice(find, delete)

    async def _slice(
        self, find: Callable[[apsw.Connection], Found], delete: Callable[[apsw.Connection, Sequence[Row]], int]
    ) -> Slice:
        found, after, more = await self.scanner.read(find)
        if not found:
            return Slice(0, 0.0, more, after)
        deleted, seconds = await self.engine.write(timed(lambda c: delete(c, found)), large=True)
        return Slice(deleted, seconds, more, after)


def within(budget: int, looked: Iterable[Row], after: str, *, more: bool) -> Found:
    """Of rows that begin with an id, a weight and whether they may go: those that may, as many as weigh the budget.

    `after` is the row before them, and `more` whether there are others behind them. PURE.
    """
    found: list[Row] = []
    weight = 0
    for row in looked:
        if row[2]:
            if found and weight + row[1] > budget:
                return found, after, True
            found.append(row)
            weight += row[1]
        after = row[0]
    return found, after, more


def is_final(final_at: int | None, before: int) -> bool:
    """Whether a message was final by then."""
    return final_at is not None and final_at < before


def _final(c: apsw.Connection, messages: Sequence[str]) -> list[Row]:
    """Of these messages those that nobody waits for, asked in the transaction that deletes."""
    wanted = [(message_id,) for message_id in messages]
    undelivered = set(_UNDELIVERED.run(c, wanted))
    return [row for row in wanted if row not in undelivered]


def _delete_mail(c: apsw.Connection, found: Sequence[Row]) -> int:
    final = _final(c, [message_id for (message_id, *_) in found])
    account_of = {message_id: account_id for message_id, _, _, account_id in found}
    freed = bodies(c, final, receipts=True)
    loosen(c, final)
    _DELETE_BODIES.run(c, final)
    _DELETE_ATTEMPTS.run(c, final)
    _DELETE_RECIPIENTS.run(c, final)
    deleted = _DELETE_MESSAGES.run(c, [(account_of[message_id], message_id) for (message_id,) in final])
    for account_id, recipients in deleted:
        freed[account_id] += of_record(recipients)
    give_back(c, freed)
    return len(deleted)
