"""Partitions by time of the tables that grow with the mail, so that old rows are dropped instead of deleted.

Partitions are made ahead of time; rows without one go to a table called `_others`. An expired partition is read first,
without a lock. If no row has to stay, it is dropped; if few have, they are copied into a table that replaces it. All
other rows are deleted in slices (store/retention.py).

- One transaction drops a partition with everything that depends on it, and waits at most LOCK_WAIT for its lock.
- Rows that are not final stay. The transaction looks for rows added since the read while it holds the lock; a
  partition of bodies refuses new rows before it is read.
- The transaction drops the partition that it has read, and only if no other node took over the chore since then.
"""

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Protocol, TypeVar

import psycopg
from msgspec import Struct, field
from psycopg import errors

from appliance.environment import identifier_from, identifier_time
from appliance.store.body_parts import MESSAGE, RECIPIENT, bodies, give_back, loosen
from appliance.store.engine import Row, Slice
from appliance.store.postgresql.connection import PostgresTx, TextArray, command, run
from appliance.store.retention import DELETE_BODIES, FINAL_AT, NO_END
from appliance.telemetry.log import get_logger
from appliance.times import DAY, HOUR, MINUTE, SECOND

LOCK_WAIT = 100  # milliseconds
DROP_TRIES = 20  # with the rest between that retention takes
PARTITIONS_KEPT = 8  # a partition is so long that about as many of them make up the time for which rows are kept
LENGTHS = tuple(hours * HOUR for hours in (1, 2, 3, 6, 12, 24, 48, 72, 168, 336, 672))
AHEAD = DAY  # microseconds for which there are partitions at least, and for one of their lengths
EARLY = 10 * MINUTE  # by which a recipient's id may be older than its message's
ROWS_READ = 5_000  # at once
WORTHWHILE = 1_000  # rows to go, or else they are rather deleted
KEPT_BY_DEFAULT = {"bodies": DAY, "mail": 30 * DAY, "events": 30 * DAY, "posts": 7 * DAY}  # microseconds

log = get_logger("retention")
T = TypeVar("T")
Connection = psycopg.Connection[Row]


class _Table(Struct, frozen=True):
    name: str
    prefix: str  # of the ids by which it is partitioned
    early: int = 0  # microseconds by which its partitions begin before the first table's

    def bound(self, at: int) -> str:
        return identifier_from(self.prefix, max(0, at - self.early))


# Tables whose partitions are dropped together. The first is the one that is read.
_TABLES: Mapping[str, tuple[_Table, ...]] = {
    "bodies": (_Table("message_bodies", "msg"),),
    "mail": (_Table("recipients", "msg"), _Table("messages", "msg"), _Table("attempts", "rcp", EARLY)),
    "events": (_Table("events", "evt"),),
    "posts": (_Table("webhook_deliveries", "whd"),),
}
# Most rows to copy: fewer where other transactions wait meanwhile, because the rows may change.
_MOVED = {"bodies": 20_000, "mail": 300, "events": 20_000, "posts": 300}
_FIXED = {"bodies", "events"}

_PARTITIONS = """SELECT pg_get_expr(c.relpartbound, c.oid), c.oid::bigint FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(%s)"""
_BOUNDS = re.compile(r"FROM \('(\w+)'\) TO \('(\w+)'\)")


class Span(Struct, frozen=True, order=True):
    """The time span of a partition, and its oid."""

    start: int
    end: int
    oid: int

    def partition(self, table: str) -> str:
        return _name(table, self.start)


def _name(table: str, start: int) -> str:
    return f"{table}_{time.strftime('%Y%m%d%H', time.gmtime(start // SECOND))}"


def spans(connection: Connection, kind: str) -> list[Span]:
    results = []
    for bounds, oid in run(connection, _PARTITIONS, (_TABLES[kind][0].name,)):
        if match := _BOUNDS.search(bounds):
            results.append(Span(identifier_time(match[1]), identifier_time(match[2]), oid))
    return sorted(results)


def length(kept: int) -> int:
    return max((item for item in LENGTHS if item * PARTITIONS_KEPT <= kept), default=LENGTHS[0])


