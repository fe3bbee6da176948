"""Decides which addresses may be dialled: none that leads into the operator's own networks (SSRF). No I/O.

The owner of an MX record or a webhook chooses the address that this machine connects to. So every address is checked
right before it is dialled, and exactly the checked address is dialled.

An address is refused if it belongs to this machine or is listed below. An allow-list admits it in the form in which it
is dialled: `127.0.0.0/8` admits `127.0.0.1` but not `::ffff:127.0.0.1`, a common way around such lists. An IPv6 address
that embeds an IPv4 address is refused for its form; if a list admits the form (such as a NAT64 prefix), the embedded
address must pass as well. `client_network` is the network that limits per client count by.
"""

from collections.abc import Container, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# The IANA special-purpose registry (RFC 6890), plus multicast (RFC 5771), class E (RFC 1112 4), the 6to4 relays (RFC
# 7526), and one cloud's host service on an address that looks public. Python's `is_global` is true for multicast,
# 192.88.99.1 and most of the embedding forms below. The first matching row is the reason, so narrow rows come first.
_REFUSED_V4 = (
    ("0.0.0.0/32", "the unspecified address"),
    ("0.0.0.0/8", "an address of this network"),  # RFC 791 3.2
    ("10.0.0.0/8", "a private address"),  # RFC 1918
    ("100.64.0.0/10", "a shared (carrier) address"),  # RFC 6598
    ("127.0.0.0/8", "a loopback address"),  # RFC 1122 3.2.1.3
    ("168.63.129.16/32", "a cloud host's own service"),  # Azure's wire server
    ("169.254.0.0/16", "a link-local address"),  # RFC 3927
    ("172.16.0.0/12", "a private address"),  # RFC 1918
    ("192.0.0.0/24", "a protocol assignment"),  # RFC 6890 2.1
    ("192.0.2.0/24", "a documentation address"),  # RFC 5737
    ("192.88.99.0/24", "a 6to4 relay address"),  # RFC 7526
    ("192.168.0.0/16", "a private address"),  # RFC 1918
    ("198.18.0.0/15", "a benchmarking address"),  # RFC 2544
    ("198.51.100.0/24", "a documentation address"),  # RFC 5737
    ("203.0.113.0/24", "a documentation address"),  # RFC 5737
    ("224.0.0.0/4", "a multicast address"),  # RFC 5771
    ("255.255.255.255/32", "the broadcast address"),  # RFC 919 7
    ("240.0.0.0/4", "a reserved address"),  # RFC 1112 4
)
_REFUSED_V6 = (
    ("::/128", "the unspecified address"),  # RFC 4291 2.5.2
    ("::1/128", "a loopback address"),  # RFC 4291 2.5.3
    ("::/96", "an IPv4-compatible address"),  # RFC 4291 2.5.5.1
    ("::ffff:0:0/96", "an IPv4-mapped address"),  # RFC 4291 2.5.5.2
    ("::ffff:0:0:0/96", "an IPv4-translated address"),  # RFC 2765 2.1
    ("64:ff9b::/96", "a NAT64 address"),  # RFC 6052 2.1
    ("64:ff9b:1::/48", "a NAT64 address"),  # RFC 8215
    ("100::/64", "a discard address"),  # RFC 6666
    ("2001::/32", "a Teredo address"),  # RFC 4380
    ("2001:2::/48", "a benchmarking address"),  # RFC 5180
    ("2001::/23", "a protocol assignment"),  # RFC 2928
    ("2001:db8::/32", "a documentation address"),  # RFC 3849
    ("2002::/16", "a 6to4 address"),  # RFC 3056
    ("3fff::/20", "a documentation address"),  # RFC 9637
    ("fc00::/7", "a unique-local (private) address"),  # RFC 4193
    ("fe80::/10", "a link-local address"),  # RFC 4291 2.5.6
    ("fec0::/10", "a site-local address"),  # RFC 3879
    ("ff00::/8", "a multicast address"),  # RFC 4291 2.7
)
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")  # RFC 4291 2.4; IANA has assigned nothing else

# The shift and the inverted bits of the IPv4 addresses that an IPv6 address embeds. RFC 8215 does not define the
# position; most translators use the last 32 bits, and other layouts leave zeros there, which are refused.
_LAST_32 = ((0, 0),)
_EMBEDDING = (
    (IPv6Network("::/96"), _LAST_32),
    (IPv6Network("::ffff:0:0/96"), _LAST_32),
    (IPv6Network("::ffff:0:0:0/96"), _LAST_32),
    (IPv6Network("64:ff9b::/96"), _LAST_32),
    (IPv6Network("64:ff9b:1::/48"), _LAST_32),
    (IPv6Network("2001::/32"), ((64, 0), (0, 0xFFFFFFFF))),  # RFC 4380 4: of the server, and of the client, inverted
    (IPv6Network("2002::/16"), ((80, 0),)),
)
_NOT_EMBEDDING = (IPv6Address("::"), IPv6Address("::1"))  # in ::/96, but IPv6 addresses

_ROWS_V4 = tuple((IPv4Network(network), reason) for network, reason in _REFUSED_V4)
_ROWS_V6 = tuple((IPv6Network(network), reason) for network, reason in _REFUSED_V6)


def refusal(address: Address, allowed: Iterable[Network] = (), own: Container[Address] = ()) -> str | None:
    """Return why this address must not be dialled, or None; `allowed` admits even addresses of this machine (`own`)."""
    address, allowed = _without_zone(address), tuple(allowed)
    if not is_allowed(address, allowed) and (reason := _reason(address, own)):
        return f"{address} is {reason}"
    if isinstance(address, IPv6Address) and address not in _NOT_EMBEDDING:
        for shift, flip in next((places for network, places in _EMBEDDING if address in network), ()):
            if reason := refusal(IPv4Address((int(address) >> shift & 0xFFFFFFFF) ^ flip), allowed, own):
                return f"{address} carries an IPv4 address: {reason}"
    return None


def is_allowed(address: Address, allowed: Iterable[Network]) -> bool:
    address = _without_zone(address)
    return any(address in network for network in allowed)


def _reason(address: Address, own: Container[Address]) -> str | None:
    for network, reason in _ROWS_V4 if isinstance(address, IPv4Address) else _ROWS_V6:
        if address in network:
            return f"{reason} ({network})" if network.num_addresses > 1 else reason
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST_V6:
        return f"a reserved address (outside {_GLOBAL_UNICAST_V6})"
    return "an address of this machine" if address in own else None


def _without_zone(address: Address) -> Address:
    """Remove the zone of `fe80::1%eth0`, so that it equals the address in a set."""
    return IPv6Address(int(address)) if isinstance(address, IPv6Address) and address.scope_id else address


@lru_cache(maxsize=4_096)
def client_network(address: str) -> str:
    """Return the network that limits count a client by: the /64 of a public IPv6 address, else the address."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv4Address) or not parsed.is_global:
        return str(parsed)
    return str(IPv6Network((parsed, 64), strict=False))


@lru_cache(maxsize=1_024)
def site_of(address: str) -> str:
    """Return the range that one attacker can easily own: an IPv4 /24 or an IPv6 /48."""
    parsed = _parsed(address)
    return str(ip_network((parsed, 24 if parsed.version == 4 else 48), strict=False))


def _parsed(address: str) -> Address:
    parsed = ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
