"""Databases that are new, made by two nodes at once, or refused: in one line what to do, and nothing written."""

import re
from collections.abc import Callable
from hashlib import sha256
from importlib import resources
from pathlib import Path

import psycopg
import pytest
import trio

from appliance.store import DatabaseRefused, NewerDatabase
from appliance.store.postgresql import migrate
from appliance.store.postgresql.engine import prepare
from tests.ports import free_port
from tests.postgresql_server import PostgresServer
from tests.store.samples import at_once

LANDED = Path(__file__).with_name("landed_migrations.txt")
SCHEMA = """
SELECT attrelid::regclass::text, attname::text || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' '
        || attcollation::regcollation::text || ' ' || coalesce(pg_get_expr(adbin, adrelid), '')
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid AND relkind IN ('r', 'p')
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = current_schema()::regnamespace AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
UNION ALL SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = current_schema()
ORDER BY 1, 2"""
INSERT_RECIPIENTS = """INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
        billing_status, last_smtp_code, last_smtp_response, owner)
    SELECT 'msg_1', id, '', '', '', 0, 0, status, 'released', code, response, ''
    FROM (VALUES ('rcp_1', 'bounced', NULL, 'suppressed: this address is on the suppression list'),
        ('rcp_2', 'failed', NULL, 'cancelled: by the sender'),
        ('rcp_3', 'bounced', 550, 'suppressed: by a server'),
        ('rcp_4', 'failed', NULL, 'no route to the server')) AS old (id, status, code, response)"""
CLASSES = "SELECT oid::bigint, relname::text, relfilenode::bigint FROM pg_class WHERE oid >= 16384 ORDER BY oid"


