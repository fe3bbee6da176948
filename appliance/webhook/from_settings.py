"""In charge of what the operator's settings make of posting: what is trusted, allowed and refused."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from appliance.config.load import Config
from appliance.dns.resolver import Resolver
from appliance.net.local_addresses import LocalAddresses
from appliance.outside import Outside
from appliance.tls.trust import https_context
from appliance.webhook.post import Poster


def poster(config: Config, resolver: Resolver, outside: Outside) -> Poster:
    """The one who posts; raises ConfigError when `webhooks.ca_file` cannot be used."""
    return Poster(
        resolver,
        outside.dial,
        https_context(config, "webhooks.ca_file", config.webhooks.ca_file),
        ports=frozenset(config.webhooks.ports),
        own_names=own_names(config),
        allowed=config.webhooks.allow_networks,
        own=LocalAddresses(frozenset(config.delivery.own_addresses)),
    )


def own_names(config: Config) -> frozenset[str]:
    """The names of this service; of `server.own_domains` everything below them, too.

    Not so below the host name and that of the base URL: `hooks.example.com` may be anybody's where `example.com` is
    where this service happens to be reached. An address in the base URL is no name: whether it may be dialled is said
    by `webhooks.allow_networks`, and an operator who allows loopback means it.
    """
    names = {config.server.hostname, urlsplit(config.http.base_url).hostname or ""}
    names = {name for name in names if not _is_address(name)}
    domains = config.server.own_domains
    return frozenset({*names, *domains, *(f"*.{domain}" for domain in domains)} - {""})


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
