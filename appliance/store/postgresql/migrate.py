"""Brings a PostgreSQL database to this version's schema while older nodes run, and refuses one that cannot be used.

A step is a file `NNNN_name.sql` in `migrations/`. Its first line names the oldest step that a program must know to work
after it: `-- compatible since: N`. Each step is a transaction with its record; a node joins while no step is taken.

- A step that keeps N is an expansion: the first node that knows it applies it at startup.
- Some features are fenced: their first use raises N to the step that a program must know (`fence_older_nodes`).
- A step that raises N is a contraction: a running node applies it once every node knows N. A program must
  therefore work with and without the contractions that follow its last expansion.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import NamedTuple

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from appliance.model.database import (
    UNFINISHED_COPY,
    DatabaseRefused,
    Feature,
    NewerDatabase,
    NoDatabase,
    OlderDatabase,
    UnfinishedCopy,
)
from appliance.store.engine import Row
from appliance.store.installation import KEY_FINGERPRINT
from appliance.store.postgresql.connection import run
from appliance.store.postgresql.partitions import make_first

OLDEST = 13  # version of PostgreSQL
MIGRATION_TIMEOUT = 3_600  # seconds for one statement of a migration, or until another node has ended it
# A step that waits for a table blocks every later query of it, so it times out early and retries. Some tries wait
# longer than `deadlock_timeout`, after which autovacuum cancels itself.
STEP_LOCK_TIMEOUTS = (*(300,) * 7, 1_500)  # milliseconds
STEP_TRIES = 40
STEP_PAUSE = 1.0  # seconds between two of them, on average
READ_ONLY = "the database takes no writes: name the primary in the URL, or all hosts of the cluster"
IN_USE = (
    "tables are in use all the time, so that the schema cannot be changed: pg_stat_activity (xact_start) shows what "
    "holds them; end that, and start again"
)

# The step that a program must know to treat these as it should: an expansion, which becomes a fence with the first use.
FEATURES = {
    Feature.CONFIDENTIAL: 14,
    Feature.FORMATS: 18,
    Feature.SCHEDULE: 19,
    Feature.RAMP: 24,
    Feature.RECEIVING: 26,
}

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_SINCE = re.compile(r"-- compatible since: (\d+)\n")
_TABLES = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') ORDER BY relname LIMIT 1"""
_COLUMNS = """SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass('migrations') AND attnum > 0 AND NOT attisdropped"""
_OWN_COLUMNS = {"number", "name", "applied_at", "compatible_since"}
_FINGERPRINT = "SELECT value FROM installation WHERE name = %s"
_RECORD_TABLE = """CREATE TABLE IF NOT EXISTS migrations (
    number BIGINT PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL,
    applied_at BIGINT NOT NULL,
    compatible_since BIGINT NOT NULL
)"""
_RECORD = "INSERT INTO migrations (number, name, applied_at, compatible_since) VALUES (%s, %s, %s, %s)"
_APPLIED = "SELECT number FROM migrations"
_RAISE = "UPDATE migrations SET compatible_since = %s WHERE number = %s"
_STATE = "SELECT coalesce(max(number), 0), coalesce(max(compatible_since), 0) FROM migrations"
_NODES = "SELECT schema, name, version FROM nodes WHERE adopted_by IS NULL AND home <> %s ORDER BY name"
_AGAIN = (errors.LockNotAvailable, errors.DeadlockDetected)
_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable)  # of two nodes that make the same table one fails


class SchemaStep(NamedTuple):
    number: int
    name: str
    sql: str
    since: int  # the oldest step that a program must know to work after this one


class SchemaPlan(NamedTuple):
    due: list[SchemaStep]
    waiting: list[SchemaStep]
    older: list[str]  # the nodes for which the first of these waits


@cache
def migrations() -> list[SchemaStep]:
    """All known steps, read once: a newer version's files may replace them while this one runs."""
    results = []
    for entry in (resources.files("appliance.store.postgresql") / "migrations").iterdir():
        if match := _NAME.fullmatch(entry.name):
            sql = entry.read_text(encoding="utf-8")
            since = _SINCE.match(sql)
            if since is None:
                raise ValueError(f"{entry.name} does not begin with the versions that can work after it")
            results.append(SchemaStep(int(match[1]), match[2], sql, int(since[1])))
    return sorted(results)


def newest_known() -> int:
    return max(step.number for step in migrations())


