"""Copies a whole database into another one, of either engine, and compares every row of both afterwards.

A table `unfinished_copy` in the target names the source until all rows have been compared: no server opens it, and only
a copy from the same source continues, after the last key of each table. The source is read in one transaction that
locks out writers. PostgreSQL cannot store NUL in text: U+FFFD replaces it, and a key with NUL is refused.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import zip_longest
from typing import Protocol

from msgspec import Struct

from appliance.model.database import UNFINISHED_COPY, NewerDatabase
from appliance.store.engine import Bindings, Bulk, Row, Tx, run

BATCH_ROWS = 1_000  # per transaction
BATCH_BYTES = 4 * 1024 * 1024  # after which a batch ends; no row is longer than the longest accepted text
NUL, INSTEAD = "\0", "\ufffd"

_IDENTITY = "SELECT number, applied_at FROM migrations ORDER BY number"
_OLDEST_ACCOUNT = "SELECT min(id) FROM accounts"
_MARK = f"SELECT source FROM {UNFINISHED_COPY}"
_CREATE_MARK = f"CREATE TABLE {UNFINISHED_COPY} (source TEXT NOT NULL, begun_at BIGINT NOT NULL)"
_FILL_MARK = f"INSERT INTO {UNFINISHED_COPY} (source, begun_at) VALUES (:source, :now)"
_DROP_MARK = f"DROP TABLE {UNFINISHED_COPY}"


class NotCopied(Exception):
    """The copy was refused or failed; the text says why and what to do."""


class Table(Struct, frozen=True):
    name: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]  # of the columns, as in `Bulk`
    key: tuple[str, ...]  # the columns of its primary key

    def select(self, *, after: bool = False) -> str:
        key = ", ".join(self.key)
        names = ", ".join(f":k{number}" for number in range(len(self.key)))
        where = f" WHERE ({key}) > ({names})" if after else ""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}{where} ORDER BY {key}"

    def select_last(self) -> str:
        last = ", ".join(f"{column} DESC" for column in self.key)
        return f"SELECT {', '.join(self.key)} FROM {self.name} ORDER BY {last} LIMIT 1"

    def insert(self) -> Bulk:
        values = ", ".join(f"?{kind}" for kind in self.kinds)
        return Bulk(f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES {{({values})}}")

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)

    def row_name(self, row: Row) -> str:
        return f"{self.name} ({', '.join(map(str, self.key_of(row)))})"


class CopyEndpoint(Protocol):
    """The source of a copy or its target; all methods raise NotCopied."""

    name: str  # for people, without a password
    has_nul: bool  # whether its text can contain NUL
    newest: int  # schema of this version

    def schema(self) -> int:
        """Number of the newest applied migration; 0 for an empty database."""

    def has_mark(self) -> bool:
        """Whether a copy into it is unfinished."""

    def stream(self, sql: str, bindings: Bindings) -> Generator[Row, None, None]:
        """Rows of a query, a few in memory at a time. Read them to the end, or close."""

    def create(self, now: int) -> None:
        """Create this version's schema."""

    def write(self, work: Callable[[Tx], object]) -> None:
        """Run `work` as one durable transaction."""


class CopyProgress(Struct, frozen=True):
    verifying: bool  # instead of copying
    table: str
    rows: int  # done, of this table
    of: int
    fraction: float  # of all work


class Copied(Struct, frozen=True):
    resumed: bool  # continued an earlier copy
    tables: int
    rows: int
    replaced: int  # values whose NUL was replaced


def copy(
    source: CopyEndpoint, target: CopyEndpoint, tables: Sequence[Table], now: int, on: Callable[[CopyProgress], None]
) -> Copied:
    """Copy all tables, parents first, or continue an earlier copy; then compare every row. Raises NotCopied."""
    identity = _identity(source)
    resumed = _check_target(target, tables, identity)
    target.create(now)
    if not resumed:
        target.write(partial(_mark, identity, now))
    counts = [_count(source, table) for table in tables]
    meter = _Meter(on, 2 * sum(counts))
    for table, count in zip(tables, counts, strict=True):
        meter.begin(table, count, verifying=False)
        _copy_rows(source, target, table, meter)
    replaced = 0
    for table, count in zip(tables, counts, strict=True):
        meter.begin(table, count, verifying=True)
        replaced += _compare(source, target, table, meter)
    target.write(lambda tx: run(tx, _DROP_MARK, {}))
    return Copied(resumed, len(tables), sum(counts), replaced)


# ---- before anything is written
def check_source(source: CopyEndpoint) -> None:
    """Raise NotCopied unless it holds an installation of this version."""
    schema = source.schema()
    if schema > source.newest:
        raise NotCopied(f"{source.name}: {NewerDatabase(schema, source.newest)}")
    if schema < source.newest:
        text = f"it is at schema {schema}, and this version copies schema {source.newest}"
        raise NotCopied(f"{source.name}: {text}: start this version on it once, and stop it")
    if source.has_mark():
        raise NotCopied(f"{source.name}: it is itself an unfinished copy: finish that first")


