"""A copy holds every row of a database, whichever the engines, and however often it is killed; or it says why not."""

import hashlib
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
import trio
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.model.database import UNFINISHED_COPY
from appliance.store import FILE_NAME, UnfinishedCopy, open_store
from appliance.store.copying import BATCH_BYTES, Copied, CopyEndpoint, CopyProgress, NotCopied, copy
from appliance.store.postgresql import copy_endpoint as server_endpoint
from appliance.store.postgresql.connection import DATABASE_CLIENT
from appliance.store.sqlite import copy_endpoint as file_endpoint
from appliance.store.sqlite.connection import open_writer
from appliance.store.sqlite.copy_endpoint import NOT_COPIED, tables
from appliance.store.sqlite.migrate import migrate
from tests.postgresql_server import PostgresServer, postgresql
from tests.programs import needs
from tests.store.samples import HASH, Messages

ROWS = 20  # of each table
# Values that the schema demands; all others are made of the column's name.
WORDS = {
    "role": "admin",
    "account_role": "owner",
    "status": "failed",
    "billing_status": "settled",
    "algorithm": "rsa",
    "cause": "event",
    "outcome": "success",
    "route": "direct",
}
WORDS_OF = {
    ("api_keys", "scope"): "full",
    ("messages", "source"): "api",
    ("credit_ledger", "kind"): "grant",
    ("hourly_counts", "kind"): "sent",
    ("suppressions", "origin"): "manual",
}
NAMES = {("accounts", "id"): "account_id", ("users", "id"): "user_id", ("dkim_keys", "domain"): "name"}
Dump = dict[str, list[tuple[Any, ...]]]

pytestmark = needs("postgresql")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return filled(tmp_path / "old" / FILE_NAME)


# ---- what is copied
def value(table: str, column: str, kind: str, number: int) -> object:
    if kind == "i":
        return number * 10**17 if column.endswith("_at") else number
    if kind == "b":
        return bytes(range(256)) * number
    fixed = WORDS_OF.get((table, column)) or WORDS.get(column)
    return fixed or f"{NAMES.get((table, column), column)} {number:03} é€😀'\"\\%"


def filled(path: Path, rows: int = ROWS, now: int = 1) -> Path:
    """A database with rows in every table, each second one with NULL wherever that may be."""
    with closing(open_writer(path)) as connection:
        migrate(connection, now)
        connection.execute("BEGIN")
        for table in tables():
            optional = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})") if not row[3]}
            marks = ", ".join("?" * len(table.columns))
            for number in range(rows):
                made = [
                    None
                    if column in optional and column not in table.key and number % 2
                    else value(table.name, column, kind, number)
                    for column, kind in zip(table.columns, table.kinds, strict=True)
                ]
                connection.execute(f"INSERT INTO {table.name} VALUES ({marks})", made)
        connection.execute("COMMIT")
    return path


# Which only a shared database has. Certificates by ACME are files of a server that is alone: they are asked for anew.
OF_NODES = {"nodes", "node_holds", "chores", "cancellations", "login_failures", "acme_records", "acme_challenges"}


def of_file(path: Path) -> Dump:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


TABLES_THERE = """SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"""


def of_server(url: str) -> Dump:
    with psycopg.connect(url, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(TABLES_THERE) if name not in OF_NODES]
        columns = {table.name: ", ".join(table.columns) for table in tables()}  # without the node that has a row
        found = {
            name: connection.execute(f"SELECT {columns.get(name, '*')} FROM {name}".encode()).fetchall()
            for name in names
        }
        return {name: sorted(rows, key=repr) for name, rows in found.items()}


def content(dump: Dump) -> Dump:
    return {name: rows for name, rows in dump.items() if name not in NOT_COPIED}


def execute(where: str | Path, sql: str) -> None:
    if isinstance(where, str):
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(sql.encode())
    else:
        with closing(apsw.Connection(str(where))) as other:
            other.execute(sql)


# ---- copying
def source(where: str | Path) -> AbstractContextManager[CopyEndpoint]:
    return server_endpoint.source(where, tables()) if isinstance(where, str) else file_endpoint.source(where)


def target(where: str | Path) -> AbstractContextManager[CopyEndpoint]:
    return server_endpoint.target(where) if isinstance(where, str) else file_endpoint.target(where)


def copied(old: str | Path, new: str | Path, said: list[CopyProgress] | None = None) -> Copied:
    on = (lambda _: None) if said is None else said.append
    with source(old) as reading, target(new) as writing:
        return copy(reading, writing, tables(), 5, on)


