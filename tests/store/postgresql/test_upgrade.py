"""Versions of the program that follow each other while nodes run: what is changed when, and who is refused."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
import trio
from msgspec.structs import replace

from appliance.errors import Code
from appliance.model.database import Feature
from appliance.store import DatabaseRefused, NewerDatabase
from appliance.store.postgresql import engine, migrate
from appliance.store.postgresql.connection import PostgresConnection, connect, run
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.migrate import MIGRATION_TIMEOUT, SchemaStep
from appliance.store.postgresql.nodes import Membership, NodeIdentity
from tests.postgresql_server import PostgresServer
from tests.store.postgresql.stepping import until_it_waits
from tests.store.postgresql.test_migrate import classes, execute, refused
from tests.store.samples import at_once, refusal

FIRST_STEPS = migrate.migrations()
OLD = FIRST_STEPS[-1].number  # what the old version knows
SINCE = max(step.since for step in FIRST_STEPS)
WIDER = SchemaStep(OLD + 1, "wider", "ALTER TABLE accounts ADD COLUMN note TEXT", SINCE)
NARROWER = SchemaStep(OLD + 2, "narrower", "ALTER TABLE accounts DROP COLUMN daily_cap", OLD + 1)
WIDEST = SchemaStep(OLD + 3, "widest", "ALTER TABLE accounts ADD COLUMN more TEXT", OLD + 1)
MIGRATING = "migrating"  # name of a connection

Version = Callable[..., None]


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Version:
    return lambda *more: monkeypatch.setattr(migrate, "migrations", lambda: [*FIRST_STEPS, *more])


@pytest.fixture(scope="module")
def template(server: PostgresServer) -> str:
    """The name of a database that has taken all steps."""
    url = server.new_database()
    trio.run(prepare, url, 1)
    with closing(connect(url, "template")) as connection:
        return connection.info.dbname


@pytest.fixture
def url(server: PostgresServer, template: str) -> str:
    return server.new_database(template)


@pytest.fixture
def connection(url: str) -> Iterator[PostgresConnection]:
    with closing(connect(url, statement_timeout=MIGRATION_TIMEOUT)) as opened:
        yield opened


def node(name: str, schema: int = OLD) -> Membership:
    return Membership(NodeIdentity(f"run_of_{name}", name, f"home of {name}", f"{name}.test", "1.2.3", schema))


def applied(connection: PostgresConnection) -> list[int]:
    return [number for (number,) in run(connection, "SELECT number FROM migrations ORDER BY 1") if number > OLD]


def test_each_step_says_which_programs_can_work_after_it() -> None:
    assert [step.number for step in FIRST_STEPS] == list(range(1, OLD + 1))
    assert all(1 <= step.since <= step.number for step in FIRST_STEPS)


# ---- an older program
async def test_old_programs_work_after_expansions(url: str, connection: PostgresConnection, version: Version) -> None:
    version(WIDER)
    await prepare(url, 2)
    assert applied(connection) == [OLD + 1]
    version()
    before = classes(url)
    assert await prepare(url, 3, None, lambda: node("a").identity) is not None
    assert classes(url) == before
    assert run(connection, "SELECT name, schema FROM nodes") == [("a", OLD)]


async def test_an_older_program_is_refused_after_a_contraction(
    url: str, connection: PostgresConnection, version: Version
) -> None:
    version(WIDER, NARROWER)
    await prepare(url, 2)
    assert applied(connection) == [OLD + 1, OLD + 2]
    version()
    before = classes(url)
    told = f"the database is at schema {OLD + 2}, this version knows only {OLD}: run the newer appliance"
    assert await refused(url, NewerDatabase) == told
    assert classes(url) == before
    version(WIDER)
    await prepare(url, 3)


# ---- features that an older program would treat wrongly
async def test_a_feature_waits_for_the_last_older_node(url: str, connection: PostgresConnection) -> None:
    """From then on none can join. While the feature is not used, the older version may come back."""
    old = node("old", 18)
    old.join(connection)
    newer = await _running(url, "newer", OLD)
    with refusal(Code.TEMPORARY_FAILURE) as caught:
        await newer.fence_older_nodes(Feature.SCHEDULE)
    assert caught.value.text == (
        "This cluster takes no scheduled messages yet: upgrade the nodes old (1.2.3) first, then retry."
    )
    await newer.fence_older_nodes(Feature.FORMATS)
    old.leave(connection)
    back = node("back", 18)
    back.join(connection)
    with pytest.raises(NewerDatabase):
        node("older", 17).join(connection)
    back.leave(connection)
    await newer.fence_older_nodes(Feature.SCHEDULE)
    with pytest.raises(NewerDatabase):
        node("again", 18).join(connection)
    await newer.close()


# ---- a newer one
async def test_contractions_wait_for_older_nodes(url: str, connection: PostgresConnection, version: Version) -> None:
    a, b, c = node("a"), node("b"), node("c", OLD + 1)
    for member in (a, b, c):
        member.join(connection)
    version(WIDER, NARROWER)
    await prepare(url, 2)
    assert applied(connection) == [OLD + 1]
    assert migrate.plan(connection).older == ["a (1.2.3)", "b (1.2.3)"]
    node("d").join(connection)  # until then older ones may come and go
    run(connection, "UPDATE nodes SET adopted_by = 'c' WHERE name = 'd'")
    a.leave(connection)
    run(connection, "UPDATE nodes SET lease_until = 0 WHERE name = 'b'")
    await prepare(url, 2)
    assert applied(connection) == [OLD + 1]
    b.leave(connection)
    await prepare(url, 3)
    assert applied(connection) == [OLD + 1, OLD + 2]
    assert run(connection, "SELECT compatible_since FROM migrations WHERE number > %s ORDER BY 1", (OLD,)) == [
        (SINCE,),
        (OLD + 1,),
    ]
    with pytest.raises(NewerDatabase):
        node("e").join(connection)
    node("e", OLD + 1).join(connection)


async def test_what_a_program_cannot_do_without_is_no_contraction(
    url: str, connection: PostgresConnection, version: Version
) -> None:
    """An expansion behind one: beside so old a node it cannot start, and says so; nothing is written."""
    old = node("a")
    old.join(connection)
    version(WIDER, NARROWER, WIDEST)
    before = classes(url)
    assert "this version cannot run together with the versions of a (1.2.3): upgrade them" in await refused(url)
    assert classes(url) == before
    assert applied(connection) == []
    old.leave(connection)
    await prepare(url, 3)
    assert applied(connection) == [OLD + 1, OLD + 2, OLD + 3]


async def test_the_earlier_run_of_a_killed_node(url: str, connection: PostgresConnection, version: Version) -> None:
    node("a").join(connection)
    version(WIDER, NARROWER, WIDEST)
    with pytest.raises(DatabaseRefused):
        await prepare(url, 2, None, None, "home of b")
    await prepare(url, 2, None, lambda: replace(node("a", OLD + 3).identity, owner="its next run"), "home of a")
    assert applied(connection) == [OLD + 1, OLD + 2, OLD + 3]


async def test_new_nodes_that_start_at_once(url: str, connection: PostgresConnection, version: Version) -> None:
    version(WIDER, NARROWER, WIDEST)
    await at_once(prepare, ((url, 2, None, lambda name=name: node(name, OLD + 3).identity) for name in "abcd"))
    assert applied(connection) == [OLD + 1, OLD + 2, OLD + 3]
    assert run(connection, "SELECT count(*) FROM nodes WHERE schema = %s", (OLD + 3,)) == [(4,)]


# ---- races
async def test_an_older_node_that_joins_while_the_schema_is_contracted(
    url: str, connection: PostgresConnection, version: Version
) -> None:
    version(WIDER, NARROWER._replace(sql=f"{NARROWER.sql}; SELECT pg_sleep(1)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepare, f"{url}&application_name={MIGRATING}", 2)
        await _until(
            url, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1)' AND wait_event = 'PgSleep'"
        )
        with pytest.raises(NewerDatabase):
            await trio.to_thread.run_sync(node("a").join, connection)
    assert applied(connection) == [OLD + 1, OLD + 2]
    assert run(connection, "SELECT count(*) FROM nodes") == [(0,)]


async def test_contraction_while_an_old_node_joins(url: str, connection: PostgresConnection, version: Version) -> None:
    version(WIDER, NARROWER)
    async with trio.open_nursery() as nursery:
        with connection.transaction():
            run(connection, "SET LOCAL idle_in_transaction_session_timeout = 0")
            node("a").join(connection)
            nursery.start_soon(prepare, f"{url}&application_name={MIGRATING}", 2)
            await until_it_waits(url, MIGRATING)
    assert applied(connection) == [OLD + 1]


async def test_a_node_that_is_lost_within_a_step(url: str, connection: PostgresConnection, version: Version) -> None:
    version(WIDER._replace(sql=f"{WIDER.sql}; SELECT pg_sleep(30)"))
    before = classes(url)
    sleeping = "FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND wait_event = 'PgSleep'"
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await _until(url, f"SELECT count(*) {sleeping}")
            execute(url, f"SELECT pg_terminate_backend(pid) {sleeping}")

        nursery.start_soon(end)
        await refused(url)
    assert classes(url) == before
    assert applied(connection) == []
    version(WIDER)
    await prepare(url, 2)
    assert applied(connection) == [OLD + 1]


async def _until(url: str, query: str, count: int = 1) -> None:
    with trio.fail_after(20), psycopg.connect(url, autocommit=True) as other:
        while other.execute(query.encode()).fetchall() != [(count,)]:  # noqa: ASYNC110 - the database does not tell
            await trio.sleep(0.02)


# ---- locks
async def test_a_step_gives_way_to_those_that_use_the_table(
    url: str, connection: PostgresConnection, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "STEP_PAUSE", 0.2)
    version(WIDER)
    slowest, ended = 0.0, threading.Event()

    def use() -> None:
        nonlocal slowest
        with closing(connect(url)) as own:
            while not ended.is_set():
                began = time.monotonic()
                run(own, "SELECT count(*) FROM accounts")
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.01)

    using = threading.Thread(target=use)
    async with trio.open_nursery() as nursery:
        with connection.transaction():
            run(connection, "SET LOCAL idle_in_transaction_session_timeout = 0")
            run(connection, "SELECT count(*) FROM accounts")
            nursery.start_soon(prepare, f"{url}&application_name={MIGRATING}", 2)
            await until_it_waits(url, MIGRATING)
            using.start()
            await trio.sleep(2)
            ended.set()
            await trio.to_thread.run_sync(using.join)
    assert migrate.STEP_LOCK_TIMEOUTS[0] / 2_000 < slowest < 5 * migrate.STEP_LOCK_TIMEOUTS[0] / 1_000
    assert applied(connection) == [OLD + 1]


async def test_a_table_that_is_in_use_all_the_time(
    url: str, connection: PostgresConnection, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "STEP_PAUSE", 0.01)
    monkeypatch.setattr(migrate, "STEP_TRIES", 3)
    version(WIDER)
    before = classes(url)
    with connection.transaction():
        run(connection, "SELECT count(*) FROM accounts")
        assert await refused(url) == migrate.IN_USE
    assert classes(url) == before


# ---- a node that runs
async def _running(url: str, name: str, schema: int) -> PostgresEngine:
    return PostgresEngine(url, await prepare(url, 2, None, lambda: node(name, schema).identity))


async def test_a_running_node_contracts_when_the_last_older_one_has_ended(
    url: str,
    connection: PostgresConnection,
    version: Version,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(engine, "BEAT", 0.1)
    old = node("a")
    old.join(connection)
    version(WIDER, NARROWER)
    nodes = [await _running(url, name, OLD + 2) for name in "bc"]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for each in nodes:
                nursery.start_soon(each.finish_upgrade)
            await trio.sleep(0.5)
            assert applied(connection) == [OLD + 1]
            old.leave(connection)
    assert applied(connection) == [OLD + 1, OLD + 2]
    assert caplog.messages.count("a change of the schema waits for older nodes") == 2
    assert caplog.messages.count("the schema was changed") == 1
    for each in nodes:
        await each.close()


async def test_a_contraction_that_fails(
    url: str,
    connection: PostgresConnection,
    version: Version,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(engine, "BEAT", 0.1)
    monkeypatch.setattr(engine, "SCHEMA_PAUSE", 0.1)
    old = node("a")
    old.join(connection)
    version(WIDER, NARROWER._replace(sql="ALTER TABLE chores ADD CHECK (name <> 'wrong')"))
    run(connection, "INSERT INTO chores VALUES ('wrong', '', 0)")
    new = await _running(url, "b", OLD + 2)
    old.leave(connection)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(new.finish_upgrade)
            while "the schema cannot be changed" not in caplog.messages:  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert applied(connection) == [OLD + 1]
            run(connection, "DELETE FROM chores WHERE name = 'wrong'")
    assert applied(connection) == [OLD + 1, OLD + 2]
    await new.close()


async def test_a_node_that_ends_while_it_contracts(url: str, connection: PostgresConnection, version: Version) -> None:
    old = node("a")
    old.join(connection)
    version(WIDER, NARROWER._replace(sql=f"{NARROWER.sql}; SELECT pg_sleep(4)"))
    new = await _running(url, "b", OLD + 2)
    old.leave(connection)
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(new.finish_upgrade)
        await _until(url, sleeping)
        began = time.monotonic()
        nursery.cancel_scope.cancel()
    await new.close()
    assert time.monotonic() - began < 3
    await _until(url, sleeping, 0)
    assert applied(connection) == [OLD + 1]
