"""Asks DNS blocklists (RFC 5782) whether they list an address."""

from msgspec import Struct

from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.net.address_policy import Address

REFUSED_RESOLVER = "127.255.255."  # the reply of blocklists to a resolver that they do not serve


class Listing(Struct, frozen=True):
    """The answer of a blocklist: the text says why the address is listed, or why there is no answer."""

    blocklist: str
    address: Address
    is_listed: bool | None = False  # None: no answer
    text: str = "not listed"
    refuses_resolver: bool = False


async def look_up(resolver: Resolver, blocklist: str, address: Address) -> Listing:
    reverse = address.reverse_pointer.removesuffix(".in-addr.arpa").removesuffix(".ip6.arpa")  # RFC 5782 2.1
    name = f"{reverse}.{blocklist}"
    try:
        codes = [str(code) for code in (await resolver.ipv4(name)).records]
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return Listing(blocklist, address, None, f"lookup failed: {failed.text}")
        codes = []
    if not codes:
        return Listing(blocklist, address)
    if any(code.startswith(REFUSED_RESOLVER) for code in codes):
        return Listing(blocklist, address, None, "does not serve this resolver", refuses_resolver=True)
    try:
        reason = "; ".join((await resolver.txt(name)).records)
    except LookupFailed:
        reason = ""
    return Listing(blocklist, address, True, f"listed ({', '.join(codes)}){': ' + reason if reason else ''}")
