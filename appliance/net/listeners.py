"""The addresses to listen on, by the settings, and whether the system would allow it. For `doctor` and the CLI."""

import socket

from appliance.config.settings import Config
from appliance.config.values import Endpoint


def binds(config: Config) -> list[tuple[str, Endpoint]]:
    keys = (
        ("http.bind", config.http.bind),
        ("smtp.bind", config.smtp.bind),
        ("smtp.bind_tls", config.smtp.bind_tls),
        ("acme.bind", config.acme.bind if config.acme.enabled else ()),
        ("metrics.bind", config.metrics.bind),
    )
    return [(key, address) for key, addresses in keys for address in addresses]


def bind_error(address: Endpoint) -> int | None:
    """The errno of listening there; None when it is possible."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno
    return None