def migrate(
    connection: psycopg.Connection[Row],
    now: int,
    check_key: Callable[[str | None], None] | None = None,
    *,
    home: str = "",
    copying: bool = False,
    may_upgrade: bool = True,
) -> None:
    """Take the steps that are due, if this version can work after them; raise before anything is written.

    Without `may_upgrade` raise if this version needs a missing step. `check_key` gets the fingerprint of the key file.
    `home` identifies the starting node; its earlier runs have ended.
    """
    check(connection)
    if not copying and has_table(connection, UNFINISHED_COPY):
        raise UnfinishedCopy
    if is_ours(connection):
        check_compatible(connection, newest_known())
    planned = plan(connection, home)
    missing = planned.due + planned.waiting
    if not may_upgrade and missing and missing[0].number <= _last_expansion():
        raise OlderDatabase(state(connection)[0], newest_known()) if is_ours(connection) else NoDatabase
    _refuse_older_nodes(planned)
    if check_key is not None:
        check_key(key_fingerprint(connection))
    if planned.due and may_upgrade:
        try:
            advance(connection, now, home, copying=copying)
        except _AGAIN:
            raise DatabaseRefused(IN_USE) from None


def plan(connection: psycopg.Connection[Row], home: str = "") -> SchemaPlan:
    """The steps that all nodes allow; without nodes, all missing steps."""
    applied = {number for (number,) in run(connection, _APPLIED)} if has_table(connection, "migrations") else set()
    nodes = run(connection, _NODES, (home,)) if applied else []
    missing = [step for step in migrations() if step.number not in applied]
    due = list(takewhile(lambda step: all(schema >= step.since for schema, _, _ in nodes), missing))
    waiting = missing[len(due) :]
    older = [f"{name} ({version})" for schema, name, version in nodes if waiting and schema < waiting[0].since]
    return SchemaPlan(due, waiting, older)


def advance(connection: psycopg.Connection[Row], now: int, home: str = "", *, copying: bool = False) -> int:
    """Take the due steps; return how many. Raises psycopg.Error with the failed step rolled back."""
    taken = 0
    for number in range(STEP_TRIES):
        try:
            timeout = STEP_LOCK_TIMEOUTS[number % len(STEP_LOCK_TIMEOUTS)]
            while _take_step(connection, now, home, timeout, copying=copying):
                taken += 1
            break
        except (*_AGAIN, *_AT_ONCE) as error:
            if number == STEP_TRIES - 1:
                raise
            if isinstance(error, _AGAIN):
                time.sleep(random.uniform(0.5, 1.5) * STEP_PAUSE)  # noqa: S311 - nothing secret
    return taken


def state(connection: psycopg.Connection[Row]) -> tuple[int, int]:
    ((newest, since),) = run(connection, _STATE)
    return newest, since


def check_compatible(connection: psycopg.Connection[Row], schema: int) -> None:
    """Raise NewerDatabase unless programs that know this schema can work on the database."""
    newest, since = state(connection)
    if since > schema:
        raise NewerDatabase(newest, schema)


def fence_older_nodes(connection: psycopg.Connection[Row], feature: Feature) -> list[str]:
    """Return the nodes that do not know a feature; without any, let no node of their version join any more."""
    since = FEATURES[feature]
    if state(connection)[1] >= since:
        return []
    with connection.transaction():
        connection.execute("LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE")
        older = [f"{name} ({version})" for schema, name, version in run(connection, _NODES, ("",)) if schema < since]
        if not older:
            run(connection, _RAISE, (since, since))
    return older


def keep_schema(connection: psycopg.Connection[Row], schema: int) -> None:
    """Prevent schema steps until the end of the transaction. Raises NewerDatabase, as above."""
    ((usual,),) = run(connection, "SHOW lock_timeout")
    connection.execute("SET LOCAL lock_timeout = 0")  # a step that is being taken may take its time
    connection.execute("LOCK TABLE migrations IN SHARE MODE")
    run(connection, "SELECT set_config('lock_timeout', %s, true)", (usual,))
    check_compatible(connection, schema)


