"""In charge of room for the log's index: there from the start, left alone where there is more, never in the way."""

import os
from pathlib import Path

import pytest

from appliance.store.connection import open_reader, open_writer
from appliance.store.disk_faults import StorageFault
from appliance.store.engine import GroupCommit, statement
from appliance.store.wal_index import BYTES, IndexRoom


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def index_of(path: Path) -> Path:
    """The file that the index is in."""
    return path.with_name(f"{path.name}-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that was used."""
    made = tmp_path / "notes.db"
    connection = open_writer(made)
    connection.execute("CREATE TABLE notes (text TEXT)").fetchall()
    connection.close()
    return made


async def test_the_server_has_it_from_the_start(path: Path) -> None:
    """What is written and read is as ever, and nothing stays open."""
    before, failures = descriptors(), list[StorageFault]()
    writer = GroupCommit(path, failures.append)
    try:
        assert index_of(path).stat().st_size == BYTES
        await writer.write(statement("INSERT INTO notes VALUES ('first')", {}))
        reader = open_reader(path)
        assert reader.execute("SELECT text FROM notes").fetchall() == [("first",)]
        reader.close()
    finally:
        await writer.close()
    assert failures == []
    assert descriptors() == before


def test_a_longer_index_is_left_alone(path: Path) -> None:
    """A log that has grown beyond it needs what it has."""
    connection = open_writer(path)
    os.truncate(index_of(path), 2 * BYTES)
    room = IndexRoom(path)
    assert index_of(path).stat().st_size == 2 * BYTES
    connection.close()
    room.close()


def test_without_an_index_there_is_nothing_to_do(tmp_path: Path) -> None:
    """Nor is one made."""
    room = IndexRoom(tmp_path / "notes.db")
    room.close()
    room.close()
    assert list(tmp_path.iterdir()) == []