def refused(old: str | Path, new: str | Path) -> str:
    with pytest.raises(NotCopied) as reason:
        copied(old, new)
    return str(reason.value)


# ---- every table, both ways
def test_both_engines_have_the_same_tables(tmp_path: Path, url: str) -> None:
    copied(filled(tmp_path / FILE_NAME, 0), url)
    kinds = {"text": "", "bigint": "i", "bytea": "b"}
    columns = """SELECT column_name, data_type FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position"""
    keys = """SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (number, place), pg_attribute a
        WHERE i.indrelid = %s::regclass AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.number
        ORDER BY k.place"""
    with psycopg.connect(url) as connection:
        there = connection.execute(TABLES_THERE).fetchall()
        assert {name for (name,) in there} == {table.name for table in tables()} | NOT_COPIED | OF_NODES
        for table in tables():
            found = connection.execute(columns, (table.name,)).fetchall()
            of_both = [(name, kinds[kind]) for name, kind in found if name != "owner"]
            assert of_both == list(zip(table.columns, table.kinds, strict=True))
            key = [name for (name,) in connection.execute(keys, (table.name,)) if name != "owner"]
            assert tuple(key) == table.key
    assert set(of_file(tmp_path / FILE_NAME)) == {table.name for table in tables()} | NOT_COPIED


@pytest.mark.slow
def test_what_servers_said_of_delivery_is_left_out(tmp_path: Path, url: str, file: Path) -> None:
    copied(file, url)
    for owner in ("one", "other"):
        execute(
            url, f"INSERT INTO pool_states (owner, pool, in_use, allowed, updated_at) VALUES ('{owner}', 'p', 1, 1, 1)"
        )
    copied(url, tmp_path / FILE_NAME)
    assert of_file(tmp_path / FILE_NAME)["pool_states"] == []


def test_every_row_comes_back(file: Path, url: str, tmp_path: Path) -> None:
    before, digest = of_file(file), hashlib.sha256(file.read_bytes()).digest()
    assert min(map(len, content(before).values())) == ROWS
    result = copied(file, url)
    assert result == Copied(resumed=False, tables=len(tables()), rows=ROWS * len(tables()), replaced=0)
    assert content(of_server(url)) == content(before)
    copied(url, tmp_path / "new" / FILE_NAME)
    assert content(of_file(tmp_path / "new" / FILE_NAME)) == content(before)
    assert hashlib.sha256(file.read_bytes()).digest() == digest
    assert of_file(file) == before
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, ROWS])
def test_the_size_of_a_batch_changes_nothing(file: Path, url: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.store.copying.BATCH_ROWS", batch)
    monkeypatch.setattr("appliance.store.copying.BATCH_BYTES", 1_000)
    said: list[CopyProgress] = []
    copied(file, url, said)
    assert content(of_server(url)) == content(of_file(file))
    fractions = [each.fraction for each in said]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    for verifying in (False, True):
        whole = {each.table for each in said if each.verifying is verifying and each.rows == each.of == ROWS}
        assert whole == {table.name for table in tables()}


@pytest.mark.slow
async def test_a_large_message_is_the_same(tmp_path: Path, url: str) -> None:
    env, mime = Environment(), os.urandom(10 * 2**20)
    async with open_store(tmp_path / "old", env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=None)
        new = replace(Messages(env, account.id).new("a@example.net", "b@example.net", key="one"), mime=mime)
        await store.messages.accept(new)
        due = sorted(await store.queue.due(simulated=True, most=10), key=lambda each: each.id)
        figures = await store.statistics.of(account.id, 0)
    await trio.to_thread.run_sync(copied, tmp_path / "old" / FILE_NAME, url)
    await trio.to_thread.run_sync(copied, url, tmp_path / "new" / FILE_NAME)
    for where in ({"data_dir": tmp_path / "none", "url": url}, {"data_dir": tmp_path / "new"}):
        async with open_store(**where, env=env, inline=True) as store:
            assert await store.messages.content(new.id) == mime
            assert (await store.accounts.named("demo")).credits is None
            assert sorted(await store.queue.due(simulated=True, most=10), key=lambda each: each.id) == due
            assert await store.statistics.of(account.id, 0) == figures


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True])
def test_memory_stays_bounded(tmp_path: Path, url: str, back: bool) -> None:
    file = filled(tmp_path / "old" / FILE_NAME, 1)
    with closing(open_writer(file)) as connection:
        connection.execute("BEGIN")
        for number in range(480):
            row = (f"msg {number}", 1, os.urandom(128 * 1024))
            connection.execute("INSERT INTO message_body_parts VALUES (?, ?, ?)", row)
        connection.execute("COMMIT")
    if back:
        copied(file, url)
    tracemalloc.start()
    try:
        copied(url if back else file, tmp_path / "new" / FILE_NAME if back else url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * BATCH_BYTES < 480 * 128 * 1024 / 2


# ---- killed in the middle

KILLED = """
import os, signal, sys
from pathlib import Path
from appliance.store import copying
from tests.store.test_copying import source, tables, target
old, new, batches, how = sys.argv[1:]
old, new = (text if "://" in text else Path(text) for text in (old, new))
copying.BATCH_ROWS, left = 7, int(batches)
def step():
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
insert = copying.Bulk.run
if how == "within":
    copying.Bulk.run = lambda bulk, tx, values: (insert(bulk, tx, values), step())
with source(old) as reading, target(new) as writing:
    copying.copy(reading, writing, tables(), 5, lambda _: step() if how == "between" else None)
"""


def kill_after(old: str | Path, new: str | Path, batches: int, how: str) -> bool:
    """Copy in a process of its own that is killed after so many batches; whether it was."""
    words = [sys.executable, "-c", KILLED, str(old), str(new), str(batches), how]
    ended = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def check_is_unfinished(where: str | Path) -> None:
    async def opened() -> None:
        is_url = isinstance(where, str)
        data_dir, url = (Path("/nowhere"), where) if is_url else (Path(where).parent, "")
        async with open_store(data_dir, Environment(), url=str(url), inline=True):
            pass

    with pytest.raises(UnfinishedCopy, match="run that again"):
        trio.run(opened)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["between", "within"])
