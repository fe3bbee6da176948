"""Mail of all kinds through one real program that dies again and again, and what must hold of it.

Customers send by HTTP, each message with a key under which it is sent again until it is acknowledged, and submit by
SMTP, each once; a mail server takes it, refuses some for good and some at the first try; a receiver is told by posts.
When all is final, everything acknowledged must be stored and have ended as the mail server said, each credit be in the
ledger, each event posted, each key lead to its one message. No message may have arrived more often than once, and once
more for each death at which the server had taken it and the database had no record of that.
"""

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import httpx
import trio

from appliance.model.mail import RecipientStatus
from appliance.store import FILE_NAME
from appliance.store.queue import message_result
from tests import engines
from tests.e2e.delivery.witness import OK, Witness
from tests.e2e.delivery.world import CREDITS, SENDER, World, delays, world
from tests.e2e.raw import Client, request, sending
from tests.e2e.submission.client import Raw
from tests.fakes.webhook_server import Answer, Hooks, Post, hooks
from tests.ports import free_port
from tests.running_appliance import NO_TLS
from tests.store.postgresql.stepping import check_books

DOMAINS = 3
CONCURRENCY = 3  # SMTP sessions of the pool of a domain
HTTP_SENDERS, SMTP_SENDERS = 4, 2
PAUSE = 0.01  # seconds between two messages of a sender
TAKES = (0.0, 0.05)  # seconds that the mail server takes for a message
RECORDED_WITHIN = 5.0  # seconds after the mail server's 250, however busy the machine
STOPPED_WITHIN = 10.0  # seconds: the setting, for which a stop is promised
MARGIN = 5.0  # seconds, for a busy machine
FINAL_WITHIN = 90.0  # seconds after the last start
SIZES = (1,) * 19 + (10,)  # messages in one request
HOOK = "/hook"
POST_DELAYS = f"retry_delays = {json.dumps(['100ms'] * 12)}\n"

KINDS = ("user",) * 6 + ("gone", "grey")  # the beginnings of addresses: taken, refused for good, refused at first
GONE, LATER = b"550 5.1.1 no such user\r\n", b"451 4.7.1 greylisted\r\n"

_QUEUED = re.compile(rb"250 2\.0\.0 queued as (msg_\w+)\r\n")
_RECORDED = """SELECT address FROM recipients
    WHERE status = 'delivered' AND address IN (SELECT value FROM json_each(?))"""
_WAITING = """SELECT (SELECT count(*) FROM recipients WHERE next_attempt_at IS NOT NULL),
    (SELECT count(*) FROM webhook_deliveries WHERE next_attempt_at IS NOT NULL)"""

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


@dataclass(frozen=True)
class Wanted:
    """A message or batch that its sender wants to get through by HTTP, however often it has to ask."""

    key: str
    messages: tuple[tuple[str, ...], ...]  # the recipients of each

    @property
    def request(self) -> tuple[str, bytes]:
        """Path and body."""
        shared: dict[str, Any] = {"from": SENDER, "subject": self.key, "text": f"<{self.key}>\n"}
        emails = [shared | {"to": recipients} for recipients in self.messages]
        if len(emails) == 1:
            return "/emails", json.dumps(emails[0]).encode()
        return "/emails/batch", json.dumps({"emails": emails}).encode()


