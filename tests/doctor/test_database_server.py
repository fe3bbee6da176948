"""A PostgreSQL in order, and then with one thing wrong at a time: that is found, and nothing else is."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
import trio
from msgspec.structs import replace

from appliance.doctor import Finding, FindingLevel, database_server, machine
from appliance.doctor.database_server import judge_server
from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE
from appliance.model.database import ServerFacts, TableRows
from appliance.store.postgresql import migrate
from appliance.store.postgresql.migrate import SchemaStep, newest_known
from appliance.times import SECOND
from tests.doctor.world import OUTSIDE, World, healthy, installation, wrong
from tests.ports import free_port
from tests.postgresql_server import USER, PostgresServer, postgresql
from tests.programs import needs

FAULT, WARNING = FindingLevel.FAULT, FindingLevel.WARNING
NO_STANDBY = (WARNING, "database", "synchronous_standby_names")
MAX_CONNECTIONS = 43  # three of them for superusers


class Machine:
    def __init__(self, world: World, server: PostgresServer, name: str) -> None:
        self.world, self.server, self.name = world, server, name

    @property
    def url(self) -> str:
        return f"{self.server.url(self.name)}&port={self.server.settings['port']}"

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def examine(self) -> list[Finding]:
        return trio.run(self.world.examine)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, str, Path]]:
    """A PostgreSQL with the settings of a real one, and an installation on it."""
    settings = {"fsync": "", "autovacuum": "", "autovacuum_naptime": "3600", "port": str(free_port())}
    settings |= {"listen_addresses": "127.0.0.1", "max_connections": str(MAX_CONNECTIONS)}
    with postgresql(**settings) as running:
        url = f"{running.url(USER)}&port={settings['port']}"
        original = tmp_path_factory.mktemp("original") / "data"
        installation(original, url)
        yield running, USER, original


@pytest.fixture
def node(
    server: tuple[PostgresServer, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """A node of it in order; settings of the server that a test has changed are put back."""
    monkeypatch.setattr(machine, "synchronised", lambda: True)
    monkeypatch.setattr(database_server, "SLOW_ROUND_TRIP", 0.05)  # neighbours on this machine are no fault
    running, name, original = server
    made = Machine(World(tmp_path, {}, {}), running, name)
    made.world = healthy(tmp_path, original, made.url)
    yield made
    made.sql("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


@needs("postgresql")
def test_a_database_in_order(node: Machine) -> None:
    """Only the missing standby is told; the other lines say how it is."""
    found = node.examine()
    assert wrong(found) == {NO_STANDBY}
    lines = {each.subject: each.text for each in found if each.check == "database"}
    assert lines.keys() == {
        f"{USER} at {node.server.directory}",
        *("synchronous_standby_names", "round trip", "clock", "connections"),
    }
    assert lines[f"{USER} at {node.server.directory}"].startswith("PostgreSQL ")
    assert f" of {MAX_CONNECTIONS - 3} are in use" in lines["connections"]


@contextmanager
def setting(node: Machine, name: str, value: str) -> Iterator[None]:
    node.sql(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
    with psycopg.connect(node.url, autocommit=True) as connection:
        deadline = time.monotonic() + 60
        while connection.execute(f"SHOW {name}".encode()).fetchone() != (value,):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield


@contextmanager
def clock_ahead(node: Machine, seconds: float) -> Iterator[None]:
    node.world.env = Environment(now=lambda: OUTSIDE.now() + int(seconds * SECOND))
    yield


@contextmanager
def open_transaction(node: Machine, _: object) -> Iterator[None]:
    with psycopg.connect(node.url) as connection, pytest.MonkeyPatch.context() as patch:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        patch.setattr(database_server, "OLD_TRANSACTION", 0.2)
        time.sleep(0.3)
        yield


@contextmanager
def dead_rows(node: Machine, _: object) -> Iterator[None]:
    rows = "SELECT 'x', n, 'sent', 0, 1 FROM generate_series(1, 60000) n"
    node.sql(f"INSERT INTO hourly_counts {rows}", "DELETE FROM hourly_counts WHERE account_id = 'x'")
    yield
    node.sql("VACUUM hourly_counts")


@contextmanager
def many_connections(node: Machine, _: object) -> Iterator[None]:
    with ExitStack() as opened:
        for _ in range(int((MAX_CONNECTIONS - 3) * 0.8) + 1):
            opened.enter_context(psycopg.connect(node.url))
        yield


@contextmanager
def slow_network(node: Machine, delay: float) -> Iterator[None]:
    listener, ends = socket.create_server(("127.0.0.1", 0)), ExitStack()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(delay)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = ends.enter_context(listener.accept()[0])
                upstream = socket.create_connection(("127.0.0.1", int(node.server.settings["port"])))
                ends.enter_context(upstream)
                for way in ((client, upstream), (upstream, client)):
                    threading.Thread(target=pump, args=way, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    node.world.settings["url"] = f"postgresql://{USER}@127.0.0.1:{listener.getsockname()[1]}/{node.name}"
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        ends.close()


@contextmanager
def key_file(node: Machine, content: bytes | None) -> Iterator[None]:
    """Another key file, or none."""
    path = node.world.data_dir / KEY_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o400)
    yield


@contextmanager
def readable_by_others(node: Machine, _: object) -> Iterator[None]:
    node.world.data_dir.chmod(0o755)
    yield


@contextmanager
def older_schema(node: Machine, _: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        later = [*migrate.migrations(), SchemaStep(newest_known() + 1, "later", "CREATE TABLE later (id BIGINT)", 1)]
        patch.setattr(migrate, "migrations", lambda: later)
        node.world.zone.clear()  # nothing is read of the database, so that no domain is looked up
        yield


KEY = str(KEY_FILE)
SEEDS: dict[str, tuple[Callable[[Machine, object], AbstractContextManager[None]], object, FindingLevel, str]] = {
    "fsync is off": (lambda m, v: setting(m, "fsync", str(v)), "off", FAULT, "fsync"),
    "pages may be torn": (lambda m, v: setting(m, "full_page_writes", str(v)), "off", WARNING, "full_page_writes"),
    "autovacuum is off": (lambda m, v: setting(m, "autovacuum", str(v)), "off", WARNING, "autovacuum"),
    "the clock is ahead": (lambda m, v: clock_ahead(m, 5), 0, WARNING, "clock"),
    "the clock is behind": (lambda m, v: clock_ahead(m, -5), 0, WARNING, "clock"),
    "the clock is far ahead": (lambda m, v: clock_ahead(m, 40), 0, FAULT, "clock"),
    "a transaction is old": (open_transaction, 0, WARNING, "oldest transaction"),
    "rows are dead": (dead_rows, 0, WARNING, "table hourly_counts"),
    "connections run out": (many_connections, 0, WARNING, "connections"),
    "the network is slow": (lambda m, v: slow_network(m, 0.04), 0, WARNING, "round trip"),
    "the key file is missing": (lambda m, v: key_file(m, None), 0, FAULT, KEY),
    "the key file is another": (lambda m, v: key_file(m, bytes(32)), 0, FAULT, KEY),
    "the key file is broken": (lambda m, v: key_file(m, b"?"), 0, FAULT, KEY),
    "others may read": (readable_by_others, 0, FAULT, ""),
}


@needs("postgresql")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_fault_is_found_and_nothing_else(node: Machine, seed: str) -> None:
    """One thing wrong gives its finding, with something to do about it, and no other."""
    spoil, value, level, subject = SEEDS[seed]
    with spoil(node, value):
        found = node.examine()
    if subject in (KEY, ""):
        subject = str(node.world.data_dir / subject)
    assert wrong(found) == {NO_STANDBY, (level, "database", subject)}
    assert all(each.advice for each in found if each.level is not FindingLevel.OK)


@needs("postgresql")
def test_a_standby_that_is_not_there(node: Machine) -> None:
    """Every write would wait for it; the examination writes nothing, so it ends."""
    with setting(node, "synchronous_standby_names", "gone"):
        found = node.examine()
        assert wrong(found) == {(FAULT, "database", "synchronous_standby_names")}
        node.sql("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


@needs("postgresql")
def test_a_schema_that_is_to_be_upgraded(node: Machine) -> None:
    with older_schema(node, 0):
        found = [each for each in node.examine() if each.check == "database"]
    assert wrong(found) == {NO_STANDBY, (WARNING, "database", f"{USER} at {node.server.directory}")}
    assert "the next start upgrades it to" in next(each.text for each in found if each.subject.startswith(USER))
    with psycopg.connect(node.url) as connection:
        assert connection.execute("SELECT to_regclass('later')").fetchone() == (None,)


OF_OLDER_NODE = """INSERT INTO nodes (owner, name, home, address, version, schema, started_at, beat_at, lease_until)
    VALUES ('run', 'mail1', 'home', '', '0.5.0', 0, 0, 0, 0)"""


@needs("postgresql")
def test_an_upgrade_that_waits_for_an_older_node(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named; meanwhile the database is in use, and its domains are looked up as ever."""
    newest = newest_known() + 1
    later = [*migrate.migrations(), SchemaStep(newest, "later", "CREATE TABLE later (id BIGINT)", newest)]
    node.sql(OF_OLDER_NODE)
    monkeypatch.setattr(migrate, "migrations", lambda: later)
    try:
        found = node.examine()
    finally:
        node.sql("DELETE FROM nodes")
    assert wrong(found) == {NO_STANDBY, (WARNING, "database", "upgrade")}
    (told,) = [each for each in found if each.subject == "upgrade"]
    assert told.text == f"to schema {newest} waits for nodes of older versions: mail1 (0.5.0)"


