"""What the verbs know of an engine: a transaction, statements over one row or many, and how long a transaction took.

The text of a statement is common to both engines. Where they differ, PostgreSQL's executor translates what SQLite takes
as it is: named parameters, the rows of a `Many`, and hints to SQLite's planner; and `/* own TABLE */`, where only the
rows of this node count.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Bindings = Mapping[str, Any]

VALUE = re.compile(r"\?([ib]?)")

NEWEST = "~"  # comes after every id: where a list with the newest first begins


class Many:
    """A statement over several rows of values, of which its text has one in braces: far cheaper than one each.

    A value is written as `?` (text), `?i` (an integer) or `?b` (bytes), any of which may be NULL: PostgreSQL takes one
    array for each column.
    """

    def __init__(self, text: str) -> None:
        self.before, self.row, self.after = re.split("[{}]", text)
        self.kinds = tuple(VALUE.findall(self.row))

    def run(self, tx: "Tx", values: Sequence[Row]) -> list[Row]:
        """Run it for all these rows, however many; what it returned for them."""
        return tx.many(self, values)

    def count(self, tx: "Tx", values: Sequence[Row]) -> int:
        """The same; how many rows it changed."""
        return tx.count_many(self, values)


class Found(Protocol):
    """What a statement returned; to be read to its end, or closed."""

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    def close(self) -> None: ...


class Tx(Protocol):
    """An open transaction of either engine, or a connection that only reads."""

    def execute(self, sql: str, bindings: Bindings, /) -> Found: ...

    def changes(self) -> int:
        """How many rows the last statement changed."""

    def many(self, statement: Many, values: Sequence[Row], /) -> list[Row]: ...

    def count_many(self, statement: Many, values: Sequence[Row], /) -> int: ...

    def gather(self, sql: str, columns: str, bindings: Bindings, /) -> list[Row]:
        """These columns of all rows of a query, which it names, read on a thread without disturbing others."""

    def lock(self, statement: Many, values: Sequence[Row], /) -> None:
        """Keep others from changing the rows that this query finds, where there is more than one writer."""


def run(tx: Tx, sql: str, bindings: Bindings) -> None:
    tx.execute(sql, bindings)


def changed(tx: Tx, sql: str, bindings: Bindings) -> int:
    tx.execute(sql, bindings)
    return tx.changes()


def rows(tx: Tx, sql: str, bindings: Bindings) -> list[Row]:
    return tx.execute(sql, bindings).fetchall()


def first(tx: Tx, sql: str, bindings: Bindings) -> Row | None:
    """The first row, the statement run to its end: one that returns what it changed must not stay open."""
    found = tx.execute(sql, bindings).fetchall()
    return found[0] if found else None


def one(tx: Tx, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
    """What `kind` makes of the first row; None where there is none."""
    found = tx.execute(sql, bindings).fetchall()
    return kind(*found[0]) if found else None


def gathered(tx: Tx, sql: str, columns: str, bindings: Bindings) -> list[Row]:
    """These columns of all rows, sorted by the first."""
    return sorted(tx.gather(sql, columns, bindings), key=itemgetter(0))


# ---- slices

START = ""  # comes before every id: where a walk begins


@dataclass(frozen=True, slots=True)
class Slice:
    """What was deleted in one transaction, how long that kept the writer, and how it goes on."""

    deleted: int
    seconds: float
    more: bool  # at once
    after: str = START  # the last row that was read


def timed(work: Callable[[Tx], int]) -> Callable[[Tx], tuple[int, float]]:

    def measured(tx: Tx) -> tuple[int, float]:
        began = perf_counter()
        return work(tx), perf_counter() - began

    return measured
