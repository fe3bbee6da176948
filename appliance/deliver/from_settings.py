"""In charge of what the operator's settings make of delivery: its relays and its pools. PURE."""

from collections.abc import Iterable
from dataclasses import replace

from appliance.config.load import Config, PoolSettings
from appliance.config.settings import (
    DEFAULT_POOL,
    ConfigError,
    DeliveryMode,
    DeliverySettings,
    RelaySettings,
    RelayTls,
    place_of,
)
from appliance.deliver.providers import PROVIDERS, Limits, Pools, Provider, by_reverse, by_suffix
from appliance.deliver.route import Relay, Relays


def relays(delivery: DeliverySettings) -> Relays:
    """Which mail goes to a relay: all of it in mode relay, else that for the domains that have one of their own."""
    by_domain = {domain: _relay(table) for domain, table in delivery.relays.items()}
    only = delivery.mode is DeliveryMode.RELAY
    return Relays(_main_relay(delivery) if only and delivery.relay_host else None, by_domain, only)


def _main_relay(delivery: DeliverySettings) -> Relay:
    tls = RelayTls(delivery.relay_tls.value)
    return Relay(delivery.relay_host, delivery.relay_port, delivery.relay_username, delivery.relay_password, tls)


def _relay(table: RelaySettings) -> Relay:
    return Relay(table.host, table.port, table.username, table.password, RelayTls(table.tls.value))


def pools(config: Config) -> Pools:
    """The built-in pools with what the operator changed, and those that the operator added."""
    tables = config.delivery.pools
    others = _limits(tables.get(DEFAULT_POOL, PoolSettings()), Limits())
    known = {provider.name: _without(provider, tables.values()) for provider in PROVIDERS}
    for name, table in tables.items():
        if name != DEFAULT_POOL:
            known[name] = _provider(config, name, table, known.get(name), others)
    # The operator's last, because the last row for a suffix counts.
    rows = sorted(known.values(), key=lambda provider: provider.name in tables)
    return Pools(by_suffix(rows), others, by_reverse(rows))


def pool_names(config: Config) -> frozenset[str]:
    """The pools that are known by name before any mail has gone: built in, or the operator's."""
    return frozenset({provider.name for provider in PROVIDERS} | config.delivery.pools.keys()) - {DEFAULT_POOL}


def _without(provider: Provider, tables: Iterable[PoolSettings]) -> Provider:
    """A built-in row without the hosts that the operator counts as another pool's."""
    taken = tuple(f".{suffix}" for table in tables for suffix in table.suffixes)
    left = tuple(suffix for suffix in provider.suffixes if not f".{suffix}".endswith(taken))
    return replace(provider, suffixes=left)


def _provider(config: Config, name: str, table: PoolSettings, built_in: Provider | None, others: Limits) -> Provider:
    if built_in is None and not table.suffixes:
        names = ", ".join(sorted(provider.name for provider in PROVIDERS))
        reason = f"missing: {name} is no built-in pool ({names})"
        raise ConfigError(str(config.source), f"{place_of('delivery.pools', name)}.suffixes", reason)
    start = built_in or Provider(name, (), others)
    # The operator's own suffixes need no proof: whoever names them has reasons to believe these names.
    return replace(
        start,
        suffixes=table.suffixes or start.suffixes,
        limits=_limits(table, start.limits),
        proof=built_in is not None and not table.suffixes,
    )


def _limits(table: PoolSettings, start: Limits) -> Limits:
    """The given limits, and where none is given those to start with."""
    per_minute = start.per_minute if table.per_minute is None else table.per_minute or None
    return Limits(
        table.concurrency or start.concurrency,
        table.messages_per_connection or start.messages_per_connection,
        per_minute,
    )