@needs("postgresql")
def test_a_newer_database_that_this_version_can_use(node: Machine) -> None:
    node.sql("INSERT INTO migrations VALUES (9999, 'later', 0, 1)")
    try:
        found = node.examine()
    finally:
        node.sql("DELETE FROM migrations WHERE number = 9999")
    assert wrong(found) == {NO_STANDBY, (WARNING, "database", f"{USER} at {node.server.directory}")}


@needs("postgresql")
def test_a_newer_and_an_empty_database(node: Machine) -> None:
    node.sql("INSERT INTO migrations VALUES (9999, 'later', 0, 9999)")
    try:
        newer = node.examine()
    finally:
        node.sql("DELETE FROM migrations WHERE number = 9999")
    assert (FAULT, "database", f"{USER} at {node.server.directory}") in wrong(newer)
    node.sql("DROP DATABASE IF EXISTS empty", "CREATE DATABASE empty")
    node.world.settings["url"] = node.url.replace(f"/{USER}?", "/empty?")
    assert (WARNING, "database", f"empty at {node.server.directory}") in wrong(node.examine())
    node.name = "empty"
    with psycopg.connect(node.url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_database_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault says why, without the password; everything else is examined all the same."""
    monkeypatch.setattr(machine, "synchronised", lambda: True)
    original = tmp_path / "original"
    installation(original)
    world = healthy(tmp_path / "node", original)
    world.settings["url"] = f"postgresql://appliance:geheim@127.0.0.1:{free_port()}/appliance"
    found = trio.run(world.examine)
    assert wrong(found) == {(FAULT, "database", "store.url")}
    (told,) = [each for each in found if each.check == "database"]
    assert "refused" in told.text
    assert "geheim" not in told.text
    assert {"server", "listener", "disk", "port", "ptr"} <= {each.check for each in found}


# ---- what no server of a test can be brought to

FACTS = ServerFacts(
    place="mail at db",
    version="16.1",
    schema=3,
    newest_schema=3,
    compatible_since=2,
    due_schema=0,
    older_nodes=(),
    key_fingerprint=None,
    settings={
        **dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit", "autovacuum"), "on"),
        "synchronous_standby_names": "ANY 1 (a, b)",
        "max_connections": "100",
        "superuser_reserved_connections": "3",
    },
    synchronous_standbys=1,
    round_trip=0.001,
    skew=-0.2,
    oldest_transaction=60.0,
    connections=20,
    tables=(TableRows("recipients", 1_000_000, 440_000), TableRows("events", 0, 50_000)),
)


def test_nothing_is_wrong_with_a_replicated_database() -> None:
    """A standby that takes part is all that a single machine lacks; our user may not be allowed to see it."""
    assert wrong(judge_server(FACTS)) == set()
    assert wrong(judge_server(replace(FACTS, synchronous_standbys=None))) == set()


@pytest.mark.parametrize(
    ("level", "judged"), [("off", FAULT), ("local", WARNING), ("remote_write", WARNING), ("remote_apply", None)]
)
def test_options_that_a_pooler_drops(level: str, judged: FindingLevel | None) -> None:
    """Our connections ask for synchronous commits, and are told what became of it."""
    found = judge_server(replace(FACTS, settings={**FACTS.settings, "synchronous_commit": level}))
    assert wrong(found) == ({(judged, "database", "synchronous_commit")} if judged else set())


def test_dead_rows_are_judged_by_the_size_of_their_table() -> None:
    found = judge_server(replace(FACTS, tables=(TableRows("recipients", 1_000_000, 450_001),)))
    assert wrong(found) == {(WARNING, "database", "table recipients")}