@dataclass
class Load:
    """Who sends, who receives, and what each of them knows."""

    made: World
    sink: Witness
    receiver: Hooks
    choose: random.Random
    wanted: dict[str, Wanted] = field(default_factory=dict)  # by key
    acknowledged: dict[str, list[str]] = field(default_factory=dict)  # ids by key
    submitted: dict[str, str] = field(default_factory=dict)  # ids by address, of what got its 250
    unsure: set[str] = field(default_factory=set)  # addresses of what was submitted and got no answer
    wrong: list[str] = field(default_factory=list)
    deaths: int = 0
    came: Counter[str] = field(default_factory=Counter)  # by address
    ports: dict[str, set[int]] = field(default_factory=dict)  # by address: at which servers it came
    may_come: Counter[str] = field(default_factory=Counter)  # again
    stopping: bool = False  # an orderly stop, in which new work is refused
    _unknown: list[Wanted] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)
    _seen: set[str] = field(default_factory=set)  # greylisted addresses that were tried
    _pauses: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def again(self) -> int:
        return self.came.total() - len(self.came)

    @property
    def messages(self) -> int:
        return sum(map(len, self.acknowledged.values())) + len(self.submitted)

    # ---- those who receive

    def judge(self, address: str) -> bytes:
        if address.startswith("gone"):
            return GONE
        if address.startswith("grey") and address not in self._seen:
            self._seen.add(address)
            return LATER
        return OK

    def hear(self, _: Post) -> Answer:
        time.sleep(self.choose.random() * 0.02)
        return (500 if self.choose.random() < 0.05 else 200), b""

    # ---- those who send

    def _addresses(self, number: int, most: int) -> tuple[str, ...]:
        kinds = self.choose.choices(KINDS, k=self.choose.randint(1, most))
        return tuple(f"{kind}{number}.{place}@d{number % DOMAINS}.test" for place, kind in enumerate(kinds))

    def _new(self) -> Wanted:
        numbers = [next(self._numbers) for _ in range(self.choose.choice(SIZES))]
        made = Wanted(f"key {numbers[0]}", tuple(self._addresses(number, 3) for number in numbers))
        self.wanted[made.key] = made
        return made

    def _send(self, client: Client, wanted: Wanted) -> None:
        """Send it; raises when the program is gone."""
        running = self.made.running
        path, body = wanted.request
        try:
            client.send(request("POST", path, *sending(running, wanted.key), body=body))
            answer = client.answer()
        except OSError:
            self._unknown.append(wanted)
            raise
        if answer.status == 503 and self.stopping:
            self._unknown.append(wanted)
            raise ConnectionError
        if answer.status != 202:
            self.wrong.append(f"{wanted.key}: {answer.status} {answer.body!r}")
            return
        ids = [result["id"] for result in answer.json().get("results", [answer.json()])]
        if len(ids) != len(wanted.messages) or self.acknowledged.setdefault(wanted.key, ids) != ids:
            self.wrong.append(f"{wanted.key}: accepted twice, or in part")

    def _send_until_it_ends(self) -> None:
        try:
            with Client(self.made.running.url) as client:
                while not self._pauses:
                    self._send(client, self._new())
                    if self.acknowledged and self.choose.random() < 0.05:
                        self._send(client, self.wanted[self.choose.choice(list(self.acknowledged))])
                    time.sleep(PAUSE)
        except OSError:
            return

    def _submit_until_it_ends(self) -> None:
        try:
            with Raw(self.made.running, "smtps") as client:
                client.log_in()
                while not self._pauses:
                    self._submit(client)
                    time.sleep(PAUSE)
        except (OSError, AssertionError):
            return

    def _submit(self, client: Raw) -> None:
        number = next(self._numbers)
        (address,) = self._addresses(number, 1)
        self.unsure.add(address)
        message = f"From: shop@example.com\r\nTo: {address}\r\nSubject: {number}\r\n\r\n<{number}>\r\n".encode()
        reply = client.transact(message, address.encode())
        if queued := _QUEUED.fullmatch(reply):
            self.submitted[address] = queued[1].decode()
        if reply:
            self.unsure.discard(address)  # it was told yes or no
        if not queued:
            if reply and not (self.stopping and reply[:1] == b"4"):
                self.wrong.append(f"{address}: {reply!r}")
            raise ConnectionError

    def _retry(self) -> None:
        waiting, self._unknown = self._unknown, []
        try:
            with Client(self.made.running.url) as client:
                while waiting:
                    self._send(client, waiting.pop())
        except OSError:
            self._unknown += waiting

    # ---- lives and deaths of the program

    async def begin(self) -> None:
        if not self.made.running.is_alive():
            await self.made.start()
        self._pauses = self.stopping = False
        work = [self._retry, *[self._send_until_it_ends] * HTTP_SENDERS, *[self._submit_until_it_ends] * SMTP_SENDERS]
        self._threads = [threading.Thread(target=each) for each in work]
        for thread in self._threads:
            thread.start()

    async def rest(self) -> None:
        self._pauses = True
        for thread in self._threads:
            await trio.to_thread.run_sync(thread.join)

    async def stop(self) -> None:
        """SIGTERM: it must end as promised, and leave nothing that is sent again."""
        self.stopping, began = True, time.monotonic()
        code = await self.made.terminate()
        if code != 0 or time.monotonic() - began > STOPPED_WITHIN + MARGIN:
            self.wrong.append(f"SIGTERM: exit code {code} after {time.monotonic() - began:.1f} s")
        if left := await self._ended():
            self.wrong.append(f"SIGTERM: taken and not recorded: {left[:3]}")

    async def kill(self) -> None:
        self.made.running.kill()
        await self.died()

    async def died(self) -> None:
        """It has died: what the mail server has taken without a record may come again."""
        self.deaths += 1
        self.may_come.update(await self._ended())

    async def _ended(self) -> list[str]:
        """After its end, the addresses for which the server has taken a message and the database does not say so."""
        ended = time.monotonic()
        await self.rest()
        await self.made.until(lambda: not self.sink.sessions)  # what it has got it takes, though its answer is lost
        taken = self.sink.taken
        self.sink.transactions.clear()
        self.came.update(address for each in taken for address in each.recipients)
        for each in taken:
            for address in each.recipients:
                self.ports.setdefault(address, set()).add(each.port)
        named = json.dumps([address for each in taken for address in each.recipients])
        recorded = {address for (address,) in dead_rows(self.made.running.data_dir, _RECORDED, named)}
        left = [each for each in taken if not recorded.issuperset(each.recipients)]
        if late := [each for each in left if each.answered_at and each.answered_at < ended - RECORDED_WITHIN]:
            self.wrong.append(f"taken and not recorded for {RECORDED_WITHIN} s: {late[0].recipients}")
        if len(left) > 2 * CONCURRENCY * DOMAINS:  # each session has one on its way, and one whose record is
            self.wrong.append(f"taken and not recorded: {len(left)} messages by {CONCURRENCY * DOMAINS} sessions")
        return [address for each in left for address in each.recipients if address not in recorded]

    # ---- the end

    async def settle(self) -> None:
        """Start it, let everything become final, ask for each key again, and end it."""
        if not self.made.running.is_alive():
            await self.made.start()
        await trio.to_thread.run_sync(self._retry)
        self._unknown += self.wanted.values()
        await trio.to_thread.run_sync(self._retry)
        if self._unknown:
            self.wrong.append(f"{len(self._unknown)} keys have no answer")
        try:
            await self.made.until(lambda: self.made.rows(_WAITING) == [(0, 0)], FINAL_WITHIN)
        except AssertionError:
            self.wrong.append(f"still waiting: {self.made.rows(_WAITING)} {self.made.unfinished()[:3]}")
        await self.stop()

    def check(self) -> list[str]:
        found, running = list(self.wrong), self.made.running
        try:
            engines.check(running.data_dir)
            for name, (told, kept) in THE_SAME.items():
                assert dict(self.made.rows(told)) == dict(self.made.rows(kept)), name
            _check_statuses(self.made)
            trio.run(_check_books, running.data_dir)
        except AssertionError as error:
            found.append(f"books: {str(error)[:200]}")
        return found + self._stored_wrong() + self._ends_wrong() + self._posts_wrong() + self._log_wrong()

    def _stored_wrong(self) -> list[str]:
        stored: dict[str, set[str]] = {}
        query = """SELECT k.key, m.id FROM idempotency_keys k JOIN messages f ON f.id = k.message_id
            JOIN messages m ON m.request_id = f.request_id"""
        for key, message in self.made.rows(query):
            stored.setdefault(key, set()).add(message)
        lost = [key for key, messages in self.acknowledged.items() if stored.get(key) != set(messages)]
        found = [f"acknowledged and lost: {lost[:3]} of {len(lost)}"] if lost else []
        if set(stored) != set(self.wanted):
            found.append(f"{len(stored)} keys stored of {len(self.wanted)}")
        query = (
            "SELECT r.address, m.id FROM messages m JOIN recipients r ON r.message_id = m.id WHERE m.source = 'smtp'"
        )
        rows = self.made.rows(query)
        by_smtp = dict(rows)
        lost = [address for address, message in self.submitted.items() if by_smtp.get(address) != message]
        found += [f"250 and lost: {lost[:3]} of {len(lost)}"] if lost else []
        if len(rows) != len(by_smtp) or set(by_smtp) - set(self.submitted) - self.unsure:
            found.append("a submitted message is there twice, or was refused")
        return found

    def _ends_wrong(self) -> list[str]:
        """Statuses against what the mail server said, arrivals against deaths, credits against both."""
        found, rows = [], self.made.rows("SELECT address, status FROM recipients")
        ends = dict(rows)
        others = [row for row in rows if row[1] != ("bounced" if row[0].startswith("gone") else "delivered")]
        if others:
            found.append(f"ended wrongly: {others[:3]} of {len(others)}")
        delivered = {address for address, status in ends.items() if status == "delivered"}
        if delivered != set(self.came):
            found.append(f"delivered and not arrived, or the reverse: {sorted(delivered ^ set(self.came))[:3]}")
        more = [(each, times) for each, times in self.came.items() if times > 1 + self.may_come[each]]
        if more:
            found.append(f"arrived again without a death in flight: {more[:3]} of {len(more)}")
        if (credits := self.made.credits()) != CREDITS - len(delivered):
            found.append(f"{credits} credits for {len(delivered)} delivered of {CREDITS}")
        return found

    def _posts_wrong(self) -> list[str]:
        events = {event for (event,) in self.made.rows("SELECT id FROM events")}
        bodies: dict[str, set[bytes]] = {}
        for post in self.receiver.at(HOOK):
            bodies.setdefault(post.json()["id"], set()).add(post.body)
        found = [f"{len(events ^ set(bodies))} events differ of {len(events)}"] if events != set(bodies) else []
        if failed := self.made.rows(
            "SELECT status, count(*) FROM webhook_deliveries WHERE status <> 'success' GROUP BY 1"
        ):
            found.append(f"posts: {failed}")
        changed = [event for event, texts in bodies.items() if len(texts) > 1]
        return found + ([f"posted with different bytes: {changed[:3]}"] if changed else [])

    def _log_wrong(self) -> list[str]:
        return [line[:300] for line in self.made.running.complaints()][:3]


