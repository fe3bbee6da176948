"""The addresses of this machine: its own, the source of outgoing connections, and those it listens on.

The system is asked every time, nothing is cached. Addresses of other nodes on the same database count as our own.
"""

import errno
import socket
from collections.abc import Callable, Container
from ipaddress import IPv4Address, IPv6Address, ip_address

from msgspec import Struct

from appliance.config.settings import Config
from appliance.config.values import Endpoint
from appliance.net.address_policy import Address
from appliance.net.dial import raise_if_short

# errnos of bind(2) for an address, or a family, that this machine does not have
_NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.EACCES)
UNASSIGNED = (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"))  # for documentation, RFC 5737, RFC 3849


class LocalAddresses(Struct, frozen=True):
    """The machine's addresses, for `in`; `further` are public addresses behind a NAT, `others` those of other nodes.

    Each test binds a socket to the address, which takes microseconds. A list made at startup would be wrong after the
    next DHCP lease. Without a free descriptor, `in` raises `Shortage`.
    """

    further: frozenset[Address] = frozenset()
    others: Callable[[], Container[Address]] = frozenset

    def __contains__(self, address: object) -> bool:
        if address in self.further or address in self.others():
            return True
        if not isinstance(address, IPv4Address | IPv6Address):
            return False
        # With ip_nonlocal_bind the system binds to any address, so the test is useless.
        foreign = UNASSIGNED[0 if address.version == 4 else 1]
        return not _binds(foreign) and _binds(address)


def _binds(address: Address) -> bool:
    fault = _bind_fault(address)
    if fault is not None and fault.errno not in _NOT_LOCAL:
        raise fault
    return fault is None


def bind_trouble(address: Address) -> str | None:
    """Why connections cannot leave from an address; None: they can."""
    if (fault := _bind_fault(address)) is None:
        return None
    return "is not on this machine" if fault.errno in _NOT_LOCAL else fault.strerror or str(fault)


def _bind_fault(address: Address) -> OSError | None:
    try:
        with _udp_socket(address) as probe:
            probe.bind((str(address), 0))
    except OSError as fault:
        raise_if_short(fault)
        return fault
    return None


def _udp_socket(address: Address) -> socket.socket:
    return socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def source_address(target: Address) -> Address | None:
    """Return the source address of packets to `target`, or None without a route; sends no packet."""
    try:
        with _udp_socket(target) as probe:
            probe.connect((str(target), 9))
            return ip_address(probe.getsockname()[0])
    except OSError:
        return None


def binds(config: Config) -> list[tuple[str, Endpoint]]:
    keys = (
        ("http.bind", config.http.bind),
        ("smtp.bind", config.smtp.bind),
        ("smtp.bind_tls", config.smtp.bind_tls),
        ("inbound.bind", config.inbound.bind),
        ("acme.bind", config.acme.bind if config.acme.enabled else ()),
        ("metrics.bind", config.metrics.bind),
    )
    return [(key, address) for key, addresses in keys for address in addresses]


def node_addresses(config: Config) -> list[str]:
    """Return the addresses of this node for other nodes: from the settings, the listeners and the routes."""
    addresses = {*config.delivery.own_addresses, *(ip_address(endpoint.host) for _, endpoint in binds(config))}
    addresses |= {address for foreign in UNASSIGNED if (address := source_address(foreign)) is not None}
    return sorted(str(address) for address in addresses if not (address.is_loopback or address.is_unspecified))


def bind_error(address: Endpoint) -> int | None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno
    return None