def _take_step(connection: psycopg.Connection[Row], now: int, home: str, lock_timeout: int, *, copying: bool) -> bool:
    """Apply the first due step; return whether there was one. The very first also makes partitions."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = 0")
        connection.execute(_RECORD_TABLE)
        connection.execute("LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE")
        due = plan(connection, home).due
        if not due:
            return False
        step = due[0]
        connection.execute(f"SET LOCAL lock_timeout = {lock_timeout}".encode())
        connection.execute(step.sql.encode())
        run(connection, _RECORD, (step.number, step.name, now, step.since))
        if step == migrations()[0]:
            make_first(connection, now, past=copying)
    return True


def _refuse_older_nodes(planned: SchemaPlan) -> None:
    """Raise DatabaseRefused if this version needs a step that has to wait."""
    if planned.waiting and planned.waiting[0].number <= _last_expansion():
        text = f"this version cannot run together with the versions of {', '.join(planned.older)}"
        text += ": upgrade them to one between, or stop them"
        raise DatabaseRefused(f"{text}; a node that was lost is let go by one of its own version within half a minute")


def _last_expansion() -> int:
    last = since = 1
    for step in migrations():
        if step.since <= since:
            last = step.number
        since = max(since, step.since)
    return last


def key_fingerprint(connection: psycopg.Connection[Row]) -> str | None:
    results = run(connection, _FINGERPRINT, (KEY_FINGERPRINT,)) if has_table(connection, "installation") else []
    return str(results[0][0]) if results else None


def is_ours(connection: psycopg.Connection[Row]) -> bool:
    """Whether the database is an appliance's: other programs have a table `migrations`, too."""
    columns = {name for (name,) in run(connection, _COLUMNS)}
    if not columns >= _OWN_COLUMNS:
        return False
    first = migrations()[0].name
    return run(connection, "SELECT name FROM migrations WHERE number::text = '1'") == [(first,)]


def has_table(connection: psycopg.Connection[Row], name: str) -> bool:
    return run(connection, "SELECT to_regclass(%s::text)::text", (name,)) != [(None,)]


def check(connection: psycopg.Connection[Row]) -> None:
    """Raise DatabaseRefused if the server or the database cannot be used, or holds what is not an appliance's."""
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        raise DatabaseRefused(f"PostgreSQL {version} is too old: {OLDEST} or later is needed")
    ((encoding, read_only),) = run(
        connection, "SELECT current_setting('server_encoding'), current_setting('transaction_read_only')"
    )
    if encoding != "UTF8":
        text = f"the database has the encoding {encoding}, and needs UTF8"
        raise DatabaseRefused(f"{text}: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0")
    if read_only != "off":
        raise DatabaseRefused(READ_ONLY)
    tables = run(connection, _TABLES)
    if tables and not is_ours(connection):
        text = f"the database holds tables that are not the appliance's ({tables[0][0]})"
        raise DatabaseRefused(f"{text}: give the appliance a database of its own")


# ---- why a database cannot be used, in one line without the password

_UNSAID = "***"
NO_URL = (
    'this is no URL of a database, such as "postgresql://appliance:PASSWORD@db.example.com/appliance"; '
    "@, /, % and the like in a password are written as %40, %2F, %25"
)

_WRAPPING = re.compile(r".*All failures were: |connection failed: |connection is bad: ")
_PORTS = re.compile(r"[\d,]*")


@contextmanager
def refusals(url: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise DatabaseRefused(reason(url, error)) from error


def reason(url: str, error: psycopg.Error) -> str:
    """One line: the fault, and what to do if known."""
    result = _parts(url)
    if result is None:
        return NO_URL
    text = _WRAPPING.sub("", " ".join(str(error).split()))
    if password := result.get("password"):
        text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", _UNSAID, text)
    if text.endswith("session is read-only") or isinstance(error, errors.ReadOnlySqlTransaction):
        return READ_ONLY
    if isinstance(error, errors.InsufficientPrivilege):
        return f"{text}: let the user of the URL own the database, or grant it the right to create tables there"
    return f"the database cannot be used: {text}"


def place(url: str) -> str:
    """Where the database is, without user and password."""
    result = _parts(url)
    if result is None:
        return "store.url"
    return f"{result.get('dbname') or result.get('user') or 'database'} at {result.get('host') or 'this machine'}"


def _parts(url: str) -> dict[str, str] | None:
    """The parts of a URL; None if it is invalid, or if part of a password was read as another part."""
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        return None
    misread = "@" in parts.get("host", "") + parts.get("dbname", "") or not _PORTS.fullmatch(parts.get("port", ""))
    return None if misread else parts
