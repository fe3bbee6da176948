"""Upgrades: the old database is kept, a copy takes the steps first, and a failure changes nothing."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from appliance.cli import failures
from appliance.config.load import parse
from appliance.environment import Environment
from appliance.store import FILE_NAME, NewerDatabase, UpgradeRefused, open_store
from appliance.store.sqlite.connection import open_reader, open_writer
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.integrity import QuickCheck, quick_check, refuse_damaged
from appliance.store.sqlite.migrate import Migration, migrate, migrations, newest_known
from appliance.store.sqlite.upgrade import bring_up_to_date, kept_file
from appliance.system.data_directory import only_server

KNOWN = migrations()
NEXT = KNOWN[-1].number + 1
GOOD = Migration(NEXT, "more", "CREATE TABLE more (a TEXT) STRICT; INSERT INTO more SELECT name FROM accounts")
BAD = Migration(NEXT, "bad", "CREATE TABLE more (a TEXT) STRICT; CREATE TABLE more (a TEXT) STRICT")
TEARING = Migration(
    NEXT, "tearing", "CREATE TABLE child (a TEXT REFERENCES accounts (id)) STRICT; INSERT INTO child VALUES ('gone')"
)


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    async with open_store(tmp_path, Environment(), inline=True) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
    return tmp_path


def knows(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    monkeypatch.setattr(sys.modules[migrate.__module__], "migrations", lambda: [*KNOWN, *steps])


async def opened(data_dir: Path, *, inline: bool = False) -> None:
    async with open_store(data_dir, Environment(), inline=inline):
        pass


def made_by_these_steps(data_dir: Path) -> None:
    connection = open_writer(data_dir / FILE_NAME)
    try:
        migrate(connection, 0)
    finally:
        connection.close()


def said(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = open_reader(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def names(data_dir: Path) -> set[str]:
    return {each.name.removesuffix("-wal").removesuffix("-shm") for each in data_dir.iterdir()}


def schema(path: Path) -> object:
    return said(path, "SELECT max(number) FROM migrations")[0][0]


async def test_the_old_database_is_kept_beside_the_new_one(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    path, kept = data_dir / FILE_NAME, kept_file(data_dir / FILE_NAME, KNOWN[-1].number)
    assert said(path, "SELECT a FROM more") == [("demo",)]
    assert (schema(path), schema(kept)) == (NEXT, KNOWN[-1].number)
    assert said(kept, "SELECT name FROM accounts") == [("demo",)]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert names(data_dir) == {path.name, kept.name}


async def test_a_database_that_is_up_to_date_is_not_copied(data_dir: Path) -> None:
    await opened(data_dir)
    assert names(data_dir) == {FILE_NAME}


@pytest.mark.parametrize(
    ("step", "reason"), [(BAD, "could not be upgraded.*more"), (TEARING, "FOREIGN KEY constraint failed")]
)
async def test_a_step_that_fails_on_the_copy_leaves_the_database_as_it_was(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, step: Migration, reason: str
) -> None:
    knows(monkeypatch, step)
    with pytest.raises(UpgradeRefused, match=reason) as refused:
        await opened(data_dir)
    config = parse(f'[server]\ndata_dir = "{data_dir}"', data_dir / "config.toml")
    assert (failures.explain(refused.value, config) or "").startswith(f"{data_dir / FILE_NAME}: ")
    assert schema(data_dir / FILE_NAME) == KNOWN[-1].number
    knows(monkeypatch)
    await opened(data_dir)


async def test_a_database_of_another_schema_is_refused_before_it_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = KNOWN[0]
    changed = first.sql.replace("charged INTEGER NOT NULL,", "", 1)
    assert changed != first.sql
    monkeypatch.setattr(sys.modules[migrate.__module__], "migrations", lambda: [replace(first, sql=changed)])
    made_by_these_steps(tmp_path)
    before = said(tmp_path / FILE_NAME, "SELECT name, sql FROM sqlite_master")
    monkeypatch.undo()
    with pytest.raises(UpgradeRefused, match=r"\(recipients\): .* changed later\. It is as it was\."):
        await opened(tmp_path)
    assert said(tmp_path / FILE_NAME, "SELECT name, sql FROM sqlite_master") == before
    assert schema(tmp_path / FILE_NAME) == 1


async def test_what_an_operator_added_does_not_stop_an_upgrade(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("CREATE INDEX mine ON messages (sender); ANALYZE").fetchall()
    connection.close()
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    assert schema(data_dir / FILE_NAME) == NEXT


async def test_a_damaged_database_is_not_upgraded(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    connection.execute("DELETE FROM accounts")  # its user stays behind
    connection.close()
    knows(monkeypatch, GOOD)
    with pytest.raises(UpgradeRefused, match=r"before the upgrade: .*users refers to one of accounts"):
        await opened(data_dir)
    assert schema(data_dir / FILE_NAME) == KNOWN[-1].number


async def test_too_little_space_is_reported_first(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - 5, 5))
    knows(monkeypatch, GOOD)
    with pytest.raises(UpgradeRefused, match="has 0 MiB free"):
        await opened(data_dir)
    assert names(data_dir) == {FILE_NAME}


async def test_no_command_upgrades_under_a_running_server(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knows(monkeypatch, GOOD)
    with only_server(data_dir), pytest.raises(UpgradeRefused, match="a server of that version runs"):
        await opened(data_dir, inline=True)
    assert schema(data_dir / FILE_NAME) == KNOWN[-1].number
    await opened(data_dir, inline=True)
    assert schema(data_dir / FILE_NAME) == NEXT


async def test_what_an_interrupted_upgrade_left_is_no_obstacle(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("unfinished", "rehearsal", f"schema-{KNOWN[-1].number}"):
        (data_dir / f"{FILE_NAME}.{name}").write_bytes(b"half")
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    assert schema(kept_file(data_dir / FILE_NAME, KNOWN[-1].number)) == KNOWN[-1].number


async def test_the_database_of_a_later_version_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    knows(monkeypatch)
    with pytest.raises(NewerDatabase, match=f"schema {NEXT}, this version knows only {NEXT - 1}: run the newer"):
        await opened(data_dir)


# ---- checks of a database that may be in use: what they find, and that they end in time
async def test_a_sound_database_in_use(tmp_path: Path) -> None:
    async with open_store(tmp_path, Environment()) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
        assert quick_check(tmp_path / FILE_NAME, 10) == QuickCheck(newest_known(), "", finished=True)


async def test_a_look_ends_in_time(tmp_path: Path) -> None:
    async with open_store(tmp_path, Environment(), inline=True):
        assert quick_check(tmp_path / FILE_NAME, -1, steps=1) == QuickCheck(newest_known(), "", finished=False)


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"nothing of the kind" * 100)
    assert quick_check(tmp_path / FILE_NAME, 10).damage.startswith("cannot be read: ")
    assert quick_check(tmp_path / "gone", 10).damage.startswith("cannot be read: ")


async def damaged(tmp_path: Path) -> Path:
    async with open_store(tmp_path, Environment(), inline=True) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
    path = tmp_path / FILE_NAME
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    return path


async def test_a_start_refuses_what_is_damaged(tmp_path: Path) -> None:
    """A server does; the shell's commands do not look, for they are to be quick."""
    path = await damaged(tmp_path)
    with pytest.raises((Damaged, apsw.CorruptError)):
        bring_up_to_date(path, 0, is_server=True)
    bring_up_to_date(path, 0, is_server=False)


async def test_a_look_at_the_start_ends_in_time(tmp_path: Path) -> None:
    path = await damaged(tmp_path)
    connection = open_writer(path)
    try:
        with pytest.raises(Damaged, match="the database is damaged: "):
            refuse_damaged(connection, 10)
        refuse_damaged(connection, -1, steps=1)
        count = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT count(*) FROM n"
        assert connection.execute(count).fetchall() == [(1000,)]
    finally:
        connection.close()