@pytest.mark.parametrize("back", [False, True])
def test_killed_again_and_again_it_goes_on(file: Path, url: str, tmp_path: Path, back: bool, how: str) -> None:
    wanted = content(of_file(file))
    old: str | Path = file
    new: str | Path = url
    if back:
        copied(file, url)
        old, new = url, tmp_path / "new" / FILE_NAME
    read = of_server if isinstance(new, str) else of_file
    before = 0
    for _ in range(2):
        assert kill_after(old, new, 35, how)
        held = read(new)  # type: ignore[arg-type]
        assert UNFINISHED_COPY in held
        rows = sum(len(held[table.name]) for table in tables())
        assert before < rows < sum(map(len, wanted.values()))
        before = rows
        check_is_unfinished(new)
    assert copied(old, new).resumed
    assert content(read(new)) == wanted  # type: ignore[arg-type]


@pytest.mark.slow
def test_killed_while_it_compares_it_is_still_unfinished(file: Path, url: str) -> None:
    batches = 3 * len(tables())  # of seven rows each
    assert kill_after(file, url, batches + 5, "between")
    assert UNFINISHED_COPY in of_server(url)
    check_is_unfinished(url)
    assert copied(file, url).resumed
    assert UNFINISHED_COPY not in of_server(url)


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True])
def test_a_database_that_goes_away_is_told(file: Path, tmp_path: Path, back: bool) -> None:
    with postgresql() as own:
        url = own.new_database()
        if back:
            copied(file, url)
        old, new = (url, tmp_path / "new" / FILE_NAME) if back else (file, url)
        steps: list[CopyProgress] = []

        def stop(progress: CopyProgress) -> None:
            steps.append(progress)
            if len(steps) == 5:
                own.stop("immediate")

        refusal = pytest.raises(NotCopied, match="run the same command again to continue")
        with refusal as reason, source(old) as reading, target(new) as writing:
            copy(reading, writing, tables(), 5, stop)
        assert "\n" not in str(reason.value)
        own.start()
        assert copied(old, new).resumed
        assert content(of_file(new) if back else of_server(url)) == content(of_file(file))  # type: ignore[arg-type]


