"""Two nodes on one database, one of which stops at a statement until the test lets it go on."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import outcome
import psycopg
import pytest
import trio

from appliance.environment import Environment
from appliance.store import Store
from appliance.store.postgresql import engine, transactions
from appliance.store.postgresql.connection import PostgresTx
from tests.store.samples import Clock

PATIENCE = 20  # seconds for a step
FIRST, SECOND = "first", "second"  # the nodes


@dataclass
class Barrier:
    """Stops one node, once: before it runs a statement, or after it."""

    node: str
    statement: str  # a part of it
    after: bool = False
    _reached: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)

    def stop(self, node: str, statement: str, *, after: bool) -> None:
        words = " ".join(statement.split())
        if node == self.node and after is self.after and self.statement in words and not self._reached.is_set():
            self._reached.set()
            assert self._opened.wait(PATIENCE), "the barrier was not opened"

    async def reached(self) -> None:
        assert await trio.to_thread.run_sync(self._reached.wait, PATIENCE), f"{self.node} never ran {self.statement}"

    def open(self) -> None:
        self._opened.set()


@contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, barrier: Barrier) -> Iterator[Barrier]:
    class SteppedTx(PostgresTx):
        def __init__(self, connection: psycopg.Connection[Any]) -> None:
            super().__init__(connection)
            self._node = connection.info.get_parameters()["application_name"]

        def _run(self, text: str, values: Any) -> None:
            barrier.stop(self._node, text, after=False)
            super()._run(text, values)
            barrier.stop(self._node, text, after=True)

    with monkeypatch.context() as patched:
        patched.setattr(transactions, "PostgresTx", SteppedTx)
        try:
            yield barrier
        finally:
            barrier.open()


@asynccontextmanager
async def nodes(url: str, clock: Clock, *names: str) -> AsyncIterator[list[Store]]:
    stores = [Store(engine.PostgresEngine(f"{url}&application_name={name}"), Environment(now=clock)) for name in names]
    try:
        yield stores
    finally:
        with trio.CancelScope(shield=True):
            for store in stores:
                await store.engine.close()


async def until_it_waits(url: str, node: str) -> None:
    wanted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"

    def is_waiting() -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(wanted, (node,)).fetchall() != [(0,)]

    with trio.fail_after(PATIENCE):
        while not await trio.to_thread.run_sync(is_waiting):  # noqa: ASYNC110 - the database does not tell
            await trio.sleep(0.01)


Verb = Callable[[], Awaitable[Any]]


async def result(verb: Verb) -> outcome.Outcome[Any]:
    return await outcome.acapture(verb)


async def overtaken(barrier: Barrier, stopped: Verb, other: Verb) -> tuple[outcome.Outcome[Any], outcome.Outcome[Any]]:
    """Let the other run wholly while the first stands at the barrier; what became of both."""
    results: list[outcome.Outcome[Any]] = []

    async def run_stopped() -> None:
        results.append(await result(stopped))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_stopped)
        await barrier.reached()
        with trio.fail_after(PATIENCE):
            others = await result(other)
        barrier.open()
    return results[0], others


async def queued_behind(
    url: str, barrier: Barrier, stopped: Verb, other: Verb
) -> tuple[outcome.Outcome[Any], outcome.Outcome[Any]]:
    """Let the other run until it waits for what the first holds at the barrier; what became of both."""
    results: dict[str, outcome.Outcome[Any]] = {}

    async def run(name: str, verb: Verb) -> None:
        results[name] = await result(verb)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "stopped", stopped)
        await barrier.reached()
        nursery.start_soon(run, "other", other)
        await until_it_waits(url, SECOND if barrier.node == FIRST else FIRST)
        barrier.open()
    return results["stopped"], results["other"]


@dataclass
class Meet:
    """Run the first node's verb up to a statement, then the second's: wholly, or `queued` behind the first's locks."""

    url: str
    patch: pytest.MonkeyPatch

    async def __call__(
        self, statement: str, ours: Verb, theirs: Verb, *, after: bool = False, queued: bool = False
    ) -> tuple[outcome.Outcome[Any], outcome.Outcome[Any]]:
        with stopping(self.patch, Barrier(FIRST, statement, after=after or queued)) as barrier:
            if queued:
                return await queued_behind(self.url, barrier, ours, theirs)
            return await overtaken(barrier, ours, theirs)


# ---- what must hold afterwards

_BOOKS = """SELECT a.id, a.credits, coalesce((SELECT sum(l.amount) FROM credit_ledger l WHERE l.account_id = a.id), 0)
    FROM accounts a WHERE a.credits IS NOT NULL"""
_LINES = "SELECT account_id, amount, balance FROM credit_ledger ORDER BY account_id, id"
_STATUSES = """SELECT m.id, m.status, m.recipient_count, count(r.id), count(r.next_attempt_at),
        count(CASE WHEN r.status = 'delivered' THEN 1 END)
    FROM messages m LEFT JOIN recipients r ON r.message_id = m.id GROUP BY m.account_id, m.id"""
_TWICE = """SELECT k.scope, k.key FROM idempotency_keys k LEFT JOIN messages m ON m.id = k.message_id
    WHERE m.id IS NULL"""
_ATTEMPTS = """SELECT r.id FROM recipients r
    WHERE r.attempt_count <> (SELECT count(*) FROM attempts a WHERE a.recipient_id = r.id)"""


async def check_books(store: Store) -> None:
    """Ledgers add up to the balances, line by line; messages are what their recipients are; keys lead to messages."""
    for account_id, balance, total in await store.engine.rows(_BOOKS, {}):
        assert balance >= 0
        assert balance == total, account_id
    balances: dict[str, int] = {}
    for account_id, amount, balance in await store.engine.rows(_LINES, {}):
        balances[account_id] = balances.get(account_id, 0) + amount
        assert balances[account_id] == balance, account_id
    for message_id, status, count, found, waiting, delivered in await store.engine.rows(_STATUSES, {}):
        assert count == found, message_id
        final = "delivered" if delivered == found else "partial" if delivered else "failed"
        assert status == ("queued" if waiting else final), message_id
    assert await store.engine.rows(_TWICE, {}) == []
    assert await store.engine.rows(_ATTEMPTS, {}) == []
