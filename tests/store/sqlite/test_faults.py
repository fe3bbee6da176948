"""Faults SQLite reports in its log: failed syncs and damaged pages, and nothing that is no fault."""

import os
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from appliance.errors import Code, StorageFault, StorageUnavailable
from appliance.store.engine import run
from appliance.store.sqlite.connection import open_reader, open_writer
from appliance.store.sqlite.engine import GroupCommit, SqliteEngine
from appliance.store.sqlite.faults import PagesDamaged, Unsynced, heard_by

UNSYNCED = "os_unix.c:44012: (5) full_fsync(/data/appliance.db-wal) - "


def test_a_failed_sync_is_told_in_plain_words() -> None:
    heard: list[StorageFault] = []
    with heard_by(heard.append), heard_by(heard.append):
        apsw.log(apsw.SQLITE_IOERR_FSYNC, UNSYNCED)
    apsw.log(apsw.SQLITE_IOERR_FSYNC, UNSYNCED)
    assert [type(fault) for fault in heard] == [Unsynced, Unsynced]
    assert str(heard[0]) == "the database could not be synced: full_fsync(/data/appliance.db-wal) failed"


@pytest.mark.parametrize("code", [apsw.SQLITE_CONSTRAINT, apsw.SQLITE_FULL, apsw.SQLITE_BUSY, apsw.SQLITE_IOERR_WRITE])
def test_other_words_are_no_fault(code: int) -> None:
    heard: list[StorageFault] = []
    with heard_by(heard.append):
        apsw.log(code, "something")
    assert heard == []


def test_damaged_pages_are_heard_of(tmp_path: Path) -> None:
    path, heard = tmp_path / "notes.db", list[StorageFault]()
    writer = open_writer(path)
    writer.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)").fetchall()
    writer.execute("INSERT INTO notes VALUES (1, ?)", ("x" * 100_000,)).fetchall()
    writer.close()
    with path.open("r+b") as file:
        file.seek(2 * 4096)  # the table; the page before says where others belong
        file.write(os.urandom(4096))
    reader = open_reader(path)
    try:
        with heard_by(heard.append), pytest.raises(apsw.CorruptError):
            reader.execute("SELECT text FROM notes").fetchall()
    finally:
        reader.close()
    assert {type(fault) for fault in heard} == {PagesDamaged}


async def test_a_fault_that_is_heard_ends_all_writing(tmp_path: Path) -> None:
    failures: list[StorageFault] = []
    path = tmp_path / "notes.db"
    engine = SqliteEngine(path, GroupCommit(path, failures.append))
    try:
        await engine.write(lambda c: run(c, "CREATE TABLE notes (id INTEGER PRIMARY KEY)", {}))
        for _ in range(2):
            await trio.to_thread.run_sync(apsw.log, apsw.SQLITE_IOERR_FSYNC, UNSYNCED)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(fault) for fault in failures] == [Unsynced]
        with pytest.raises(StorageUnavailable) as refused:
            await engine.write(lambda c: run(c, "INSERT INTO notes VALUES (1)", {}))
        assert refused.value.code is Code.TEMPORARY_FAILURE
    finally:
        await engine.close()
    apsw.log(apsw.SQLITE_IOERR_FSYNC, UNSYNCED)  # no listener any more
    assert len(failures) == 1
