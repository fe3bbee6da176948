"""Statements over many rows: however many there are, all of them are written and all answered."""

import apsw
import pytest

from appliance.store.sql import MOST_ROWS, Many, changed, gathered

INSERT = Many("INSERT INTO numbers (number, word) VALUES {(?, 'the ' || ?)} RETURNING number")


def numbers() -> apsw.Connection:
    """A table of numbers with nothing in it."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE numbers (number INTEGER NOT NULL, word TEXT NOT NULL) STRICT")
    return connection


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 15, MOST_ROWS, MOST_ROWS + 1, 5 * MOST_ROWS - 1])
def test_every_row_is_written_once(count: int) -> None:
    """Whatever their number, the rows are there in their order, each with its own values."""
    connection = numbers()
    found = INSERT.run(connection, [(number, f"{number}th") for number in range(count)])
    assert found == [(number,) for number in range(count)]
    stored = connection.execute("SELECT number, word FROM numbers ORDER BY rowid").fetchall()
    assert stored == [(number, f"the {number}th") for number in range(count)]


def test_what_was_changed_is_counted() -> None:
    """Over all of the statements that many rows need, and not what was changed before."""
    connection = numbers()
    INSERT.run(connection, [(number, "") for number in range(40)])
    delete = Many("DELETE FROM numbers WHERE number IN ({?})")
    assert delete.count(connection, [(number,) for number in range(10, 60)]) == 30
    assert delete.count(connection, []) == 0
    assert changed(connection, "DELETE FROM numbers WHERE number < :most", {"most": 4}) == 4
    assert changed(connection, "DELETE FROM numbers WHERE number < :most", {"most": 4}) == 0


def test_rows_are_gathered_in_order() -> None:
    """All of them, with numbers, text and nothing as they are, by the first column."""
    connection = numbers()
    INSERT.run(connection, [(number, 'a "word"') for number in (3, 1, 2**62)])
    found = gathered(connection, "SELECT number, word, NULL AS gap FROM numbers", "number, word, gap", {})
    assert found == [(number, 'the a "word"', None) for number in (1, 3, 2**62)]
    assert gathered(connection, "SELECT number FROM numbers WHERE number > :n", "number", {"n": 2**62}) == []
