"""Connects to PostgreSQL: settings, conversion of values, and the `Tx` of one connection.

Integers are sent as bigint and always returned as int, sums too. PostgreSQL cannot store NUL in text, so U+FFFD
replaces it.
"""

import re
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from select import POLLIN, poll
from struct import Struct
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import adapt
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from appliance.store.engine import HAS_ANY_OWNER, IS_OWNED, VALUE, Bindings, Bulk, Row, distinct

DATABASE_CLIENT = "mail-appliance"  # as the database lists our connections
STATEMENT_TIMEOUT = 10  # seconds; the server ends a statement that takes longer
LONG_STATEMENT_TIMEOUT = 30  # seconds, for expensive statements
FIRST_ANSWER = 3  # seconds for the first statement; it waits while the pool of a pooler is full
ANSWER_GRACE = 2  # seconds more than that; then the connection counts as lost, even if TCP reports no error
LOCK_TIMEOUT = 5_000  # milliseconds, as below
IDLE_TRANSACTION_TIMEOUT = 5_000  # a node that is cut off must not keep others from its rows for longer
IDLE_SESSION = 100  # milliseconds until PostgreSQL ends an idle session; the pooler has read its last response before
POOLER_TRIES, POOLER_PAUSE = 10, 500  # milliseconds per try, until such a session has ended
PREPARED = 500  # statements kept prepared on a connection

# Defaults for the URL. A lost peer is noticed in 5 s when sending, and by keepalives in 7 s when waiting for an answer.
_DEFAULTS = {
    "connect_timeout": 3,  # seconds, for each address
    "tcp_user_timeout": 5_000,  # milliseconds within which the peer must acknowledge sent data
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "target_session_attrs": "read-write",
}
# Set by a statement once connected, because PgBouncer refuses them as startup options.
_SETTINGS = {
    "lock_timeout": str(LOCK_TIMEOUT),
    "idle_in_transaction_session_timeout": str(IDLE_TRANSACTION_TIMEOUT),
    "synchronous_commit": "on",
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    # Every statement is written for look-ups by index, as in SQLite. With stale statistics of a new partition, the
    # planner would read whole tables. Plan each statement once: over many partitions, that takes longer than to run it.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_generic_plan",
}
_BACKEND = "SELECT pg_backend_pid()"
_IS_STANDBY = "session is read-only"  # in libpq's words
WRONG_POOLER = (
    "a pooler in front of it gives each transaction another session: set pool_mode = session in PgBouncer, or name "
    "PostgreSQL itself in the URL"
)
OLD_BEHIND_POOLER = "a pooler needs PostgreSQL 14 or later behind it: name PostgreSQL itself in the URL"

T = TypeVar("T")


# ---- statements: hints for SQLite's planner go, and some of SQLite's functions have other names here

_ARRAYS = {"": "text[]", "i": "bigint[]", "b": "bytea[]"}  # by the kind of a value in `Bulk`

# Every owner of a queued recipient, read from the index whose first column is the owner. An array is a condition of
# that index; PostgreSQL could hash a join instead, and read the whole queue.
_OWNERS = f"ARRAY({distinct('w.owner', 'recipients w WHERE w.next_attempt_at IS NOT NULL')})"
# Always true. Plans are generic, so if one account has nearly the whole queue, PostgreSQL might use another index; only
# the index of lanes has this condition.
_BY_LANE = r"\1.domain >= (SELECT '')"

_WORDS = (
    (re.compile(r"\bCROSS JOIN\b"), "JOIN"),
    (re.compile(r"\bINDEXED BY \w+"), ""),
    (re.compile(r"\bjson_group_array\("), "json_agg("),
    (re.compile(r"\bjson_object\("), "json_build_object("),
    (re.compile(r"\bjson_extract\(([\w.]+), '\$\.(\w+)'\)"), r"(CAST(\1 AS json)->>'\2')"),
    (re.compile(r"\bjson_each\((:\w+)\) (\w+)"), r"json_array_elements_text(CAST(\1 AS json)) AS \2 (value)"),
    (re.compile(r"\bgroup_concat\("), "string_agg("),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"\bx''"), "''::bytea"),
    (re.compile(rf"\b{IS_OWNED}\('(\w+)'\)"), r"\1.owner = current_setting('appliance.owner')"),
    (re.compile(rf"\b{HAS_ANY_OWNER}\('(\w+)'\)"), rf"(\1.owner = ANY ({_OWNERS}) AND {_BY_LANE})"),
)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_0-9]+)")


