"""Builds the webhook service from the settings, and runs it."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

from appliance.config.settings import Config
from appliance.config.values import is_address
from appliance.dns.resolver import DnsResolver, Resolver
from appliance.environment import Environment
from appliance.keys.secrets import WebhookSecrets
from appliance.net.address_policy import Address
from appliance.net.local_addresses import LocalAddresses
from appliance.store import Store
from appliance.tls.certificate import https_context
from appliance.webhook.dispatcher import Dispatcher
from appliance.webhook.post import Attempts, Poster

CLOSE_IDLE_EVERY = 5.0  # seconds between two checks for idle connections


@dataclass(frozen=True, slots=True)
class WebhookService:
    """The dispatcher of due posts, and the poster it uses; the API checks URLs with the same poster."""

    poster: Poster
    dispatcher: Dispatcher

    async def run(self) -> None:
        """Post events until cancelled, then close the connections."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dispatcher.run)
                while True:
                    await trio.sleep(CLOSE_IDLE_EVERY)
                    await self.poster.idle.close_idle()
        finally:
            with trio.CancelScope(shield=True):
                await self.poster.idle.aclose()


def build(config: Config, env: Environment, store: Store, key: bytes) -> WebhookService:
    """Build the service; raises ConfigError if the settings cannot be used."""
    others = store.engine.others
    poster = build_poster(config, DnsResolver(config.dns.resolvers), env, lambda: others().addresses)
    attempts = Attempts(poster.post, WebhookSecrets(key, env), env, config.webhooks.retry_delays)
    return WebhookService(poster, Dispatcher(store, env, attempts))


def build_poster(
    config: Config, resolver: Resolver, env: Environment, others: Callable[[], Container[Address]] = frozenset
) -> Poster:
    """Build the poster; raises ConfigError if `webhooks.ca_file` cannot be used.

    `others` returns the addresses of other nodes, which are refused like this machine's own.
    """
    return Poster(
        resolver,
        env.dial,
        https_context(config, "webhooks.ca_file", config.webhooks.ca_file),
        ports=frozenset(config.webhooks.ports),
        own_names=own_names(config),
        allowed=config.webhooks.allow_networks,
        own=LocalAddresses(frozenset(config.delivery.own_addresses), others),
        plain_loopback=config.local_webhooks,
    )


def own_names(config: Config) -> frozenset[str]:
    """The names of this service, and `*.domain` for all names below `server.own_domains`.

    Names below the host name or the base URL's host are allowed: `hooks.example.com` may belong to a customer while
    this service is at `example.com`. An address in the base URL is not a name: `webhooks.allow_networks` decides.
    """
    names = {config.server.hostname, urlsplit(config.http.base_url).hostname or ""}
    names = {name for name in names if not is_address(name)}
    domains = config.server.own_domains
    return frozenset({*names, *domains, *(f"*.{domain}" for domain in domains)} - {""})
