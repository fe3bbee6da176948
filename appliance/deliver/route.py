"""Where mail for a domain goes: its MX hosts with their addresses in the order to try them, or a relay.

The order (RFC 5321 5.1): MX hosts by preference, equal ones in random order; the addresses of a host IPv6 and IPv4 in
turn, IPv6 first (RFC 8305 4), each family as the DNS gave it. A machine whose IPv6 leads nowhere loses one connection
attempt a host, and not all of them.

What cannot be routed is permanent only where decisions leave no doubt: the domain does not exist, it declares that it
takes no mail (RFC 7505), or every address behind it is refused. All other trouble is temporary, even a domain without
any address: its owner may be about to set it up.
"""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address

import trio

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.settings import RelayTls
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.dns.wire import Mx
from appliance.net.address_policy import Address, Network, is_allowed, refusal
from appliance.net.dial import Shortage
from appliance.telemetry.log import get_logger

HOSTS_LOOKED_UP = 10  # MX hosts of one domain; more would be a way to make us ask and ask
HOST_LIMIT = 5  # hosts tried in one attempt
ADDRESSES_CHECKED = 16  # of one host, IPv6 and IPv4 alternating; to check one takes a system call
HOST_ADDRESS_LIMIT = 4  # addresses tried of one host, so that one host cannot use up all
ROUTE_FRESH = 1.0  # seconds for which envelopes for one domain share a route
ROUTES_KEPT = 1_000
ROUTE_ADDRESSES = 10  # addresses tried in one attempt: at 30 s each, five minutes

# An MX host: letters, digits, hyphens, and the underscore that some operators use although RFC 1123 does not know it. A
# last label of digits only would be an IP address, which MX data must not be (RFC 1035 3.3.9) and which is ignored.
_HOST = re.compile(r"(?!.*(?:^|\.)[0-9]+$)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")

log = get_logger("deliver")


