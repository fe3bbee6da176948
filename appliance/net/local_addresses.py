"""Which addresses are this machine's own, and which one a connection leaves from. Always current, never cached."""

import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

# errnos of bind(2) for an address, or a family, that this machine does not have
_NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.EACCES)
UNASSIGNED = (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"))  # for documentation, RFC 5737, RFC 3849


@dataclass(frozen=True, slots=True)
class LocalAddresses:
    """The machine's addresses, to be used with `in`; `further` are its public ones behind a NAT.

    Tries each time to bind a socket to the address: it costs microseconds, and interfaces that come and go need no
    watching. Rejected: a list made at the start, which the next DHCP lease makes wrong.
    """

    further: frozenset[IPv4Address | IPv6Address] = frozenset()

    def __contains__(self, address: object) -> bool:
        if address in self.further:
            return True
        if not isinstance(address, IPv4Address | IPv6Address) or _binds_anything(address):
            return False
        return _binds(address)


def source_address(target: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address | None:
    """The address that a packet to `target` would leave from, None without a route; no packet is sent."""
    try:
        with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
            probe.connect((str(target), 9))
            return ip_address(probe.getsockname()[0])
    except OSError:
        return None


def _family(address: IPv4Address | IPv6Address) -> socket.AddressFamily:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _binds_anything(address: IPv4Address | IPv6Address) -> bool:
    """Whether the system binds to foreign addresses too (ip_nonlocal_bind), so that the test says nothing."""
    return any(_binds(foreign) for foreign in UNASSIGNED if foreign.version == address.version)


def _binds(address: IPv4Address | IPv6Address) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as asked:
            asked.bind((str(address), 0))
    except OSError as fault:
        if fault.errno in _NOT_LOCAL:
            return False
        raise
    return True
