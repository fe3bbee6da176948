"""What the engine counts for an operator: connections opened again, transactions run again, commits of unknown end."""

import threading

import psycopg
import pytest

from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.store import Store
from appliance.store.engine import Tx, first, run
from appliance.store.postgresql.engine import PostgresEngine
from appliance.telemetry.metrics import (
    COMMIT_BATCH,
    COMMIT_SECONDS,
    STORE_RECONNECTS,
    STORE_RERUNS,
    STORE_UNKNOWN_COMMITS,
    SharedCounter,
)
from tests.postgresql_server import empty

TOUCH = "UPDATE installation SET value = 'new' WHERE name = 'key_fingerprint'"


class Counted:
    def __init__(self, counter: SharedCounter) -> None:
        self._counter, self._begin = counter, counter.values[""]

    def more(self) -> int:
        return self._counter.values[""] - self._begin


async def test_a_transaction_that_met_another_is_run_again(shared_database: str) -> None:
    """Another node changes what it has read: it is run once more, and counted."""
    empty(shared_database)
    engine = PostgresEngine(shared_database)
    store, reruns, runs = Store(engine, Environment()), Counted(STORE_RERUNS), []
    await store.installation.claim_key("old")

    def work(tx: Tx) -> None:
        first(tx, "SELECT value FROM installation", {})
        runs.append(1)
        if len(runs) == 1:
            with psycopg.connect(shared_database) as other:
                other.execute(TOUCH)
        run(tx, "UPDATE installation SET value = 'newer'", {})

    try:
        await engine.write(work)
    finally:
        await engine.close()
    assert (len(runs), reruns.more()) == (2, 1)


async def test_a_connection_lost_during_a_commit(shared_database: str) -> None:
    empty(shared_database)
    engine = PostgresEngine(shared_database)
    reconnects, unknown = Counted(STORE_RECONNECTS), Counted(STORE_UNKNOWN_COMMITS)

    def work(tx: Tx) -> None:
        found = first(tx, "SELECT pg_backend_pid() AS pid", {})
        assert found is not None
        with psycopg.connect(shared_database) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", found)

    try:
        with pytest.raises(StorageUnavailable, match="may be stored or not"):
            await engine.write(work)
        assert (unknown.more(), reconnects.more()) == (1, 0)
        await engine.write(lambda tx: run(tx, TOUCH, {}))
        assert (unknown.more(), reconnects.more()) == (1, 1)
    finally:
        await engine.close()


async def test_commits_are_measured_by_one_thread(shared_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever writer made them: a histogram has no lock."""
    threads = []
    for measured in (COMMIT_SECONDS, COMMIT_BATCH):
        monkeypatch.setattr(measured, "add", lambda _: threads.append(threading.current_thread()))
    engine = PostgresEngine(shared_database)
    try:
        for options in ({"urgent": True}, {"large": True}, {}):
            await engine.write(lambda _: None, **options)
    finally:
        await engine.close()
    assert threads == [threading.current_thread()] * 6