# ---- made ahead
def make_ahead(connection: Connection, kind: str, kept: int, now: int, since: int | None = None) -> None:
    """Make missing partitions from now, or from `since`, until some time ahead."""
    size = length(kept)
    there = spans(connection, kind)
    start, until = (now if since is None else since) // HOUR * HOUR, now + max(size, AHEAD)
    while start < until:
        if (covered := next((span.end for span in there if span.start <= start < span.end), None)) is not None:
            start = covered
            continue
        end = min([(start // size + 1) * size, *(span.start for span in there if span.start > start)])
        try:
            with connection.transaction():
                command(connection, f"SET LOCAL lock_timeout = {LOCK_WAIT}")
                for table in _TABLES[kind]:
                    _create(connection, table, _name(table.name, start))
                    _attach(connection, table, _name(table.name, start), start, end)
        except errors.CheckViolation:  # there are rows of that time elsewhere already
            soon = (now // HOUR + 2) * HOUR
            start = soon if start < soon < end else end
            continue
        except (errors.LockNotAvailable, errors.DuplicateTable):
            return  # retried later, or another node makes it
        start = end


def make_first(connection: Connection, now: int, *, past: bool = False) -> None:
    """Make missing partitions before the first write; `past`: also for rows copied into a new database."""
    for kind, by_default in KEPT_BY_DEFAULT.items():
        last = spans(connection, kind)[-2:]
        kept = max((PARTITIONS_KEPT * (span.end - span.start) for span in last), default=by_default)
        make_ahead(connection, kind, kept, now, max(0, now - kept - length(kept)) if past else None)


def _create(connection: Connection, table: _Table, name: str) -> None:
    command(connection, f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")


def _attach(connection: Connection, table: _Table, name: str, start: int, end: int) -> None:
    """Attach a prepared table. Other transactions wait only if they use the default partition."""
    bounds = f"FROM ('{table.bound(start)}') TO ('{table.bound(end)}')"
    command(connection, f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES {bounds}")


# ---- read

# Each selects `id`, `account_id`, the stored `bytes`, whether there are `parts`, and whether the row `stays`.
_LOOKED = {
    "bodies": f"""SELECT b.message_id AS id, r.account_id, b.parts_size > 0 AS parts,
            length(b.mime) + b.parts_size + coalesce(length(b.receipt), 0) AS bytes,
            coalesce(r.final_at >= %(before)s, true) AS stays
        FROM {{partition}} b CROSS JOIN LATERAL (
            SELECT min(r.account_id) AS account_id, {FINAL_AT} AS final_at
            FROM recipients r WHERE r.message_id = b.message_id
        ) r WHERE b.message_id > %(after)s ORDER BY b.message_id LIMIT %(most)s""",
    "mail": f"""SELECT r.message_id AS id, min(r.account_id) AS account_id, false AS parts,
            {MESSAGE} + {RECIPIENT} * count(*) + coalesce((SELECT octet_length(m.metadata) FROM messages m
                WHERE m.account_id = min(r.account_id) AND m.id = r.message_id), 0) * (1 + 2 * count(*)) AS bytes,
            coalesce({FINAL_AT} >= %(before)s, true) AS stays
        FROM {{partition}} r WHERE r.message_id > %(after)s
        GROUP BY r.message_id ORDER BY r.message_id LIMIT %(most)s""",
    "events": """SELECT e.id, '' AS account_id, false AS parts, 0 AS bytes,
            EXISTS (SELECT 1 FROM messages m WHERE m.account_id = e.account_id AND m.id = e.message_id) AS stays
        FROM {partition} e WHERE e.id > %(after)s ORDER BY e.id LIMIT %(most)s""",
    "posts": """SELECT d.webhook_id || ' ' || d.id AS id, '' AS account_id, false AS parts, 0 AS bytes,
            d.next_attempt_at IS NOT NULL OR d.created_at > %(before)s AS stays
        FROM {partition} d WHERE d.id > %(after)s AND %(most)s > 0""",  # all at once: no index is in their order
}
_LOOK = """WITH looked AS ({looked}) SELECT account_id, count(*) FILTER (WHERE NOT stays),
        coalesce(sum(bytes) FILTER (WHERE NOT stays), 0), count(*), max(id),
        coalesce(array_agg(id) FILTER (WHERE stays), '{{}}'),
        coalesce(array_agg(id) FILTER (WHERE parts AND NOT stays), '{{}}')
    FROM looked GROUP BY account_id"""
_IS_CLOSED = "SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = 'closed'"


class _Look(Struct):
    span: Span
    after: str = ""
    goes: int = 0
    stays: list[str] = field(default_factory=list)
    freed: Counter[str] = field(default_factory=Counter)  # bytes, by account
    with_parts: list[str] = field(default_factory=list)  # messages
    ended: bool = False
    tries: int = 0


def _read_on(connection: Connection, kind: str, look: _Look, before: int, most: int) -> None:
    """Read some rows of a partition, until its end or until too many must stay."""
    partition = look.span.partition(_TABLES[kind][0].name)
    if kind == "bodies" and not look.after:
        _close(connection, partition)
    query = _LOOK.format(looked=_LOOKED[kind].format(partition=partition))
    bindings = {"before": before, "after": look.after, "most": most}
    seen = 0
    with connection.transaction():
        if kind == "posts":
            command(connection, "SET LOCAL enable_seqscan = on")
        selected = connection.execute(query, bindings, binary=True).fetchall()
    for account_id, goes, freed, count, last, stays, with_parts in selected:
        look.goes, look.after, seen = look.goes + goes, max(look.after, last), seen + count
        look.freed[account_id] += freed
        look.stays += stays
        look.with_parts += with_parts
    look.ended = seen < most or kind == "posts" or len(look.stays) > _MOVED[kind]


def _close(connection: Connection, partition: str) -> None:
    if not run(connection, _IS_CLOSED, (partition,)):
        with connection.transaction():
            command(connection, f"SET LOCAL lock_timeout = {LOCK_WAIT}")
            words = f"BEFORE INSERT ON {partition} FOR EACH ROW EXECUTE FUNCTION refuse_body()"
            command(connection, f"CREATE TRIGGER closed {words}")


# ---- dropped

_SAME = "SELECT to_regclass(%s)::oid::bigint"
_OTHER_NODE = "SELECT 1 FROM chores WHERE name = 'retention' AND owner <> current_setting('appliance.owner')"
_LOOSEN = """INSERT INTO loose_parts (message_id) SELECT message_id FROM {partition}
    WHERE message_id = ANY (%s) AND parts_size > 0"""
_COPY_BODIES = "INSERT INTO {partition}_kept SELECT * FROM {partition} WHERE message_id = ANY (%s)"
# What was signed, or scheduled for another time, since the versions of these rows were read.
_BODY_VERSIONS = "SELECT message_id, xmin::text FROM {partition} WHERE message_id = ANY (%s)"
_COPY_CHANGED_BODIES = """UPDATE {partition}_kept k SET mime = p.mime, signature = p.signature
    FROM {partition} p JOIN unnest(%s::text[], %s::text[]) AS copied (message_id, version) USING (message_id)
    WHERE p.message_id = k.message_id AND p.xmin::text <> copied.version"""
_COPY_EVENTS = "INSERT INTO {partition}_kept SELECT * FROM {partition} WHERE id = ANY (%s)"
_OTHER_POSTS_WAIT = """SELECT 1 FROM {partition} WHERE next_attempt_at IS NOT NULL
    AND NOT webhook_id || ' ' || id = ANY (%s) LIMIT 1"""
_COPY_POSTS = """INSERT INTO {partition}_kept SELECT * FROM {partition} WHERE (webhook_id, id) IN
    (SELECT split_part(stays, ' ', 1), split_part(stays, ' ', 2) FROM unnest(%s::text[]) AS given (stays))"""
_OTHER_BODIES = """SELECT message_id FROM message_bodies
    WHERE message_id >= %s AND message_id < %s AND NOT message_id = ANY (%s) LIMIT %s"""
_MESSAGES_BEFORE = """SELECT DISTINCT message_id FROM recipients WHERE message_id >= %s AND message_id < %s LIMIT %s"""
_OTHERS_WAIT = """SELECT 1 FROM {recipients} WHERE next_attempt_at IS NOT NULL
    AND NOT message_id = ANY (%s) LIMIT 1"""
_FORGET_CHANGES = """DELETE FROM search_changes
    WHERE account_id = ANY (%s) AND message_id >= %s AND message_id < %s AND NOT message_id = ANY (%s)"""
_COPY_RECIPIENTS = "INSERT INTO {recipients}_kept SELECT * FROM {recipients} WHERE message_id = ANY (%s)"
_COPY_MESSAGES = """INSERT INTO {messages}_kept SELECT m.* FROM (
        SELECT DISTINCT account_id, message_id FROM {recipients} WHERE message_id = ANY (%s)
    ) r JOIN {messages} m ON m.account_id = r.account_id AND m.id = r.message_id"""
_COPY_ATTEMPTS = """INSERT INTO {attempts}_kept SELECT a.* FROM recipients r
    JOIN {attempts} a ON a.recipient_id = r.id WHERE r.message_id = ANY (%s)"""


class _NotNow(Exception):
    """Something changed since it was read; the text says what."""


class _Dropping:
    def __init__(self, connection: Connection, kind: str, look: _Look) -> None:
        self._connection, self._kind, self._look = connection, kind, look
        self._stays = TextArray(look.stays)
        self._names = {table.name: look.span.partition(table.name) for table in _TABLES[kind]}
        self._names["partition"] = next(iter(self._names.values()))
        self._messages_before: list[str] = []
        self._body_versions: list[Row] = []
        self._freed = Counter(look.freed)

    def run(self) -> None:
        """Drop the partition, or raise _NotNow or LockNotAvailable with nothing done."""
        with self._connection.transaction():
            command(self._connection, f"SET LOCAL lock_timeout = {LOCK_WAIT}")
            if self._kind == "mail":
                self._prepare_mail()
            replaced = bool(self._stays or self._messages_before)
            if replaced:
                for table in _TABLES[self._kind]:
                    _create(self._connection, table, f"{self._names[table.name]}_kept")
            self._copy_fixed()
            tables = ", ".join(f"ONLY {table.name}" for table in _TABLES[self._kind])
            command(self._connection, f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
            self._check()
            self._copy_changing()
            for table in _TABLES[self._kind]:
                self._take_out(table, replaced=replaced)
            give_back(PostgresTx(self._connection), dict(sorted(self._freed.items())))

    def _prepare_mail(self) -> None:
        first, most = _TABLES["mail"][0], _MOVED["mail"]
        start, end = first.bound(self._look.span.start), first.bound(self._look.span.end)
        left = run(self._connection, _OTHER_BODIES, (start, end, self._stays, most + 1))
        before = run(self._connection, _MESSAGES_BEFORE, (first.bound(self._look.span.start - HOUR), start, most + 1))
        if len(left) > most or len(before) > most:
            raise _NotNow("bodies, or older messages, are to be deleted first")
        self._messages_before = [message_id for (message_id,) in before]
        tx = PostgresTx(self._connection)
        self._freed.update(bodies(tx, left, receipts=True))
        loosen(tx, left)
        DELETE_BODIES.run(tx, left)
        self._forget_changes()  # most of them, before other transactions wait

    def _forget_changes(self) -> None:
        start, end = (_TABLES["mail"][0].bound(at) for at in (self._look.span.start, self._look.span.end))
        run(self._connection, _FORGET_CHANGES, (TextArray(list(self._look.freed)), start, end, self._stays))

    def _copy_fixed(self) -> None:
        if self._kind == "bodies":
            self._execute(_LOOSEN, TextArray(self._look.with_parts))
            self._body_versions = self._execute(_BODY_VERSIONS, self._stays).fetchall()
        if self._stays and self._kind in _FIXED:
            self._execute(_COPY_BODIES if self._kind == "bodies" else _COPY_EVENTS, self._stays)

    def _check(self) -> None:
        if run(self._connection, _SAME, (self._names["partition"],)) != [(self._look.span.oid,)]:
            raise _NotNow("it has been replaced")
        if run(self._connection, _OTHER_NODE):
            raise _NotNow("another node has the chore")

    def _copy_changing(self) -> None:
        if self._kind == "bodies" and self._body_versions:
            ids, versions = zip(*self._body_versions, strict=True)
            self._execute(_COPY_CHANGED_BODIES, TextArray(ids), TextArray(versions))
        elif self._kind == "posts":
            self._check_none(_OTHER_POSTS_WAIT)
            if self._stays:
                self._execute(_COPY_POSTS, self._stays)
        elif self._kind == "mail":
            self._check_none(_OTHERS_WAIT)
            self._forget_changes()
            if self._stays or self._messages_before:
                self._execute(_COPY_RECIPIENTS, self._stays)
                self._execute(_COPY_MESSAGES, self._stays)
                self._execute(_COPY_ATTEMPTS, TextArray([*self._stays, *self._messages_before]))

    def _check_none(self, query: str) -> None:
        if self._execute(query, self._stays).fetchone() is not None:
            raise _NotNow("something new waits in it")

    def _take_out(self, table: _Table, *, replaced: bool) -> None:
        name, span = self._names[table.name], self._look.span
        command(self._connection, f"DROP TABLE {name}")
        if replaced:
            command(self._connection, f"ALTER TABLE {name}_kept RENAME TO {name}")
            _attach(self._connection, table, name, span.start, span.end)

    def _execute(self, query: str, *values: TextArray) -> psycopg.Cursor[Row]:
        return self._connection.execute(query.format(**self._names).encode(), values, binary=True)


# ---- one after the other
class _Run(Protocol):
    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]: ...


class TimePartitions:
    def __init__(self, run_on_thread: _Run, rows_read: int = ROWS_READ, worthwhile: int = WORTHWHILE) -> None:
        self._run, self._rows_read, self._worthwhile = run_on_thread, rows_read, worthwhile
        self._looks: dict[str, _Look] = {}  # that are going on, by kind
        # Partitions left for now: whether to slices, and when to read them again.
        self._left: dict[int, tuple[bool, int]] = {}
        self._sliced_until: dict[str, int] = {}

    async def make(self, kept: Mapping[str, int], now: int) -> None:
        self._looks.clear()  # another node may have deleted rows since then

        def work(connection: Connection) -> None:
            for kind, microseconds in kept.items():
                make_ahead(connection, kind, microseconds, now)

        await self._run(work)

    def sliced_until(self, kind: str) -> int:
        return self._sliced_until.get(kind, 0)

    async def clear(self, kind: str, ended: int, before: int, now: int) -> Slice:
        began = perf_counter()
        look = self._looks.get(kind)
        if look is None and (look := await self._next(kind, ended, now)) is None:
            return Slice(0, 0.0, more=False)
        self._looks[kind] = look
        if not look.ended:
            await self._try(kind, look, ended, now, lambda item: _read_on(item, kind, look, before, self._rows_read))
            return Slice(0, perf_counter() - began, more=True)
        if (sliced := self._is_left(kind, look, ended)) is not None:
            self._leave(kind, look, now, sliced=sliced)
            return Slice(0, perf_counter() - began, more=True)
        dropped = await self._try(kind, look, ended, now, lambda item: _Dropping(item, kind, look).run())
        if dropped:
            del self._looks[kind]
        return Slice(look.goes if dropped else 0, perf_counter() - began, more=True)

    async def _try(self, kind: str, look: _Look, ended: int, now: int, work: Callable[[Connection], None]) -> bool:
        """Return whether the work succeeded. After several failures, skip the partition for now."""
        error = await self._run(lambda connection: _error_of(connection, work))
        if error is None:
            return True
        look.tries += 1
        if look.tries == DROP_TRIES or not isinstance(error, errors.LockNotAvailable):
            table = look.span.partition(_TABLES[kind][0].name)
            log.info("a partition is not dropped yet", table=table, reason=str(error))
            self._leave(kind, look, now, sliced=_is_late(look.span, ended))
        return False

    async def _next(self, kind: str, ended: int, now: int) -> _Look | None:
        """The next partition to read. Rows before it, or before the first that must wait, are deleted in slices."""
        results = await self._run(lambda connection: spans(connection, kind))
        for span in results:
            sliced, again_at = self._left.get(span.oid, (False, 0))
            if span.end > ended or (now < again_at and not sliced):
                self._sliced_until[kind] = span.start
                return None
            if now >= again_at:
                return _Look(span)
        self._sliced_until[kind] = NO_END
        return None

    def _is_left(self, kind: str, look: _Look, ended: int) -> bool | None:
        """Whether to leave a partition to slices (True) or to wait (False); None: drop it now."""
        if not look.stays:
            return None
        if look.goes < self._worthwhile or (kind in _FIXED and len(look.stays) * 4 > look.goes):
            return True
        return None if len(look.stays) <= _MOVED[kind] else kind in _FIXED or _is_late(look.span, ended)

    def _leave(self, kind: str, look: _Look, now: int, *, sliced: bool) -> None:
        self._left[look.span.oid] = sliced, now + min(HOUR, (look.span.end - look.span.start) // 4)
        del self._looks[kind]


def _error_of(connection: Connection, work: Callable[[Connection], None]) -> Exception | None:
    """The obstacle, if it may be gone later."""
    try:
        work(connection)
    except (errors.LockNotAvailable, errors.QueryCanceled, errors.UndefinedTable, _NotNow) as error:
        return error
    return None


def _is_late(span: Span, ended: int) -> bool:
    return ended - span.end > span.end - span.start
