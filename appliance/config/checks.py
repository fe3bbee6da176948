"""Checks that the settings of a file do not contradict each other."""

import itertools

from appliance.config.settings import (
    DEFAULT_POOL,
    Config,
    ConfigError,
    DeliveryMode,
    DeliverySettings,
    RelaySettings,
    RelayTls,
)
from appliance.config.values import Address, Endpoint, place_of


def check_together(config: Config, file: str) -> None:
    for section, listener in (("http", config.http), ("smtp", config.smtp), ("inbound", config.inbound)):
        if bool(listener.tls_cert) != bool(listener.tls_key):
            missing, present = ("tls_key", "tls_cert") if listener.tls_cert else ("tls_cert", "tls_key")
            raise ConfigError(file, f"{section}.{missing}", f"missing, though {present} is set")
    if config.http.body_memory < config.http.max_body:
        raise ConfigError(file, "http.body_memory", "is smaller than max_body, so the largest body could never come in")
    if config.acme.enabled:
        _check_acme(config, file)
    # The rows of a message are deleted last: its body and webhook deliveries belong to them.
    for key, seconds in (("bodies", config.retention.bodies), ("webhook_logs", config.retention.webhook_logs)):
        if seconds > config.retention.metadata:
            raise ConfigError(file, f"retention.{key}", "is longer than metadata, and would go with it")
    _check_relays(config, file)
    _check_pools(config, file)
    _check_sources(config, file)


def _check_acme(config: Config, file: str) -> None:
    if not config.acme.names:
        reason = f'missing: "{config.server.hostname}" (server.hostname) is no name that an authority could look up'
        raise ConfigError(file, "acme.names", reason)
    for name in config.acme.names:
        if "." not in name:
            raise ConfigError(file, "acme.names", f'"{name}" is no name that an authority could look up')
    shown_by_http = config.acme.http and not config.http.tls_cert
    if not shown_by_http and (config.smtp.tls_cert or not (config.smtp.bind or config.smtp.bind_tls)):
        reason = "true, though no listener would use the certificate: http and smtp have their own files, or no TLS"
        raise ConfigError(file, "acme.enabled", reason)
    others = {"http.bind": config.http.bind, "smtp.bind": config.smtp.bind, "smtp.bind_tls": config.smtp.bind_tls}
    others |= {"inbound.bind": config.inbound.bind, "metrics.bind": config.metrics.bind}
    for key, binds in others.items():
        for ours, theirs in itertools.product(config.acme.bind, binds):
            if _collide(ours, theirs):
                raise ConfigError(file, "acme.bind", f"{ours} conflicts with {theirs} of {key}")


def _collide(one: Endpoint, other: Endpoint) -> bool:
    hosts, same_family = {one.host, other.host}, (":" in one.host) == (":" in other.host)
    overlap = len(hosts) == 1 or (same_family and hosts & {"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
    return bool(overlap and one.port == other.port != 0)


def _check_pools(config: Config, file: str) -> None:
    owners: dict[str, str] = {}
    for name, pool in config.delivery.pools.items():
        place = f"{place_of('delivery.pools', name)}.suffixes"
        if name == DEFAULT_POOL and pool.suffixes:
            raise ConfigError(file, place, f"{DEFAULT_POOL} is every organisation that no other pool names")
        for suffix in pool.suffixes:
            if owners.setdefault(suffix, name) != name:
                raise ConfigError(file, place, f"{suffix} belongs to the pool {owners[suffix]} already")


def _check_relays(config: Config, file: str) -> None:
    delivery = config.delivery
    if delivery.mode is DeliveryMode.RELAY and not delivery.relay_host and not delivery.relays:
        raise ConfigError(file, "delivery.relay_host", 'missing, though mode is "relay"')
    if config.delivery_ramp.percent is not None and (reason := ramp_refusal(delivery)) is not None:
        raise ConfigError(file, "delivery.ramp.percent", reason)
    main = RelaySettings(
        delivery.relay_host, delivery.relay_port, delivery.relay_username, delivery.relay_password, delivery.relay_tls
    )
    _check_login(main, file, "delivery.relay_")
    for domain, relay in delivery.relays.items():
        place = place_of("delivery.relays", domain)
        if not relay.host:
            raise ConfigError(file, f"{place}.host", "missing")
        _check_login(relay, file, f"{place}.")


def ramp_refusal(delivery: DeliverySettings) -> str | None:
    """Why there can be no ramp with these settings."""
    if delivery.mode is not DeliveryMode.RELAY:
        return f'needs delivery.mode = "relay"; it is "{delivery.mode}"'
    return None if delivery.relay_host else "needs delivery.relay_host"


def _check_login(relay: RelaySettings, file: str, before: str) -> None:
    """Username and password must be set together, and a password needs TLS."""
    if bool(relay.username) != bool(relay.password):
        missing, present = ("password", "username") if relay.username else ("username", "password")
        raise ConfigError(file, before + missing, f"missing, though {present} is set")
    if relay.username and relay.tls is RelayTls.OFF:
        raise ConfigError(file, f"{before}tls", '"off", though username is set: a password is sent only under TLS')


def _check_sources(config: Config, file: str) -> None:
    sources, owners = config.delivery.sources, dict[Address, str]()
    for name, source in sources.items():
        place = place_of("delivery.sources", name)
        if source.ipv4 is None and source.ipv6 is None:
            raise ConfigError(file, f"{place}.ipv4", "missing: a source needs ipv4, ipv6 or both")
        for version, key, address in ((4, "ipv4", source.ipv4), (6, "ipv6", source.ipv6)):
            if address is None:
                continue
            if address.version != version:
                raise ConfigError(file, f"{place}.{key}", f"{address} is an IPv{address.version} address")
            if address.is_unspecified or address.is_multicast:
                raise ConfigError(file, f"{place}.{key}", f"{address} is no address that mail can leave from")
            if (owner := owners.setdefault(address, name)) != name:
                raise ConfigError(file, f"{place}.{key}", f"{address} belongs to the source {owner} already")
    for name, stream in config.delivery.streams.items():
        for number, source_name in enumerate(stream.sources):
            place = f"{place_of('delivery.streams', name)}.sources"
            if source_name not in sources:
                known = f"expected {' or '.join(sources)}" if sources else "define it as [delivery.sources.NAME]"
                raise ConfigError(file, place, f"there is no source {source_name}; {known}")
            if source_name in stream.sources[:number]:
                raise ConfigError(file, place, f"names {source_name} twice")