@cache
def statement(text: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", _plain(text))


@cache
def statement_over_many(many: Bulk) -> str:
    names = [f"v{number}" for number in range(len(many.kinds))]
    unused = iter(names)
    row = VALUE.sub(lambda _: next(unused), many.row).strip()
    columns = row[1:-1] if row.startswith("(") else row
    arrays = ", ".join(f"%s::{_ARRAYS[kind]}" for kind in many.kinds)
    values = f"SELECT {columns} FROM unnest({arrays}) AS given ({', '.join(names)})"
    return _plain(re.sub(r"VALUES\s*$", "", many.before)) + values + _plain(many.after)


def _plain(text: str) -> str:
    text = text.replace("%", "%%")
    for pattern, instead in _WORDS:
        text = pattern.sub(instead, text)
    return text


class _Text(StrBinaryDumper):
    def dump(self, obj: str) -> bytes:
        return _encoded(obj)


class _WholeNumber(NumericBinaryLoader):
    def load(self, data: Any) -> Any:
        return int(super().load(data))


class TextArray(list[Any]):
    """A column of text."""


class IntArray(list[Any]):
    """A column of integers."""


class BytesArray(list[Any]):
    """A column of bytes."""


ARRAY_KINDS: dict[str, type[list[Any]]] = {"": TextArray, "i": IntArray, "b": BytesArray}

_HEAD = Struct(">iiIii")  # dimensions, whether a value is NULL, type of the values, how many, number of the first
_LENGTH = Struct(">i")
_INTEGER = Struct(">iq")
_NULL = _LENGTH.pack(-1)


def _encoded(text: str) -> bytes:
    encoded = text.encode()
    return encoded.replace(b"\0", "\ufffd".encode()) if 0 in encoded else encoded  # `b"\0" in` costs 20 times as much


class _ArrayDumper(adapt.Dumper):
    """An array in PostgreSQL's binary form; psycopg's own takes five times as long."""

    format = Format.BINARY
    element = 0

    def dump(self, obj: list[Any]) -> bytes:
        pieces = [_HEAD.pack(1, 1, self.element, len(obj), 1)]
        last: Any = pieces  # no value
        for value in obj:
            if value is not last:  # a column is often the same in many rows
                last, piece = value, _NULL if value is None else self.packed(value)
            pieces.append(piece)
        return b"".join(pieces)

    @abstractmethod
    def packed(self, value: Any) -> bytes: ...


class _TextArrayDumper(_ArrayDumper):
    oid, element = 1009, 25

    def packed(self, value: Any) -> bytes:
        encoded = _encoded(value)
        return _LENGTH.pack(len(encoded)) + encoded


class _IntArrayDumper(_ArrayDumper):
    oid, element = 1016, 20

    def packed(self, value: Any) -> bytes:
        return _INTEGER.pack(8, value)


class _BytesArrayDumper(_ArrayDumper):
    oid, element = 1001, 17

    def packed(self, value: Any) -> bytes:
        packed: bytes = _LENGTH.pack(len(value)) + value
        return packed


_DUMPERS: tuple[tuple[type, type[adapt.Dumper]], ...] = (
    (str, _Text),
    (int, Int8BinaryDumper),
    (bool, Int8BinaryDumper),
    (TextArray, _TextArrayDumper),
    (IntArray, _IntArrayDumper),
    (BytesArray, _BytesArrayDumper),
)
_LOADERS: tuple[tuple[str, type[adapt.Loader]], ...] = (("numeric", _WholeNumber), ("json", TextBinaryLoader))


class PostgresConnection(psycopg.Connection[Row]):
    """A connection that fails if a response is late. TCP reports nothing if a proxy or a hung disk delays it."""

    patience = float("inf")  # seconds for one answer
    given_up = False  # set by another thread: no one waits for the answer any more

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(self._in_time(gen), *args, **options)

    def _in_time(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline = monotonic() + self.patience
        try:
            bindings = next(steps)
            while True:
                ready = yield bindings
                if not ready and (self.given_up or monotonic() > deadline):
                    self.pgconn.finish()
                    raise psycopg.OperationalError("no answer came in time")
                bindings = steps.send(ready)
        except StopIteration as ended:
            result: T = ended.value
            return result


def connect(
    url: str, owner: str = "", statement_timeout: int = STATEMENT_TIMEOUT, *, name: str = DATABASE_CLIENT
) -> PostgresConnection:
    """Open a connection that can write, as the node run `owner`. Raises psycopg.Error."""
    settings: dict[str, Any] = _DEFAULTS | {"application_name": name} | conninfo_to_dict(url)
    values = _SETTINGS | {"statement_timeout": str(statement_timeout * 1000), "appliance.owner": owner}
    connection, backend = _open(settings, values)
    if backend != connection.info.backend_pid:  # a pooler reports its own process numbers
        _check_pooler(connection, backend)
        connection, _ = _open(settings, values)
        command(connection, "DEALLOCATE ALL")  # a pooler without server_reset_query leaves those of others
    connection.patience = statement_timeout + ANSWER_GRACE
    connection.prepared_max = PREPARED
    for kind, dumper in _DUMPERS:
        connection.adapters.register_dumper(kind, dumper)
    for name, loader in _LOADERS:
        connection.adapters.register_loader(name, loader)
    return connection


def _open(settings: dict[str, Any], values: dict[str, str]) -> tuple[PostgresConnection, int]:
    """Connect and set these values; also return the server process that answers."""
    try:
        return _connect(settings, values)
    except psycopg.OperationalError as error:
        if not isinstance(error, _Unusable) and _IS_STANDBY not in str(error):
            raise
        refused = error
    # A pooler accepts clients while its server is away, and repeats that it was a standby. So try the hosts one by one,
    # and ask each server.
    for host in _hosts(settings):
        with suppress(psycopg.OperationalError):
            return _connect(host | {"target_session_attrs": "any"}, values)
    raise refused


class _Unusable(psycopg.OperationalError):
    """A server that accepted the connection but then did not answer, or takes no writes."""


def _connect(settings: dict[str, Any], values: dict[str, str]) -> tuple[PostgresConnection, int]:
    connection = PostgresConnection.connect("", autocommit=True, prepare_threshold=1, **settings)
    try:
        connection.patience = FIRST_ANSWER
        chosen = "".join(f", set_config('{name}', %s, false)" for name in values)
        statement = f"{_BACKEND}, current_setting('transaction_read_only'){chosen}".encode()
        ((backend, read_only, *_),) = connection.execute(statement, [*values.values()], prepare=False)
        if read_only != "off":
            raise _Unusable(_IS_STANDBY)
    except psycopg.OperationalError as error:
        connection.close()
        raise _Unusable(str(error)) from error
    return connection, backend


def _hosts(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    lists = {name: str(settings[name]).split(",") for name in ("host", "hostaddr", "port") if settings.get(name)}
    for number in range(max(map(len, lists.values()), default=1)):
        yield settings | {name: values[number % len(values)] for name, values in lists.items()}


def _check_pooler(connection: PostgresConnection, backend: int) -> None:
    """Raise unless the pooler pools by session: then the connection ends with its idle session in PostgreSQL."""
    with closing(connection):
        if connection.info.server_version < 14_00_00:
            raise psycopg.OperationalError(OLD_BEHIND_POOLER)
        poller = poll()
        poller.register(connection, POLLIN)
        statement = f"{_BACKEND}, set_config('idle_session_timeout', '{IDLE_SESSION}', false)".encode()
        has_ended = False
        for _ in range(POOLER_TRIES):
            try:
                ((answering, _),) = connection.execute(statement, prepare=False)
            except psycopg.OperationalError:
                if has_ended:
                    return
                raise
            if answering != backend:
                break
            has_ended = bool(poller.poll(POOLER_PAUSE))
        raise psycopg.OperationalError(WRONG_POOLER)


def command(connection: psycopg.Connection[Row], words: str) -> None:
    connection.execute(words.encode(), prepare=False)


def run(connection: psycopg.Connection[Row], sql: str, values: Sequence[Any] = ()) -> list[Row]:
    selected = connection.execute(sql, values, binary=True)
    return selected.fetchall() if selected.description is not None else []


class PostgresRows:
    """Rows of one statement; read them before the next statement on the same connection."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: psycopg.Cursor[Row]) -> None:
        self._cursor = cursor

    def fetchall(self) -> list[Row]:
        return self._cursor.fetchall() if self._cursor.description is not None else []

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())

    def close(self) -> None:
        """Nothing to do: all rows are already here."""


@cache
def _locking(statement: Bulk) -> Bulk:
    return Bulk(f"{statement.before}{{{statement.row}}}{statement.after} FOR UPDATE")


class PostgresTx:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._cursor = connection.cursor(binary=True)
        self._found = PostgresRows(self._cursor)
        self._changed = 0  # rows, by all statements

    def execute(self, sql: str, bindings: Bindings, /) -> PostgresRows:
        self._run(statement(sql), bindings)
        return self._found

    def changes(self) -> int:
        return max(0, self._cursor.rowcount)

    def total_changes(self) -> int:
        return self._changed

    def many(self, statement: Bulk, values: Sequence[Row], /) -> list[Row]:
        if not values:
            return []
        columns = zip(*values, strict=True)
        self._run(
            statement_over_many(statement),
            [ARRAY_KINDS[kind](column) for kind, column in zip(statement.kinds, columns, strict=True)],
        )
        return self._found.fetchall()

    def count_many(self, statement: Bulk, values: Sequence[Row], /) -> int:
        self.many(statement, values)
        return self.changes() if values else 0

    def gather(self, sql: str, columns: str, bindings: Bindings, /) -> list[Row]:
        return self.execute(f"SELECT {columns} FROM ({sql}) found", bindings).fetchall()

    def lock(self, statement: Bulk, values: Sequence[Row], /) -> None:
        self.many(_locking(statement), values)

    def _run(self, text: str, values: Bindings | Sequence[Any]) -> None:
        self._cursor.execute(text, values)
        if self._cursor.rowcount > 0 and not (self._cursor.statusmessage or "").startswith("SELECT"):
            self._changed += self._cursor.rowcount
