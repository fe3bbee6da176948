"""Deletes expired data: contents of messages, later their records, events, keys, sessions and reports.

Ids sort by time, so the oldest rows of each table are the candidates, in the order of a key that exists anyway; rows
that must stay are passed over until the next walk. A reader finds rows, and the writer checks them again. Where tables
are partitioned by time, whole partitions are dropped, and only rows before a time (`until`) are deleted like this.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from appliance.environment import identifier_from
from appliance.model.accounts import LedgerKind
from appliance.store.audit import AUDIT_KEPT, AUDIT_LINES, AUDIT_MOST, AUDIT_SURE
from appliance.store.body_parts import PAGE_BYTES, add, bodies, give_back, loosen, of_metadata, of_record, of_template
from appliance.store.breakdown import counted_all_before
from appliance.store.engine import (
    START,
    Bulk,
    Row,
    Slice,
    StorePart,
    Tx,
    changed,
    first,
    gathered,
    one,
    rows,
    run,
    timed,
)
from appliance.store.reports import first_day_kept
from appliance.store.search_index import forget_blocks
from appliance.times import DAY, HOUR, MINUTE

ROWS_SCANNED = 1_000  # at once, by a reader
LOGS_LOOKED_AT = 100  # audit logs, at once, by a reader
WEIGHT = 4  # of the smallest message, with its recipient and an attempt
NO_END = 2**53  # later than any time
RECEIPT = 24 * HOUR + MINUTE  # microseconds in which a request can be retried, and a little more

# When the last recipient became final; NULL if one is not. Failures older than `failed_at` use their last attempt.
FINAL_AT = """CASE WHEN count(CASE WHEN r.status IN ('queued', 'deferred') THEN 1 END) = 0
    THEN max(coalesce(r.delivered_at, r.bounced_at, r.failed_at,
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
    WHERE message_id IN ({?}) AND status IN ('queued', 'deferred')""")
_EMPTY_BODIES = Bulk("UPDATE message_bodies SET mime = x'', signature = NULL, parts_size = 0 WHERE message_id IN ({?})")
DELETE_BODIES = Bulk("DELETE FROM message_bodies WHERE message_id IN ({?})")
_DELETE_ATTEMPTS = Bulk("""DELETE FROM attempts
    WHERE recipient_id IN (SELECT id FROM recipients WHERE message_id IN ({?}))""")
_DELETE_RECIPIENTS = Bulk("DELETE FROM recipients WHERE message_id IN ({?}) AND status NOT IN ('queued', 'deferred')")
_DELETE_MESSAGES = Bulk("""DELETE FROM messages WHERE (account_id, id) IN (VALUES {(?, ?)}) AND status <> 'queued'
    RETURNING account_id, recipient_count, coalesce(octet_length(metadata), 0)""")
_DELETE_EVENTS = Bulk("DELETE FROM events WHERE id IN ({?})")

# Delete the row of a deleted webhook last: the query for its deliveries needs it.
_LOGS_OF_DELETED = """DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
        (SELECT d.webhook_id, d.id FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
        WHERE w.account_id IS NULL LIMIT :most)"""
_DELETED = """DELETE FROM webhooks WHERE account_id IS NULL
        AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.webhook_id = webhooks.id)"""

# An outgoing address that has sent nothing to a pool for this long has lost its reputation there: warm-up starts again.
UNUSED_KEPT = 90 * DAY  # microseconds
RAMP_KEPT = 30 * DAY  # microseconds of hourly results

# Table, key, condition for old rows, and the column that sorts them by age.
_OLD = (
    ("audit_log", "account_id, id", "at < :audit_since", "at"),
    ("sessions", "id", "expires_at <= :now", "expires_at"),
    ("password_links", "id", "expires_at <= :now", "expires_at"),
    ("idempotency_keys", "scope, key", "expires_at <= :now", "expires_at"),
    # A delivery with a next attempt is never too old.
    ("webhook_deliveries", "webhook_id, id", "next_attempt_at IS NULL AND created_at <= :log_since", "created_at"),
    ("webhook_hours", "webhook_id, hour, outcome", "hour < :first_hour", "hour"),
    ("ramp_hours", "hour, provider, route", "hour < :first_ramp_hour", "hour"),
    ("destinations", "domain", "updated_at < :unused_since", "updated_at"),
    ("warmups", "pool, source", "hour_at < :unused_since", "hour_at"),
    ("dmarc_reports", "account_id, domain, org, report_id", "day < :first_day", "day"),
    ("tls_reports", "account_id, domain, org, report_id", "day < :first_day", "day"),
    ("dmarc_sources", "account_id, domain, day, source", "day < :first_day", "day"),
    ("tls_failures", "account_id, domain, day, mx, type", "day < :first_day", "day"),
    ("daily_feedback", "account_id, day, kind, class, provider", "day < :first_day", "day"),
    ("source_days", "source, pool, day, node", "day < :first_day", "day"),
    ("daily_breakdown", "account_id, dimension, day, value, kind", "day < :first_day", "day"),
)
_ANY = "SELECT EXISTS (SELECT 1 FROM webhooks WHERE account_id IS NULL)"
_ANY += "".join(f" OR EXISTS (SELECT 1 FROM {table} WHERE {old})" for table, _, old, _ in _OLD)
_DELETE_OLD = tuple(
    f"""DELETE FROM {table} WHERE ({key}) IN
        (SELECT {key} FROM {table} WHERE {old} ORDER BY {column} LIMIT :most)"""
    for table, key, old, column in _OLD
)
_FIRST_LOG = "SELECT min(account_id) FROM audit_log"
_NEXT_LOG = "SELECT min(account_id) FROM audit_log WHERE account_id > :account_id"
_OLDEST = "SELECT min(id) FROM audit_log WHERE account_id = :account_id"
_BEYOND = "SELECT id FROM audit_log WHERE account_id = :account_id ORDER BY id DESC LIMIT 1 OFFSET :kept"
_TRIM_AUDIT = """DELETE FROM audit_log WHERE (account_id, id) IN (SELECT account_id, id FROM audit_log
        WHERE account_id = :account_id AND id <= :beyond ORDER BY id LIMIT :most)"""

# Beyond the newest messages of an account, or the oldest of all if they take too many bytes.
_SURPLUS = """SELECT m.id, 0, 0, m.account_id FROM messages m WHERE m.account_id = :account_id AND m.status <> 'queued'
        AND (m.id <= (SELECT n.id FROM messages n WHERE n.account_id = :account_id
                ORDER BY n.id DESC LIMIT 1 OFFSET :kept)
            OR (SELECT a.stored_bytes FROM accounts a WHERE a.id = :account_id) > :kept_bytes)
    ORDER BY m.id LIMIT :most"""
_DELETE_KEYS = Bulk("DELETE FROM idempotency_keys WHERE message_id IN ({?})")

Found = tuple[list[Row], str, bool]  # rows to delete, where to continue, and whether more can follow at once


class Deletion(StorePart):
    """Deletes old data of all accounts. Parts of large messages become loose, for `BodyParts.clear`."""

    rows_scanned: int = ROWS_SCANNED
    audit_lines: int = AUDIT_LINES
    audit_most: int = AUDIT_MOST

    async def expired(self, webhook_logs: int, most: int, until: int = NO_END) -> Slice:
        """Delete up to `most` expired rows per table: keys, sessions, reports, audit lines, webhook logs, pools."""
        now = self.env.now()
        bindings = {"now": now, "log_since": min(now - webhook_logs, until), "most": most}
        bindings |= {"first_day": first_day_kept(now), "audit_since": now - AUDIT_KEPT}
        bindings |= {"unused_since": now - UNUSED_KEPT, "first_hour": bindings["log_since"] // HOUR}
        bindings |= {"first_ramp_hour": (now - RAMP_KEPT) // HOUR}
        return await self.delete_slice(_ANY, (*_DELETE_OLD, _LOGS_OF_DELETED, _DELETED), bindings)

    async def audit(self, after: str, most: int) -> Slice:
        """Delete the oldest lines of the next accounts' logs; `after` is START or a slash and an account id."""

        sure = identifier_from("aud", self.env.now() - AUDIT_SURE)

        def look(tx: Tx) -> tuple[str, dict[str, object] | None]:
            """Up to where the logs are within bounds, and the next account's newest surplus line."""
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
        """Whether all mail before a time is counted, so that it may be deleted."""
        until = before + HOUR
        return await self.engine.read(lambda tx: counted_all_before(tx, until))

    async def bodies(self, after: str, final_before: int, now: int, budget: int, until: int = NO_END) -> Slice:
        """Delete contents of messages that were final before a time; receipts stay while a request may be repeated."""
        limit = identifier_from("msg", min(final_before, until))
        bindings = {"after": after, "limit": limit, "most": min(self.rows_scanned, budget)}
        receipts_from = identifier_from("msg", max(0, now - RECEIPT))

        def judge(message_id: str, size: int, final_at: int | None) -> Row:
            is_final = final_at is not None and final_at < final_before
            may_go = is_final and (size or message_id < receipts_from)
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
            return message_id, 2 + weight, final_at is not None and final_at < final_before, account_id

        columns = "message_id, weight, final_at, account_id"
        return await self._slice(FIND_MAIL, columns, bindings, budget, judge, _delete_mail)

    async def events(self, after: str, before: int, budget: int, until: int = NO_END) -> Slice:
        limit = identifier_from("evt", min(before, until))
        bindings = {"after": after, "limit": limit, "most": min(self.rows_scanned, budget)}

        def judge(event_id: str, kept: int) -> Row:
            return event_id, 1, not kept

        def delete(tx: Tx, selected: Sequence[Row]) -> int:
            return _DELETE_EVENTS.count(tx, [(event_id,) for (event_id, *_) in selected])

        return await self._slice(FIND_EVENTS, "id, kept", bindings, budget, judge, delete)

    async def surplus(self, account_id: str, kept: int, kept_bytes: int, most: int) -> int:
        """Delete up to `most` final messages beyond the newest `kept`, or while they take more than `kept_bytes`.

        Their idempotency keys go with them. Returns the number of deleted messages.
        """
        bindings = {"account_id": account_id, "kept": kept, "kept_bytes": kept_bytes, "most": most}

        def delete(tx: Tx) -> int:
            selected = rows(tx, _SURPLUS, bindings)
            _DELETE_KEYS.run(tx, [(message_id,) for message_id, *_ in selected])
            return _delete_mail(tx, selected)

        return await self.engine.write(delete, large=True)

    async def _slice(
        self,
        query: str,
        columns: str,
        bindings: dict[str, Any],
        budget: int,
        judge: Callable[..., Row],
        delete: Callable[[Tx, Sequence[Row]], int],
    ) -> Slice:
        """Delete some rows of a query; `judge` maps its columns to an id, a weight, and whether the row may go."""

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
    for account_id, recipients, metadata in deleted:
        freed[account_id] += of_record(recipients) + of_metadata(metadata, recipients)
    give_back(tx, freed)
    return len(deleted)


# ---- ledgers, which always add up: what messages did to a balance within a day is folded into one line

STATISTICS_KEPT = 181 * DAY  # microseconds; 90 days can be requested, compared with the 90 days before
ACCOUNTS_READ = 100  # in one go
LINES_READ = 1_000  # of a ledger, likewise
_FIRST, _END, _LAST = "!", "~", "~~"  # before and after every line of an account, and after the last account

_NEXT_ACCOUNT = "SELECT min(id) FROM accounts WHERE id > :after"
FIND_LINES = """SELECT l.id, l.kind, l.amount, l.balance, l.created_at, l.message_id,
    EXISTS (SELECT 1 FROM messages m WHERE m.account_id = l.account_id AND m.id = l.message_id) AS kept
FROM credit_ledger l WHERE l.account_id = :account_id AND l.id > :after AND l.id < :limit ORDER BY l.id LIMIT :most"""
_LINE = "id, kind, amount, balance, created_at, message_id, kept"
_DROP_LINES = "DELETE FROM credit_ledger WHERE account_id = :account_id AND id BETWEEN :first AND :last"
_FOLDED = """INSERT INTO credit_ledger (account_id, id, kind, amount, balance, created_at)
    VALUES (:account_id, :last, :kind, :amount, :balance, :created_at)"""
# Table, key and time of the counts of an account.
_COUNTS = (
    ("daily_volume", "day", "day"),
    ("hourly_counts", "hour, kind, bucket", "hour"),
    ("hourly_stream_counts", "hour, stream, kind, bucket", "hour"),
)
ANY_OLD = """SELECT EXISTS (SELECT 1 FROM templates
        WHERE account_id = :account_id AND deleted = 1 AND updated_at < :before)"""
ANY_OLD += "".join(
    f" OR EXISTS (SELECT 1 FROM {table} WHERE account_id = :account_id AND {at} < :{at})" for table, _, at in _COUNTS
)
_OLD_COUNTS = tuple(
    f"""DELETE FROM {table} WHERE account_id = :account_id AND ({key}) IN
        (SELECT {key} FROM {table} WHERE account_id = :account_id AND {at} < :{at} ORDER BY {at} LIMIT :most)"""
    for table, key, at in _COUNTS
)
# A template's row goes last, when no message names a version of it. Older releases kept the versions of a deleted
# template.
_OLD_VERSIONS = """DELETE FROM template_versions WHERE account_id = :account_id AND (alias, version) IN
        (SELECT v.alias, v.version FROM templates t CROSS JOIN template_versions v USING (account_id, alias)
        WHERE t.account_id = :account_id AND t.deleted = 1 AND t.updated_at < :before LIMIT :most)
    RETURNING subject, text_body, html_body"""
_OLD_TEMPLATES = """DELETE FROM templates
    WHERE account_id = :account_id AND deleted = 1 AND updated_at < :before AND NOT EXISTS
        (SELECT 1 FROM template_versions v WHERE v.account_id = :account_id AND v.alias = templates.alias)"""
_TIDY_STEPS = (*_OLD_COUNTS, _OLD_TEMPLATES)


class Fold(Struct, frozen=True):
    first: str
    last: str
    lines: int
    amount: int
    balance: int
    created_at: int
    kind: LedgerKind  # of the sum


class LedgerFolding(StorePart):
    async def fold_old(self, after: str, before: int, now: int, budget: int) -> Slice:
        """Fold and delete some lines from before a time. The position is an account and a ledger line."""
        limits = {"before": before, "day": before // DAY, "hour": (now - STATISTICS_KEPT) // HOUR}
        most = max(2, min(LINES_READ, budget))
        folds, after = await self.engine.scan(lambda tx: _find(tx, after, limits, most))
        if folds is None:
            return Slice(0, 0.0, not after.endswith(f" {_LAST}"), after)
        bindings = {"account_id": after.partition(" ")[0], "most": budget, **limits}
        deleted, seconds = await self.engine.write(timed(lambda tx: _fold(tx, folds, bindings)), large=True)
        return Slice(deleted, seconds, True, after)


def _find(tx: Tx, after: str, limits: dict[str, int], most: int) -> tuple[list[Fold] | None, str]:
    """Return the next folds ([]: delete other rows; None: nothing left) and the next position."""
    account_id, _, line = after.partition(" ")
    for _ in range(ACCOUNTS_READ):
        if line in ("", _END, _LAST):
            ((following,),) = rows(tx, _NEXT_ACCOUNT, {"after": account_id})
            if following is None:
                return None, f"{account_id} {_LAST}"
            account_id, line = following, _FIRST
        bindings: dict[str, Any] = {"account_id": account_id, **limits}
        if first(tx, ANY_OLD, bindings) == (1,):
            return [], f"{account_id} {line}"
        bindings |= {"after": line, "limit": identifier_from("led", limits["before"]), "most": most}
        looked = gathered(tx, FIND_LINES, _LINE, bindings)
        folds, line = fold(looked), looked[-1][0] if len(looked) == most else _END
        if folds:
            # The next lines may belong to the last fold.
            again = next((row[0] for row in reversed(looked) if row[0] < folds[-1].first), bindings["after"])
            return folds, f"{account_id} {line if line == _END else again}"
    return None, f"{account_id} {line}"


def fold(lines: Sequence[Row]) -> list[Fold]:
    """The folds of a ledger's lines: each run of one day without grants becomes one line. No I/O."""
    folds = []
    for (foldable, _), group in groupby(lines, _run_of):
        run_of_lines = list(group)
        if foldable and (len(run_of_lines) > 1 or run_of_lines[0][5] is not None):
            last_id, _, _, balance, created_at, *_ = run_of_lines[-1]
            amount = sum(line[2] for line in run_of_lines)
            kind = LedgerKind.RESERVE if amount <= 0 else LedgerKind.RELEASE
            folds.append(Fold(run_of_lines[0][0], last_id, len(run_of_lines), amount, balance, created_at, kind))
    return folds


def _run_of(line: Row) -> tuple[bool, int]:
    _, kind, _, _, created_at, _, message_is_kept = line
    return kind != LedgerKind.GRANT.value and not message_is_kept, created_at // DAY


def _fold(tx: Tx, folds: Sequence[Fold], bindings: dict[str, Any]) -> int:
    if not folds:
        versions = rows(tx, _OLD_VERSIONS, bindings)
        if versions:
            add(tx, bindings["account_id"], -sum(of_template(*parts) for parts in versions))
        return len(versions) + sum(changed(tx, step, bindings) for step in _TIDY_STEPS)
    for item in folds:
        row = {"account_id": bindings["account_id"], **asdict(item), "kind": item.kind.value}
        run(tx, _DROP_LINES, row)
        run(tx, _FOLDED, row)
    return sum(item.lines for item in folds)
