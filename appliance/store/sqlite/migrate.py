"""Brings a database file to this version's schema, one numbered step at a time, each with its record."""

import re
from collections.abc import Callable
from functools import cache
from importlib import resources

from msgspec import Struct

from appliance.model.database import NewerDatabase
from appliance.store.sqlite.connection import Connection

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_RECORD_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""
_RECORD = "INSERT INTO migrations (number, name, applied_at) VALUES (:number, :name, :applied_at)"

_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"


def has_table(connection: Connection, name: str) -> bool:
    return bool(connection.execute(_TABLE, {"name": name}).fetchall())


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str


@cache
def migrations() -> list[Migration]:
    results = []
    for entry in (resources.files("appliance.store.sqlite") / "migrations").iterdir():
        if match := _NAME.fullmatch(entry.name):
            results.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(results, key=lambda migration: migration.number)


def newest_known() -> int:
    return max((step.number for step in migrations()), default=0)


def steps_after(schema: int) -> tuple[str, ...]:
    return tuple(f"{step.number:04}_{step.name}" for step in migrations() if step.number > schema)


def migrate(connection: Connection, now: int, before: Callable[[int], None] | None = None) -> None:
    """Apply missing steps in one transaction; first call `before` with the schema of a database in use."""
    known, newest = migrations(), newest_known()
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_RECORD_TABLE)
        applied = {number for (number,) in connection.execute("SELECT number FROM migrations")}
        if applied and max(applied) > newest:
            raise NewerDatabase(max(applied), newest)
        missing = [step for step in known if step.number not in applied]
        if before is not None and applied and missing:
            before(max(applied))
        for step in missing:
            connection.execute(step.sql)
            connection.execute(_RECORD, {"number": step.number, "name": step.name, "applied_at": now})
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