def _check_statuses(made: World) -> None:
    counts: dict[str, dict[RecipientStatus, int]] = {}
    for message_id, status, number in made.rows(
        "SELECT message_id, status, count(*) FROM recipients GROUP BY message_id, status"
    ):
        counts.setdefault(message_id, {})[RecipientStatus(status)] = number
    for message_id, status, billing in made.rows("SELECT id, status, billing_status FROM messages"):
        assert (status, billing) == message_result(counts[message_id])


async def _check_books(data_dir: Path) -> None:
    async with engines.beside(data_dir) as store:
        await check_books(store)


def dead_rows(data_dir: Path, query: str, *bindings: Any) -> list[tuple[Any, ...]]:
    """What the database of a program says that has died; its files are left as they are for the next start."""
    with closing(apsw.Connection(str(data_dir / FILE_NAME), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection.execute(query, bindings).fetchall()


@asynccontextmanager
async def loaded(directory: Path, seed: int, *, under_ramp: bool = False) -> AsyncIterator[Load]:
    """A world in which the program has started once, and no customer sends yet; a relay takes mail `under_ramp`."""
    choose = random.Random(seed)

    async def think() -> None:
        await trio.sleep(choose.uniform(*TAKES))

    with hooks(directory) as receiver:
        pool = f"[delivery.pools.default]\nconcurrency = {CONCURRENCY}"
        section = f"[webhooks]{receiver.settings(directory)}{POST_DELAYS}"
        stop = f'shutdown_timeout = "{STOPPED_WITHIN:.0f}s"'
        relay_port = free_port()
        mode, settings = "direct", [pool]
        if under_ramp:
            relay = f'relay_host = "127.0.0.1"\nrelay_port = {relay_port}\nrelay_tls = "off"'
            mode, settings = "relay", [relay, pool, "[delivery.ramp]\npercent = 50"]
        async with world(directory, delays(*["1s"] * 8), *settings, section, server=stop, mode=mode) as made:
            sink = Witness(think)
            load = Load(made, sink, receiver, choose)
            sink.judge = load.judge
            receiver.answers[HOOK] = load.hear
            if under_ramp:
                listeners = await trio.open_tcp_listeners(relay_port, host="127.0.0.1")
                made.nursery.start_soon(trio.serve_listeners, sink.serve, listeners)
            for number in range(DOMAINS):
                await made.host(f"mx.d{number}.test", sink.serve)
                made.publish(f"d{number}.test", MX=[f"10 mx.d{number}.test."])
            token = await trio.to_thread.run_sync(made.running.login)
            async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, verify=NO_TLS) as client:
                saved = await client.put("/v1/webhook", headers=token, json={"url": receiver.url(HOOK)})
            assert saved.status_code == 200, saved.text
            yield load
