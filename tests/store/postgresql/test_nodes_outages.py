"""A node whose database is away or takes no writes: it stays, hands over nothing, and goes on by itself."""

from collections.abc import Callable

import psycopg
import pytest
import trio

from appliance.store.postgresql import engine, nodes
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.migrate import newest_known
from appliance.store.postgresql.nodes import NodeIdentity
from tests.postgresql_server import PostgresServer

WITHIN = 20.0  # seconds


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(WITHIN):
        while not condition():  # noqa: ASYNC110 - the engine does not tell
            await trio.sleep(0.05)


@pytest.fixture
async def node(url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresEngine:
    monkeypatch.setattr(engine, "BEAT", 0.2)
    monkeypatch.setattr(nodes, "LEASE", 1.0)
    made = await prepare(url, 0, None, lambda: NodeIdentity("node_1", "a", "home", "a.test", "1", newest_known()))
    return PostgresEngine(url, made)


async def kept(node: PostgresEngine, nursery: trio.Nursery) -> None:
    beats = 0

    def in_flight() -> int:
        nonlocal beats
        beats += 1
        return 0

    nursery.start_soon(node.keep_lease, in_flight, lambda: None)
    await until(lambda: beats > 1 and node.holds_lease())


def _configure(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(command.encode())
        connection.execute("SELECT pg_reload_conf()")


async def test_a_server_that_turns_read_only(url: str, node: PostgresEngine, nursery: trio.Nursery) -> None:
    """As a primary that was demoted: no node ends by it."""
    await kept(node, nursery)
    try:
        _configure(url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await until(lambda: not node.holds_lease())
    finally:
        _configure(url, "ALTER SYSTEM RESET default_transaction_read_only")
    await until(node.holds_lease)
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await node.close()


async def test_a_restarted_server(server: PostgresServer, node: PostgresEngine, nursery: trio.Nursery) -> None:
    """Longer than the lease: nothing is handed over meanwhile."""
    await kept(node, nursery)
    await trio.to_thread.run_sync(server.stop)
    try:
        await until(lambda: not node.holds_lease())
    finally:
        await trio.to_thread.run_sync(server.start)
    await until(node.holds_lease)
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await node.close()
