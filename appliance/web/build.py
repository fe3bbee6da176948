"""In charge of putting the HTTP side together: which parts there are, and what each is given."""

from functools import partial

import trio

from appliance.config.load import Config
from appliance.intake.accept import FrontDoor
from appliance.intake.services import Entrance
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import derive
from appliance.keys.passwords import PasswordHasher
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.outside import Outside
from appliance.store import Store
from appliance.system import memory
from appliance.web import health, openapi, pages
from appliance.web.api import (
    account,
    admin_accounts,
    admin_queue,
    api_keys,
    domains,
    emails,
    login,
    send_test,
    sessions,
    smtp_credentials,
    stats,
    suppressions,
    template_versions,
    templates,
    warnings,
    webhook,
    webhook_deliveries,
)
from appliance.web.api.webhook import CheckUrl, WebhookParts
from appliance.web.app import Services, create_app
from appliance.web.auth import Authenticator
from appliance.web.body import Budget
from appliance.web.edge import Edge
from appliance.web.session_cookie import SessionCookies
from appliance.web.tokens import Tokens


async def _check_ready(door: FrontDoor, store: Store) -> None:
    """Raise unless mail could be stored right now."""
    door.check_disk()
    await store.check_writable()


def build(
    config: Config,
    outside: Outside,
    store: Store,
    key: bytes,
    stopping: trio.Event,
    entrance: Entrance,
    check_webhook_url: CheckUrl,
) -> Edge:
    """The ASGI application, ready to be served."""
    door, tokens = entrance.door, Tokens(derive(key, "dashboard tokens"), outside)
    auth = Authenticator(store, outside, tokens, entrance.credentials, entrance.known)
    cookies = SessionCookies(derive(key, "dashboard cookies"), config.http.base_url)
    services, hashing = Services(store, outside, auth, stopping), PasswordHasher()
    attempts = len(config.webhooks.retry_delays) + 1
    blueprints = [
        health.blueprint(stopping, partial(_check_ready, door, store)),
        openapi.blueprint(config.http.base_url),
        login.blueprint(services, tokens, cookies, entrance.guesses, hashing),
        sessions.blueprint(services),
        account.blueprint(services, config, warnings.warner(store, door.free_space), door.quota),
        domains.blueprint(services, config, SigningKeys(store, outside, key)),
        smtp_credentials.blueprint(services),
        api_keys.blueprint(services),
        send_test.blueprint(services, door),
        emails.blueprint(services, door.workers, len(config.delivery.retry_delays) + 1, config.warmup),
        stats.blueprint(services),
        admin_accounts.blueprint(services, hashing),
        admin_queue.blueprint(services, config.warmup),
        templates.blueprint(services, door.quota),
        template_versions.blueprint(services),
        suppressions.blueprint(services, door.quota),
        webhook.blueprint(services, WebhookParts(WebhookSecrets(key, outside), check_webhook_url, attempts)),
        webhook_deliveries.blueprint(services, door.workers, attempts),
        pages.blueprint(),
    ]
    budget = Budget(memory.for_messages(config.http.body_memory))
    return Edge(door, store, outside, auth, entrance.rate, config.http, stopping, create_app(blueprints), budget)
