"""Examines a database file, for `doctor`, backups and starts: integrity, origin, schema version and contents."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
from msgspec import Struct

from appliance.model.database import NewerDatabase
from appliance.store.engine import first, rows
from appliance.store.sqlite.connection import Connection, open_inside, open_reader
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.migrate import has_table, newest_known

CHECK_STEPS = 100_000  # steps of SQLite's machine between two checks of the time
FAULTS = 5  # reported at most; one is enough to refuse the file

_INTEGRITY = f"PRAGMA integrity_check({FAULTS})"
_QUICK = f"PRAGMA quick_check({FAULTS})"
_FOREIGN_KEYS = "PRAGMA foreign_key_check"
_SCHEMA = "SELECT max(number) FROM migrations"
_COUNTS = "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM messages)"
# Keys that sign. Others may be sealed with a lost key file, and are never opened again.
_DKIM_KEYS = """SELECT k.account_id, k.domain, k.selector, k.private_key FROM dkim_keys k
    JOIN domains d ON d.account_id = k.account_id AND d.name = k.domain WHERE k.retired_at IS NULL AND d.usable = 1"""
_SECRETS = "SELECT w.id, a.name, w.secret FROM webhooks w JOIN accounts a ON a.id = w.account_id"  # no deleted ones
_FACTORS = """SELECT u.id, u.email, f.secret FROM second_factors f JOIN users u ON u.id = f.user_id
    WHERE f.confirmed_at IS NOT NULL"""
_INCOMPLETE = """SELECT b.message_id FROM message_bodies b WHERE b.parts_size <>
        (SELECT coalesce(sum(length(p.content)), 0) FROM message_body_parts p WHERE p.message_id = b.message_id)
    AND NOT EXISTS (SELECT 1 FROM loose_parts l WHERE l.message_id = b.message_id) LIMIT 1"""
KEYS_SINCE, WEBHOOKS_SINCE, PARTS_SINCE, FACTORS_SINCE = 2, 3, 9, 22  # the steps that brought them


class SealedKey(NamedTuple):
    account_id: str
    domain: str
    selector: str
    private_key: bytes


class StoredSecret(NamedTuple):
    webhook_id: str
    account: str  # its name
    sealed: bytes


class StoredFactor(NamedTuple):
    user_id: str
    email: str
    sealed: bytes


class Contents(Struct, frozen=True):
    schema: int
    accounts: int
    messages: int
    dkim_keys: tuple[SealedKey, ...]  # that are in use
    webhook_secrets: tuple[StoredSecret, ...] = ()
    second_factors: tuple[StoredFactor, ...] = ()  # that are in force


def examine_inside(path: Path, begin: int, size: int) -> Contents:
    """The contents of the database in these bytes of a file. Raises Damaged or NewerDatabase."""
    with _as_damaged(), open_inside(path, begin, size) as connection:
        check(connection)
        schema = schema_of(connection)
        if schema == 0:
            raise Damaged("this is no database of the appliance")
        if schema > newest_known():
            raise NewerDatabase(schema, newest_known())
        if schema >= PARTS_SINCE and (lacking := first(connection, _INCOMPLETE, {})):
            raise Damaged(f"the database is damaged: parts of the message {lacking[0]} are missing")
        ((accounts, messages),) = rows(connection, _COUNTS, {})
        return Contents(schema, accounts, messages, *_sealed(connection, schema))


def has_secrets(path: Path) -> bool:
    """Whether a database, even one in use, has secrets that only its key file opens."""
    with closing(open_reader(path)) as connection, _as_damaged():
        return any(_sealed(connection, schema_of(connection)))


def schema_inside(path: Path, begin: int, size: int) -> int:
    with _as_damaged(), open_inside(path, begin, size) as connection:
        return schema_of(connection)


class QuickCheck(Struct, frozen=True):
    schema: int
    damage: str  # empty: none was found
    finished: bool  # whether every page was checked


def quick_check(path: Path, seconds: float, steps: int = CHECK_STEPS) -> QuickCheck:
    schema, damage, finished = 0, "", True
    try:
        with closing(open_reader(path)) as connection:
            schema = schema_of(connection)
            damage, finished = _find_damage(connection, seconds, steps)
    except apsw.Error as error:
        damage = f"cannot be read: {error}"
    return QuickCheck(schema, damage, finished)


def refuse_damaged(connection: Connection, seconds: float, steps: int = CHECK_STEPS) -> None:
    """Raise Damaged if a check of limited time finds damage: the sooner, the newer the usable backup."""
    damage, _ = _find_damage(connection, seconds, steps)
    if damage:
        raise Damaged(f"the database {damage}")


def _find_damage(connection: Connection, seconds: float, steps: int) -> tuple[str, bool]:
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, steps)
    try:
        results = [" ".join(str(text).split()) for (text,) in connection.execute(_QUICK)]
    except apsw.InterruptError:
        return "", False
    except apsw.CorruptError as error:  # some damage keeps even this check from its end
        return f"is damaged: {error}", True
    finally:
        connection.set_progress_handler(None)
    return "" if results == ["ok"] else f"is damaged: {'; '.join(results)}", True


def check(connection: Connection) -> None:
    """Raise Damaged unless every page, index and reference is intact."""
    with _as_damaged():
        results = [" ".join(str(text).split()) for (text,) in connection.execute(_INTEGRITY)]
        if results != ["ok"]:
            raise Damaged(f"the database is damaged: {'; '.join(results)}")
        if lost := first(connection, _FOREIGN_KEYS, {}):
            raise Damaged(f"the database is damaged: a row of {lost[0]} refers to one of {lost[2]} that is not there")


def schema_of(connection: Connection) -> int:
    if not has_table(connection, "migrations"):
        return 0
    return int(rows(connection, _SCHEMA, {})[0][0] or 0)


def _sealed(
    connection: Connection, schema: int
) -> tuple[tuple[SealedKey, ...], tuple[StoredSecret, ...], tuple[StoredFactor, ...]]:
    keys = [SealedKey(*row) for row in rows(connection, _DKIM_KEYS, {})] if schema >= KEYS_SINCE else []
    secrets = [StoredSecret(*row) for row in rows(connection, _SECRETS, {})] if schema >= WEBHOOKS_SINCE else []
    factors = [StoredFactor(*row) for row in rows(connection, _FACTORS, {})] if schema >= FACTORS_SINCE else []
    return tuple(keys), tuple(secrets), tuple(factors)


@contextmanager
def _as_damaged() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise Damaged(f"the database is damaged: {error}") from error
