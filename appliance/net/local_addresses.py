"""In charge of which addresses are this machine's own, and which mail leaves from: now, not as it was at the start."""

import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

# What the system says of an address that it does not have, or of a family that it does not speak.
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.EACCES)
UNASSIGNED = (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"))  # RFC 5737, RFC 3849: on no machine


@dataclass(frozen=True, slots=True)
class LocalAddresses:
    """A container of the machine's addresses, to be asked with `in`; `further` are those it has behind a NAT.

    The system is asked each time whether a socket could be bound to the address: some microseconds, and interfaces
    that come and go need no watching. Rejected: a list at the start, which the next DHCP lease makes wrong.
    """

    further: frozenset[IPv4Address | IPv6Address] = frozenset()

    def __contains__(self, address: object) -> bool:
        if address in self.further:
            return True
        if not isinstance(address, IPv4Address | IPv6Address) or _binds_anything(address):
            return False
        return _binds(address)


def source_address(target: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address | None:
    """The address that a packet to `target` would leave from, None when there is no way there; none is sent."""
    try:
        with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
            probe.connect((str(target), 9))
            return ip_address(probe.getsockname()[0])
    except OSError:
        return None


def _family(address: IPv4Address | IPv6Address) -> socket.AddressFamily:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _binds_anything(address: IPv4Address | IPv6Address) -> bool:
    """Whether the system would bind to any address (ip_nonlocal_bind), so that asking it says nothing."""
    return any(_binds(nobodys) for nobodys in UNASSIGNED if nobodys.version == address.version)


def _binds(address: IPv4Address | IPv6Address) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as asked:
            asked.bind((str(address), 0))
    except OSError as fault:
        if fault.errno in _NOT_OURS:
            return False
        raise
    return True
