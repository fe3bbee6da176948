"""Finds the route of mail for a domain: its MX hosts with their addresses in the order to try them, or a relay.

The order (RFC 5321 5.1): MX hosts by preference, equal ones in random order; the addresses of a host IPv6 and IPv4 in
turn, IPv6 first (RFC 8305 4). A machine with broken IPv6 so loses one connection attempt per host.

A missing route is permanent only if the domain does not exist, accepts no mail (RFC 7505), or has only refused
addresses. Every other fault is temporary, even a domain without an address: its owner may be about to set it up.
"""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.settings import DeliveryMode, DeliverySettings, RelayTls
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.dns.wire import Mx
from appliance.model.ramp import Via
from appliance.model.sources import OutgoingSource
from appliance.net.address_policy import Address, Network, is_allowed, refusal
from appliance.net.dial import Shortage
from appliance.telemetry.log import get_logger

HOSTS_LOOKED_UP = 10  # MX hosts of one domain
HOST_LIMIT = 5  # hosts tried in one attempt
ADDRESSES_CHECKED = 16  # of one host, IPv6 and IPv4 alternating; each check is a system call
HOST_ADDRESS_LIMIT = 4  # addresses tried of one host, so that one host cannot use up all
ROUTE_ADDRESSES = 10  # addresses tried in one attempt: at 30 s each, five minutes

# An MX host: letters, digits, hyphens, and underscores, which some operators use. A last label of digits would be an IP
# address, which MX data must not contain (RFC 1035 3.3.9); it is ignored.
_HOST = re.compile(r"(?!.*(?:^|\.)[0-9]+$)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")

log = get_logger("deliver")


class NoRoute(Exception):
    """There is no server for this mail, permanently or now, by the RFC 3463 status.

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
    """A mail server with the checked addresses to dial, in order."""

    name: str
    addresses: tuple[Address, ...]
    authentic: bool = False  # by DNSSEC
    dialled: tuple[str, ...] = field(init=False, compare=False, repr=False)  # the addresses as text

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
    """The relays by domain; mail without a relay goes to the domain's own MX."""

    default: Relay | None = None
    by_domain: Mapping[str, Relay] = field(default_factory=dict)  # "example.com", or "*.example.com" for subdomains
    only: bool = False  # no mail goes to a domain's own MX, except under the ramp
    ramp: Relay | None = None  # for mail under the ramp, in mode direct, too: a relay may have it already


class Route(Struct, frozen=True):
    domain: str
    hosts: tuple[Host, ...]
    port: int
    authentic: bool = False  # DNSSEC authenticates the MX records, or their absence
    relay: Relay | None = None
    source: OutgoingSource | None = None  # None: the system chooses the address that connections leave from
    via: Via | None = None  # as asked for, under the ramp

    @property
    def taken(self) -> Via:
        return Via.DIRECT if self.relay is None else Via.RELAY


def relay_for(domain: str, relays: Relays) -> Relay | None:
    """The relay for a domain: its own, else the one of the nearest parent domain with a `*.`, else the default."""
    labels = domain.lower().split(".")
    names = [".".join(labels), *("*." + ".".join(labels[at:]) for at in range(1, len(labels)))]
    return next((relays.by_domain[name] for name in names if name in relays.by_domain), relays.default)


def configured_relays(delivery: DeliverySettings) -> Relays:
    """The relays of the settings: for all mail in mode relay, else for domains with their own relay."""
    by_domain = {
        domain: Relay(table.host, table.port, table.username, table.password, table.tls)
        for domain, table in delivery.relays.items()
    }
    relays_all, relay = delivery.mode is DeliveryMode.RELAY, None
    if host := delivery.relay_host:
        username, password = delivery.relay_username, delivery.relay_password
        relay = Relay(host, delivery.relay_port, username, password, delivery.relay_tls)
    return Relays(relay if relays_all else None, by_domain, relays_all, relay)


def in_order(records: tuple[Mx, ...], random: Callable[[], float]) -> list[Mx]:
    """Usable MX records in the order to try them, each host once, at its best preference."""
    by_preference = sorted(records, key=lambda record: (record.preference, random()))
    first = {record.host: record for record in reversed(by_preference) if _HOST.fullmatch(record.host)}
    return [record for record in by_preference if first.get(record.host) is record]


class _MxHost(Struct, frozen=True):
    mx: Mx
    addresses: tuple[Address, ...] = ()  # that may be dialled, in order
    authentic: bool = False
    refused: tuple[str, ...] = ()  # why other addresses may not be dialled
    own: bool = False  # it is this machine
    trouble: LookupFailed | None = None  # a temporary failure
    lack: str | None = None  # the resource that this machine lacked for the lookup
    missing: str | None = None  # why the host has no address


def _before_own(mx_hosts: list[_MxHost]) -> list[_MxHost]:
    """The hosts preferred to this machine: mail for the others would come back (RFC 5321 5.1)."""
    limit = min((host.mx.preference for host in mx_hosts if host.own), default=None)
    return mx_hosts if limit is None else [host for host in mx_hosts if host.mx.preference < limit]


def _within_limits(mx_hosts: list[_MxHost]) -> tuple[Host, ...]:
    hosts, left = [], ROUTE_ADDRESSES
    for host in mx_hosts:
        addresses = host.addresses[: min(HOST_ADDRESS_LIMIT, left)]
        left -= len(addresses)
        if addresses:
            hosts.append(Host(host.mx.host, addresses, host.authentic))
    return tuple(hosts[:HOST_LIMIT])


