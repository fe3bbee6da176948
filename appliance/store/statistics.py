"""Statistics: recipients, outcomes, delivery times and bounce classes by the hour; outcomes by provider by the day.

Sending counts nothing. A worker adds up the messages and events written since its last run, by their ids, which sort by
time; a read adds younger rows. Both see every row once, because a row is counted only when no older row can still be
uncommitted on any node. Mail with an empty envelope sender (`delivery_reports.py`) is not counted, and has no events.
Streams other than the default one are also counted alone; the default stream's numbers are the difference, so that an
installation without streams stores nothing more.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from appliance.environment import identifier_from, identifier_time
from appliance.model.dashboard import AccountStatistics, FeedbackKind, WaitingInPool
from appliance.model.mail import BounceClass
from appliance.model.numbers import RETURNED
from appliance.model.streams import TRANSACTIONAL
from appliance.store.engine import NEWEST, Bulk, Row, StorePart, Tx, any_owner, one, rows, run
from appliance.store.message_records import RESULT
from appliance.times import DAY, HOUR

# Time from an id to its row on disk, by the node's clock: a message gets its id before it is composed, an event in its
# transaction.
MESSAGE_LAG = 60_000_000
EVENT_LAG = 10_000_000
ROWS_COUNTED = 1_000  # rows counted in one transaction: a few milliseconds, in the writer's thread
KEPT_BEFORE = 90 * DAY  # versions that did not record the start kept hourly counts at least this long
TAIL_ROWS = 100_000  # added up by a read; more are uncounted only while a long history is counted first
POOLS_SHOWN = 50  # shown of an account's queue

# Buckets of delivery times, each a tenth longer than the one before: fine enough for a median.
BUCKET_GROWTH = 1.1
_MILLISECONDS = "(e.created_at - coalesce(m.scheduled_at, m.created_at)) / 1000"
# The bucket of a bounce or failure is the number of its class, 0 for none. Stored, so none may change.
CLASS_BUCKETS = {
    BounceClass.INVALID_RECIPIENT: 1,
    BounceClass.MAILBOX_FULL: 2,
    BounceClass.POLICY: 3,
    BounceClass.REPUTATION: 4,
    BounceClass.CONTENT: 5,
    BounceClass.AUTHENTICATION: 6,
    BounceClass.TEMPORARY: 7,
    BounceClass.OTHER: 8,
}
UNTRIED_BUCKET = 9  # suppressed or cancelled, without an attempt
_UNTRIED = {"bounced": "suppressed", "failed": "cancelled"}
_CLASS_BUCKET = " ".join(f"WHEN '{item}' THEN {bucket}" for item, bucket in CLASS_BUCKETS.items())
_BUCKET = f"""CASE WHEN e.type <> 'email.delivered' THEN coalesce((SELECT
        CASE WHEN r.failure IS NOT NULL THEN {UNTRIED_BUCKET}
            ELSE CASE r.bounce_class {_CLASS_BUCKET} END END
        FROM recipients r WHERE r.message_id = e.message_id AND r.id = e.recipient_id), 0)
    WHEN {_MILLISECONDS} < 1 THEN 0
    ELSE CAST(floor(ln({_MILLISECONDS}) / ln({BUCKET_GROWTH})) AS INTEGER) END"""
FINAL_EVENT = "e.type IN ('email.delivered', 'email.bounced', 'email.failed')"
# Later feedback is an event, too.
COUNTED_EVENT = f"({FINAL_EVENT} OR e.type IN ('email.late_bounced', 'email.complained'))"
# The number that an event counts for. A late bounce or complaint may precede the counting of the final event.
KIND = f"CASE WHEN {FINAL_EVENT} THEN {RESULT} ELSE substr(e.type, 7) END"
# CROSS, so that SQLite looks up the messages of new rows, and does not read all messages instead.
_SENT = f"""SELECT m.account_id, m.created_at / {HOUR}, m.stream, 'sent', 0, count(*)
    FROM recipients r CROSS JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
    WHERE r.message_id > :after AND r.message_id <= :until AND m.source <> 'test' AND m.envelope_from <> ''
    GROUP BY 1, 2, 3"""
_FINAL = f"""SELECT e.account_id, e.created_at / {HOUR}, m.stream, substr(e.type, 7), {_BUCKET}, count(*)
    FROM events e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    WHERE e.id > :after AND e.id <= :until AND m.source <> 'test' AND {COUNTED_EVENT} GROUP BY 1, 2, 3, 4, 5"""
_ADD = Bulk("""INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients) VALUES {(?, ?i, ?, ?i, ?i)}
    ON CONFLICT (account_id, hour, kind, bucket)
    DO UPDATE SET recipients = hourly_counts.recipients + excluded.recipients""")
_ADD_OF_STREAM = Bulk("""INSERT INTO hourly_stream_counts (account_id, hour, stream, kind, bucket, recipients)
    VALUES {(?, ?i, ?, ?, ?i, ?i)} ON CONFLICT (account_id, hour, stream, kind, bucket)
    DO UPDATE SET recipients = hourly_stream_counts.recipients + excluded.recipients""")
# A pool with a dot in its name belongs to one organisation. There may be as many as domains: count them together.
PROVIDER = "CASE WHEN d.pool LIKE '%.%' OR d.pool LIKE '%:%' THEN '' ELSE coalesce(d.pool, '') END"
# The class of a late bounce is in its own record.
_FEEDBACK = f"""SELECT e.account_id, e.created_at / {DAY} AS day, {KIND} AS kind,
        coalesce(CASE WHEN e.type = 'email.late_bounced' THEN json_extract(r.late_bounce, '$.class')
            WHEN e.type IN ('email.bounced', 'email.failed') AND r.failure IS NULL THEN r.bounce_class END, '')
            AS class,
        {PROVIDER} AS provider,
        count(*) AS recipients
    FROM {{events}} e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    CROSS JOIN recipients r ON r.message_id = e.message_id AND r.id = e.recipient_id
    LEFT JOIN destinations d ON d.domain = r.domain
    WHERE {{condition}} AND m.source <> 'test' AND {COUNTED_EVENT}
    GROUP BY 1, 2, 3, 4, 5"""
_NEW_FEEDBACK = _FEEDBACK.format(events="events", condition="e.id > :after AND e.id <= :until")
_ADD_FEEDBACK = Bulk("""INSERT INTO daily_feedback (account_id, day, kind, class, provider, recipients)
    VALUES {(?, ?i, ?, ?, ?, ?i)} ON CONFLICT (account_id, day, kind, class, provider)
    DO UPDATE SET recipients = daily_feedback.recipients + excluded.recipients""")
_FEEDBACK_COUNTS = """SELECT day, kind, class, provider, recipients FROM daily_feedback
    WHERE account_id = :account_id AND day >= :since"""
_SLICE = "SELECT {id} FROM {table} WHERE {id} > :after AND {id} < :limit ORDER BY {id} LIMIT 1 OFFSET :slice"
_COUNTED = "SELECT id FROM counted_until WHERE kind = :kind"
SET_COUNTED = """INSERT INTO counted_until (kind, id) VALUES (:kind, :id)
    ON CONFLICT (kind) DO UPDATE SET id = excluded.id"""
# Since when all counts by the hour are kept, as an id.
_KEPT_SINCE = "hours kept"
_SET_KEPT_SINCE = "INSERT INTO counted_until (kind, id) VALUES (:kind, :id) ON CONFLICT (kind) DO NOTHING"
# The stored hours of an account: of all its mail, of one stream, and of the default stream.
_HOURS = "SELECT hour, kind, bucket, recipients FROM hourly_counts WHERE account_id = :account_id AND hour >= :from"
_HOURS_OF_STREAM = f"""SELECT hour, kind, bucket, {{sign}}recipients FROM hourly_stream_counts
    WHERE account_id = :account_id AND hour >= :from AND kind NOT IN {RETURNED}"""
_NAMED_STREAM = " AND stream = :stream"
_COUNTS = f"""SELECT CASE WHEN hour < :since THEN :compared WHEN hour < :hourly THEN hour - hour % 24 ELSE hour END,
        kind,
        CASE WHEN kind IN ('bounced', 'failed') AND bucket = {UNTRIED_BUCKET} THEN {UNTRIED_BUCKET} ELSE 0 END,
        sum(recipients)
    FROM ({{hours}}) counted WHERE hour <= :ended OR hour >= :since GROUP BY 1, 2, 3"""
_BUCKETS = "SELECT kind, bucket, sum(recipients) FROM ({hours}) counted WHERE kind <> 'sent' GROUP BY kind, bucket"
# By account, because no index is by hour alone.
_OF_ALL_ACCOUNTS = f"""SELECT c.hour, c.kind, CASE WHEN c.kind IN ('bounced', 'failed') AND c.bucket = {UNTRIED_BUCKET}
        THEN {UNTRIED_BUCKET} ELSE 0 END, sum(c.recipients)
    FROM accounts a CROSS JOIN hourly_counts c ON c.account_id = a.id AND c.hour >= :since GROUP BY 1, 2, 3"""
_SENT_TAIL = f"""SELECT created_at / {HOUR}, 'sent', 0, stream, sum(recipient_count) FROM (
        SELECT created_at, recipient_count, source, envelope_from, stream FROM messages
        WHERE account_id = :account_id AND id > :after ORDER BY id LIMIT :most
    ) newest WHERE source <> 'test' AND envelope_from <> '' GROUP BY 1, 4"""
_FINAL_TAIL = f"""SELECT e.created_at / {HOUR}, substr(e.type, 7), {_BUCKET}, m.stream, count(*) FROM (
        SELECT account_id, message_id, recipient_id, type, created_at FROM events
        WHERE id > :after ORDER BY id LIMIT :most
    ) e CROSS JOIN messages m ON m.account_id = e.account_id AND m.id = e.message_id
    WHERE e.account_id = :account_id AND m.source <> 'test' AND {COUNTED_EVENT} GROUP BY 1, 2, 3, 4"""
_RETURNED = f"""SELECT kind, sum(recipients) FROM daily_feedback
    WHERE account_id = :account_id AND day >= :day AND kind IN {RETURNED} GROUP BY kind"""
_RETURNED_OF_STREAM = f"""SELECT kind, sum(recipients) FROM hourly_stream_counts
    WHERE account_id = :account_id AND hour >= :since AND kind IN {RETURNED}"""
_STREAMS = "SELECT DISTINCT stream FROM hourly_stream_counts WHERE account_id = :account_id AND hour >= :since"
_FEEDBACK_TAIL = _FEEDBACK.format(
    events="""(SELECT account_id, message_id, recipient_id, type, created_at FROM events
        WHERE id > :after ORDER BY id LIMIT :most)""",
    condition="e.account_id = :account_id",
)
_WAITING = f"""SELECT coalesce(d.pool, ''), sum(l.waiting), sum(l.deferred) FROM (
    SELECT domain, count(*) AS waiting, count(CASE WHEN next_attempt_at > :now THEN 1 END) AS deferred FROM recipients
    WHERE simulated = 0 AND low IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL
        AND {any_owner("recipients")}
    GROUP BY low, domain
) l LEFT JOIN destinations d ON d.domain = l.domain GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT :most"""

_SIMULATED = f"""SELECT count(*) FROM recipients
    WHERE simulated = 1 AND low = 0 AND account_id = :account_id AND next_attempt_at IS NOT NULL
        AND {any_owner("recipients")}"""


def bucket_milliseconds(bucket: int) -> float:
    return float(BUCKET_GROWTH ** (bucket + 0.5)) if bucket else 1.0


class Counting(NamedTuple):
    """How far a table's rows are counted, by their ids."""

    kind: str
    prefix: str  # of the ids
    lag: int
    table: str
    id: str  # its column
    hours: str = ""
    feedback: str = ""
    tail: str = ""

    def end_of_slice(self, tx: Tx, until: int | None, count: int, after: str | None = None) -> str | None:
        """The id after `count` uncounted rows written before a time; None if there are fewer."""
        limit = NEWEST if until is None else identifier_from(self.prefix, until)
        bindings = {"after": counted_until(tx, self.kind) if after is None else after, "limit": limit, "slice": count}
        return one(tx, str, _SLICE.format(id=self.id, table=self.table), bindings)

    def next_slice(self, tx: Tx, now: int, count: int) -> "CountedSlice | None":
        """The next rows to count, about `count`; None while no row can be new, as after the clock was set back."""
        after, limit = counted_until(tx, self.kind), identifier_from(self.prefix, now - self.lag)
        if limit <= after:
            return None
        end = self.end_of_slice(tx, now - self.lag, count, after)
        return CountedSlice(after, end or limit, end is not None)


