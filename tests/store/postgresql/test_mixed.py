"""Three nodes that do all sorts of things at once, at random, for a while: afterwards every sum is right."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.accounts import Account, Scope
from appliance.model.mail import RecipientStatus, Suppression
from appliance.model.webhooks import EventType
from appliance.store import KeyTaken, Store
from tests.store.hooks import save
from tests.store.postgresql.stepping import check_books, nodes
from tests.store.samples import HASH, SECOND, Clock, Messages, at_once, outcome
from tests.store.test_body_parts_stored_bytes import counted, recounted

TASKS, STEPS = 8, 50  # of each node, and of each task
KEYS = 60
STATUSES = (RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.DEFERRED, RecipientStatus.FAILED)
EXPECTED = {Code.CONFLICT, Code.NOT_FOUND, Code.INSUFFICIENT_CREDITS, Code.WARMUP_LIMITED, Code.ACCOUNT_SUSPENDED}


class Client:
    def __init__(self, store: Store, accounts: list[Account], clock: Clock, seed: int) -> None:
        self.store, self.accounts, self.clock, self.lots = store, accounts, clock, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.accepted: list[tuple[str, str, str]] = []

    async def send(self) -> None:
        account = self.lots.choice(self.accounts)
        key = f"{self.lots.randrange(KEYS)}"
        addresses = [f"{self.lots.randrange(50)}-{number}@example.net" for number in range(self.lots.randint(1, 4))]
        new = Messages(Environment(now=self.clock), account.id).new(*addresses, key=f"{account.name}-{key}")
        await self.store.messages.accept(new)
        self.accepted.append((account.id, f"{account.name}-{key}", new.id))

    async def deliver(self) -> None:
        due = await self.store.queue.due(simulated=True, most=60)
        chosen = self.lots.sample(due, min(len(due), 8))
        results = []
        for each in chosen:
            status = self.lots.choice(STATUSES)
            listed = Suppression(each.address, "bounce", self.clock()) if each.address[0] == "7" else None
            results.append(outcome(each, status, self.clock(), suppress=listed))
        await self.store.queue.record(results)

    async def cancel(self) -> None:
        due = await self.store.queue.due(simulated=True, most=60)
        if due:
            await self.store.queue_control.cancel(self.lots.choice(due).message_id, "a test")

    async def change(self) -> None:
        account = self.lots.choice(self.accounts)
        env = self.store.accounts.env
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: self.store.accounts.change_credits(account.id, self.lots.choice((-5, 20, 50))),
            lambda: self.store.accounts.set_credits(account.id, self.lots.randrange(100)),
            lambda: self.store.accounts.set_daily_cap(account.id, self.lots.choice((None, 10_000))),
            lambda: self.store.accounts.set_suspended(account.id, False),
            lambda: self.store.templates.save(account.id, f"t{self.lots.randrange(3)}", "s", "t" * 99, None),
            lambda: self.store.templates.delete(account.id, f"t{self.lots.randrange(3)}"),
            lambda: self.store.access.create_key(account.id, scope=Scope.SEND, test=True, by_owner=True),
            lambda: self.store.domains.register(account.id, f"d{self.lots.randrange(9)}.example"),
            lambda: self.store.suppressions.add(account.id, f"{self.lots.randrange(9)}@x.example", "manual"),
            lambda: self.store.suppressions.remove(account.id, f"{self.lots.randrange(9)}@x.example"),
            lambda: save(self.store, account.id, EventType.DELIVERED),
            lambda: self.store.queue_control.bring_forward(env.now() + SECOND, simulated=True),
        ]
        await self.lots.choice(verbs)()

    async def go(self) -> None:
        verbs = (self.send,) * 5 + (self.deliver,) * 3 + (self.cancel, self.change)
        for _ in range(STEPS):
            verb = self.lots.choice(verbs)
            try:
                await verb()
                self.counts[verb.__name__] += 1
            except KeyTaken:
                self.counts["taken"] += 1
            except Refused as refused:
                self.counts[refused.code.name] += 1


@pytest.mark.slow
async def test_three_nodes_at_random(url: str, clock: Clock) -> None:
    """No verb fails otherwise than by its rules, and nothing is lost, counted twice or left half-done."""
    async with nodes(url, clock, "one", "two", "three") as stores:
        accounts = [
            await stores[0].accounts.create(f"a{number}", f"{number}@example.org", HASH, credit=200)
            for number in range(3)
        ]
        clients = [
            Client(store, accounts, clock, TASKS * number + task)
            for number, store in enumerate(stores)
            for task in range(TASKS)
        ]
        await at_once(Client.go, ((client,) for client in clients))
        counts = sum((client.counts for client in clients), Counter[str]())
        assert min(counts[name] for name in ("send", "deliver", "cancel", "change", "taken")) >= 3, counts
        codes = {name for name in counts if name.isupper()}
        assert codes <= {code.name for code in EXPECTED}, counts
        await check_books(stores[0])
        assert await counted(stores[0]) == await recounted(stores[0])
        accepted = [one for client in clients for one in client.accepted]
        stored = await stores[0].engine.rows("SELECT k.key, k.message_id FROM idempotency_keys k", {})
        assert sorted((key, message_id) for _, key, message_id in accepted) == sorted(stored)
        sent = await stores[0].engine.rows("SELECT count(*) FROM messages", {})
        assert sent == [(len(accepted),)]
