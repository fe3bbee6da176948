"""Checks that the relays of the settings are complete, and that a ramp has one."""

from appliance.config.settings import Config, ConfigError, DeliveryMode, DeliverySettings, RelaySettings, RelayTls
from appliance.config.values import place_of


def check_relays(config: Config, file: str) -> None:
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
