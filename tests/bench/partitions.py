"""How fast messages are accepted on PostgreSQL while old ones are cleared, against while nothing is.

    .venv/bin/python -m tests.bench.partitions                  # some minutes; 300,000 messages

The database is filled with delivered messages of forty days ago: once in partitions of their time, which are dropped,
and once outside of any, where rows are deleted. Messages of 2 KB are accepted by the store, by as many tasks as there
are customers, in turns: without retention, then with its sweeps; the last of its tasks is the ledger, which is folded
in both. The ratio is that of the two rates, between neighbours in time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from appliance.config.settings import RetentionSettings
from appliance.environment import Environment
from appliance.intake.limits import FreeSpace
from appliance.retention import RetentionWorker
from appliance.store import Store, open_store
from appliance.store.engine import Slice
from appliance.store.postgresql.connection import connect, run
from appliance.store.postgresql.partitions import KEPT_BY_DEFAULT, make_ahead
from appliance.times import DAY
from tests.postgresql_server import PostgresServer, postgresql
from tests.store.samples import HASH, Messages

BATCH = 20_000
AGE = 40 * DAY
WITHIN = 2 * DAY  # all of them were accepted
WANTED = 0.9
LONGEST = 600.0  # seconds that retention may take

_AT = "(%(began)s + i * %(step)s)"
_ID = f"lpad(to_hex({_AT} >> 2), 13, '0') || lpad(to_hex(i), 19, '0')"
_FROM = "FROM generate_series(%(first)s::bigint, %(last)s::bigint) i"
_FILL = (
    f"""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender, envelope_from,
        subject, tags, recipient_count, credits_reserved, size, created_at)
    SELECT %(account)s, 'msg_' || {_ID}, 'req_' || i, 'api', 'delivered', 'settled', 'Shop <orders@example.com>',
        'orders@example.com', 'On its way', '[]', 1, 1, 2600, {_AT} {_FROM}""",
    f"""INSERT INTO message_bodies (message_id, mime, receipt)
    SELECT 'msg_' || {_ID}, %(mime)s::bytea, %(receipt)s::bytea {_FROM}""",
    f"""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
        billing_status, attempt_count, last_smtp_code, last_smtp_response, delivered_at)
    SELECT 'msg_' || {_ID}, 'rcp_' || {_ID}, %(account)s, 'ada@example.net', 'example.net', 1, 1, 'delivered',
        'settled', 1, 250, '250 2.0.0 OK', {_AT} {_FROM}""",
    f"""INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code, smtp_response)
    SELECT 'rcp_' || {_ID}, 1, {_AT}, {_AT}, 250, '250 2.0.0 OK' {_FROM}""",
    f"""INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    SELECT 'evt_' || {_ID}, %(account)s, 'msg_' || {_ID}, 'rcp_' || {_ID}, 'email.delivered', %(receipt)s::bytea,
        {_AT} {_FROM}""",
)
_COUNTED = """INSERT INTO counted_until (kind, id)
    SELECT 'sent', max(message_id) FROM recipients UNION ALL SELECT 'final', max(id) FROM events"""


def fill(url: str, account: str, count: int, *, partitioned: bool) -> None:
    """Store so many delivered messages, as if the program had been there all the time."""
    now = time.time_ns() // 1000
    began = now - AGE
    with closing(connect(url, "bench", 600)) as connection:
        if partitioned:
            for kind, kept in KEPT_BY_DEFAULT.items():
                make_ahead(connection, kind, kept, began + WITHIN, began)
        values: dict[str, Any] = {"account": account, "began": began, "step": WITHIN // count}
        values |= {"mime": b"x" * 2_600, "receipt": b"y" * 450}
        for first in range(0, count, BATCH):
            for statement in _FILL:
                connection.execute(statement, values | {"first": first, "last": min(count, first + BATCH) - 1})
        run(connection, _COUNTED)
        connection.execute("VACUUM ANALYZE")


@dataclass
class Senders:
    """Tasks that send one message after the other."""

    store: Store
    messages: Messages
    accepted: int = 0
    slowest: float = 0.0  # seconds

    async def send(self) -> None:
        while True:
            new = msgspec.structs.replace(self.messages.new(simulated=False, size=2_600), receipt=b"y" * 450)
            began = time.monotonic()
            await self.store.messages.accept(new)
            self.store.new_mail.take()
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.accepted += 1

    async def measure(self, seconds: float, slowest: float) -> tuple[float, float]:
        """Messages a second from now on; and how long the slowest has taken, if it is not one from before."""
        self.accepted, self.slowest, began = 0, slowest, time.monotonic()
        await trio.sleep(seconds)
        return self.accepted / (time.monotonic() - began), self.slowest


class Halting(RetentionWorker):
    """Retention that goes on only while it is let."""

    go_on = trio.Event()
    finished = False

    async def finish(self) -> None:
        await self.sweep()
        self.finished = True

    async def _slice(self, *rest: Any) -> Slice:
        await self.go_on.wait()
        return await super()._slice(*rest)


@asynccontextmanager
async def sending(store: Store, account: str, tasks: int) -> AsyncIterator[Senders]:
    senders = Senders(store, Messages(Environment(), account))
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(senders.send)
        yield senders
        nursery.cancel_scope.cancel()


async def measured(server: PostgresServer, options: argparse.Namespace, *, partitioned: bool) -> float:
    """Accept with and without retention, in turns, until all that is old is gone; the median ratio."""
    name, env, url = "dropped" if partitioned else "deleted", Environment(), server.new_database()
    with tempfile.TemporaryDirectory() as directory:
        async with open_store(Path(directory), env, url=url) as store:
            account = (await store.accounts.create("demo", "demo@example.org", HASH, credit=None)).id
            await trio.to_thread.run_sync(lambda: fill(url, account, options.messages, partitioned=partitioned))
            worker = Halting(store, env, RetentionSettings(), FreeSpace(Path(directory), 0, 0, env))
            size, took, ratios, slowest = await _size(store), 0.0, list[float](), [0.0, 0.0]
            async with sending(store, account, options.tasks) as senders, trio.open_nursery() as nursery:
                nursery.start_soon(worker.finish)
                await trio.sleep(3)
                while not worker.finished and took < LONGEST:
                    idle, slowest[0] = await senders.measure(options.seconds, slowest[0])
                    worker.go_on.set()
                    began = time.monotonic()
                    busy, slowest[1] = await senders.measure(options.seconds, slowest[1])
                    took += time.monotonic() - began
                    worker.go_on = trio.Event()
                    if not worker.finished:
                        ratios.append(busy / idle)
                        print(f"{name}: {idle:6.0f}/s without, {busy:6.0f}/s with", flush=True)
                nursery.cancel_scope.cancel()
            left = await _size(store)
            old = env.now() - AGE + WITHIN
            ((rows,),) = await store.engine.rows("SELECT count(*) FROM messages WHERE created_at < :old", {"old": old})
    print(f"{name}: ratio {statistics.median(ratios):.2f} over {len(ratios)} rounds, {took:.0f} s, {rows} rows left,")
    print(f"    slowest accept {slowest[0]:.2f} s without, {slowest[1]:.2f} s with; {size} to {left} MiB of old mail")
    return statistics.median(ratios)


async def _size(store: Store) -> int:
    query = """SELECT CAST(sum(pg_total_relation_size(oid)) AS bigint) >> 20 FROM pg_class
        WHERE relkind = 'r' AND relispartition AND relname NOT LIKE :now"""
    ((size,),) = await store.engine.rows(query, {"now": f"%{time.strftime('%Y%m', time.gmtime())}%"})
    return int(size or 0)


async def benchmark(options: argparse.Namespace) -> None:
    with postgresql(fsync="on", autovacuum="on", shared_buffers="256MB", max_wal_size="4GB") as server:
        dropped = await measured(server, options, partitioned=True)
        print(f"\naccepted with retention against without: {dropped:.2f} (wanted: at least {WANTED})\n")
        if options.both:
            await measured(server, options, partitioned=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--both", action="store_true", help="also deleted row by row")
    trio.run(benchmark, parser.parse_args())


if __name__ == "__main__":
    main()
