"""Copies of a database: one moment of it while it is being written to, and no writer waits."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest
import trio

from appliance.store.engine import Tx, rows, run
from appliance.store.sqlite import file_care
from appliance.store.sqlite.connection import CHECKPOINT_PAGES, Connection, open_inside, open_reader, open_writer
from appliance.store.sqlite.engine import GroupCommit, SqliteEngine
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.file_care import (
    COPIED_AFTER_PAGES,
    COPY_STEP,
    Checkpoints,
    checkpoint_file,
    copy_beside,
    copy_inside,
)
from appliance.store.sqlite.integrity import examine_inside

ROW = 2_000  # bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.db"
    connection = open_writer(file)
    connection.execute("CREATE TABLE one (a INTEGER PRIMARY KEY, b BLOB); CREATE TABLE two (a INTEGER PRIMARY KEY)")
    connection.execute("BEGIN")
    for number in range(4 * COPY_STEP):
        add(connection, number)
    connection.execute("COMMIT")
    connection.close()
    return file


def add(connection: Connection, number: int) -> None:
    connection.execute("INSERT INTO one VALUES (?, ?)", (number, bytes(ROW)))
    connection.execute("INSERT INTO two VALUES (?)", (number,))


def pairs(connection: Connection) -> tuple[int, int]:
    ((one, two),) = rows(connection, "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)", {})
    return one, two


def test_a_copy_is_one_moment_while_others_write(path: Path, tmp_path: Path) -> None:
    writer = open_writer(path)
    begun = pairs(writer)[0]
    slowest, told = 0.0, []

    def write(done: int, pages: int) -> None:
        nonlocal slowest
        told.append(done / pages)
        before = time.monotonic()
        writer.execute("BEGIN IMMEDIATE")
        add(writer, begun + len(told))
        writer.execute("COMMIT")
        slowest = max(slowest, time.monotonic() - before)

    target = tmp_path / "copy"
    target.write_bytes(b"x" * 100)
    copy_inside(path, target, 100, write)
    assert pairs(writer) == (begun + len(told),) * 2
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == 1
    assert slowest < 1
    assert target.read_bytes()[:100] == b"x" * 100
    with open_inside(target, 100, target.stat().st_size - 100) as copy:
        assert pairs(copy) == (begun, begun)
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    writer.close()


def test_a_copy_beside_another_thread_that_writes(path: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        connection = open_writer(path)
        connection.execute("PRAGMA synchronous = OFF").fetchall()
        number = pairs(connection)[0]
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            add(connection, number)
            connection.execute("COMMIT")
            number += 1
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        copy_beside(path, tmp_path / "copy.db")
    finally:
        stop.set()
        thread.join()
    copy = open_reader(tmp_path / "copy.db")
    one, two = pairs(copy)
    assert one == two
    assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    copy.close()
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


def test_a_copy_never_replaces_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_beside(path, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_what_has_piled_up_in_the_log_is_brought_home(path: Path) -> None:
    writer = open_writer(path)
    writer.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    for number in range(10_000, 10_100):
        add(writer, number)
    checkpoint_file(path)
    ((busy, in_log, brought_home),) = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    assert (busy, in_log) == (0, brought_home)
    writer.close()


def test_something_else_is_no_database_of_ours(path: Path) -> None:
    with pytest.raises(Damaged, match="no database of the appliance"):
        examine_inside(path, 0, path.stat().st_size)
    with pytest.raises(Damaged, match="not a database"):
        examine_inside(path, 10, path.stat().st_size - 10)


PAGE = 4_096
WITHIN = 10.0  # seconds


@pytest.fixture
def blobs() -> Iterator[Path]:
    with TemporaryDirectory(dir="/var/tmp") as directory:
        file = Path(directory, "data", "blobs.db")
        connection = open_writer(file)
        connection.execute("CREATE TABLE blobs (content BLOB NOT NULL) STRICT")
        connection.close()
        yield file


@pytest.fixture
async def file_engine(blobs: Path) -> AsyncIterator[SqliteEngine]:
    opened = SqliteEngine(blobs, GroupCommit(blobs, lambda fault: pytest.fail(str(fault))))
    yield opened
    await opened.close()


def size(file: Path) -> int:
    return file.stat().st_size


async def fill(file_engine: SqliteEngine, pages: int) -> None:
    for _ in range(pages // 100):
        await file_engine.write(_add, bulk=True)


def _add(tx: Tx) -> None:
    run(tx, "INSERT INTO blobs (content) VALUES (zeroblob(:size))", {"size": 100 * PAGE - 100})


async def test_a_short_log_is_left_alone(file_engine: SqliteEngine, blobs: Path) -> None:
    before = size(blobs)
    await fill(file_engine, COPIED_AFTER_PAGES // 2)
    await trio.sleep(0.2)
    assert size(blobs) == before


async def test_a_long_one_is_copied_before_the_writer_has_to(file_engine: SqliteEngine, blobs: Path) -> None:
    """Though it is not as long as would make the writer copy it, its pages come into the database."""
    await fill(file_engine, COPIED_AFTER_PAGES + 200)
    with trio.fail_after(WITHIN):
        while size(blobs) < COPIED_AFTER_PAGES * PAGE:  # noqa: ASYNC110 - a file does not report that it grows
            await trio.sleep(0.01)


async def test_the_log_begins_anew(file_engine: SqliteEngine, blobs: Path) -> None:
    """Once every page is copied. The log grows during a copy, which a busy disk delays: here no write meets one."""
    assert isinstance(file_engine._writer, GroupCommit)
    copies = file_engine._writer._checkpoints
    for _ in range(3 * CHECKPOINT_PAGES // 100):
        await file_engine.write(_add, bulk=True)
        while copies._copying:  # noqa: ASYNC110 - a thread sets it
            await trio.sleep(0.001)
    log = blobs.with_name(f"{blobs.name}-wal")
    assert size(log) < 1.5 * CHECKPOINT_PAGES * PAGE
    assert size(blobs) > 1.5 * CHECKPOINT_PAGES * PAGE


def test_a_log_that_cannot_be_copied_is_told_when_it_begins_and_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    copies, connection, faults = (
        Checkpoints(path),
        open_writer(path),
        [apsw.FullError(), apsw.IOError(), apsw.IOError()],
    )

    def fails(_: Connection) -> None:
        if faults:
            raise faults.pop(0)

    monkeypatch.setattr(file_care, "checkpoint", fails)
    for _ in range(5):
        copies._copy(connection)
    connection.close()
    assert caplog.messages == [
        "the database's log cannot be copied into the database, and grows",
        "the database's log is copied into the database again",
    ]
