"""Transactions: what is shared, what fails alone, what cancellation and a failing disk may do."""

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from appliance.concurrency.fair_share import QUEUED_PER_OWNER, SERVER_WORK
from appliance.errors import Code, Refused, StorageFault, StorageUnavailable
from appliance.store.engine import JOBS_PER_COMMIT, CommitUnknown, Tx, first, rows, run
from appliance.store.sqlite import engine as engine_module
from appliance.store.sqlite.connection import open_writer
from appliance.store.sqlite.engine import GroupCommit, Inline, Scanner, SqliteEngine
from tests.store.samples import Faults, at_once

WAIT = 200  # milliseconds for another process's lock, instead of seconds


class Broken(Exception):
    """What a failing function raises here."""


@dataclass
class Notes:
    path: Path
    engine: SqliteEngine
    failures: list[StorageFault] = field(default_factory=list)

    async def add(self, text: str, *, urgent: bool = False, large: bool = False) -> str:
        return await self.engine.write(adding(text), urgent=urgent, large=large)

    async def add_ahead(self, text: str) -> str:
        return await self.engine.write_ahead(adding(text))

    async def stored(self) -> list[str]:
        query = "SELECT text FROM notes ORDER BY rowid"
        return [str(text) for (text,) in await self.engine.rows(query, {})]

    @contextmanager
    def locked(self) -> Iterator[None]:
        other = apsw.Connection(str(self.path))
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()


def adding(text: str) -> Callable[[Tx], str]:
    def work(tx: Tx) -> str:
        run(tx, "INSERT INTO notes (text) VALUES (:text)", {"text": text})
        return text.upper()

    return work


def fails_at_once(tx: Tx) -> None:
    raise Broken


def fails_half_way(tx: Tx) -> None:
    adding("half")(tx)
    raise Broken


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "data" / "notes.db"
    connection = open_writer(file)
    connection.execute("CREATE TABLE notes (text TEXT NOT NULL UNIQUE) STRICT")
    connection.close()
    return file


@pytest.fixture
async def notes(path: Path) -> AsyncIterator[Notes]:
    failures: list[StorageFault] = []
    opened = Notes(path, SqliteEngine(path, GroupCommit(path, failures.append)), failures)
    yield opened
    await opened.engine.close()


@pytest.fixture
async def notes_on_faulty_disk(faults: Faults, path: Path) -> AsyncIterator[Notes]:
    failures: list[StorageFault] = []
    opened = Notes(path, SqliteEngine(path, GroupCommit(path, failures.append)), failures)
    yield opened
    await opened.engine.close()


async def all_of(*works: Callable[[], object]) -> None:
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)  # type: ignore[arg-type]  # each is an async function without arguments


# ---- what is synced


async def test_a_commit_ahead_of_another_is_synced_with_that_one(notes_on_faulty_disk: Notes, faults: Faults) -> None:
    notes, syncs = notes_on_faulty_disk, list[int]()
    await notes.add("opened")
    for add in (notes.add, notes.add_ahead, notes.add_ahead, notes.add, notes.add):
        before = faults.syncs
        await add(f"note {len(syncs)}")
        syncs.append(faults.syncs - before)
    assert syncs == [1, 0, 0, 1, 1]
    with pytest.raises(StorageUnavailable), faults.raising(on_write=apsw.FullError):
        await notes.add_ahead("refused")
    before = faults.syncs
    await notes.add("after a refusal")
    assert faults.syncs == before + 1


# ---- group commit
async def test_writes_that_wait_share_a_commit(faults: Faults, notes_on_faulty_disk: Notes) -> None:
    notes, results = notes_on_faulty_disk, []

    async def add(text: str) -> None:
        results.append(await notes.add(text))

    texts = [f"note {number}" for number in range(3 * JOBS_PER_COMMIT)]
    await at_once(add, ((text,) for text in texts))
    assert sorted(results) == sorted(text.upper() for text in texts)
    assert sorted(await notes.stored()) == sorted(texts)
    assert faults.syncs <= 8


