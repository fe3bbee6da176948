"""Connections through a real PgBouncer: by session they have all their settings, by transaction they are refused."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress

import psycopg
import pytest

from appliance.store.postgresql.connection import _SETTINGS, WRONG_POOLER, connect, run
from tests.pgbouncer import pgbouncer
from tests.postgresql_server import USER, PostgresServer, postgresql, standby
from tests.programs import needs

pytestmark = needs("pgbouncer")


def settings_of(connection: psycopg.Connection[tuple[object, ...]], names: list[str]) -> dict[str, object]:
    values = {name: run(connection, "SELECT current_setting(%s)", (name,))[0][0] for name in names}
    return {name: "5000" if value == "5s" else value for name, value in values.items()}


@contextmanager
def other_clients(url: str) -> Iterator[None]:
    stopping = threading.Event()

    def work() -> None:
        while not stopping.is_set():
            with suppress(psycopg.Error), psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
                while not stopping.is_set():
                    connection.execute("SELECT 1")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("settings", ["", "server_reset_query ="])
def test_session_mode_keeps_settings_and_prepared_statements(server: PostgresServer, settings: str) -> None:
    with pgbouncer(server, "session", settings) as pooler:
        url = pooler.url(server.new_database())
        for owner in ("node_one", "node_two"):
            with closing(connect(url, owner)) as connection:
                assert settings_of(connection, list(_SETTINGS)) == _SETTINGS
                assert settings_of(connection, ["appliance.owner", "statement_timeout", "idle_session_timeout"]) == {
                    "appliance.owner": owner,
                    "statement_timeout": "10s",
                    "idle_session_timeout": "0",
                }
                for _ in range(5):
                    assert run(connection, "SELECT %s + 1", (1,)) == [(2,)]
                assert run(connection, "SELECT count(*) > 0 FROM pg_prepared_statements") == [(True,)]


@pytest.mark.parametrize(
    ("mode", "settings", "busy"),
    [
        ("transaction", "", True),
        ("transaction", "server_round_robin = 1", False),
        ("statement", "", False),
        ("statement", "server_round_robin = 1", True),
    ],
)
def test_other_modes_are_refused(server: PostgresServer, mode: str, settings: str, busy: bool) -> None:
    with pgbouncer(server, mode, settings) as pooler:
        url = pooler.url(server.new_database())
        with other_clients(url) if busy else nullcontext():
            for _ in range(3):
                with pytest.raises(psycopg.OperationalError, match=WRONG_POOLER[:30]):
                    connect(url, "node")


def test_a_full_pool_is_an_error_within_seconds(server: PostgresServer) -> None:
    """PgBouncer itself would let the client wait for two minutes."""
    with pgbouncer(server, "session", "default_pool_size = 1") as pooler:
        url = pooler.url(server.new_database())
        with closing(connect(url, "node")), pytest.raises(psycopg.OperationalError, match="in time"):
            connect(url, "other")


def test_a_promoted_standby_is_found_behind_its_pooler() -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(postgresql())
        second = stack.enter_context(standby(primary))
        poolers = [stack.enter_context(pgbouncer(server, "session")) for server in (primary, second)]
        hosts = ",".join(f"127.0.0.1:{pooler.port}" for pooler in poolers)
        url = f"postgresql://{USER}@{hosts}/postgres"
        connect(url, "node").close()
        with pytest.raises(psycopg.OperationalError, match="read-only"):
            connect(poolers[1].url(second.url()), "node")
        primary.kill()
        second.promote()
        with closing(connect(url, "node")) as connection:
            assert run(connection, "SELECT pg_is_in_recovery()") == [(False,)]
