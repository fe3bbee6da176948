"""In charge of running single statements: typed rows out, nothing left half-read."""

from collections.abc import Mapping
from typing import Any

import apsw

Row = tuple[Any, ...]


def run(connection: apsw.Connection, sql: str, bindings: Mapping[str, Any]) -> None:
    """Run a statement for its effect."""
    connection.execute(sql, bindings)


def rows(connection: apsw.Connection, sql: str, bindings: Mapping[str, Any]) -> list[Row]:
    """All rows of a statement."""
    return connection.execute(sql, bindings).fetchall()


def first(connection: apsw.Connection, sql: str, bindings: Mapping[str, Any]) -> Row | None:
    """The first row, the statement run to its end: one that returns what it changed must not stay open."""
    found = connection.execute(sql, bindings).fetchall()
    return found[0] if found else None
