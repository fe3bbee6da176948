"""Deletes what has served its time: contents of messages, later their records, events, expired keys and sessions,
and reports.

Ids sort by time, and what is old enough is soon gone: so the oldest rows of each table are the candidates, in the order
of a key that is there anyway. No index is kept for this, which every message would have to pay for. What may not go yet
is passed over, and met again on the next walk through the table.

Where the tables are partitioned by time, whole partitions are dropped instead, and only what is from before a time
(`until`) is deleted in this way.

A reader finds rows, and the writer only deletes them. In between a message can become final, but never the
other way, and the writer checks again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.environment import identifier_from
from appliance.store.audit import AUDIT_KEPT, AUDIT_LINES, AUDIT_MOST, AUDIT_SURE
from appliance.store.body_parts import PAGE_BYTES, bodies, give_back, loosen, of_record
from appliance.store.breakdown import broken_down_before
from appliance.store.engine import START, Bulk, Row, Slice, StorePart, Tx, changed, gathered, one, rows, timed
from appliance.store.reports import first_day_kept
from appliance.store.search_index import forget_blocks
from appliance.store.statistics import counted_all_before
from appliance.times import DAY, HOUR, MINUTE

ROWS_SCANNED = 1_000  # at once, by a reader
LOGS_LOOKED_AT = 100  # audit logs, at once, by a reader
WEIGHT = 4  # of the smallest message, with its recipient and an attempt
NO_END = 2**53  # a time after all others
RECEIPT = 24 * HOUR + MINUTE  # microseconds for which a request can be repeated, and a little more

# When the last recipient became final; NULL while one is not. Failures from before `failed_at` go by their attempts.
# Here and below only our own words are put into SQL (S608).
FINAL_AT = """CASE WHEN count(r.next_attempt_at) = 0 THEN max(coalesce(r.delivered_at, r.bounced_at, r.failed_at,
    (SELECT max(a.finished_at) FROM attempts a WHERE a.recipient_id = r.id), 0)) END"""
FIND_BODIES = f"""SELECT b.message_id, length(b.mime) AS size,
        (SELECT {FINAL_AT} FROM recipients r WHERE r.message_id = b.message_id) AS final_at
    FROM message_bodies b WHERE b.message_id > :after AND b.message_id < :limit ORDER BY b.message_id LIMIT :most"""
FIND_MAIL = f"""SELECT r.message_id, count(*) + sum(r.attempt_count) AS weight, {FINAL_AT} AS final_at,
        min(r.account_id) AS account_id
    FROM recipients r WHERE r.message_id > :after AND r.message_id < :limit
    GROUP BY r.message_id ORDER BY r.message_id LIMIT :most"""
FIND_EVENTS = """SELECT e.id,
        EXISTS (SELECT 1 FROM messages m WHERE m.account_id = e.account_id AND m.id = e.message_id) AS kept
    FROM events e WHERE e.id > :after AND e.id < :limit ORDER BY e.id LIMIT :most"""

_UNDELIVERED = Bulk("""SELECT DISTINCT message_id FROM recipients
    WHERE message_id IN ({?}) AND next_attempt_at IS NOT NULL""")
_EMPTY_BODIES = Bulk("UPDATE message_bodies SET mime = x'', signature = NULL, parts_size = 0 WHERE message_id IN ({?})")
DELETE_BODIES = Bulk("DELETE FROM message_bodies WHERE message_id IN ({?})")
_DELETE_ATTEMPTS = Bulk("""DELETE FROM attempts
    WHERE recipient_id IN (SELECT id FROM recipients WHERE message_id IN ({?}))""")
_DELETE_RECIPIENTS = Bulk("DELETE FROM recipients WHERE message_id IN ({?}) AND next_attempt_at IS NULL")
_DELETE_MESSAGES = Bulk("""DELETE FROM messages WHERE (account_id, id) IN (VALUES {(?, ?)}) AND status <> 'queued'
    RETURNING account_id, recipient_count""")
_DELETE_EVENTS = Bulk("DELETE FROM events WHERE id IN ({?})")

_EXPIRED_KEYS = """DELETE FROM idempotency_keys WHERE (scope, key) IN
        (SELECT scope, key FROM idempotency_keys WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)"""
_EXPIRED_SESSIONS = """DELETE FROM sessions WHERE id IN
        (SELECT id FROM sessions WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)"""
_EXPIRED_LINKS = """DELETE FROM password_links WHERE id IN
        (SELECT id FROM password_links WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)"""
# A delivery that still waits for its next attempt is never too old.
_OLD_DELIVERIES = """DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
        (SELECT webhook_id, id FROM webhook_deliveries WHERE next_attempt_at IS NULL AND created_at <= :log_since
        ORDER BY created_at LIMIT :most)"""
# A deleted webhook's row goes last, once nothing is left that is found by it.
_LOGS_OF_DELETED = """DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
        (SELECT d.webhook_id, d.id FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
        WHERE w.account_id IS NULL LIMIT :most)"""
_DELETED = """DELETE FROM webhooks WHERE account_id IS NULL
        AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.webhook_id = webhooks.id)"""

# An outgoing address that has sent nothing to a pool for this long has lost its reputation there: warm-up starts again.
UNUSED_KEPT = 90 * DAY  # microseconds
_UNUSED_DESTINATIONS = """DELETE FROM destinations WHERE domain IN
        (SELECT domain FROM destinations WHERE updated_at < :unused_since ORDER BY updated_at LIMIT :most)"""
_UNUSED_WARMUPS = """DELETE FROM warmups WHERE (pool, source) IN
        (SELECT pool, source FROM warmups WHERE hour_at < :unused_since ORDER BY hour_at LIMIT :most)"""

# Tables whose rows are kept for some days only, with their keys.
_REPORTS = {
    "dmarc_reports": "account_id, domain, org, report_id",
    "dmarc_sources": "account_id, domain, day, source",
    "tls_reports": "account_id, domain, org, report_id",
    "tls_failures": "account_id, domain, day, mx, type",
    "daily_feedback": "account_id, day, kind, class, provider",
    "daily_breakdown": "account_id, dimension, day, value, kind",
}

_ANY = (
    "SELECT EXISTS (SELECT 1 FROM idempotency_keys WHERE expires_at <= :now)",
    "SELECT EXISTS (SELECT 1 FROM sessions WHERE expires_at <= :now)",
    "SELECT EXISTS (SELECT 1 FROM password_links WHERE expires_at <= :now)",
    "SELECT EXISTS (SELECT 1 FROM webhook_deliveries WHERE next_attempt_at IS NULL AND created_at <= :log_since)",
    "SELECT EXISTS (SELECT 1 FROM webhooks WHERE account_id IS NULL)",
    "SELECT EXISTS (SELECT 1 FROM audit_log WHERE at < :audit_since)",
    "SELECT EXISTS (SELECT 1 FROM destinations WHERE updated_at < :unused_since)",
    "SELECT EXISTS (SELECT 1 FROM warmups WHERE hour_at < :unused_since)",
    *(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE day < :first_day)" for table in _REPORTS),
)
_OLD_REPORTS = tuple(
    f"""DELETE FROM {table} WHERE ({key}) IN
        (SELECT {key} FROM {table} WHERE day < :first_day ORDER BY day LIMIT :most)"""
    for table, key in _REPORTS.items()
)
_OLD_AUDIT = """DELETE FROM audit_log WHERE (account_id, id) IN
        (SELECT account_id, id FROM audit_log WHERE at < :audit_since ORDER BY at LIMIT :most)"""
_FIRST_LOG = "SELECT min(account_id) FROM audit_log"
_NEXT_LOG = "SELECT min(account_id) FROM audit_log WHERE account_id > :account_id"
_OLDEST = "SELECT min(id) FROM audit_log WHERE account_id = :account_id"
_BEYOND = "SELECT id FROM audit_log WHERE account_id = :account_id ORDER BY id DESC LIMIT 1 OFFSET :kept"
_TRIM_AUDIT = """DELETE FROM audit_log WHERE (account_id, id) IN (SELECT account_id, id FROM audit_log
        WHERE account_id = :account_id AND id <= :beyond ORDER BY id LIMIT :most)"""
_EXPIRED = (_EXPIRED_KEYS, _EXPIRED_SESSIONS, _EXPIRED_LINKS)
_UNUSED = (_UNUSED_DESTINATIONS, _UNUSED_WARMUPS)
_STEPS = (_OLD_AUDIT, *_EXPIRED, _OLD_DELIVERIES, _LOGS_OF_DELETED, _DELETED, *_UNUSED, *_OLD_REPORTS)

Found = tuple[list[Row], str, bool]  # rows to delete, where to continue, and whether more can follow at once


@dataclass(frozen=True, slots=True)
class Deletion(StorePart):
    """Deletes what is old of all accounts. Of large messages the parts stay, loose, for `BodyParts.clear`."""

    rows_scanned: int = ROWS_SCANNED
    audit_lines: int = AUDIT_LINES
    audit_most: int = AUDIT_MOST

    async def expired(self, webhook_logs: int, most: int, until: int = NO_END) -> Slice:
        """Delete `most` of each: expired keys and sessions; old reports, audit lines, webhook logs; unused pools."""
        now = self.env.now()
        bindings = {"now": now, "log_since": min(now - webhook_logs, until), "most": most}
        bindings |= {"first_day": first_day_kept(now), "audit_since": now - AUDIT_KEPT}
        bindings["unused_since"] = now - UNUSED_KEPT
        if not await self.engine.read(lambda tx: any(rows(tx, query, bindings)[0][0] for query in _ANY)):
            return Slice(0, 0.0, more=False)  # and nothing is written: a server at rest leaves its disk alone
        work = timed(lambda tx: sum(changed(tx, query, bindings) for query in _STEPS))
        deleted, seconds = await self.engine.write(work, large=True)
        return Slice(deleted, seconds, more=deleted > 0)

    async def audit(self, after: str, most: int) -> Slice:
        """Delete the oldest lines of the next accounts' logs; `after` is START or a slash and an account id."""

        sure = identifier_from("aud", self.env.now() - AUDIT_SURE)

        def look(tx: Tx) -> tuple[str, dict[str, object] | None]:
            """How far the accounts are in order, and the next one's newest line that is too many."""
            passed = after
            for _ in range(LOGS_LOOKED_AT):
                query = _FIRST_LOG if passed == START else _NEXT_LOG
                ((account_id,),) = rows(tx, query, {"account_id": passed.removeprefix("/")})
                if account_id is None:
                    break
                whose = {"account_id": account_id}
                beyond = one(tx, str, _BEYOND, {**whose, "kept": self.audit_lines})
                if beyond is not None and beyond > sure:
                    beyond = max(sure, one(tx, str, _BEYOND, {**whose, "kept": self.audit_most}) or "")
                if beyond is not None and rows(tx, _OLDEST, whose)[0][0] <= beyond:
                    return passed, {**whose, "beyond": beyond, "most": most}
                passed = f"/{account_id}"
            return passed, None

        passed, too_many = await self.engine.scan(look)
        if too_many is None:
            return Slice(0, 0.0, more=passed != after, after=passed)
        work = timed(lambda tx: changed(tx, _TRIM_AUDIT, too_many))
        deleted, seconds = await self.engine.write(work, large=True)
        return Slice(deleted, seconds, more=True, after=passed, account_id=str(too_many["account_id"]))

    async def is_counted(self, before: int) -> bool:
        """Whether the numbers of all mail until then are known: only then may it be deleted."""
        until = before + HOUR
        return await self.engine.read(lambda tx: counted_all_before(tx, until) and broken_down_before(tx, until))

    async def bodies(self, after: str, final_before: int, now: int, budget: int, until: int = NO_END) -> Slice:
        """Delete what messages say that were final by then; while a request may be repeated its receipt stays."""
        limit = identifier_from("msg", min(final_before, until))
        bindings = {"after": after, "limit": limit, "most": min(self.rows_scanned, budget)}
        receipts_from = identifier_from("msg", max(0, now - RECEIPT))

        def judge(message_id: str, size: int, final_at: int | None) -> Row:
            may_go = is_final(final_at, final_before) and (size or message_id < receipts_from)
            return message_id, 1 + size // PAGE_BYTES, may_go

        def delete(tx: Tx, selected: Sequence[Row]) -> int:
            final = _final(tx, selected)
            young = [row for row in final if row[0] >= receipts_from]
            old = [row for row in final if row[0] < receipts_from]
            give_back(tx, bodies(tx, young, receipts=False) + bodies(tx, old, receipts=True))
            loosen(tx, final)
            return _EMPTY_BODIES.count(tx, young) + DELETE_BODIES.count(tx, old)

        return await self._slice(FIND_BODIES, "message_id, size, final_at", bindings, budget, judge, delete)

    async def mail(self, after: str, final_before: int, budget: int, until: int = NO_END) -> Slice:
        """Delete messages that were final by then, with their recipients, attempts and bytes; see `is_counted`."""
        most = max(1, min(self.rows_scanned, budget // WEIGHT))
        bindings = {"after": after, "limit": identifier_from("msg", min(final_before, until)), "most": most}

        def judge(message_id: str, weight: int, final_at: int | None, account_id: str) -> Row:
            return message_id, 2 + weight, is_final(final_at, final_before), account_id

        columns = "message_id, weight, final_at, account_id"
        return await self._slice(FIND_MAIL, columns, bindings, budget, judge, _delete_mail)

    async def events(self, after: str, before: int, budget: int, until: int = NO_END) -> Slice:
        limit = identifier_from("evt", min(before, until))
        bindings = {"after": after, "limit": limit, "most": min(self.rows_scanned, budget)}

        def delete(tx: Tx, selected: Sequence[Row]) -> int:
            return _DELETE_EVENTS.count(tx, [(event_id,) for (event_id, *_) in selected])

        return await self._slice(
            FIND_EVENTS, "id, kept", bindings, budget, lambda event_id, kept: (event_id, 1, not kept), delete
        )

    async def _slice(
        self,
        query: str,
        columns: str,
        bindings: dict[str, Any],
        budget: int,
        judge: Callable[..., Row],
        delete: Callable[[Tx, Sequence[Row]], int],
    ) -> Slice:
        """Delete some of what a query finds; `judge` makes of its columns an id, a weight, and whether it may go."""

        def find(tx: Tx) -> Found:
            scanned = gathered(tx, query, columns, bindings)
            more = len(scanned) == bindings["most"]
            return within(budget, (judge(*row) for row in scanned), bindings["after"], more=more)

        results, after, more = await self.engine.scan(find)
        if not results:
            return Slice(0, 0.0, more, after)
        deleted, seconds = await self.engine.write(timed(lambda tx: delete(tx, results)), large=True)
        return Slice(deleted, seconds, more, after)


def within(budget: int, scanned: Iterable[Row], after: str, *, more: bool) -> Found:
    """Return the rows that may go (row[2]) within the budget of weights (row[1]), and where to continue."""
    results: list[Row] = []
    weight = 0
    for row in scanned:
        if row[2]:
            if results and weight + row[1] > budget:
                return results, after, True
            results.append(row)
            weight += row[1]
        after = row[0]
    return results, after, more


def is_final(final_at: int | None, before: int) -> bool:
    return final_at is not None and final_at < before


def _final(tx: Tx, selected: Sequence[Row]) -> list[Row]:
    bindings = [(message_id,) for (message_id, *_) in selected]
    undelivered = set(_UNDELIVERED.run(tx, bindings))
    return [row for row in bindings if row not in undelivered]


def _delete_mail(tx: Tx, selected: Sequence[Row]) -> int:
    final = _final(tx, selected)
    account_of = {message_id: account_id for message_id, _, _, account_id in selected}
    freed = bodies(tx, final, receipts=True)
    loosen(tx, final)
    DELETE_BODIES.run(tx, final)
    _DELETE_ATTEMPTS.run(tx, final)
    _DELETE_RECIPIENTS.run(tx, final)
    of_accounts = [(account_of[message_id], message_id) for (message_id,) in final]
    deleted = _DELETE_MESSAGES.run(tx, of_accounts)
    forget_blocks(tx, of_accounts)
    for account_id, recipients in deleted:
        freed[account_id] += of_record(recipients)
    give_back(tx, freed)
    return len(deleted)