def _check_target(target: CopyEndpoint, tables: Sequence[Table], identity: str) -> bool:
    """Return whether the target holds the beginning of this copy. Raises NotCopied unless it does or is empty."""
    schema = target.schema()
    if schema > target.newest:
        raise NotCopied(f"{target.name}: {NewerDatabase(schema, target.newest)}")
    if schema == 0:
        return False
    begin_anew = "name an empty database"
    if schema < target.newest:
        text = f"it is at schema {schema}, and this version writes schema {target.newest}"
        raise NotCopied(f"{target.name}: {text}: {begin_anew}")
    if target.has_mark():
        if list(target.stream(_MARK, {})) == [(identity,)]:
            return True
        raise NotCopied(f"{target.name}: it holds an unfinished copy of another database: {begin_anew}")
    for table in tables:
        if list(target.stream(f"SELECT 1 FROM {table.name} LIMIT 1", {})):
            raise NotCopied(f"{target.name}: it holds an installation already ({table.name}): {begin_anew}")
    return False


def _identity(source: CopyEndpoint) -> str:
    """A digest that identifies the installation: constant for its lifetime, different for every other."""
    facts = [*source.stream(_IDENTITY, {}), *source.stream(_OLDEST_ACCOUNT, {})]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _mark(identity: str, now: int, tx: Tx) -> None:
    run(tx, _CREATE_MARK, {})
    run(tx, _FILL_MARK, {"source": identity, "now": now})


class _Meter:
    def __init__(self, on: Callable[[CopyProgress], None], total: int) -> None:
        self._on, self._total = on, max(1, total)
        self._before = self._rows = self._of = 0
        self._table, self._verifying = "", False

    def begin(self, table: Table, of: int, *, verifying: bool) -> None:
        self._before += self._of
        self._table, self._rows, self._of, self._verifying = table.name, 0, of, verifying

    def add(self, rows: int) -> None:
        self._rows += rows
        fraction = min(1.0, (self._before + self._rows) / self._total)
        self._on(CopyProgress(self._verifying, self._table, self._rows, self._of, fraction))


def _count(side: CopyEndpoint, table: Table) -> int:
    ((count,),) = side.stream(f"SELECT count(*) FROM {table.name}", {})
    return int(count)


def _copy_rows(source: CopyEndpoint, target: CopyEndpoint, table: Table, meter: _Meter) -> None:
    insert, bindings = table.insert(), {}
    for last in list(target.stream(table.select_last(), {})):
        bindings = {f"k{number}": value for number, value in enumerate(last)}
        meter.add(_count(target, table))
    with closing(source.stream(table.select(after=bool(bindings)), bindings)) as found:
        for batch in _batches(found):
            if not target.has_nul:
                _refuse_nul_in_keys(source, table, batch)
            target.write(partial(insert.run, values=batch))
            meter.add(len(batch))


def _batches(selected: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in selected:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _refuse_nul_in_keys(source: CopyEndpoint, table: Table, batch: Sequence[Row]) -> None:
    for row in batch:
        if any(isinstance(value, str) and NUL in value for value in table.key_of(row)):
            text = "its key has the character NUL, which PostgreSQL cannot store"
            raise NotCopied(f"{source.name}: {table.row_name(row)!r}: {text}")


def _compare(source: CopyEndpoint, target: CopyEndpoint, table: Table, meter: _Meter) -> int:
    """Count the values whose NUL was replaced. Raises NotCopied at the first difference."""
    replaced, done = 0, 0
    with closing(source.stream(table.select(), {})) as rows, closing(target.stream(table.select(), {})) as copies:
        for row, copied in zip_longest(rows, copies):
            if copied != row:
                expected = row
                if row is not None and not target.has_nul:
                    expected = tuple(value.replace(NUL, INSTEAD) if isinstance(value, str) else value for value in row)
                if copied != expected or row is None:
                    raise _different(target, table, expected, copied)
                replaced += sum(old != new for old, new in zip(row, expected, strict=True))
            done += 1
            if done == BATCH_ROWS:
                meter.add(done)
                done = 0
    if done:
        meter.add(done)
    return replaced


def _different(target: CopyEndpoint, table: Table, expected: Row | None, selected: Row | None) -> NotCopied:
    """Describe the first difference. Both tables are in the order of their keys; at most one row is None."""
    advice = "the source was changed since the copy was begun, or the target by others"
    if expected and selected and table.key_of(expected) == table.key_of(selected):
        pairs = zip(table.columns, expected, selected, strict=True)
        wrong = ", ".join(column for column, old, new in pairs if old != new)
        what = f"{table.row_name(selected)} differs from the source in {wrong}"
    elif expected and (not selected or table.key_of(expected) < table.key_of(selected)):
        what = f"{table.row_name(expected)} is missing"
    else:
        what = f"{table.row_name(selected or ())} is not in the source"
    return NotCopied(f"{target.name}: {what}: {advice}: start again with an empty database")
