"""Watching the files of an open database: what is noticed, what is no alarm, and what a look costs."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.store.sqlite.connection import Connection, open_reader, open_writer
from appliance.store.sqlite.file_care import CHECK_PAUSE, FileWatch
from tests.cpu_time import cpu_seconds

LOOKS = 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture
def writer(path: Path) -> Iterator[Connection]:
    connection = open_writer(path)
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    yield connection
    connection.close()


def rows(path: Path) -> list[int]:
    connection = open_reader(path)
    try:
        return [number for (number,) in connection.execute("SELECT id FROM notes ORDER BY id")]
    finally:
        connection.close()


def test_a_log_that_sqlite_makes_later_is_no_alarm(path: Path) -> None:
    connection = open_writer(path)
    watch = FileWatch(path)
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    assert watch.in_place()
    Path(f"{path}-wal").unlink()
    time.sleep(CHECK_PAUSE)
    assert not watch.in_place()
    connection.close()


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
def test_a_file_that_is_deleted_is_noticed_in_a_moment(path: Path, writer: Connection, end: str) -> None:
    watch = FileWatch(path)
    assert watch.in_place()
    time.sleep(CHECK_PAUSE)  # longer than a tick of the system's clock for files
    Path(f"{path}{end}").unlink()
    time.sleep(CHECK_PAUSE)
    assert not watch.in_place()
    assert str(path) + end in str(watch.stop(writer))


def test_a_deleted_log_is_copied_home(path: Path, writer: Connection) -> None:
    watch = FileWatch(path)
    writer.execute("INSERT INTO notes (id) VALUES (1), (2)")
    Path(f"{path}-wal").unlink()
    assert "what it held was saved" in str(watch.stop(writer))
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())  # as a kill at this moment would leave it
    assert rows(copy) == [1, 2]


def test_a_log_that_another_has_begun_is_not_mixed_with_ours(path: Path, writer: Connection) -> None:
    watch = FileWatch(path)
    writer.execute("INSERT INTO notes (id) VALUES (1), (2)")
    Path(f"{path}-wal").unlink()
    Path(f"{path}-wal").write_bytes(b"the log of another process")
    before = path.read_bytes()
    assert "restore the last backup" in str(watch.stop(writer))
    assert path.read_bytes() == before
    Path(f"{path}-wal").unlink()


def test_other_files_in_the_directory_are_no_alarm(path: Path, writer: Connection, tmp_path: Path) -> None:
    watch = FileWatch(path)
    for number in range(5):
        (tmp_path / f"other{number}").touch()
        writer.execute("INSERT INTO notes (text) VALUES ('x')")
        open_reader(path).close()
        time.sleep(CHECK_PAUSE)
        assert watch.in_place()


def test_a_look_costs_little(path: Path, writer: Connection) -> None:
    assert not writer.in_transaction
    watch = FileWatch(path)

    def look() -> None:
        for _ in range(LOOKS):
            watch.in_place()

    assert cpu_seconds(look) / LOOKS < 10e-6
    assert os.path.exists(path)
