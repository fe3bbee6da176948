"""Watches nodes under load from outside, and compares what it saw with the database.

Once everything is final, every acknowledged message must be stored once for its key and have reached its recipient, the
ledger add up to the balance, no message have arrived more often than once and once more for each fault at which it was
in flight, and every event have been posted.
"""

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import trio

from tests.e2e.delivery.witness import Taken, Witness
from tests.e2e.delivery.world import CREDITS
from tests.e2e.nodes.cluster import Cluster
from tests.e2e.nodes.customers import DOMAINS, Balancer, Load
from tests.fakes.webhook_server import Hooks

HOOK = "/observed"
FINAL_WITHIN = 120.0  # seconds
RECENT = 2.0  # seconds before a fault within which a server's answer may not have been recorded yet
KEYS_TOGETHER = 500  # in one query, which may not take long
TAKES = (0.01, 0.2)  # seconds that the mail servers take for a message

_WAITING = """SELECT count(*) FROM recipients WHERE next_attempt_at IS NOT NULL
    UNION ALL SELECT count(*) FROM webhook_deliveries WHERE next_attempt_at IS NOT NULL"""
_STORED = "SELECT key, message_id FROM idempotency_keys WHERE key = ANY(?::text[])"
_COUNTS = """SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM idempotency_keys),
    (SELECT count(*) FROM events WHERE type = 'email.delivered'), (SELECT count(*) FROM webhook_deliveries)"""
_NOT_FINAL = """SELECT 'message', status, count(*) FROM messages WHERE status <> 'delivered' GROUP BY 2
    UNION ALL SELECT 'recipient', status, count(*) FROM recipients WHERE status <> 'delivered' GROUP BY 2
    UNION ALL SELECT 'post', status, count(*) FROM webhook_deliveries WHERE status <> 'success' GROUP BY 2"""
_BALANCES = """SELECT a.credits, (SELECT coalesce(sum(l.amount), 0) FROM credit_ledger l WHERE l.account_id = a.id)
    FROM accounts a"""


