"""The delivery history over HTTP: how often deliveries may be replayed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from appliance.concurrency.fair_share import Workers
from appliance.config.load import load
from appliance.environment import Environment
from appliance.model.accounts import Role, User
from appliance.store import Store, open_store
from appliance.web.api.webhook_deliveries import WebhookDeliveryRoutes
from appliance.web.app import create_app


class Owner:
    """An authenticator that knows one user, who sends every request."""

    def __init__(self, account_id: str) -> None:
        self.user = User("usr_1", account_id, "demo", "owner@example.org", Role.CUSTOMER, "", 0)

    async def principal(self, _authorization: object, _address: object) -> User:
        """Always the same."""
        return self.user


def services_for(tmp_path: Path, store: Store, env: Environment, account_id: str) -> Any:
    """What the routes of lists use; every request is of this account's owner."""
    config, intake = load(None, {}, tmp_path), SimpleNamespace(workers=Workers())
    return SimpleNamespace(store=store, env=env, auth=Owner(account_id), config=config, intake=intake)


async def replay(client: Any, delivery_id: str) -> Any:
    """One request, as the edge passes it on."""
    path, edge = f"/v1/webhook/deliveries/{delivery_id}/replay", {"appliance": ("req_1", "127.0.0.1", None)}
    return await client.post(path, scope_base=edge)


async def test_replays_are_bounded(tmp_path: Path) -> None:
    """Replays cost nothing and are kept for a week: an account has a burst of them, and then waits."""
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        services = services_for(tmp_path, store, env, "acc_1")
        routes = WebhookDeliveryRoutes(services)
        routes.replays.burst = 3
        client = create_app(services.auth, [routes]).test_client()
        assert [(await replay(client, "whd_1")).status_code for _ in range(3)] == [404] * 3
        refused = await replay(client, "whd_1")
        assert refused.status_code == 429
        assert (await refused.get_json())["code"] == "rate_limited"
        assert refused.headers["Retry-After"] == "5"
