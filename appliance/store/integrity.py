"""In charge of examining a database file: is it whole, is it ours, of which schema, and what is in it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from appliance.store.connection import open_reader
from appliance.store.embedded_db import open_inside
from appliance.store.migrate import NewerDatabase, newest_known
from appliance.store.sql import first, rows

LOOK_EVERY = 100_000  # steps of SQLite's machine between two looks at the time
FAULTS = 5  # told of those that are found; one is enough to refuse

_INTEGRITY = f"PRAGMA integrity_check({FAULTS})"
_QUICK = f"PRAGMA quick_check({FAULTS})"
_FOREIGN_KEYS = "PRAGMA foreign_key_check"
_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
_SCHEMA = "SELECT max(number) FROM migrations"
_COUNTS = "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM messages)"
# Those that sign. Others may be sealed under a key file that was lost since: nobody needs to open them any more.
_DKIM_KEYS = """
SELECT k.account_id, k.domain, k.selector, k.private_key FROM dkim_keys k
JOIN domains d ON d.account_id = k.account_id AND d.name = k.domain WHERE k.retired_at IS NULL AND d.usable = 1
"""


_SECRETS = "SELECT w.id, a.name, w.secret FROM webhooks w JOIN accounts a ON a.id = w.account_id"  # no deleted ones
KEYS_SINCE, WEBHOOKS_SINCE = 2, 3  # the steps that brought them


class Damaged(Exception):
    """The database is not whole, or none of ours; the text says in which way."""


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A signing key as it lies on disk."""

    account_id: str
    domain: str
    selector: str
    private_key: bytes


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A webhook's signing secret as it lies on disk."""

    webhook_id: str
    account: str  # its name
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """What a whole database holds."""

    schema: int
    accounts: int
    messages: int
    dkim_keys: tuple[SealedKey, ...]  # that are in use
    webhook_secrets: tuple[StoredSecret, ...] = ()


def examine_file(path: Path) -> Contents:
    """The contents of a database file; raises Damaged, or NewerDatabase."""
    connection = open_reader(path)
    try:
        with _in_our_words():
            return _examine(connection)
    finally:
        connection.close()


def examine_inside(path: Path, begin: int, size: int) -> Contents:
    """The same for a database in these bytes of another file."""
    with _in_our_words(), open_inside(path, begin, size) as connection:
        return _examine(connection)


def has_secrets(path: Path) -> bool:
    """Whether a database, which may be in use, holds anything that only its key file opens."""
    connection = open_reader(path)
    try:
        with _in_our_words():
            keys, secrets = _sealed(connection, schema_of(connection))
            return bool(keys or secrets)
    finally:
        connection.close()


def schema_inside(path: Path, begin: int, size: int) -> int:
    """Only the schema of such a database, 0 for one without any."""
    with _in_our_words(), open_inside(path, begin, size) as connection:
        return schema_of(connection)


@dataclass(frozen=True, slots=True)
class LookedOver:
    """What a look of limited time says of a database that may be in use."""

    schema: int
    damage: str  # empty: none was found
    finished: bool  # whether all of it was looked at


def look_over(path: Path, seconds: float) -> LookedOver:
    """Look for damage beside whoever uses the database, for this long at most."""
    schema, damage, finished = 0, "", True
    try:
        connection = open_reader(path)
        try:
            schema = schema_of(connection)
            damage, finished = _look_for_damage(connection, seconds)
        finally:
            connection.close()
    except apsw.Error as error:
        damage = f"cannot be read: {error}"
    return LookedOver(schema, damage, finished)


def look_over_at_start(connection: apsw.Connection, seconds: float) -> None:
    """Raise Damaged if a look of limited time finds any damage: whoever is told at once has the younger backup."""
    damage, _ = _look_for_damage(connection, seconds)
    if damage:
        raise Damaged(f"the database {damage}")


def _look_for_damage(connection: apsw.Connection, seconds: float) -> tuple[str, bool]:
    """What is found within this time, and whether all of it was looked at."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, LOOK_EVERY)
    try:
        found = [" ".join(str(text).split()) for (text,) in connection.execute(_QUICK)]
    except apsw.InterruptError:
        return "", False
    except apsw.CorruptError as error:  # some damage keeps even this look from its end
        return f"is damaged: {error}", True
    finally:
        connection.set_progress_handler(None)
    return "" if found == ["ok"] else f"is damaged: {'; '.join(found)}", True


def check(connection: apsw.Connection) -> None:
    """Raise Damaged unless every page, index and reference is as it should be."""
    with _in_our_words():
        found = [" ".join(str(text).split()) for (text,) in connection.execute(_INTEGRITY)]
        if found != ["ok"]:
            raise Damaged(f"the database is damaged: {'; '.join(found)}")
        if lost := first(connection, _FOREIGN_KEYS, {}):
            raise Damaged(f"the database is damaged: a row of {lost[0]} refers to one of {lost[2]} that is not there")


def schema_of(connection: apsw.Connection) -> int:
    """The number of the last step that a database has taken; 0 for a new one."""
    if first(connection, _TABLE, {}) is None:
        return 0
    row = first(connection, _SCHEMA, {})
    return 0 if row is None or row[0] is None else int(row[0])


def _examine(connection: apsw.Connection) -> Contents:
    check(connection)
    schema = schema_of(connection)
    if schema == 0:
        raise Damaged("this is no database of the appliance")
    if schema > newest_known():
        raise NewerDatabase(schema, newest_known())
    ((accounts, messages),) = rows(connection, _COUNTS, {})
    return Contents(schema, accounts, messages, *_sealed(connection, schema))


def _sealed(connection: apsw.Connection, schema: int) -> tuple[tuple[SealedKey, ...], tuple[StoredSecret, ...]]:
    keys = [SealedKey(*row) for row in rows(connection, _DKIM_KEYS, {})] if schema >= KEYS_SINCE else []
    secrets = [StoredSecret(*row) for row in rows(connection, _SECRETS, {})] if schema >= WEBHOOKS_SINCE else []
    return tuple(keys), tuple(secrets)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """SQLite's own complaints about a file, as one of ours."""
    try:
        yield
    except apsw.Error as error:
        raise Damaged(f"the database is damaged: {error}") from error
