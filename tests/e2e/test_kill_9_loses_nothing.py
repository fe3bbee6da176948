"""Again and again `kill -9` under load: nothing acknowledged is lost, nothing doubled, every credit accounted for."""

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from appliance.model.mail import RecipientStatus
from appliance.store.queue import message_result
from tests import engines
from tests.e2e.raw import Client, request, sending
from tests.restarted_appliance import often_started
from tests.running_appliance import Running, appliance
from tests.waiting import wait_until

ROUNDS = {engines.Kind.SQLITE: 30, engines.Kind.POSTGRESQL: 10}  # the file is ours to keep whole
SENDERS = 8
SEED = 9
CREDITS = 1_000_000
LONGEST = 0.6  # seconds of load before a kill
BATCH = 30  # messages

LOCAL_PARTS = ("user", "user", "user", "bounce", "defer", "fail")


@dataclass(frozen=True)
class Sent:
    """One message or batch a client wants to get through, however often it has to ask."""

    key: str
    messages: int
    recipients: int  # of each
    body: bytes = field(repr=False)


@dataclass
class Clients:
    """All clients that send: what was acknowledged (by key, with the messages' ids), and what is unknown."""

    choose: random.Random
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    all: dict[str, Sent] = field(default_factory=dict)
    unknown: list[Sent] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def new(self) -> Sent:
        number = next(self._numbers)
        parts = self.choose.choices(LOCAL_PARTS, k=self.choose.choice([1, 1, 1, 2, 5]))
        recipients = [f"{part}{place}@example.net" for place, part in enumerate(parts)]
        message = {"from": "a@example.com", "to": recipients, "subject": f"number {number}", "text": f"<{number}>"}
        count = self.choose.choice([1, 1, 1, 1, BATCH])
        body = message if count == 1 else {"emails": [message] * count}
        made = Sent(f"key {number}", count, len(parts), json.dumps(body).encode())
        self.all[made.key] = made
        return made

    def send(self, running: Running, client: Client, message: Sent) -> None:
        """Send it and remember what came of it; raises when the server is gone."""
        try:
            path = "/emails" if message.messages == 1 else "/emails/batch"
            client.send(request("POST", path, *sending(running, message.key), body=message.body))
            answer = client.answer()
        except OSError:
            self.unknown.append(message)
            raise
        if answer.status != 202:
            self.wrong.append(f"{message}: {answer.status} {answer.body!r}")
            return
        ids = [result["id"] for result in answer.json().get("results", [answer.json()])]
        if len(ids) != message.messages or self.acknowledged.setdefault(message.key, ids) != ids:
            self.wrong.append(f"{message}: accepted twice, or in part")

    def send_until_killed(self, running: Running) -> None:
        """What one sender does in a round: new messages, and now and then one that was acknowledged already."""
        try:
            with Client(running.url) as client:
                while True:
                    self.send(running, client, self.new())
                    if self.choose.random() < 0.05:
                        again = self.all[self.choose.choice(list(self.acknowledged) or [next(iter(self.all))])]
                        self.send(running, client, again)
        except OSError:
            return

    def retry(self, running: Running) -> None:
        """Ask again, under the same keys, for everything that is unknown."""
        waiting, self.unknown = self.unknown, []
        with Client(running.url) as client:
            for message in waiting:
                self.send(running, client, message)


def rows(running: Running, query: str) -> list[tuple[Any, ...]]:
    return engines.rows(running.data_dir, query)


# What must be the same for each message or recipient: (id, number) told by one table, and by another.
THE_SAME = {
    "bytes": ("SELECT id, 1 FROM messages", "SELECT message_id, 1 FROM message_bodies"),
    "recipients": (
        "SELECT id, recipient_count FROM messages",
        "SELECT message_id, count(*) FROM recipients GROUP BY message_id",
    ),
    "keys": (
        "SELECT request_id, 1 FROM messages WHERE source = 'api'",
        "SELECT request_id, count(*) FROM idempotency_keys JOIN messages ON id = message_id GROUP BY request_id",
    ),
    "credits taken": (
        "SELECT id, -recipient_count FROM messages",
        "SELECT message_id, sum(amount) FROM credit_ledger WHERE kind = 'reserve' GROUP BY message_id",
    ),
    "credits returned": (
        "SELECT id, 1 FROM recipients WHERE status = 'bounced'",
        "SELECT recipient_id, sum(amount) FROM credit_ledger WHERE kind = 'release' GROUP BY recipient_id",
    ),
    "events": (
        "SELECT id, 1 FROM recipients WHERE next_attempt_at IS NULL",
        "SELECT recipient_id, count(*) FROM events GROUP BY recipient_id",
    ),
    "attempts": (
        "SELECT id, attempt_count FROM recipients WHERE attempt_count > 0",
        "SELECT recipient_id, count(*) FROM attempts GROUP BY recipient_id",
    ),
}


