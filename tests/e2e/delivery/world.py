"""A small world on loopback for the real program to deliver into: a DNS server, mail servers, and what came of it all.

Every mail server has an address of its own in 127.0.0.0/8 and all of them one port, as in the world outside.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import trio

from tests import engines
from tests.e2e.submission.client import smtp
from tests.fakes.dns import DnsServer, Records
from tests.fakes.mx import FakeMx
from tests.ports import free_port
from tests.running_appliance import NO_TLS, PROGRAM, Provisioned, Running, add_account

WITHIN = 60.0  # seconds that anything waited for here may take
CREDITS = 1_000_000
SENDER = "Shop <shop@example.com>"

CONFIG = """
[server]
hostname = "mail.example.com"
data_dir = "{data_dir}"
{server}
[smtp]
bind = ["127.0.0.1:0"]
bind_tls = ["127.0.0.1:0"]
[http]
bind = ["127.0.0.1:0"]
{http}
[dns]
resolvers = ["127.0.0.1:{dns_port}"]
[delivery]
mode = "{mode}"
mx_port = {mx_port}
{delivery}
[limits]
requests_per_second = 0
min_free_disk = "0"
{store}
"""
ALLOWED = 'allow_networks = ["127.0.0.0/8"]'

Handler = Callable[[trio.SocketStream], Awaitable[None]]


class Recipient(NamedTuple):
    """A recipient's row, as far as tests look at it."""

    address: str
    status: str
    billing: str
    attempts: int
    code: int | None
    response: str | None
    next_attempt_at: int | None


class Attempt(NamedTuple):
    code: int | None
    response: str | None
    pool: str | None
    host: str | None
    mx_address: str | None
    tls: str | None
    decision: str
    dialogue: list[Any]