async def test_a_lone_write_is_synced(faults: Faults, notes_on_faulty_disk: Notes) -> None:
    for number in range(3):
        before = faults.syncs
        await notes_on_faulty_disk.add(f"note {number}")
        assert faults.syncs > before


@pytest.mark.parametrize("failing", [fails_at_once, fails_half_way])
async def test_one_that_fails_rolls_back_alone(
    faults: Faults, notes_on_faulty_disk: Notes, failing: Callable[[Tx], None]
) -> None:
    notes, results = notes_on_faulty_disk, []
    syncs = faults.syncs

    async def add(text: str) -> None:
        results.append(await notes.add(text))

    async def fail() -> None:
        with pytest.raises(Broken):
            await notes.engine.write(failing)
        results.append("failed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, "before")
        nursery.start_soon(fail)
        nursery.start_soon(add, "after")
    assert sorted(results) == ["AFTER", "BEFORE", "failed"]
    assert sorted(await notes.stored()) == ["after", "before"]
    assert faults.syncs - syncs <= 2  # so they did meet in one commit


async def test_a_broken_rule_of_the_schema_fails_alone(notes: Notes) -> None:
    await notes.add("there")

    async def again() -> None:
        with pytest.raises(apsw.ConstraintError):
            await notes.add("there")

    async def other() -> None:
        await notes.add("other")

    await all_of(again, other)
    assert await notes.stored() == ["there", "other"]


async def test_urgent_writes_go_first(notes: Notes) -> None:
    order: list[str] = []

    async def add(text: str, urgent: bool) -> None:
        await notes.add(text, urgent=urgent)
        order.append(text)

    async with trio.open_nursery() as nursery:
        with notes.locked():
            nursery.start_soon(add, "in the writer's hands", False)
            await trio.sleep(0.05)
            for text, urgent in (("ordinary 1", False), ("ordinary 2", False), ("urgent", True)):
                nursery.start_soon(add, text, urgent)
                await trio.sleep(0.01)
    assert await notes.stored() == ["in the writer's hands", "urgent", "ordinary 1", "ordinary 2"]


async def test_large_writes_are_done_beside_the_event_loop(notes: Notes) -> None:
    turned = threading.Event()

    def slow(tx: Tx) -> None:
        assert turned.wait(20)
        adding("slow")(tx)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: notes.engine.write(slow, large=True))
        for _ in range(11):
            await trio.sleep(0.01)
        assert await notes.stored() == []
        turned.set()
    assert await notes.stored() == ["slow"]


async def test_bulk_work_takes_turns_with_others(notes: Notes) -> None:
    async def add(text: str, bulk: bool) -> None:
        await notes.engine.write(adding(text), bulk=bulk)

    async with trio.open_nursery() as nursery:
        with notes.locked():
            nursery.start_soon(add, "in the writer's hands", False)
            await trio.sleep(0.05)
            for number in range(2):
                for text, bulk in (("bulk", True), ("small", False)):
                    nursery.start_soon(add, f"{text} {number}", bulk)
                    await trio.sleep(0.01)
    assert await notes.stored() == ["in the writer's hands", "bulk 0", "small 0", "small 1", "bulk 1"]


async def test_reads_never_wait_for_the_writer(notes: Notes) -> None:
    await notes.add("there")
    with notes.locked():
        assert await notes.stored() == ["there"]


async def test_a_snapshot_sees_one_state(notes: Notes) -> None:
    def look(tx: Tx) -> list[object]:
        counts: list[object] = []
        for text in ("during", "never mind"):
            counts.append(first(tx, "SELECT count(*) FROM notes", {}))
            other = apsw.Connection(str(notes.path))
            other.execute("INSERT INTO notes (text) VALUES (?)", (text,))
            other.close()
        return counts

    assert await notes.engine.snapshot(look) == [(0,), (0,)]
    assert len(await notes.stored()) == 2
    with pytest.raises(Broken):
        await notes.engine.snapshot(fails_at_once)
    assert len(await notes.stored()) == 2


# ---- cancellation and closing
async def test_cancelled_before_it_is_handed_over_nothing_is_written(notes: Notes) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await notes.add("never")
    assert scope.cancelled_caught
    assert await notes.stored() == []