@pytest.mark.slow
# ---- differences
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE events SET type = 'x', created_at = 5 WHERE id LIKE 'id 003%'", "differs from the source in type, c"),
        ("UPDATE message_bodies SET mime = NULL WHERE message_id LIKE 'm%004%'", "mime"),
        ("UPDATE message_bodies SET receipt = NULL WHERE message_id LIKE 'm%004%'", "in receipt:"),
        ("DELETE FROM events WHERE id LIKE 'id 003%'", "events (id 003 é€😀'\"\\%) is missing"),
        ("DELETE FROM sessions WHERE id LIKE 'id 000%'", "sessions (id 000 é€😀'\"\\%) is missing"),
        ("INSERT INTO loose_parts VALUES ('message_id 0')", "loose_parts (message_id 0) is not in the source"),
        ("INSERT INTO counted_until VALUES ('zzz', '1')", "counted_until (zzz) is not in the source"),
    ],
)
def test_a_difference_is_named(
    file: Path, url: str, tmp_path: Path, back: bool, change: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "mime = NULL" in change:
        change = change.replace("NULL", "'\\x00'" if not back else "x'00'")
    old: str | Path = file
    new: str | Path = url
    if back:
        copied(file, url)
        old, new = url, tmp_path / "new" / FILE_NAME
    with monkeypatch.context() as patched:
        patched.setattr("appliance.store.copying._compare", killed)
        with pytest.raises(KeyboardInterrupt):
            copied(old, new)
    execute(new, change)
    reason = refused(old, new)
    assert told in reason
    assert "start again with an empty database" in reason
    check_is_unfinished(new)


def killed(*_: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_source_that_went_on_is_found(file: Path, url: str) -> None:
    assert kill_after(file, url, 60, "between")
    execute(file, "UPDATE accounts SET credits = 77 WHERE id LIKE '%004%'")
    assert "accounts (account_id 004 é€😀'\"\\%) differs from the source in credits" in refused(file, url)


# ---- NUL
def test_nul_in_text_becomes_the_replacement_character(file: Path, url: str) -> None:
    with closing(open_writer(file)) as connection:
        connection.execute("UPDATE messages SET subject = 'a' || char(0) || 'b' WHERE id LIKE 'id 002%'")
        connection.execute("UPDATE attempts SET smtp_response = char(0, 0), tls = char(0) WHERE number = 4")
    assert copied(file, url).replaced == 3
    held = of_server(url)
    assert "a\ufffdb" in {row[8] for row in held["messages"]}
    assert "\ufffd\ufffd" in {row[5] for row in held["attempts"]}
    execute(file, "UPDATE messages SET subject = 'c' WHERE id LIKE 'id 003%'")


@pytest.mark.slow
def test_nul_in_a_key_is_refused(file: Path, url: str) -> None:
    with closing(open_writer(file)) as connection:
        connection.execute("INSERT INTO loose_parts VALUES ('a' || char(0))")
    reason = refused(file, url)
    assert "its key has the character NUL, which PostgreSQL cannot store" in reason
    assert "\0" not in reason


@pytest.mark.slow
def test_a_file_keeps_nul(file: Path, tmp_path: Path) -> None:
    """From file to file nothing has to be replaced."""
    with closing(open_writer(file)) as connection:
        connection.execute("INSERT INTO loose_parts VALUES ('a' || char(0))")
    assert copied(file, tmp_path / "new" / FILE_NAME).replaced == 0
    assert content(of_file(tmp_path / "new" / FILE_NAME)) == content(of_file(file))


# ---- refusals, with nothing written
def unchanged(where: str | Path, old: str | Path, told: Sequence[str]) -> None:
    read = of_server if isinstance(where, str) else of_file
    before = read(where)  # type: ignore[arg-type]
    reason = refused(old, where)
    assert "\n" not in reason
    for words in told:
        assert words in reason
    assert read(where) == before  # type: ignore[arg-type]


def test_a_target_that_holds_an_installation_is_refused(file: Path, url: str, tmp_path: Path) -> None:
    copied(file, url)
    unchanged(url, file, ("holds an installation already (accounts)", "name an empty database"))
    other = filled(tmp_path / "other" / FILE_NAME)
    unchanged(other, url, (str(other), "holds an installation already"))
    unchanged(other, file, ("holds an installation already",))


@pytest.mark.slow
def test_a_target_with_the_schema_alone_is_empty(file: Path, url: str, tmp_path: Path) -> None:
    copied(filled(tmp_path / "empty" / FILE_NAME, 0), url)
    assert not copied(file, url).resumed
    assert content(of_server(url)) == content(of_file(file))


@pytest.mark.slow
def test_a_copy_of_another_source_is_refused(file: Path, url: str, tmp_path: Path) -> None:
    other = filled(tmp_path / "other" / FILE_NAME, now=2)
    assert kill_after(other, url, 10, "between")
    unchanged(url, file, ("holds an unfinished copy of another database", "name an empty database"))
    new = tmp_path / "new" / FILE_NAME
    assert kill_after(other, new, 10, "between")
    unchanged(new, file, ("holds an unfinished copy of another database",))
    execute(other, "UPDATE accounts SET id = '!' WHERE id LIKE '%000%'")  # the clone of a machine
    unchanged(new, other, ("holds an unfinished copy of another database",))
    assert "is itself an unfinished copy" in refused(url, tmp_path / "third" / FILE_NAME)
    assert not (tmp_path / "third").exists()


@pytest.mark.slow
def test_a_newer_schema_is_refused(file: Path, url: str, tmp_path: Path) -> None:
    """In the target, or in the source; also one that a node of this version could use: a copy would not be whole."""
    new = filled(tmp_path / "new" / FILE_NAME, 0)
    copied(filled(tmp_path / "empty" / FILE_NAME, 0), url)
    for where, more in ((url, ", 1"), (new, "")):
        execute(where, f"INSERT INTO migrations VALUES (9999, 'later', 1{more})")
        told = "the database is at schema 9999, this version knows only"
        unchanged(where, file, (told,))
        assert told in refused(where, tmp_path / "third" / FILE_NAME)
    assert not (tmp_path / "third").exists()


def test_an_older_schema_is_refused(file: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = filled(tmp_path / "new" / FILE_NAME, 0)
    copied(filled(tmp_path / "empty" / FILE_NAME, 0), url)
    with monkeypatch.context() as patched:
        patched.setattr(server_endpoint, "newest_known", lambda: 9999)
        unchanged(url, file, ("and this version writes schema 9999: name an empty database",))
        assert "this version copies schema 9999: start this version on it once" in refused(url, new)
    monkeypatch.setattr(file_endpoint, "newest_known", lambda: 9999)
    assert "this version copies schema 9999: start this version on it once" in refused(file, url)
    unchanged(new, url, ("and this version writes schema 9999: name an empty database",))


@pytest.mark.slow
def test_foreign_databases_are_refused(file: Path, url: str, tmp_path: Path) -> None:
    execute(url, "CREATE TABLE theirs (id INTEGER)")
    unchanged(url, file, ("holds tables that are not the appliance's",))
    theirs = tmp_path / "theirs.db"
    execute(theirs, "CREATE TABLE theirs (id INTEGER)")
    digest = hashlib.sha256(theirs.read_bytes()).digest()
    assert "it is no database of the appliance" in refused(file, theirs)
    assert hashlib.sha256(theirs.read_bytes()).digest() == digest
    theirs.write_text("no database at all, but a text")
    assert "file is not a database" in refused(file, theirs)
    assert "the database cannot be used: " in refused(file, url.replace("test", "gone"))


@pytest.mark.slow
# ---- others
@pytest.mark.slow
def test_nothing_writes_to_a_source_meanwhile(file: Path, url: str, tmp_path: Path) -> None:
    """Neither to a file nor to a PostgreSQL, which is not read either: a node that begins there would send."""
    with file_endpoint.source(file), closing(apsw.Connection(str(file))) as other:
        with pytest.raises(apsw.BusyError):
            other.execute("DELETE FROM loose_parts")
        assert other.execute("SELECT count(*) FROM loose_parts").fetchall() == [(ROWS,)]
        assert "another program is using it" in refused(file, tmp_path / "new" / FILE_NAME)
    copied(file, url)
    with server_endpoint.source(url, tables()), psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = 100")
        for table in tables():
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute(f"SELECT 1 FROM {table.name}".encode())


@pytest.mark.parametrize("back", [False, True])
def test_a_database_with_a_server_is_refused(
    file: Path, url: str, tmp_path: Path, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_endpoint, "PATIENCE", 0.2)
    old, new = (url, tmp_path / "new" / FILE_NAME) if back else (file, url)
    with psycopg.connect(url, application_name=DATABASE_CLIENT):
        assert "a server, or another copy, is connected to it: stop that first" in refused(old, new)
    with psycopg.connect(url, application_name="psql"):
        assert "connected" not in refused(url, url)


@pytest.mark.slow
def test_who_writes_to_the_source_is_not_waited_for(file: Path, url: str, tmp_path: Path) -> None:
    copied(file, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM loose_parts")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres SET lock_timeout = 200")
        assert "another program is using it" in refused(url, tmp_path / "new" / FILE_NAME)