@dataclass
class Observer:
    """What is known of the mail from outside the nodes. What was checked is kept as counts only."""

    made: Cluster
    sink: Witness
    receiver: Hooks
    load: Load
    in_flight: int = 0  # messages, at all faults so far
    again: int = 0  # messages that came once more
    _lasts: bool = False  # a fault
    _noted: set[Taken] = field(default_factory=set)
    _may_come: Counter[str] = field(default_factory=Counter)  # by address
    _came: Counter[str] = field(default_factory=Counter)
    _posted: set[str] = field(default_factory=set)  # ids of events
    _checked: int = 0  # of the acknowledged messages

    # ---- faults

    def note(self) -> None:
        since = time.monotonic() - RECENT
        self._noted.update(self.sink.open)
        self._noted.update(each for each in self.sink.transactions[-500:] if (each.answered_at or 0.0) > since)

    @contextmanager
    def fault(self) -> Iterator[None]:
        """A fault that lasts: what is in flight at any time of it may come once more."""
        self._lasts = True
        try:
            yield
        finally:
            self._lasts = False

    async def watch(self) -> None:
        while True:
            if self._lasts:
                self.note()
            await trio.sleep(0.02)

    # ---- afterwards

    async def settle(self, within: float = FINAL_WITHIN) -> float:
        """Let the customers rest, and wait until nothing is on its way any more; how long that took.

        Raises trio.TooSlowError.
        """
        began = time.monotonic()
        self.load.paused = True
        with trio.fail_after(within):
            while self.load.busy or any(count for (count,) in self.made.rows(_WAITING)):  # noqa: ASYNC110
                await trio.sleep(0.1)
        return time.monotonic() - began

    def unsettled(self) -> str:
        waiting = [count for (count,) in self.made.rows(_WAITING)]
        owners = self.made.rows("SELECT name, owner, adopted_by, skew FROM nodes ORDER BY started_at DESC LIMIT 6")
        return f"{self.load.busy} customers and {waiting} wait: {self.made.unfinished()[:3]}; nodes {owners}"

    def wrong(self) -> list[str]:
        """What does not hold of the mail since the last call, and of the totals."""
        keys = list(self.load.acknowledged)[self._checked :]
        self._checked += len(keys)
        found = self._stored_wrong(keys) + self._arrivals_wrong()
        ((messages, stored, delivered, posts),) = self.made.rows(_COUNTS)
        if not messages == stored == delivered == self._checked:
            found.append(f"{messages} messages, {stored} keys, {delivered} delivered, {self._checked} acknowledged")
        if others := self.made.rows(_NOT_FINAL):
            found.append(f"not as they should end: {others}")
        ((credits, total),) = self.made.rows(_BALANCES)
        if not credits == total == CREDITS - messages:
            found.append(f"{credits} credits, {total} in the ledger, {CREDITS - messages} expected")
        self._read_posts()
        if posts != len(self._posted):
            found.append(f"{posts} events to be posted, {len(self._posted)} posted")
        if self.load.changed:
            found.append(f"{len(self.load.changed)} keys were answered with another id: {self.load.changed[:3]}")
        return found

    def all_wrong(self) -> list[str]:
        known = {event_id for (event_id,) in self.made.rows("SELECT event_id FROM webhook_deliveries")}
        found = self._stored_wrong(list(self.load.acknowledged)) + self.wrong()
        return found + ([] if known == self._posted else [f"{len(known ^ self._posted)} events differ"])

    def _stored_wrong(self, keys: list[str]) -> list[str]:
        some = (keys[at : at + KEYS_TOGETHER] for at in range(0, len(keys), KEYS_TOGETHER))
        stored = dict(row for each in some for row in self.made.rows(_STORED, each))
        lost = [key for key in keys if stored.get(key) != self.load.acknowledged[key]]
        return [f"{len(lost)} acknowledged messages are not stored under their keys: {lost[:3]}"] if lost else []

    def _arrivals_wrong(self) -> list[str]:
        ended = [each for each in self.sink.transactions if each not in self.sink.open]
        self.sink.transactions[:] = self.sink.open
        came = Counter(each.recipients[0] for each in ended if each.data)
        self._came.update(came)
        self._may_come.update(each.recipients[0] for each in self._noted)
        self.in_flight += len(self._noted)
        self._noted.clear()
        self.again = self._came.total() - len(self._came)
        missing = len(self.load.acknowledged) - len(self._came)
        more = [(address, self._came[address]) for address in came if self._came[address] > 1 + self._may_come[address]]
        found = [f"{missing} messages have not arrived"] if missing else []
        return found + ([f"{len(more)} arrived again that were not in flight at a fault: {more[:3]}"] if more else [])

    def _read_posts(self) -> None:
        count = len(self.receiver.posts)  # its threads add to them
        self._posted.update(post.json()["id"] for post in self.receiver.posts[:count] if post.path == HOOK)
        del self.receiver.posts[:count]


@asynccontextmanager
async def observed(
    made: Cluster, receiver: Hooks, choose: random.Random, *, customers: int, pause: float
) -> AsyncIterator[Observer]:
    """Mail servers, a webhook and a balancer for these nodes, and customers who begin when they are let."""

    async def think() -> None:
        await trio.sleep(choose.uniform(*TAKES))

    sink = Witness(think)
    for number in range(DOMAINS):
        await made.host(f"mx.d{number}.test", sink.serve)
        made.publish(f"d{number}.test", MX=[f"10 mx.d{number}.test."])
    token = await trio.to_thread.run_sync(made.running.login)
    first = next(iter(made.nodes))
    saved = await made.request(first, "PUT", "/v1/webhook", headers=token, json={"url": receiver.url(HOOK)})
    assert saved.status_code == 200, saved.text
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    load = Load(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", made.running.account)
    observer = Observer(made, sink, receiver, load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, Balancer(made.nodes).serve, listeners)
        nursery.start_soon(observer.watch)
        for number in range(customers):
            nursery.start_soon(load.run, number, pause)
        yield observer
        nursery.cancel_scope.cancel()