async def test_cancelled_after_it_was_handed_over_it_is_committed(notes: Notes) -> None:
    results = []
    async with trio.open_nursery() as nursery:
        with notes.locked():

            async def write() -> None:
                results.append(await notes.add("kept"))
                await trio.lowlevel.checkpoint()
                results.append("went on")

            nursery.start_soon(write)
            await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    assert results == ["KEPT"]
    assert await notes.stored() == ["kept"]


async def test_closing_finishes_what_waits(path: Path) -> None:
    failures: list[StorageFault] = []
    notes = Notes(path, SqliteEngine(path, GroupCommit(path, failures.append)), failures)
    results = []

    async def add(text: str) -> None:
        results.append(await notes.add(text))

    async with trio.open_nursery() as nursery:
        for number in range(2 * JOBS_PER_COMMIT):
            nursery.start_soon(add, f"note {number}")
        await trio.testing.wait_all_tasks_blocked()
        await notes.engine.close()
    assert len(results) == 2 * JOBS_PER_COMMIT
    with pytest.raises(StorageUnavailable):
        await notes.add("too late")
    connection = open_writer(path)
    assert connection.execute("SELECT count(*) FROM notes").fetchall() == [(2 * JOBS_PER_COMMIT,)]
    connection.close()


# ---- a disk that fails, a lock that stays
def check_refusal(refused: StorageUnavailable) -> None:
    assert refused.code is Code.TEMPORARY_FAILURE
    assert refused.retry_after is not None


@pytest.mark.parametrize("fault", ["on_sync", "on_write"])
async def test_an_unknown_commit_stops_everything(faults: Faults, notes_on_faulty_disk: Notes, fault: str) -> None:
    notes = notes_on_faulty_disk
    await notes.add("before")
    refusals = []

    async def add(text: str) -> None:
        with pytest.raises(StorageUnavailable) as refused:
            await notes.add(text)
        refusals.append(refused.value)

    with faults.raising(**{fault: apsw.IOError}):
        await at_once(add, ((f"note {number}",) for number in range(JOBS_PER_COMMIT + 10)))
    await add("after")
    assert len(refusals) == JOBS_PER_COMMIT + 11
    for refusal in refusals:
        check_refusal(refusal)
    assert len(notes.failures) == 1
    assert await notes.stored() == ["before"]


@pytest.mark.parametrize("large", [False, True])
async def test_a_full_disk_refuses_and_recovers(faults: Faults, notes_on_faulty_disk: Notes, large: bool) -> None:
    notes = notes_on_faulty_disk
    with faults.raising(on_write=apsw.FullError):
        for text in ("first", "second"):
            with pytest.raises(StorageUnavailable) as refused:
                await notes.add(text, large=large)
            check_refusal(refused.value)
            assert isinstance(refused.value.__cause__, apsw.FullError)
    assert await notes.add("third", large=large) == "THIRD"
    assert await notes.stored() == ["third"]
    assert notes.failures == []


async def test_a_disk_that_fills_up_refuses_and_recovers(faults: Faults, notes_on_faulty_disk: Notes) -> None:
    """The same where SQLite has to write before the commit, because so much has changed."""
    notes = notes_on_faulty_disk

    def write_much(tx: Tx) -> None:
        run(tx, "PRAGMA cache_size = 10", {})
        for number in range(40):
            adding(f"{number}" + "x" * 20_000)(tx)

    outcomes = []

    async def write() -> None:
        with pytest.raises(StorageUnavailable) as refused:
            await notes.engine.write(write_much)
        outcomes.append(refused.value)

    async def add() -> None:
        with pytest.raises(StorageUnavailable) as refused:
            await notes.add("neighbour")
        outcomes.append(refused.value)

    with faults.raising(on_write=apsw.FullError):
        await all_of(write, add)
    for refusal in outcomes:
        check_refusal(refusal)
    await notes.add("later")
    assert await notes.stored() == ["later"]
    assert notes.failures == []


