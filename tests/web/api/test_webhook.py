"""Deliveries over HTTP: how often they may be replayed. Large pages are read off the event loop, small ones on it."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from appliance.concurrency.fair_share import Workers
from appliance.config.load import load
from appliance.environment import Environment
from appliance.model.accounts import Role, User
from appliance.model.webhooks import EventType, SealedSecret, WebhookOptions
from appliance.store import Store, open_store
from appliance.web.api.emails import EmailRoutes
from appliance.web.api.webhook import WebhookRoutes
from appliance.web.app import create_app


class Owner:
    """An authenticator that knows one user, who sends every request."""

    def __init__(self, account_id: str) -> None:
        self.user = User("usr_1", account_id, "demo", "owner@example.org", Role.CUSTOMER, "", 0)

    async def principal(self, _authorization: object, _address: object) -> User:
        return self.user


def services_for(tmp_path: Path, store: Store, env: Environment, account_id: str) -> Any:
    """What the routes of lists use; every request is of this account's owner."""
    config, intake = load(None, {}, tmp_path), SimpleNamespace(workers=Workers())
    return SimpleNamespace(store=store, env=env, auth=Owner(account_id), config=config, intake=intake)


async def replay(client: Any, delivery_id: str) -> Any:
    path, edge = f"/v1/webhook/deliveries/{delivery_id}/replay", {"appliance": ("req_1", "127.0.0.1", None)}
    return await client.post(path, scope_base=edge)


async def test_replays_are_bounded(tmp_path: Path) -> None:
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        services = services_for(tmp_path, store, env, "acc_1")
        routes = WebhookRoutes(services)
        routes.replays.burst = 3
        client = create_app(services.auth, [routes]).test_client()
        assert [(await replay(client, "whd_1")).status_code for _ in range(3)] == [404] * 3
        refused = await replay(client, "whd_1")
        assert refused.status_code == 429
        assert (await refused.get_json())["code"] == "rate_limited"
        assert refused.headers["Retry-After"] == "5"


async def test_a_replay_counts_by_its_size(tmp_path: Path) -> None:
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        options = WebhookOptions("https://hooks.example/", tuple(EventType), True)
        await store.webhooks.save(account.id, options, "whk_1", SealedSecret(b"sealed", "hint"))
        ping = await store.webhook_history.ping(account.id)
        statement = "UPDATE webhook_deliveries SET request_body = :body WHERE id = :id RETURNING id"
        await store.engine.change(statement, {"body": b"x" * 10_000, "id": ping.id})
        routes = WebhookRoutes(services_for(tmp_path, store, env, account.id))
        client = create_app(routes.services.auth, [routes]).test_client()
        routes.replays.burst = 8
        assert [(await replay(client, ping.id)).status_code for _ in range(3)] == [202, 429, 429]


PATHS = ("/v1/emails", "/v1/webhook/deliveries")
EDGE = {"appliance": ("req_1", "127.0.0.1", None)}


@asynccontextmanager
async def reading_thread_taken(store: Store) -> AsyncIterator[None]:
    """The thread for readings is at work until the end, or for ten seconds."""
    begun, end = threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        end.wait(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.engine.scan, work)
        assert await trio.to_thread.run_sync(begun.wait, 10)
        try:
            yield
        finally:
            end.set()


@pytest.mark.parametrize("path", PATHS)
async def test_only_large_pages_are_read_on_a_thread(tmp_path: Path, path: str) -> None:
    env = Environment()
    async with open_store(tmp_path, env) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        services = services_for(tmp_path, store, env, account.id)
        client = create_app(services.auth, [EmailRoutes(services), WebhookRoutes(services)]).test_client()
        async with reading_thread_taken(store):
            assert (await client.get(f"{path}?limit=10", scope_base=EDGE)).status_code == 200
            with trio.move_on_after(0.3) as waiting:
                await client.get(f"{path}?limit=100", scope_base=EDGE)
            assert waiting.cancelled_caught
        assert (await client.get(f"{path}?limit=100", scope_base=EDGE)).status_code == 200
