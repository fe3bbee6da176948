"""Large pages of lists are read off the event loop, in turns between accounts; small ones are a look-up on it."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from appliance.environment import Environment
from appliance.store import Store, open_store
from appliance.web.api.emails import EmailRoutes
from appliance.web.api.webhook_deliveries import WebhookDeliveryRoutes
from appliance.web.app import create_app
from tests.web.api.test_webhook_deliveries import services_for

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
    """While the thread is taken a page of ten is answered, and one of a hundred waits for it."""
    env = Environment()
    async with open_store(tmp_path, env) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        services = services_for(tmp_path, store, env, account.id)
        client = create_app(services.auth, [EmailRoutes(services), WebhookDeliveryRoutes(services)]).test_client()
        async with reading_thread_taken(store):
            assert (await client.get(f"{path}?limit=10", scope_base=EDGE)).status_code == 200
            with trio.move_on_after(0.3) as waiting:
                await client.get(f"{path}?limit=100", scope_base=EDGE)
            assert waiting.cancelled_caught
        assert (await client.get(f"{path}?limit=100", scope_base=EDGE)).status_code == 200