def check_what_is_there(running: Running, clients: Clients) -> None:
    """Whatever is in the file is there whole, and whatever was acknowledged is there."""
    engines.await_end_of_sessions(running.data_dir)
    engines.check(running.data_dir)
    for name, (told, found) in THE_SAME.items():
        assert dict(rows(running, told)) == dict(rows(running, found)), name
    query = """SELECT k.key, m.id, b.mime FROM idempotency_keys k JOIN messages f ON f.id = k.message_id
        JOIN messages m ON m.request_id = f.request_id JOIN message_bodies b ON b.message_id = m.id"""
    stored: dict[str, dict[str, bytes]] = {}
    for key, message_id, mime in rows(running, query):
        stored.setdefault(key, {})[message_id] = mime
    for key, mimes in stored.items():
        assert len(mimes) == clients.all[key].messages, "a part of a batch"
        assert all(f"<{key.removeprefix('key ')}>".encode() in mime for mime in mimes.values())
    for key, ids in clients.acknowledged.items():
        assert set(stored[key]) == set(ids)


def check_the_end(running: Running, clients: Clients) -> None:
    """Every message is there once, every recipient final with one event, and the accounts add up."""
    assert rows(running, "SELECT count(*) FROM messages") == [(sum(each.messages for each in clients.all.values()),)]
    assert rows(running, "SELECT count(*) FROM recipients WHERE next_attempt_at IS NOT NULL") == [(0,)]
    ((charged,),) = rows(running, "SELECT count(*) FROM recipients")
    ((released,),) = rows(running, "SELECT count(*) FROM recipients WHERE status = 'bounced'")
    ((balance,),) = rows(running, "SELECT credits FROM accounts")
    assert charged == sum(each.messages * each.recipients for each in clients.all.values())
    assert released > 0
    assert balance == CREDITS - charged + released
    ledger = rows(running, "SELECT amount, balance FROM credit_ledger ORDER BY id")
    assert sum(amount for amount, _ in ledger) == balance
    running_balance = 0
    for amount, noted in ledger:
        running_balance += amount
        assert noted == running_balance
    check_statuses(running)


def check_statuses(running: Running) -> None:
    counts: dict[str, dict[RecipientStatus, int]] = {}
    for message_id, status, number in rows(
        running, "SELECT message_id, status, count(*) FROM recipients GROUP BY message_id, status"
    ):
        counts.setdefault(message_id, {})[RecipientStatus(status)] = number
    for message_id, status, billing in rows(running, "SELECT id, status, billing_status FROM messages"):
        assert (status, billing) == message_result(counts[message_id])


def one_round(running: Running, clients: Clients, seconds: float) -> None:
    running.start()
    clients.retry(running)
    threads = [threading.Thread(target=clients.send_until_killed, args=(running,)) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    running.kill()
    for thread in threads:
        thread.join()
    assert clients.wrong == []
    check_what_is_there(running, clients)


@pytest.mark.slow
@pytest.mark.both_engines
@pytest.mark.timeout(300)
def test_kill_9_loses_nothing(tmp_path: Path, engine: engines.Kind) -> None:
    """After each of many kills what was acknowledged is there, and at the end everything is there exactly once."""
    choose = random.Random(SEED)
    clients = Clients(random.Random(SEED))
    with appliance(tmp_path, credit=CREDITS) as running:
        running.kill()
        with often_started(running) as again:
            for _ in range(ROUNDS[engine]):
                one_round(again, clients, choose.uniform(0.0, LONGEST))
        running.start()
        clients.retry(running)
        wait_until(lambda: not rows(running, "SELECT 1 FROM recipients WHERE next_attempt_at IS NOT NULL LIMIT 1"))
        assert running.terminate() == 0
        assert running.complaints() == []
        assert clients.wrong == []
        assert len(clients.acknowledged) == len(clients.all) > 10 * ROUNDS[engine]
        check_what_is_there(running, clients)
        check_the_end(running, clients)
