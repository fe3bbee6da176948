"""In charge of how the database is opened: what SQLite is told before."""

from pathlib import Path

import apsw

from appliance.store.connection import open_writer
from appliance.store.sql import MOST_ROWS, Many

COLUMNS = 12


def test_what_a_write_binds_has_room(tmp_path: Path) -> None:
    """The values of the widest statements come from SQLite's own small pieces, with hundreds of statements prepared."""
    connection = open_writer(tmp_path / "mail.db")
    for table in range(10):
        columns = ", ".join(f"c{number} TEXT" for number in range(COLUMNS))
        connection.execute(f"CREATE TABLE t{table} ({columns})")
        insert = Many(f"INSERT INTO t{table} VALUES {{rows}}", f"({', '.join('?' * COLUMNS)})")
        for count in (*range(1, 9), MOST_ROWS):
            insert.run(connection, [("a text of some length",) * COLUMNS] * count)
    _, missed = connection.status(apsw.SQLITE_DBSTATUS_LOOKASIDE_MISS_FULL)
    assert missed == 0
    connection.close()


def test_sqlite_does_not_count_its_bytes(tmp_path: Path) -> None:
    """Nobody asks for the sum, and keeping it takes a lock at every allocation."""
    connection = open_writer(tmp_path / "mail.db")
    assert apsw.memory_used() == 0
    connection.close()