async def test_a_read_error_is_a_refusal(faults: Faults, notes_on_faulty_disk: Notes) -> None:
    notes = notes_on_faulty_disk
    await notes.add("before")
    other = apsw.Connection(str(notes.path))
    other.execute("INSERT INTO notes (text) VALUES ('from outside')")
    other.close()
    with faults.raising(on_read=apsw.IOError), pytest.raises(StorageUnavailable) as refused:
        await notes.add("never")
    check_refusal(refused.value)
    await notes.add("after")
    assert await notes.stored() == ["before", "from outside", "after"]
    assert notes.failures == []


async def test_a_lock_that_stays_is_a_refusal(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT", WAIT)
    ticks, refusals = 0, []

    async def add(text: str) -> None:
        with pytest.raises(StorageUnavailable) as refused:
            await notes.add(text)
        refusals.append(refused.value)

    with notes.locked():
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, "one")
            nursery.start_soon(add, "two")
            while len(refusals) < 2 and trio.current_time() - began < 5:
                await trio.sleep(0.01)
                ticks += 1
        assert trio.current_time() - began >= WAIT / 1000
    for refusal in refusals:
        check_refusal(refusal)
        assert isinstance(refusal.__cause__, apsw.BusyError)
    assert ticks >= 10
    assert await notes.add("three") == "THREE"
    assert notes.failures == []


async def test_a_short_lock_is_waited_out(notes: Notes) -> None:
    async with trio.open_nursery() as nursery:
        with notes.locked():
            nursery.start_soon(notes.add, "patient")
            await trio.sleep(0.1)
            assert await notes.stored() == []
    assert await notes.stored() == ["patient"]


# ---- one commit each
async def test_inline_commits_each_function_by_itself(path: Path) -> None:
    notes = Notes(path, SqliteEngine(path, Inline(path)))
    assert await notes.add("one") == "ONE"
    for failing in (fails_at_once, fails_half_way):
        with pytest.raises(Broken):
            await notes.engine.write(failing)
    assert await notes.stored() == ["one"]
    await notes.engine.close()


async def test_inline_raises_when_a_commit_is_unknown(faults: Faults, path: Path) -> None:
    notes = Notes(path, SqliteEngine(path, Inline(path)))
    with faults.raising(on_sync=apsw.IOError), pytest.raises(CommitUnknown):
        await notes.add("who knows")
    await notes.engine.close()


# ---- readings on the thread: accounts take turns, an account's queue is bounded, the server's own is not
@pytest.fixture
def scanner(tmp_path: Path) -> Scanner:
    apsw.Connection(str(tmp_path / "db")).close()
    return Scanner(tmp_path / "db", inline=True)


def noted(order: list[str], name: str) -> Callable[[object], None]:
    return lambda _: order.append(name)


async def test_an_account_with_many_readings_waits_for_its_turn(tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "db")).close()
    scanner, order, released = Scanner(tmp_path / "db", inline=False), list[str](), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scanner.read, lambda _: released.wait(10), "many")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            nursery.start_soon(scanner.read, noted(order, "many"), "many")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(scanner.read, noted(order, "few"), "few")
        await trio.testing.wait_all_tasks_blocked()
        released.set()
    scanner.close()
    assert (order.index("few"), len(order)) == (0, 21)


async def test_the_first_read_of_a_server_opens_no_file(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "db")
    writer.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    scanner = Scanner(tmp_path / "db", inline=False)
    opened = os.listdir("/proc/self/fd")
    assert await scanner.read(lambda tx: rows(tx, "SELECT a FROM t", {})) == [(1,)]
    assert os.listdir("/proc/self/fd") == opened
    scanner.close()
    writer.close()


async def test_only_an_account_is_refused(scanner: Scanner) -> None:
    refused: list[Refused] = []
    order: list[str] = []

    async def read(owner: str) -> None:
        try:
            await scanner.read(noted(order, owner), owner)
        except Refused as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for owner in ("acc_1", SERVER_WORK):
            for _ in range(QUEUED_PER_OWNER + 10):
                nursery.start_soon(read, owner)
    assert order.count(SERVER_WORK) == QUEUED_PER_OWNER + 10
    assert {each.code for each in refused} == {Code.TEMPORARY_FAILURE}