class CountedSlice(NamedTuple):
    """Rows with ids above `after` up to `until`, and whether more can be counted at once."""

    after: str
    until: str
    more: bool


COUNTINGS = (
    Counting("sent", "msg", MESSAGE_LAG, "recipients", "message_id", _SENT, "", _SENT_TAIL),
    Counting("final", "evt", EVENT_LAG, "events", "id", _FINAL, _NEW_FEEDBACK, _FINAL_TAIL),
)


class _Sums(NamedTuple):
    kind: str
    bounds: CountedSlice
    hours: list[Row]
    feedback: list[Row]


class Statistics(StorePart):
    rows_counted: int = ROWS_COUNTED  # in one transaction

    async def count(self) -> bool:
        """Count one slice of new rows; return whether more can be counted at once. The writer only adds its sums."""
        now = self.engine.slowest_clock(self.env.now())
        sums = await self.engine.scan(partial(_read_sums, now, self.rows_counted))
        if not sums:
            return False  # an idle server leaves its disk alone
        await self.engine.write(partial(_add_sums, now, sums), large=True)
        return any(item.bounds.more for item in sums)

    async def of(
        self, account_id: str, since: int, hourly: int | None = None, compared: int | None = None, stream: str = ""
    ) -> AccountStatistics:
        """Return the counts since that hour; before `hourly` by day; with `compared` also the period before.

        With `stream`, the counts of this stream alone, without its queue.
        """
        by_hour, earlier = since if hourly is None else hourly, since if compared is None else compared
        hours = _Hours(since // HOUR, by_hour // HOUR, earlier // HOUR, self.env.now() // HOUR)
        return await self.engine.scan(lambda tx: _read(tx, account_id, hours, self.env.now(), stream), account_id)

    async def by_stream(self, account_id: str, since: int) -> dict[str, dict[str, int]]:
        """Return the numbers of every stream with mail since that hour, the default stream first."""
        bindings = {"account_id": account_id, "since": since // HOUR}
        hours = _Hours(since // HOUR, since // HOUR, since // HOUR, self.env.now() // HOUR)

        def work(tx: Tx) -> dict[str, dict[str, int]]:
            tail = _tail(tx, account_id)
            names = {name for (name,) in rows(tx, _STREAMS, bindings)} | {row[3] for row in tail}
            streams = [TRANSACTIONAL.name, *sorted(names - {TRANSACTIONAL.name})]
            return {name: _totals(tx, account_id, hours, name, tail) for name in streams}

        return await self.engine.scan(work, account_id)

    async def of_all_accounts(self, since: int) -> Counter[tuple[int, str]]:
        """Return the counted recipients of all accounts by hour and result since that hour."""
        counts = Counter[tuple[int, str]]()
        selected = await self.engine.scan(lambda tx: rows(tx, _OF_ALL_ACCOUNTS, {"since": since // HOUR}))
        for hour, kind, bucket, recipients in selected:
            counts[hour, _outcome(kind, bucket)] += int(recipients)
        return counts

    async def feedback(self, account_id: str, since: int) -> Counter[FeedbackKind]:
        return await self.engine.scan(lambda tx: _read_feedback(tx, account_id, since // DAY), account_id)


def _read_sums(now: int, most: int, tx: Tx) -> list[_Sums]:
    """Nothing if no row is new."""
    results = []
    for item in COUNTINGS:
        bounds = item.next_slice(tx, now, most)
        if bounds is not None and item.end_of_slice(tx, now - item.lag, 0, bounds.after) is not None:
            feedback = rows(tx, item.feedback, bounds._asdict()) if item.feedback else []
            results.append(_Sums(item.kind, bounds, rows(tx, item.hours, bounds._asdict()), feedback))
    return results


def _add_sums(now: int, sums: Sequence[_Sums], tx: Tx) -> None:
    run(tx, _SET_KEPT_SINCE, {"kind": _KEPT_SINCE, "id": identifier_from("hour", now - KEPT_BEFORE)})
    for item in sums:
        if counted_until(tx, item.kind) == item.bounds.after:  # else another node has added them
            _add_hours(tx, item.hours)
            _ADD_FEEDBACK.run(tx, sorted(item.feedback))
            run(tx, SET_COUNTED, {"kind": item.kind, "id": item.bounds.until})


def _add_hours(tx: Tx, counted: Sequence[Row]) -> None:
    """Add rows of account, hour, stream, kind, bucket and recipients."""
    of_all = Counter[Row]()
    for account_id, hour, _, kind, bucket, recipients in counted:
        if kind not in RETURNED:
            of_all[account_id, hour, kind, bucket] += recipients
    _ADD.run(tx, sorted((*key, recipients) for key, recipients in of_all.items()))
    _ADD_OF_STREAM.run(tx, sorted(row for row in counted if row[2] != TRANSACTIONAL.name))


def counted_until(tx: Tx, kind: str) -> str:
    return one(tx, str, _COUNTED, {"kind": kind}) or ""


class _Hours(NamedTuple):
    since: int
    hourly: int
    compared: int
    now: int

    @property
    def ended(self) -> int:
        return self.compared + self.now - self.since


def _hours_of(stream: str) -> str:
    if stream in ("", TRANSACTIONAL.name):
        others = f" UNION ALL {_HOURS_OF_STREAM.format(sign='-')}"
        return _HOURS + (others if stream else "")
    return _HOURS_OF_STREAM.format(sign="") + _NAMED_STREAM


def _tail(tx: Tx, account_id: str) -> list[Row]:
    """Rows not counted yet: hour, kind, bucket, stream and recipients."""
    bindings = {"account_id": account_id, "most": TAIL_ROWS}
    return [
        row for item in COUNTINGS for row in rows(tx, item.tail, bindings | {"after": counted_until(tx, item.kind)})
    ]


def _hourly(tx: Tx, account_id: str, hours: _Hours, stream: str, tail: Sequence[Row]) -> Iterator[Row]:
    """Stored and uncounted rows of a stream, or of all: hour, kind, bucket and recipients."""
    bindings = hours._asdict() | {"account_id": account_id, "from": hours.compared, "ended": hours.ended}
    yield from rows(tx, _COUNTS.format(hours=_hours_of(stream)), bindings | {"stream": stream})
    yield from ((*row, count) for *row, of, count in tail if row[1] not in RETURNED and stream in ("", of))


def _returned(tx: Tx, account_id: str, hours: _Hours, stream: str, tail: Sequence[Row]) -> Counter[str]:
    bindings = {"account_id": account_id, "since": hours.since, "day": hours.since // 24, "stream": stream}
    of_streams = (
        []
        if not stream
        else rows(
            tx, f"{_RETURNED_OF_STREAM}{'' if stream == TRANSACTIONAL.name else _NAMED_STREAM} GROUP BY kind", bindings
        )
    )
    counts = Counter[str]({kind: int(count) for kind, count in of_streams})
    if stream in ("", TRANSACTIONAL.name):
        of_all = Counter[str]({kind: int(count) for kind, count in rows(tx, _RETURNED, bindings)})
        of_all.subtract(counts)
        counts = of_all
    for hour, kind, _, of, count in tail:
        if kind in RETURNED and hour >= hours.since and stream in ("", of):
            counts[kind] += count
    return counts


def _totals(tx: Tx, account_id: str, hours: _Hours, stream: str, tail: Sequence[Row]) -> dict[str, int]:
    counts = _returned(tx, account_id, hours, stream, tail)
    for hour, kind, bucket, count in _hourly(tx, account_id, hours, stream, tail):
        counts[_outcome(kind, bucket)] += int(count) if hour >= hours.since else 0
    return dict(counts)


def _read(tx: Tx, account_id: str, hours: _Hours, now: int, stream: str) -> AccountStatistics:
    bindings = {"account_id": account_id, "from": hours.since, "now": now, "most": POOLS_SHOWN, "stream": stream}
    by_hour, previous = Counter[tuple[int, str]](), Counter[str]()
    selected = rows(tx, _BUCKETS.format(hours=_hours_of(stream)), bindings)
    by_bucket = Counter({(kind, bucket): count for kind, bucket, count in selected})
    tail = _tail(tx, account_id)
    for hour, kind, bucket, of, count in tail:
        by_bucket[kind, bucket] += count if hour >= hours.since and stream in ("", of) else 0
    for hour, kind, bucket, count in _hourly(tx, account_id, hours, stream, tail):
        if hour >= hours.since:
            by_hour[hour if hour >= hours.hourly else hour - hour % 24, _outcome(kind, bucket)] += count
        elif hours.compared <= hour <= hours.ended:
            previous[_outcome(kind, bucket)] += count
    times = {bucket: count for (kind, bucket), count in by_bucket.items() if kind == "delivered"}
    by_class = {
        item: (by_bucket["bounced", bucket], by_bucket["failed", bucket]) for item, bucket in CLASS_BUCKETS.items()
    }
    kept_since = counted_until(tx, _KEPT_SINCE)
    known = hours.compared * HOUR >= (identifier_time(kept_since) if kept_since else now - KEPT_BEFORE)
    waiting = [] if stream else rows(tx, _WAITING, bindings)
    by_pool = tuple(WaitingInPool(pool or None, count - deferred, deferred) for pool, count, deferred in waiting)
    simulated = 0 if stream else one(tx, int, _SIMULATED, bindings) or 0
    returned = _returned(tx, account_id, hours, stream, tail)
    return AccountStatistics(by_hour, times, by_pool, simulated, by_class, previous if known else None, returned)


def _outcome(kind: str, bucket: int) -> str:
    return _UNTRIED.get(kind, kind) if bucket == UNTRIED_BUCKET else kind


def _read_feedback(tx: Tx, account_id: str, since: int) -> Counter[FeedbackKind]:
    bindings = {"account_id": account_id, "since": since}
    counts = Counter({FeedbackKind(*kind): count for *kind, count in rows(tx, _FEEDBACK_COUNTS, bindings)})
    query_values = {"account_id": account_id, "after": counted_until(tx, "final"), "most": TAIL_ROWS}
    for _, *kind, count in rows(tx, _FEEDBACK_TAIL, query_values):
        if (results := FeedbackKind(*kind)).day >= since:
            counts[results] += count
    return counts