def _no_host(domain: str, mx_hosts: list[_MxHost], *, complete: bool) -> NoRoute:
    """Why none of these hosts can be tried; `complete`: the domain has no others."""
    loop, mx_hosts = any(host.own for host in mx_hosts), _before_own(mx_hosts)
    trouble = [host.trouble for host in mx_hosts if host.trouble]
    refused = [reason for host in mx_hosts for reason in host.refused]
    missing = [host.missing for host in mx_hosts if host.missing]
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
class Router(Struct, frozen=True):
    """Finds routes. `random` returns numbers from 0 to 1; `own_names` are the host names of this service."""

    resolver: Resolver
    random: Callable[[], float]
    port: int = 25
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    own_names: Callable[[], Container[str]] = frozenset
    relays: Relays = Relays()

    async def route(self, domain: str, via: Via | None = None) -> Route:
        """The route for a domain (lower case, A-labels); raises `NoRoute`, or `Shortage` without local resources.

        Under the ramp `via` chooses between the relay and the MX.
        """
        if via is not None:
            return replace(await self._under_ramp(domain, via), via=via)
        relay = relay_for(domain, self.relays)
        if relay is None and self.relays.only:
            raise NoRoute("4.3.5", f"no relay is configured for {domain}")
        return await (self._to_relay(domain, relay) if relay else self._direct(domain))

    async def _under_ramp(self, domain: str, via: Via) -> Route:
        if via is Via.DIRECT:
            return await self._direct(domain)
        if (relay := relay_for(domain, self.relays) or self.relays.ramp) is None:
            raise NoRoute("4.3.5", f"no relay is configured for {domain}, and a relay may have this message")
        return await self._to_relay(domain, relay)

    async def _direct(self, domain: str) -> Route:
        records, authentic = await self._mx(domain)
        ordered = in_order(records, self.random)
        if not ordered:
            raise NoRoute("4.4.4", f"the MX records of {domain} name no host")
        looked_up: dict[Mx, _MxHost] = {}

        async def look_up(mx: Mx) -> None:
            try:
                looked_up[mx] = await self._look_up(mx)
            except Shortage as shortage:  # the host may be this machine
                looked_up[mx] = _MxHost(mx, own=True, lack=str(shortage))

        async with trio.open_nursery() as nursery:
            for mx in ordered[:HOSTS_LOOKED_UP]:
                nursery.start_soon(look_up, mx)
        mx_hosts = [looked_up[mx] for mx in ordered[:HOSTS_LOOKED_UP]]
        hosts = _within_limits(_before_own(mx_hosts))
        if not hosts:
            if lack := next((host.lack for host in mx_hosts if host.lack), None):
                raise Shortage(lack)
            raise _no_host(domain, mx_hosts, complete=len(mx_hosts) == len(ordered))
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
        if len(answer.records) == 1 and answer.records[0].host == "":  # RFC 7505 3; void if there are other records
            raise NoRoute("5.1.10", f"{domain} accepts no mail (null MX)")
        return answer.records, answer.authentic

    async def _look_up(self, mx: Mx) -> _MxHost:
        if mx.host in self.own_names():
            return _MxHost(mx, own=True)
        try:
            addresses, authentic = await host_addresses(self.resolver, mx.host)
        except NotAsked as failed:
            return _MxHost(mx, trouble=failed, lack=failed.lack)
        except LookupFailed as failed:
            temporary = failed.fault is DnsFault.TEMPORARY
            return _MxHost(mx, trouble=failed) if temporary else _MxHost(mx, missing=failed.public)
        addresses = addresses[:ADDRESSES_CHECKED]
        reasons = {address: refusal(address, self.allowed, self.own) for address in addresses}
        good = tuple(address for address, reason in reasons.items() if reason is None)
        refused = tuple(reason for reason in reasons.values() if reason is not None)
        own = any(address in self.own and not is_allowed(address, self.allowed) for address in addresses)
        return _MxHost(mx, good, authentic, refused, own)

    async def _to_relay(self, domain: str, relay: Relay) -> Route:
        """The route to a relay. Its address is not checked: the operator named it, and it is mostly private."""
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


# ---- routes that envelopes share

ROUTE_FRESH, ROUTES_KEPT = 1.0, 1_000  # seconds for which envelopes for one domain share a route; domains


@dataclass(slots=True)
class RouteCache:
    """Routes, looked up once for all envelopes for a domain within a moment; under the ramp a domain has two."""

    router: Router
    _known: TtlCache[tuple[str, Via | None], Route] = field(default_factory=lambda: TtlCache(ROUTES_KEPT, ROUTE_FRESH))
    _finding: SingleFlight[tuple[str, Via | None], Route | NoRoute] = field(default_factory=SingleFlight)

    def known(self, domain: str, via: Via | None = None) -> Route | None:
        return self._known.get((domain, via))

    async def find(self, domain: str, via: Via | None = None) -> Route:
        if (route := self.known(domain, via)) is not None:
            return route
        result = await self._finding.run((domain, via), partial(self._find, domain, via))
        if isinstance(result, NoRoute):
            raise NoRoute(result.status, result.text, result.detail)
        return result

    async def _find(self, domain: str, via: Via | None) -> Route | NoRoute:
        try:
            route = await self.router.route(domain, via)
        except NoRoute as reason:
            if reason.detail:
                log.info("no route", domain=domain, status=reason.status, reason=reason.detail)
            return reason
        self._known.put((domain, via), route)
        return route
