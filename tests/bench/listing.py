"""Measures the dashboard's readings over a long history: a page of messages by each filter, numbers, and the queue.

    python -m tests.bench.listing [--messages 1000000] [--directory DIR]

Each reading is timed as the server would do it, many times, with what the event loop was kept from meanwhile.
"""

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import trio

from appliance.environment import Environment
from appliance.model.dashboard import MailFilter
from appliance.model.mail import MessageStatus, Source
from appliance.store import FILE_NAME, Store, open_store
from appliance.times import DAY

BATCH = 20_000
ROUNDS = 5
SPAN = 30 * DAY  # over which the messages were sent

# One in a thousand failed, one in 900 waits still; every message has one recipient and, but for those, one event.
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
_TIME = "(:began + i * :step)"
_ID = f"printf('%013x', {_TIME} >> 2) || printf('%019x', i)"
_STATUS = "CASE WHEN i % 1000 = 7 THEN 'failed' WHEN i % 900 = 3 THEN 'queued' ELSE 'delivered' END"
_STATEMENTS = (
    f"""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender, envelope_from,
        subject, tags, recipient_count, credits_reserved, size, created_at)
    SELECT :account_id, 'msg_' || {_ID}, 'req_' || i, 'api', {_STATUS}, 'settled', 'Shop <orders@example.com>',
        'orders@example.com', 'Your order number ' || i, '["order","eu"]', 1, 1, 2048, {_TIME} FROM n""",
    f"""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status, billing_status,
        attempt_count, last_smtp_code, last_smtp_response, delivered_at, next_attempt_at)
    SELECT 'msg_' || {_ID}, 'rcp_' || {_ID}, :account_id, 'user' || i || '@d' || (i % 997) || '.example.net',
        'd' || (i % 997) || '.example.net', 0, 1, {_STATUS}, 'settled', 1, 250, '250 2.0.0 OK: queued as 4711',
        {_TIME} + 800000, CASE WHEN i % 900 = 3 AND i % 1000 <> 7 THEN {_TIME} + {SPAN * 2} END FROM n""",
    f"""INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    SELECT 'evt_' || {_ID}, :account_id, 'msg_' || {_ID}, 'rcp_' || {_ID},
        CASE WHEN i % 1000 = 7 THEN 'email.bounced' ELSE 'email.delivered' END, zeroblob(400), {_TIME} + 800000
    FROM n""",
)
_FILTERS: dict[str, MailFilter] = {
    "no filter": MailFilter(),
    "status=delivered": MailFilter(status=MessageStatus.DELIVERED),
    "status=failed": MailFilter(status=MessageStatus.FAILED),
    "status=partial (none)": MailFilter(status=MessageStatus.PARTIAL),
    "status=queued": MailFilter(status=MessageStatus.QUEUED),
    "source=test (none)": MailFilter(source=Source.TEST),
    "source=smtp (none)": MailFilter(source=Source.SMTP),
    "tag=order": MailFilter(tag="order"),
    "tag=nothing (none)": MailFilter(tag="nothing"),
    "from=example.com": MailFilter(sender="example.com"),
    "from=unknown (none)": MailFilter(sender="unknown@example.org"),
    "recipient, the oldest": MailFilter(recipient="user1@d1.example.net"),
    "recipient's domain": MailFilter(recipient="d7.example.net"),
    "recipient (none)": MailFilter(recipient="unknown@example.org"),
}


def fill(data_dir: Path, account_id: str, count: int) -> None:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    began = time.time_ns() // 1000 - SPAN - 120_000_000
    shared = {"account_id": account_id, "began": began, "step": SPAN // count}
    for first in range(0, count, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        for statement in _STATEMENTS:
            bounds = {"first": first, "last": min(count, first + BATCH) - 1}
            head, _, values = statement.partition("SELECT")
            connection.execute(f"{head}{_NUMBERS}SELECT{values}", shared | bounds)
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


async def timed(what: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Print how long a reading takes, and for how long the event loop stood still."""
    took: list[float] = []
    held: list[float] = []
    for _ in range(ROUNDS):
        with trio.CancelScope() as watching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, held)
                await trio.sleep(0.01)
                began = time.perf_counter()
                told = await work()
                took.append(time.perf_counter() - began)
                watching.cancel()
    print(f"{what:<28} {1000 * max(took):7.1f} ms at most, loop held {1000 * max(held):5.1f} ms   {told}")


async def _watch(held: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await trio.sleep(0.001)
        held.append(time.perf_counter() - last)
        last = time.perf_counter()


async def _whole_search(store: Store, account_id: str, wanted: MailFilter) -> tuple[int, int]:
    """Search to the end: how many pages that took, and what was found."""
    pages, found, before = 0, 0, None
    while True:
        page = await store.mail_log.page(account_id, wanted, before, 50)
        pages, found, before = pages + 1, found + len(page.messages), page.next
        if before is None:
            return pages, found


async def run(data_dir: Path, count: int) -> None:
    async with open_store(data_dir, Environment()) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
    began = time.perf_counter()
    fill(data_dir, account.id, count)
    print(f"{count} messages stored in {time.perf_counter() - began:.0f} s")
    async with open_store(data_dir, Environment()) as store:
        for what, wanted in _FILTERS.items():

            async def first_page(wanted: MailFilter = wanted) -> str:
                page = await store.mail_log.page(account.id, wanted, None, 50)
                return f"{len(page.messages)} found" + (", goes on" if page.next else "")

            await timed(what, first_page)
        began = time.perf_counter()
        pages, _ = await _whole_search(store, account.id, MailFilter(recipient="unknown@example.org"))
        print(f"whole search by recipient: {pages} pages, {time.perf_counter() - began:.2f} s")
        began, slices = time.perf_counter(), 1
        while await store.statistics.count() or await store.breakdown.count():
            slices += 1
        print(f"counted in {slices} slices, {time.perf_counter() - began:.2f} s")
        for days in (7, 90):
            since = time.time_ns() // 1000 - days * DAY

            async def numbers(since: int = since) -> int:
                return len((await store.statistics.of(account.id, since)).by_hour)

            await timed(f"numbers of {days} days", numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        trio.run(run, Path(directory) / "data", given.messages)


if __name__ == "__main__":
    main()
