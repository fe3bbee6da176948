"""A store with an account whose mail was delivered, and the worker that reads what comes back of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.environment import Environment
from appliance.feedback.return_path import ReturnPaths
from appliance.inbound.worker import FeedbackWorker, forwarding_rate
from appliance.model.mail import Message, NewMessage, RecipientStatus
from appliance.store import Store, open_store
from tests import stored_mail
from tests.store.samples import outcome

NAME = "bounces.example.com"
KEY = bytes(32)


@dataclass
class Read:
    store: Store
    env: Environment
    worker: FeedbackWorker
    account_id: str

    async def delivered(self, *addresses: str) -> NewMessage:
        new = await stored_mail.accept(self.store, self.env, self.account_id, *addresses)
        due = await stored_mail.due(self.store, new)
        await self.store.queue.record([outcome(each, RecipientStatus.DELIVERED, self.env.now()) for each in due])
        return new

    def path(self, message: NewMessage, number: int = 0, name: str = NAME) -> str:
        return ReturnPaths(KEY).address(message.recipients[number].id, name)

    async def comes_back(self, mime: bytes, *addresses: str) -> None:
        await self.store.feedback.add(addresses, mime)
        assert await self.worker.read_next()
        assert await self.rows("SELECT count(*) FROM feedback_mail") == [(0,)]

    async def message(self, message: NewMessage) -> Message:
        found = await self.store.messages.read(self.account_id, message.id)
        assert found is not None
        return found

    async def suppressed(self) -> list[tuple[str, str]]:
        return [(each.address, each.origin) for each in await self.store.suppressions.page(self.account_id, "", 100)]

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        return await self.store.engine.rows(query, {})


@pytest.fixture
async def read(tmp_path: Path) -> AsyncIterator[Read]:
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        account_id = await stored_mail.account(store)
        await store.access.add_domain(account_id, "example.com", usable=True)
        yield Read(store, env, FeedbackWorker(store, ReturnPaths(KEY), forwarding_rate(env)), account_id)
