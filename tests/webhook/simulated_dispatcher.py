"""The dispatcher on a virtual clock, without sockets: a real store, and receivers that answer as they are told."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from appliance.environment import Environment
from appliance.keys.secrets import WebhookSecrets
from appliance.model.accounts import Role
from appliance.model.mail import DueRecipient, NewMessage, NewRecipient, Outcome, RecipientStatus
from appliance.model.webhooks import EventType, WebhookDelivery, WebhookOptions
from appliance.store import Store, open_store
from appliance.webhook.dispatcher import Dispatcher
from appliance.webhook.post import Attempts, Posted
from appliance.webhook.received_posts import ReceivedPosts
from tests.store.samples import Messages

START = 1_750_000_000_000_000  # microseconds, on a summer's day
DELAYS = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0)  # seconds, as the interface says
KEY = bytes(32)

OK = Posted(200, b"thanks", None, 3)
BROKEN = Posted(500, b"oh no", None, 3)
REFUSED = Posted(None, b"", "the receiver refused the connection", 1)


class Seen(NamedTuple):
    """One post, as a receiver sees it."""

    at: float  # Trio's clock
    url: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Seen], Awaitable[Posted]]


@dataclass
class Receivers:
    """All receivers of the world: each URL is answered as the test says, with 200 unless it says anything."""

    seen: list[Seen] = field(default_factory=list)
    answers: dict[str, Answer | Posted | Exception] = field(default_factory=dict)
    most_at_once: dict[str, int] = field(default_factory=dict)
    _in_flight: dict[str, int] = field(default_factory=dict)

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        seen = Seen(trio.current_time(), url, dict(headers), body)
        self.seen.append(seen)
        self._in_flight[url] = self._in_flight.get(url, 0) + 1
        self.most_at_once[url] = max(self.most_at_once.get(url, 0), self._in_flight[url])
        try:
            answer = self.answers.get(url, OK)
            if isinstance(answer, Exception):
                raise answer
            await trio.lowlevel.checkpoint()
            return answer if isinstance(answer, Posted) else await answer(seen)
        finally:
            self._in_flight[url] -= 1

    def at(self, url: str) -> list[float]:
        return [seen.at for seen in self.seen if seen.url == url]


@dataclass
class Simulation:
    """The store, the receivers and the accounts of one test."""

    store: Store
    env: Environment
    receivers: Receivers
    secrets: WebhookSecrets
    delays: Sequence[float]
    accounts: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)  # the secrets, by account

    def dispatcher(self, **options: Any) -> Dispatcher:
        """One that is ready to run; it seldom polls by itself, or a virtual day would take a while."""
        options.setdefault("poll_every", 60.0)
        received = ReceivedPosts(self.store.received.mime)
        attempts = Attempts(self.receivers.post, self.secrets, self.env, self.delays, received)
        return Dispatcher(self.store, self.env, attempts, **options)

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.dispatcher(**options).run)
            yield
            nursery.cancel_scope.cancel()

    async def account(
        self, name: str, events: Sequence[EventType] = tuple(EventType), *, enabled: bool = True, hook: bool = True
    ) -> str:
        """An account whose webhook is at `https://NAME.example.net/`; its id."""
        made = await self.store.accounts.create(name, f"{name}@example.org", "hash", Role.CUSTOMER, None)
        self.accounts[name] = made.id
        if hook:
            await self.hook(name, events, enabled=enabled)
        return made.id

    async def prove(self, *names: str) -> None:
        """Let it be on record that the receivers of these accounts have answered before."""
        for name in names:
            sql = "UPDATE webhooks SET last_success_at = created_at WHERE account_id = :id"
            await self.store.engine.change(sql, {"id": self.accounts[name]})

    async def hook(
        self, name: str, events: Sequence[EventType] = tuple(EventType), *, enabled: bool = True, url: str = ""
    ) -> None:
        new_id = self.env.identifier("whk")
        secret, sealed = self.secrets.fresh(new_id)
        settings = WebhookOptions(url or url_of(name), tuple(events), enabled)
        _, made = await self.store.webhooks.save(self.accounts[name], settings, new_id, sealed)
        if made:
            self.shown[name] = secret

    async def result(
        self, name: str, *addresses: str, status: RecipientStatus = RecipientStatus.DELIVERED, subject: str = "Hello"
    ) -> str:
        """Accept a message for these recipients, and let each have this result; the message's id."""
        new = Messages(self.env, self.accounts[name]).new(*addresses or ("ada@example.net",), simulated=False)
        new = msgspec.structs.replace(new, subject=subject)
        await self.store.messages.accept(new)
        await self.store.queue.record([outcome(new, each, status, self.env.now()) for each in new.recipients])
        return new.id

    async def deliveries(self, name: str) -> list[WebhookDelivery]:
        return await self.store.webhook_history.page(self.accounts[name], None, None, 1_000)

    async def done(self, name: str, within: float = 3 * 86_400) -> None:
        """Wait until nothing of an account is pending; the longer it takes, the less often it is asked."""
        query = """SELECT count(*) FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id
            WHERE w.account_id = :id AND d.next_attempt_at IS NOT NULL"""
        wanted = {"id": self.accounts[name]}
        began = trio.current_time()
        while await self.store.engine.rows(query, wanted) != [(0,)]:
            passed = trio.current_time() - began
            assert passed < within, "waited too long"
            await trio.sleep(max(0.01, passed / 100))


def url_of(name: str) -> str:
    return f"https://{name}.example.net/"


def outcome(new: NewMessage, recipient: NewRecipient, status: RecipientStatus, now: int) -> Outcome:
    address, sender, subject = (recipient.address, recipient.domain), new.envelope_from, new.subject
    due = DueRecipient(
        recipient.id, new.id, new.account_id, *address, 0, None, None, sender, subject, len(new.recipients), 0
    )
    later = now + 60_000_000 if status is RecipientStatus.DEFERRED else None
    return Outcome(due, status, (), at=now, next_attempt_at=later)


@asynccontextmanager
async def simulation(directory: Path, *, delays: Sequence[float] = DELAYS) -> AsyncIterator[Simulation]:
    env = Environment(now=lambda: START + round(trio.current_time() * 1_000_000))
    async with open_store(directory, env, inline=True) as store:
        yield Simulation(store, env, Receivers(), WebhookSecrets(KEY, env), delays)
