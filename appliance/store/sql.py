"""Runs single statements and times short transactions: typed rows out, nothing left half-read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from time import perf_counter
from typing import Any, TypeVar

import apsw
import msgspec

T = TypeVar("T")
Row = tuple[Any, ...]
Bindings = Mapping[str, Any]

_gathered = msgspec.json.Decoder(list[tuple[Any, ...]])

NEWEST = "~"  # comes after every id: where a list with the newest first begins

MOST_ROWS = 16  # of one statement; more of them gain nothing
# Few different lengths, because each is a statement of its own to be kept prepared; but the short ones all.
_LENGTHS = (*range(1, 9), MOST_ROWS)
_LONGEST = [max((length for length in _LENGTHS if length <= left), default=0) for left in range(MOST_ROWS + 1)]


class Many:
    """A statement over several rows of values, of which its text has one in braces: far cheaper than one each."""

    def __init__(self, text: str) -> None:
        before, row, after = re.split("[{}]", text)
        self._texts = {length: before + ", ".join([row] * length) + after for length in _LENGTHS}

    def run(self, connection: apsw.Connection, values: Sequence[Row]) -> list[Row]:
        """Run it for all these rows, however many; what it returned for them."""
        found: list[Row] = []
        done = 0
        while left := len(values) - done:
            length = _LONGEST[min(left, MOST_ROWS)]
            flat = tuple(chain.from_iterable(values[done : done + length]))
            found += connection.execute(self._texts[length], flat).fetchall()
            done += length
        return found

    def count(self, connection: apsw.Connection, values: Sequence[Row]) -> int:
        before = connection.total_changes()
        self.run(connection, values)
        return connection.total_changes() - before


def run(connection: apsw.Connection, sql: str, bindings: Bindings) -> None:
    connection.execute(sql, bindings)


def changed(connection: apsw.Connection, sql: str, bindings: Bindings) -> int:
    connection.execute(sql, bindings)
    return connection.changes()


def rows(connection: apsw.Connection, sql: str, bindings: Bindings) -> list[Row]:
    return connection.execute(sql, bindings).fetchall()


def first(connection: apsw.Connection, sql: str, bindings: Bindings) -> Row | None:
    """The first row, the statement run to its end: one that returns what it changed must not stay open."""
    found = connection.execute(sql, bindings).fetchall()
    return found[0] if found else None


def one(connection: apsw.Connection, kind: Callable[..., T], sql: str, bindings: Bindings) -> T | None:
    """What `kind` makes of the first row; None where there is none."""
    found = connection.execute(sql, bindings).fetchall()
    return kind(*found[0]) if found else None


def gathered(connection: apsw.Connection, sql: str, columns: str, bindings: Bindings) -> list[Row]:
    """These columns of all rows, sorted by the first, in one step: a thread takes the interpreter lock at every row."""
    ((found,),) = rows(connection, f"SELECT json_group_array(json_array({columns})) FROM ({sql})", bindings)  # noqa: S608
    return sorted(_gathered.decode(found), key=itemgetter(0))


# ---- slices

START = ""  # comes before every id: where a walk begins


@dataclass(frozen=True, slots=True)
class Slice:
    """What was deleted in one transaction, how long that kept the writer, and how it goes on."""

    deleted: int
    seconds: float
    more: bool  # at once
    after: str = START  # the last row that was read


def timed(work: Callable[[apsw.Connection], int]) -> Callable[[apsw.Connection], tuple[int, float]]:

    def measured(c: apsw.Connection) -> tuple[int, float]:
        began = perf_counter()
        return work(c), perf_counter() - began

    return measured
