"""Migrations lead to schema.sql, step by step, each with its record, and never backwards."""

import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import resources
from pathlib import Path

import apsw
import pytest

from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store import FILE_NAME, NewerDatabase, open_store
from appliance.store.sqlite.connection import Connection, open_reader, open_writer
from appliance.store.sqlite.migrate import Migration, migrate, migrations

LANDED = Path(__file__).with_name("landed_migrations.txt")
NOW = 1_700_000_000_000_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = open_writer(tmp_path / "data" / FILE_NAME)
    yield opened
    opened.close()


def schema(connection: Connection) -> set[tuple[str, str, str]]:
    query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return {(str(kind), str(name), normalised(str(sql))) for kind, name, sql in connection.execute(query)}


def normalised(sql: str) -> str:
    bare = " ".join(line.partition("--")[0] for line in sql.splitlines())
    return " ".join(bare.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split())


def applied(connection: Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT number, name, applied_at FROM migrations ORDER BY number").fetchall()


def test_all_steps_together_are_the_schema(connection: Connection) -> None:
    migrate(connection, NOW)
    written = Connection(":memory:")
    written.execute((resources.files("appliance.store.sqlite") / "schema.sql").read_text())
    assert schema(connection) == schema(written)
    assert len(schema(connection)) > 10


def test_steps_are_numbered_without_gaps() -> None:
    numbers = [step.number for step in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_step_that_has_landed_is_never_changed() -> None:
    """Databases have taken it as it was: what is wrong with it is mended by a new step.

    A new step gets its line, in `migrations/`:
    sha256sum NNNN_name.sql >> ../../../../tests/store/sqlite/landed_migrations.txt
    """
    landed = dict(line.split()[::-1] for line in LANDED.read_text().splitlines())
    files = sorted((resources.files("appliance.store.sqlite") / "migrations").iterdir(), key=lambda file: file.name)
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in files if file.name.endswith(".sql")}
    assert found == landed


def test_each_step_is_recorded_once(connection: Connection) -> None:
    migrate(connection, NOW)
    first = applied(connection)
    migrate(connection, NOW + 1)
    assert applied(connection) == first
    assert [row[0] for row in first] == [step.number for step in migrations()]
    assert {row[2] for row in first} == {NOW}


def test_a_step_and_its_record_commit_together(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrations()
    half = Migration(len(known) + 1, "half", "CREATE TABLE half (a INTEGER) STRICT; CREATE TABLE half (b INTEGER)")
    migrate(connection, NOW)
    before = schema(connection)
    monkeypatch.setattr(sys.modules[migrate.__module__], "migrations", lambda: [*known, half])
    with pytest.raises(apsw.SQLError):
        migrate(connection, NOW)
    assert not connection.in_transaction
    assert schema(connection) == before
    assert len(applied(connection)) == len(known)
    mended = Migration(half.number, "half", "CREATE TABLE half (a INTEGER) STRICT")
    monkeypatch.setattr(sys.modules[migrate.__module__], "migrations", lambda: [*known, mended])
    migrate(connection, NOW)
    assert len(applied(connection)) == len(known) + 1


def test_a_newer_database_is_refused(connection: Connection) -> None:
    migrate(connection, NOW)
    newest = len(migrations())
    connection.execute("INSERT INTO migrations VALUES (9999, 'from the future', 0)")
    before = schema(connection)
    with pytest.raises(NewerDatabase, match=f"9999.*{newest}"):
        migrate(connection, NOW)
    assert not connection.in_transaction
    assert schema(connection) == before


def test_several_that_open_at_once_migrate_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / FILE_NAME

    def open_and_migrate(number: int) -> int:
        connection = open_writer(path)
        try:
            migrate(connection, number)
            return len(applied(connection))
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(open_and_migrate, range(1, 25)))
    assert set(counts) == {len(migrations())}


# ---- who may read it
def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("new_databases")
async def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    before = os.umask(0)
    try:
        load_or_create(data_dir)
        async with open_store(data_dir, Environment()) as store:
            await store.accounts.create("demo", "demo@example.org", "hash")
            files = {path.name: mode(path) for path in data_dir.iterdir()}
    finally:
        os.umask(before)
    assert mode(data_dir) == 0o700
    assert files == {KEY_FILE: 0o400, FILE_NAME: 0o600, f"{FILE_NAME}-wal": 0o600, f"{FILE_NAME}-shm": 0o600}


def test_a_writer_is_durable_and_careful(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / FILE_NAME)
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "foreign_keys": 1,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "busy_timeout": 5_000,
        "journal_size_limit": 64 * 1024 * 1024,
    }
    assert {name: connection.pragma(name) for name in wanted} == wanted
    connection.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    open_writer(tmp_path / FILE_NAME).close()
    reader = open_reader(tmp_path / FILE_NAME)
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("CREATE TABLE t (a)")
    reader.close()