@dataclass
class World:
    running: Running
    dns: DnsServer
    mx_port: int
    nursery: trio.Nursery
    _hosts: "count[int]" = field(default_factory=lambda: count(2))
    _keys: "count[int]" = field(default_factory=count)

    # ---- who is there

    def publish(self, name: str, **records: Records) -> None:
        self.dns.zone[name] = {**self.dns.zone.get(name, {}), **records}

    async def host(self, name: str, serve: Handler | None) -> str:
        """A mail server with this name and an address of its own; None: no server listens there."""
        number = next(self._hosts)
        address = f"127.0.{number // 250}.{number % 250 + 1}"
        self.publish(name, A=[address])
        if serve is not None:
            listeners = await trio.open_tcp_listeners(self.mx_port, host=address)
            self.nursery.start_soon(trio.serve_listeners, serve, listeners)
        return address

    async def domain(self, name: str, *servers: FakeMx | None) -> None:
        """A domain with these servers as its MX hosts, the first preferred; None: a host where no server listens."""
        hosts = [f"mx{number}.{name}" for number in range(len(servers))]
        for host, server in zip(hosts, servers, strict=True):
            await self.host(host, None if server is None else server.serve)
        self.publish(name, MX=[f"{10 * number} {host}." for number, host in enumerate(hosts)])

    # ---- what is sent

    async def send(self, *recipients: str, expect: int = 202, **fields: object) -> str:
        body = {"from": SENDER, "to": list(recipients), "subject": "On its way", "text": "Hello,\nAda.\n", **fields}
        answer = await self.post(body)
        assert answer.status_code == expect, answer.text
        return str(answer.json().get("id", ""))

    async def post(self, body: Mapping[str, object]) -> httpx.Response:
        headers = {**self.running.account.bearer, "Idempotency-Key": f"key {next(self._keys)}"}
        async with httpx.AsyncClient(base_url=self.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            return await client.post("/emails", json=body, headers=headers)

    async def submit(
        self, to: str | Sequence[str], message: bytes, sender: str = "shop@example.com", **options: Sequence[str]
    ) -> None:
        """Hand a message to the program over SMTP, as a mail library does; it must be taken for each recipient."""

        def send() -> None:
            with smtp(self.running) as client:
                assert client.sendmail(sender, to, message, **options) == {}

        await trio.to_thread.run_sync(send)

    async def ask(self, method: str, path: str, body: Any = None, account: Provisioned | None = None) -> httpx.Response:
        running = replace(self.running, account=account) if account else self.running
        token = await trio.to_thread.run_sync(running.login)
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            return await client.request(method, path, json=body, headers=token)

    # ---- what came of it

    def rows(self, query: str, *bindings: object) -> list[tuple[Any, ...]]:
        return engines.rows(self.running.data_dir, query, *bindings)

    def recipients(self, message_id: str) -> dict[str, Recipient]:
        query = """SELECT address, status, billing_status, attempt_count, last_smtp_code, last_smtp_response,
            next_attempt_at FROM recipients WHERE message_id = ?"""
        return {row[0]: Recipient(*row) for row in self.rows(query, message_id)}

    def recipient(self, message_id: str) -> Recipient:
        (found,) = self.recipients(message_id).values()
        return found

    def attempts(self, message_id: str) -> list[Attempt]:
        query = """SELECT smtp_code, smtp_response, pool, mx_host, mx_address, tls, decision, dialogue
            FROM attempts WHERE recipient_id IN (SELECT id FROM recipients WHERE message_id = ?)
            ORDER BY started_at, number"""
        found = self.rows(query, message_id)
        return [Attempt._make((*row[:-1], json.loads(row[-1] or "[]"))) for row in found]

    def status(self, message_id: str) -> str:
        ((status,),) = self.rows("SELECT status FROM messages WHERE id = ?", message_id)
        return str(status)

    def events(self, message_id: str) -> list[str]:
        return [kind for (kind,) in self.rows("SELECT type FROM events WHERE message_id = ? ORDER BY id", message_id)]

    def credits(self) -> int:
        ((credits,),) = self.rows("SELECT credits FROM accounts")
        return int(credits)

    async def until(self, condition: Callable[[], bool], within: float = WITHIN) -> None:
        deadline = trio.current_time() + within
        while not condition():
            assert trio.current_time() < deadline, "\n".join(
                ["waited too long", *self.running.complaints()[-20:], *map(str, self.unfinished())]
            )
            await trio.sleep(0.02)

    def unfinished(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT address, status, last_smtp_response FROM recipients WHERE next_attempt_at IS NOT NULL LIMIT 20"
        )

    async def tried(self, *messages: str, within: float = WITHIN) -> None:
        """Wait until every recipient of these messages has been tried once."""
        await self.until(
            lambda: all(each.attempts for message in messages for each in self.recipients(message).values()), within
        )

    async def final(self, *messages: str, within: float = WITHIN) -> None:
        marks = ",".join("?" * len(messages))
        query = f"SELECT 1 FROM recipients WHERE message_id IN ({marks}) AND next_attempt_at IS NOT NULL LIMIT 1"
        await self.until(lambda: not self.rows(query, *messages), within)

    async def logged(self, text: str) -> str:
        """Wait until the log has this text: its lines are written after what they tell of; the log so far."""
        await self.until(lambda: text in self.running.log_file.read_text())
        return self.running.log_file.read_text()

    # ---- the program

    async def start(self) -> None:
        await trio.to_thread.run_sync(self.running.start)

    async def terminate(self) -> int:
        return await trio.to_thread.run_sync(self.running.terminate)

    def complaints(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.running.complaints()]


def delays(*texts: str) -> str:
    return f"retry_delays = {json.dumps(texts)}"


@asynccontextmanager
async def world(
    directory: Path,
    *settings: str,
    server: str = "",
    http: str = "",
    mode: str = "direct",
    allowed: str = ALLOWED,
    authentic: bool = False,
    program: tuple[str, ...] = PROGRAM,
    fresh: bool = False,
) -> AsyncIterator[World]:
    """A running program with one account, and a DNS that knows nothing yet; `settings` are lines of [delivery]."""
    data_dir, mx_port = directory / "data", free_port()
    dns = DnsServer({}, ttl=1, negative_ttl=1, authentic=authentic)
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(dns.run)
        config_file = directory / "config.toml"
        delivery = "\n".join([allowed, *settings])
        config_file.write_text(
            CONFIG.format(
                data_dir=data_dir,
                server=server,
                http=http,
                mode=mode,
                dns_port=endpoint.port,
                mx_port=mx_port,
                delivery=delivery,
                store=engines.settings_of(data_dir),
            )
        )
        account = await trio.to_thread.run_sync(lambda: add_account(data_dir, "demo", credit=CREDITS))
        log_file = directory / "appliance.log"
        running = Running(directory, config_file, data_dir, account, log_file, program=program, fresh=fresh)
        made = World(running, dns, mx_port, nursery)
        try:
            await made.start()
            yield made
        finally:
            running.kill()
            nursery.cancel_scope.cancel()


def lines(attempt: Attempt, speaker: str) -> list[str]:
    """What one side said in an attempt: `C` we, `S` the server, `*` remarks."""
    return [text for _, said_by, text in attempt.dialogue if said_by == speaker]


def said(attempts: Sequence[Attempt]) -> list[tuple[int | None, str]]:
    return [(attempt.code, attempt.decision.partition(":")[0]) for attempt in attempts]