class NoRoute(Exception):
    """There is no server for this mail, permanently or now, by its RFC 3463 status; with the reason in words.

    Customers read `text`, which names no address of this network and no resolver; `detail` is for the operator's log.
    """

    def __init__(self, status: str, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.detail = status, text, detail

    @property
    def permanent(self) -> bool:
        return self.status.startswith("5")


@dataclass(frozen=True, slots=True)
class Host:
    """A mail server with the addresses to dial, each checked, in order; `authentic`: vouched for by DNSSEC."""

    name: str
    addresses: tuple[Address, ...]
    authentic: bool = False
    dialled: tuple[str, ...] = field(init=False, compare=False, repr=False)  # the addresses, as they are written

    def __post_init__(self) -> None:
        object.__setattr__(self, "dialled", tuple(map(str, self.addresses)))


@dataclass(frozen=True, slots=True)
class Relay:
    host: str  # a name or an IP address; no MX is looked up for it
    port: int = 587
    username: str = ""  # empty: no AUTH
    password: str = field(default="", repr=False)
    tls: RelayTls = RelayTls.REQUIRED


@dataclass(frozen=True, slots=True)
class Relays:
    """Which relay takes the mail for which domain; without any it goes to the domain's own MX."""

    default: Relay | None = None
    by_domain: Mapping[str, Relay] = field(default_factory=dict)  # "example.com", or "*.example.com" for those below
    only: bool = False  # nothing goes to a domain's own MX


@dataclass(frozen=True, slots=True)
class Route:
    domain: str
    hosts: tuple[Host, ...]
    port: int
    authentic: bool = False  # the MX records, or that there are none, are vouched for by DNSSEC
    relay: Relay | None = None


# ---- pure


def relay_for(domain: str, relays: Relays) -> Relay | None:
    """The relay for a domain: its own, else that of the nearest domain above it with a `*.`, else the default."""
    labels = domain.lower().split(".")
    names = [".".join(labels), *("*." + ".".join(labels[at:]) for at in range(1, len(labels)))]
    return next((relays.by_domain[name] for name in names if name in relays.by_domain), relays.default)


def in_order(records: tuple[Mx, ...], random: Callable[[], float]) -> list[Mx]:
    """Usable MX records in the order to try them, each host once, at its best preference."""
    by_preference = sorted(records, key=lambda record: (record.preference, random()))
    first = {record.host: record for record in reversed(by_preference) if _HOST.fullmatch(record.host)}
    return [record for record in by_preference if first.get(record.host) is record]


@dataclass(frozen=True, slots=True)
class _Found:
    mx: Mx
    addresses: tuple[Address, ...] = ()  # those that may be dialled, in order
    authentic: bool = False
    refused: tuple[str, ...] = ()  # why others may not
    own: bool = False  # it is this machine
    trouble: LookupFailed | None = None  # why nothing is known
    lack: str | None = None  # of this machine, for which nothing could be asked
    missing: str | None = None  # why there is nothing to know


def _before_own(found: list[_Found]) -> list[_Found]:
    """The hosts that are preferred to this machine: mail given to the others would come back (RFC 5321 5.1)."""
    limit = min((host.mx.preference for host in found if host.own), default=None)
    return found if limit is None else [host for host in found if host.mx.preference < limit]


def _within_limits(found: list[_Found]) -> tuple[Host, ...]:
    hosts, left = [], ROUTE_ADDRESSES
    for host in found:
        addresses = host.addresses[: min(HOST_ADDRESS_LIMIT, left)]
        left -= len(addresses)
        if addresses:
            hosts.append(Host(host.mx.host, addresses, host.authentic))
    return tuple(hosts[:HOST_LIMIT])


def _no_host(domain: str, found: list[_Found], *, complete: bool) -> NoRoute:
    """Why none of these hosts can be tried; `complete` when they are all there are."""
    loop, found = any(host.own for host in found), _before_own(found)
    trouble = [host.trouble for host in found if host.trouble]
    refused = [reason for host in found for reason in host.refused]
    missing = [host.missing for host in found if host.missing]
    if trouble:
        text = f"the mail servers of {domain} cannot be looked up: {trouble[0].public}"
        return NoRoute("4.4.3", text, trouble[0].text)
    if loop:
        return NoRoute("5.4.6", f"the best mail server of {domain} is this machine: mail would loop")
    if missing and not (refused and complete):
        return NoRoute("4.4.4", f"no mail server of {domain} has an address: {missing[0]}")
    status, text = "5.4.4" if refused and complete else "4.4.4", f"{domain} has no mail server with a public address"
    return NoRoute(status, text, "; ".join(refused[:HOST_ADDRESS_LIMIT]))


# ---- I/O


@dataclass(frozen=True, slots=True)
class Router:
    """Finds routes. `random` gives numbers from 0 to 1; `own_names` are the host names of this service."""

    resolver: Resolver
    random: Callable[[], float]
    port: int = 25
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    own_names: Callable[[], Container[str]] = frozenset
    relays: Relays = Relays()

    async def route(self, domain: str) -> Route:
        """Where mail for this domain (lower case, A-labels) goes now; raises `NoRoute`, or `Shortage` if not asked."""
        relay = relay_for(domain, self.relays)
        if relay is None and self.relays.only:
            raise NoRoute("4.3.5", f"no relay is configured for {domain}")
        return await (self._to_relay(domain, relay) if relay else self._direct(domain))

    async def _direct(self, domain: str) -> Route:
        records, authentic = await self._mx(domain)
        ordered = in_order(records, self.random)
        if not ordered:
            raise NoRoute("4.4.4", f"the MX records of {domain} name no host")
        looked_up: dict[Mx, _Found] = {}

        async def look_up(mx: Mx) -> None:
            try:
                looked_up[mx] = await self._look_up(mx)
            except Shortage as shortage:  # whether it is this machine cannot be told, so that it may be
                looked_up[mx] = _Found(mx, own=True, lack=str(shortage))

        async with trio.open_nursery() as nursery:
            for mx in ordered[:HOSTS_LOOKED_UP]:
                nursery.start_soon(look_up, mx)
        found = [looked_up[mx] for mx in ordered[:HOSTS_LOOKED_UP]]
        hosts = _within_limits(_before_own(found))
        if not hosts:
            if lack := next((host.lack for host in found if host.lack), None):
                raise Shortage(lack)
            raise _no_host(domain, found, complete=len(found) == len(ordered))
        return Route(domain, hosts, self.port, authentic)

    async def _mx(self, domain: str) -> tuple[tuple[Mx, ...], bool]:
        try:
            answer = await self.resolver.mx(domain)
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            if failed.fault is DnsFault.NODATA:
                return (Mx(0, domain),), failed.authentic  # the implicit MX, RFC 5321 5.1
            status = "5.1.2" if failed.fault is DnsFault.NXDOMAIN else "4.4.3"
            raise NoRoute(status, failed.public, failed.text) from failed
        if len(answer.records) == 1 and answer.records[0].host == "":  # RFC 7505 3; beside others it means nothing
            raise NoRoute("5.1.10", f"{domain} accepts no mail (null MX)")
        return answer.records, answer.authentic

    async def _look_up(self, mx: Mx) -> _Found:
        if mx.host in self.own_names():
            return _Found(mx, own=True)
        try:
            addresses, authentic = await host_addresses(self.resolver, mx.host)
        except NotAsked as failed:
            return _Found(mx, trouble=failed, lack=failed.lack)
        except LookupFailed as failed:
            temporary = failed.fault is DnsFault.TEMPORARY
            return _Found(mx, trouble=failed) if temporary else _Found(mx, missing=failed.public)
        addresses = addresses[:ADDRESSES_CHECKED]
        reasons = {address: refusal(address, self.allowed, self.own) for address in addresses}
        good = tuple(address for address, reason in reasons.items() if reason is None)
        refused = tuple(reason for reason in reasons.values() if reason is not None)
        own = any(address in self.own and not is_allowed(address, self.allowed) for address in addresses)
        return _Found(mx, good, authentic, refused, own)

    async def _to_relay(self, domain: str, relay: Relay) -> Route:
        """To the relay. Its address is not checked: the operator named it, and it is mostly a private one."""
        try:
            addresses: tuple[Address, ...] = (ip_address(relay.host),)
        except ValueError:
            try:
                addresses, _ = await host_addresses(self.resolver, relay.host)
            except NotAsked as failed:
                raise Shortage(failed.lack) from failed
            except LookupFailed as failed:
                text = f"the mail relay that this service uses for {domain} cannot be found at the moment"
                raise NoRoute("4.4.3", text, failed.text) from failed
        return Route(domain, (Host(relay.host, addresses[:HOST_ADDRESS_LIMIT]),), relay.port, relay=relay)


@dataclass(slots=True)
class RouteCache:
    """Routes shared by all envelopes for a domain: found once for all that need it within a moment."""

    router: Router
    _known: TtlCache[str, Route] = field(default_factory=lambda: TtlCache(ROUTES_KEPT, ROUTE_FRESH))  # by domain
    _finding: SingleFlight[str, Route | NoRoute] = field(default_factory=SingleFlight)

    def known(self, domain: str) -> Route | None:
        """The route to a domain, if it was found a moment ago."""
        return self._known.get(domain)

    async def find(self, domain: str) -> Route:
        """The route to a domain; raises `NoRoute`."""
        if (route := self.known(domain)) is not None:
            return route
        found = await self._finding.run(domain, partial(self._find, domain))
        if isinstance(found, NoRoute):
            raise NoRoute(found.status, found.text, found.detail)
        return found

    async def _find(self, domain: str) -> Route | NoRoute:
        try:
            route = await self.router.route(domain)
        except NoRoute as reason:
            if reason.detail:  # what customers are not told
                log.info("no route", domain=domain, status=reason.status, reason=reason.detail)
            return reason
        self._known.put(domain, route)
        return route
