"""Upgrades: the old database is kept, a copy takes the steps first, and a failure changes nothing."""

import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from appliance.cli import failures
from appliance.config.load import parse
from appliance.environment import Environment
from appliance.store import FILE_NAME, NewerDatabase, UpgradeRefused, open_store
from appliance.store.sqlite import upgrade
from appliance.store.sqlite.connection import open_reader, open_writer
from appliance.store.sqlite.migrate import Migration, migrate, migrations
from appliance.store.sqlite.upgrade import kept_file
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
    """A database of this version, with an account."""
    async with open_store(tmp_path, Environment(), inline=True) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
    return tmp_path


def knows(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """Let the program be a later version, with these steps too."""
    monkeypatch.setattr(sys.modules[migrate.__module__], "migrations", lambda: [*KNOWN, *steps])


async def opened(data_dir: Path, *, inline: bool = False) -> None:
    """Open the database, as the server does or as a command does."""
    async with open_store(data_dir, Environment(), inline=inline):
        pass


def made_by_these_steps(data_dir: Path) -> None:
    """Make a database by the steps that are known now."""
    connection = open_writer(data_dir / FILE_NAME)
    try:
        migrate(connection, 0)
    finally:
        connection.close()


def said(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What a database says."""
    connection = open_reader(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def names(data_dir: Path) -> set[str]:
    """The files there are, without the logs that a reader may have left."""
    return {each.name.removesuffix("-wal").removesuffix("-shm") for each in data_dir.iterdir()}


def schema(path: Path) -> object:
    """The last step that a database took."""
    return said(path, "SELECT max(number) FROM migrations")[0][0]


async def test_the_old_database_is_kept_and_the_new_one_has_everything(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade both are there, and nothing that it needed on the way."""
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    path, kept = data_dir / FILE_NAME, kept_file(data_dir / FILE_NAME, KNOWN[-1].number)
    assert said(path, "SELECT a FROM more") == [("demo",)]
    assert (schema(path), schema(kept)) == (NEXT, KNOWN[-1].number)
    assert said(kept, "SELECT name FROM accounts") == [("demo",)]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert names(data_dir) == {path.name, kept.name}


async def test_a_database_that_is_up_to_date_is_not_copied(data_dir: Path) -> None:
    """An ordinary start leaves nothing behind."""
    await opened(data_dir)
    assert names(data_dir) == {FILE_NAME}


@pytest.mark.parametrize(
    ("step", "reason"), [(BAD, "could not be upgraded.*more"), (TEARING, "FOREIGN KEY constraint failed")]
)
async def test_a_step_that_fails_on_the_copy_leaves_the_database_as_it_was(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, step: Migration, reason: str
) -> None:
    """An error, or rows that then refer to nothing, end the start with a reason; the earlier version still runs."""
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
    """One whose first step was another than ours is as it was afterwards, and the line names what differs."""
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
    """An index or statistics of his own stay; and white space is no difference."""
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("CREATE INDEX mine ON messages (sender); ANALYZE").fetchall()
    connection.close()
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    assert schema(data_dir / FILE_NAME) == NEXT


async def test_a_damaged_database_is_not_upgraded(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not pass its check before the steps does not get them."""
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    connection.execute("DELETE FROM accounts")  # its user stays behind
    connection.close()
    knows(monkeypatch, GOOD)
    with pytest.raises(UpgradeRefused, match=r"before the upgrade: .*users refers to one of accounts"):
        await opened(data_dir)
    assert schema(data_dir / FILE_NAME) == KNOWN[-1].number


async def test_too_little_space_is_said_before_anything_is_done(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two copies, or a line that says how much is missing."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - 5, 5))
    knows(monkeypatch, GOOD)
    with pytest.raises(UpgradeRefused, match="has 0 MiB free"):
        await opened(data_dir)
    assert names(data_dir) == {FILE_NAME}


async def test_a_command_does_not_upgrade_under_a_running_server(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of the later version leaves the database alone while a server runs on it, and upgrades it after."""
    knows(monkeypatch, GOOD)
    with only_server(data_dir), pytest.raises(UpgradeRefused, match="a server of that version runs"):
        await opened(data_dir, inline=True)
    assert schema(data_dir / FILE_NAME) == KNOWN[-1].number
    await opened(data_dir, inline=True)
    assert schema(data_dir / FILE_NAME) == NEXT


async def test_what_an_interrupted_upgrade_left_is_no_obstacle(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-made copies of an earlier try are replaced."""
    for name in ("unfinished", "rehearsal", f"schema-{KNOWN[-1].number}"):
        (data_dir / f"{FILE_NAME}.{name}").write_bytes(b"half")
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    assert schema(kept_file(data_dir / FILE_NAME, KNOWN[-1].number)) == KNOWN[-1].number


async def test_the_database_of_a_later_version_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back to an earlier program needs the kept file, and the line says what to run instead."""
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    knows(monkeypatch)
    with pytest.raises(NewerDatabase, match=f"schema {NEXT}, this version knows only {NEXT - 1}: run the newer"):
        await opened(data_dir)


def of_before(data_dir: Path) -> None:
    """Make the database one of a version whose files could not become shorter, with some room in it."""
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    for step in ("PRAGMA journal_mode = DELETE", "PRAGMA auto_vacuum = NONE", "VACUUM"):
        connection.execute(step).fetchall()
    connection.execute("CREATE TABLE room (a BLOB); INSERT INTO room VALUES (zeroblob(1000000)); DROP TABLE room")
    assert connection.execute("PRAGMA auto_vacuum").fetchall() == [(0,)]
    connection.close()


async def test_a_database_of_before_is_made_one_that_can_become_shorter(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written anew once, with the upgrade; everything is in it, and where temporary files go is as before."""
    of_before(data_dir)
    await opened(data_dir)
    assert said(data_dir / FILE_NAME, "PRAGMA auto_vacuum") == [(0,)]
    knows(monkeypatch, GOOD)
    await opened(data_dir)
    path = data_dir / FILE_NAME
    assert said(path, "PRAGMA auto_vacuum") == [(2,)]
    assert said(path, "PRAGMA freelist_count") == [(0,)]
    assert said(path, "SELECT a FROM more") == [("demo",)]
    assert said(path, "PRAGMA temp_store_directory") in ([], [("",)])
    assert names(data_dir) == {path.name, kept_file(path, KNOWN[-1].number).name}


async def test_a_database_that_cannot_be_written_anew_is_used_as_it_is(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade itself is done by then: it only keeps its size, and the log says so."""
    of_before(data_dir)
    knows(monkeypatch, GOOD)
    monkeypatch.setattr(upgrade, "SHRINKABLE", "PRAGMA auto_vacuum = ")
    await opened(data_dir)
    assert said(data_dir / FILE_NAME, "PRAGMA auto_vacuum") == [(0,)]
    assert schema(data_dir / FILE_NAME) == NEXT
