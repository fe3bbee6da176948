"""In charge of statements over many rows: however many there are, all of them are written and all answered."""

import apsw
import pytest

from appliance.store.sql import MOST_ROWS, Many

INSERT = Many("INSERT INTO numbers (number, word) VALUES {rows} RETURNING number", "(?, 'the ' || ?)")


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 15, MOST_ROWS, MOST_ROWS + 1, 5 * MOST_ROWS - 1])
def test_every_row_is_written_once(count: int) -> None:
    """Whatever their number, the rows are there in their order, each with its own values."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE numbers (number INTEGER NOT NULL, word TEXT NOT NULL) STRICT")
    found = INSERT.run(connection, [(number, f"{number}th") for number in range(count)])
    assert found == [(number,) for number in range(count)]
    stored = connection.execute("SELECT number, word FROM numbers ORDER BY rowid").fetchall()
    assert stored == [(number, f"the {number}th") for number in range(count)]