def classes(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(CLASSES).fetchall()


def schema(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(SCHEMA).fetchall()


def execute(url: str, *commands: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for command in commands:
            connection.execute(command.encode())


async def refused(url: str, kind: type[Exception] = DatabaseRefused) -> str:
    with pytest.raises(kind) as caught:
        await prepare(url, 1)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("_", range(5))
async def test_nodes_that_start_on_a_new_database_at_once(server: PostgresServer, _: int) -> None:
    url = server.new_database()
    await at_once(prepare, ((url, 1) for _ in range(4)))
    with psycopg.connect(url) as connection:
        applied = connection.execute("SELECT number FROM migrations ORDER BY number").fetchall()
    assert applied == [(step.number,) for step in migrate.migrations()]
    before = classes(url)
    await prepare(url, 2)
    assert classes(url) == before


def test_a_step_that_has_landed_is_never_changed() -> None:
    """Databases have taken it as it was: what is wrong with it is mended by a new step.

    A new step gets its line, in `migrations/`:
    sha256sum NNNN_name.sql >> ../../../../tests/store/postgresql/landed_migrations.txt
    """
    landed = dict(line.split()[::-1] for line in LANDED.read_text().splitlines())
    files = (resources.files("appliance.store.postgresql") / "migrations").iterdir()
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in files if file.name.endswith(".sql")}
    assert found == landed


async def test_a_database_of_the_first_version(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = server.new_database(), server.new_database()
    await prepare(new, 1)
    with monkeypatch.context() as patch:
        first = migrate.migrations()[:1]
        patch.setattr(migrate, "migrations", lambda: first)
        await prepare(old, 1)
    assert schema(old) != schema(new)
    execute(old, "INSERT INTO accounts (id, name, created_at) VALUES ('acc_1', 'Shop', 1)")
    execute(old, "INSERT INTO suppressions VALUES ('acc_1', 'a@example.com', 'bounced: 550', 1)")
    execute(old, INSERT_RECIPIENTS)
    await prepare(old, 2)
    assert schema(old) == schema(new)
    with psycopg.connect(old) as connection:
        assert connection.execute("SELECT origin FROM suppressions").fetchall() == [("bounce",)]
        failures = connection.execute("SELECT failure FROM recipients ORDER BY id").fetchall()
        assert failures == [("suppressed",), ("cancelled",), (None,), (None,)]


async def test_an_older_node_cancels_after_the_upgrade(server: PostgresServer) -> None:
    url = server.new_database()
    await prepare(url, 1)
    execute(url, INSERT_RECIPIENTS, "UPDATE recipients SET failure = NULL, status = status")
    with psycopg.connect(url) as connection:
        failures = connection.execute("SELECT failure FROM recipients ORDER BY id").fetchall()
    assert failures == [("suppressed",), ("cancelled",), (None,), (None,)]


async def test_a_database_of_which_step_1_made_what_is_now_in_step_2(server: PostgresServer) -> None:
    url = server.new_database()
    await prepare(url, 1)
    before = schema(url)
    execute(url, "DELETE FROM migrations WHERE number = 2")
    await prepare(url, 2)
    assert schema(url) == before
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT max(number) FROM migrations").fetchall() == [(migrate.newest_known(),)]


async def test_a_node_that_starts_while_another_migrates(server: PostgresServer) -> None:
    url = server.new_database()
    with psycopg.connect(url) as other:
        other.execute(migrate._RECORD_TABLE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepare, url, 1)
            await trio.sleep(6)
            other.rollback()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM migrations").fetchall() == [(len(migrate.migrations()),)]


@pytest.mark.parametrize(
    "table",
    ["CREATE TABLE customers (id int)", "CREATE TABLE migrations (id int, migration text, batch int)"],
    ids=["another", "another's migrations"],
)
async def test_a_foreign_database(server: PostgresServer, table: str) -> None:
    url = server.new_database()
    execute(url, table)
    before = classes(url)
    assert "give the appliance a database of its own" in await refused(url)
    assert classes(url) == before


async def test_a_newer_schema(server: PostgresServer) -> None:
    """The newer appliance is to be run."""
    url = server.new_database()
    await prepare(url, 1)
    execute(url, "INSERT INTO migrations VALUES (9999, 'later', 1, 9999)")
    before = classes(url)
    assert "schema 9999" in await refused(url, NewerDatabase)
    assert classes(url) == before


async def test_an_old_server(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is named, and the one that is needed."""
    url = server.new_database()
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 120_014)
    assert await refused(url) == "PostgreSQL 12 is too old: 13 or later is needed"
    assert classes(url) == []


async def test_a_wrong_encoding(server: PostgresServer) -> None:
    """The command that makes a right one is named."""
    url = server.new_database()
    execute(
        server.url(),
        "DROP DATABASE IF EXISTS latin",
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    )
    url = server.url("latin")
    assert "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0" in await refused(url)
    assert classes(url) == []


async def test_a_database_that_takes_no_writes(server: PostgresServer) -> None:
    url = server.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    execute(server.url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for each in (url, f"{url}&target_session_attrs=any"):
        assert (await refused(each)).startswith("the database takes no writes: name the primary in the URL")
    assert classes(url) == []


async def test_a_role_that_may_not_create_tables(server: PostgresServer) -> None:
    url = server.new_database()
    execute(url, "DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN", "REVOKE CREATE ON SCHEMA public FROM public")
    assert "permission denied for schema public" in await refused(url.replace("user=postgres", "user=guest"))
    assert classes(url) == []


Changed = Callable[[str, PostgresServer], str]

UNREACHABLE: dict[str, tuple[Changed, str]] = {
    "no server": (lambda _, server: f"postgresql://postgres:secret@127.0.0.1:{free_port()}/x", "cannot be used"),
    "no such host": (lambda _, server: "postgresql://postgres:secret@db.invalid/x", "cannot be used"),
    "no such database": (lambda _, server: server.url("nosuch"), "cannot be used.*nosuch"),
    "no such role": (lambda url, server: url.replace("user=postgres", "user=nobody1"), "cannot be used.*nobody1"),
    "no such setting": (lambda url, server: f"{url}&colour=blue&password=secret", "is no URL of a database"),
    "no number": (lambda url, server: "postgresql://postgres:secret@127.0.0.1:port/x", "cannot be used|is no URL"),
    "bad escape": (lambda url, server: "postgresql://postgres:secret%zz@127.0.0.1/x", "is no URL of a database"),
}


@pytest.mark.parametrize("name", UNREACHABLE)
async def test_a_database_that_cannot_be_reached(server: PostgresServer, name: str) -> None:
    changed, words = UNREACHABLE[name]
    url = server.new_database()
    with trio.fail_after(20):
        text = await refused(changed(url, server))
    assert re.search(words, text), text
    assert "secret" not in text
    assert classes(url) == []


async def test_a_wrong_password(server: PostgresServer) -> None:
    """As PostgreSQL tells it."""
    url = server.new_database()
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    execute(url, "DROP ROLE IF EXISTS keyed", "CREATE ROLE keyed LOGIN PASSWORD 'right'")
    try:
        rules.write_text(f"local all keyed scram-sha-256\n{before}")
        execute(url, "SELECT pg_reload_conf()")
        await trio.sleep(0.5)
        text = await refused(url.replace("user=postgres", "user=keyed&password=wrongone"))
    finally:
        rules.write_text(before)
        execute(url, "SELECT pg_reload_conf()")
    assert 'password authentication failed for user "keyed"' in text
    assert "wrongone" not in text
    assert classes(url) == []
