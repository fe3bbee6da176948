"""Opening the database: its settings, and the space reserved for the index of the log."""

import os
from pathlib import Path

import apsw
import pytest

from appliance.errors import StorageFault
from appliance.store.engine import Bulk, run
from appliance.store.sqlite.connection import INDEX_BYTES, MOST_ROWS, ReservedIndex, open_reader, open_writer
from appliance.store.sqlite.engine import GroupCommit, SqliteEngine

COLUMNS = 12


def test_what_a_write_binds_has_room(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "mail.db")
    for table in range(10):
        columns = ", ".join(f"c{number} TEXT" for number in range(COLUMNS))
        connection.execute(f"CREATE TABLE t{table} ({columns})")
        insert = Bulk(f"INSERT INTO t{table} VALUES {{({', '.join('?' * COLUMNS)})}}")
        for count in (*range(1, 9), MOST_ROWS):
            insert.run(connection, [("a text of some length",) * COLUMNS] * count)
    _, missed = connection.status(apsw.SQLITE_DBSTATUS_LOOKASIDE_MISS_FULL)
    assert missed == 0
    connection.close()


def test_sqlite_does_not_count_its_bytes(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "mail.db")
    assert apsw.memory_used() == 0
    connection.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "notes.db"
    connection = open_writer(made)
    connection.execute("CREATE TABLE notes (text TEXT)").fetchall()
    connection.close()
    return made


async def test_the_server_has_it_from_the_start(path: Path) -> None:
    before, failures = descriptors(), list[StorageFault]()
    engine = SqliteEngine(path, GroupCommit(path, failures.append))
    try:
        assert index_of(path).stat().st_size == INDEX_BYTES
        await engine.write(lambda c: run(c, "INSERT INTO notes VALUES ('first')", {}))
        reader = open_reader(path)
        assert reader.execute("SELECT text FROM notes").fetchall() == [("first",)]
        reader.close()
    finally:
        await engine.close()
    assert failures == []
    assert descriptors() == before


def test_a_longer_index_is_left_alone(path: Path) -> None:
    connection = open_writer(path)
    os.truncate(index_of(path), 2 * INDEX_BYTES)
    room = ReservedIndex(path)
    assert index_of(path).stat().st_size == 2 * INDEX_BYTES
    connection.close()
    room.close()


def test_without_an_index_there_is_nothing_to_do(tmp_path: Path) -> None:
    room = ReservedIndex(tmp_path / "notes.db")
    room.close()
    room.close()
    assert list(tmp_path.iterdir()) == []
