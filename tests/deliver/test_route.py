"""Where mail for a domain goes, and why some of it can go nowhere."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from random import Random
from typing import Any

import pytest

from appliance.config.settings import RelayTls
from appliance.deliver.route import (
    ADDRESSES_CHECKED,
    HOST_ADDRESS_LIMIT,
    HOST_LIMIT,
    ROUTE_ADDRESSES,
    Host,
    NoRoute,
    Relay,
    Relays,
    Route,
    Router,
    in_order,
    relay_for,
)
from appliance.dns.resolver import DnsAnswer, DnsFault, LookupFailed
from appliance.dns.wire import Mx
from appliance.net.address_policy import Address
from appliance.net.dial import Shortage
from tests.fakes.dns import DnsServer, Records, Trouble, Zone, ZoneResolver, serving

V4, V4_TWO, V6, V6_TWO = "1.1.1.1", "1.1.1.2", "2600::1", "2600::2"
PRIVATE, LOOPBACK = "10.0.0.1", "127.0.0.1"


def zone(mx: Records, **hosts: Sequence[str] | Trouble) -> Zone:
    """A zone with the MX records of example.com and hosts `name.example` with these addresses of either family."""
    names: dict[str, dict[str, Records]] = {"example.com": {"MX": mx}}
    for name, addresses in hosts.items():
        if isinstance(addresses, Trouble):
            names[f"{name}.example"] = {"A": addresses, "AAAA": addresses}
        else:
            names[f"{name}.example"] = {
                "A": [text for text in addresses if ":" not in text],
                "AAAA": [text for text in addresses if ":" in text],
            }
    return names


def router(names: Zone, **settings: object) -> Router:
    return Router(ZoneResolver(names), random=lambda: 0.5, **settings)  # type: ignore[arg-type]


def tried(route: Route) -> list[tuple[str, str]]:
    return [(host.name, str(address)) for host in route.hosts for address in host.addresses]


async def no_route(names: Zone, **settings: object) -> NoRoute:
    with pytest.raises(NoRoute) as caught:
        await router(names, **settings).route("example.com")
    return caught.value


class Counting:
    asked = 0

    def __contains__(self, address: object) -> bool:
        self.asked += 1
        return False


async def test_of_a_host_with_many_addresses_few_are_checked() -> None:
    """To check one takes system calls, and the owner of a domain may name as many as there is room for in a reply."""
    own = Counting()
    addresses = [f"1.1.{number // 250}.{number % 250}" for number in range(1_000)]
    route = await router(zone(["10 a.example."], a=addresses), own=own).route("example.com")
    assert len(route.hosts[0].addresses) == HOST_ADDRESS_LIMIT
    assert own.asked <= 2 * ADDRESSES_CHECKED


OWN: frozenset[Address] = frozenset({ip_address("1.1.1.9")})
ALLOWED = (ip_network("127.0.0.0/8"),)
ONE = [("a.example", V4)]
MAIN, PARTNER, BELOW = Relay("smart.example"), Relay("partner.example", 25), Relay("below.example")
TABLE = Relays(MAIN, {"partner.com": PARTNER, "*.partner.com": BELOW, "*.com": PARTNER})
BAD = {f"h{number}": [PRIVATE] for number in range(10)}
BAD_MX = [f"{number} h{number}.example." for number in range(10)]

# The zone of example.com, the router's settings, and the servers tried in order.
ROUTES: dict[str, tuple[Zone, dict[str, object], list[tuple[str, str]]]] = {
    "hosts by preference, lowest first": (
        zone(["20 b.example.", "5 c.example.", "10 a.example."], a=[V4], b=[V4_TWO], c=[V6]),
        {},
        [("c.example", V6), ("a.example", V4), ("b.example", V4_TWO)],
    ),
    "families in turn, IPv6 first, each in the order of the DNS": (
        zone(["1 a.example."], a=[V4, V4_TWO, V6, V6_TWO]),
        {},
        [("a.example", address) for address in (V6, V4, V6_TWO, V4_TWO)],
    ),
    "IPv4 alone": (zone(["1 a.example."], a=[V4]), {}, ONE),
    "IPv6 alone": (zone(["1 a.example."], a=[V6]), {}, [("a.example", V6)]),
    "trouble with IPv6": (
        {"example.com": {"MX": ["1 a.example."]}, "a.example": {"A": [V4], "AAAA": Trouble.SERVFAIL}},
        {},
        ONE,
    ),
    "no MX: the domain itself (RFC 5321 5.1)": (
        {"example.com": {"A": [V4], "AAAA": [V6]}},
        {},
        [("example.com", V6), ("example.com", V4)],
    ),
    "a null MX with others means nothing": (zone(["0 .", "5 a.example."], a=[V4]), {}, ONE),
    "hosts that do not resolve": (
        zone(["1 missing.example.", "2 b.example.", "3 a.example."], b=Trouble.SERVFAIL, a=[V4]),
        {},
        ONE,
    ),
    "refused addresses": (
        zone(["1 a.example.", "2 b.example."], a=[PRIVATE, V4, "fd00::1"], b=["169.254.169.254"]),
        {},
        ONE,
    ),
    "allowed networks": (
        zone(["1 a.example."], a=[LOOPBACK, PRIVATE]),
        {"allowed": ALLOWED},
        [("a.example", LOOPBACK)],
    ),
    "an allowed own address": (
        zone(["1 a.example."], a=[LOOPBACK]),
        {"allowed": ALLOWED, "own": frozenset({ip_address(LOOPBACK)})},
        [("a.example", LOOPBACK)],
    ),
    "only hosts better than this machine: the others would send it to us (RFC 5321 5.1)": (
        zone(["1 a.example.", "5 me.example.", "5 b.example.", "9 b.example."], a=[V4], me=["1.1.1.9"], b=[V6]),
        {"own": OWN},
        ONE,
    ),
}
# The zone of example.com, the router's settings, and the status.
NO_ROUTES: dict[str, tuple[Zone, dict[str, object], str]] = {
    "no such domain": ({}, {}, "5.1.2"),
    "a null MX (RFC 7505)": ({"example.com": {"MX": ["0 ."], "A": [V4]}}, {}, "5.1.10"),
    "SERVFAIL for the MX": (zone(Trouble.SERVFAIL), {}, "4.4.3"),
    "SERVFAIL for the host": (zone(["1 a.example."], a=Trouble.SERVFAIL), {}, "4.4.3"),
    "REFUSED for the host": (zone(["1 a.example."], a=Trouble.REFUSED), {}, "4.4.3"),
    "no reply for the host": (zone(["1 a.example."], a=Trouble.SILENCE), {}, "4.4.3"),
    "a loop of CNAMEs": (
        {"example.com": {"CNAME": ["b.example."]}, "b.example": {"CNAME": ["example.com."]}},
        {},
        "4.4.3",
    ),
    "no records": ({"example.com": {}}, {}, "4.4.4"),
    "an MX that does not exist, though the domain has an address (RFC 5321 5.1)": (
        {"example.com": {"MX": ["1 missing.example."], "A": [V4]}},
        {},
        "4.4.4",
    ),
    "an MX without an address": (zone(["1 a.example."], a=[]), {}, "4.4.4"),
    "an implicit MX in a refused network": ({"example.com": {"AAAA": ["::ffff:8.8.8.8"]}}, {}, "5.4.4"),
    "one refused, one unknown": (zone(["1 a.example.", "2 b.example."], a=[PRIVATE], b=Trouble.SERVFAIL), {}, "4.4.3"),
    "more hosts than are looked up": (zone([*BAD_MX, "50 good.example."], **BAD, good=[V4]), {}, "4.4.4"),
    "this machine by its address": (zone(["1 a.example."], a=["1.1.1.9"]), {"own": OWN}, "5.4.6"),
    "this machine by its name": (zone(["1 me.example."], me=[V4]), {"own_names": lambda: {"me.example"}}, "5.4.6"),
    "a better host than this machine, unknown": (
        zone(["1 a.example.", "5 me.example."], a=Trouble.SERVFAIL, me=["1.1.1.9"]),
        {"own": OWN},
        "4.4.3",
    ),
    "a worse host than this machine, unknown": (
        zone(["9 a.example.", "5 me.example."], a=Trouble.SERVFAIL, me=["1.1.1.9"]),
        {"own": OWN},
        "5.4.6",
    ),
    "a relay that does not exist": ({}, {"relays": TABLE}, "4.4.3"),
    "a relay that cannot be looked up": ({"smart.example": {"A": Trouble.SERVFAIL}}, {"relays": TABLE}, "4.4.3"),
}


@pytest.mark.parametrize("case", ROUTES)
async def test_the_servers_tried(case: str) -> None:
    names, settings, servers = ROUTES[case]
    route = await router(names, port=2525, **settings).route("example.com")
    assert tried(route) == servers
    assert (route.domain, route.port, route.relay) == ("example.com", 2525, None)


@pytest.mark.parametrize("case", NO_ROUTES)
async def test_no_route(case: str) -> None:
    names, settings, status = NO_ROUTES[case]
    failed = await no_route(names, **settings)
    assert (failed.status, failed.permanent) == (status, status.startswith("5"))
    assert "example.com" in failed.text


def test_equal_hosts_are_shuffled() -> None:
    """Hosts of one preference come in every order, and never before a better one."""
    records = (Mx(10, "a"), Mx(10, "b"), Mx(10, "c"), Mx(5, "z"))
    random = Random(1)
    orders = {tuple(record.host for record in in_order(records, random.random)) for _ in range(200)}
    assert len(orders) == 6
    assert {order[0] for order in orders} == {"z"}


def test_a_host_named_twice_is_tried_once() -> None:
    assert in_order((Mx(20, "a"), Mx(10, "b"), Mx(5, "a"), Mx(5, "a")), lambda: 0) == [Mx(5, "a"), Mx(10, "b")]


async def test_limits() -> None:
    """A domain with many hosts and addresses costs us five hosts, ten addresses and ten lookups at most."""
    many = {f"h{number}": [f"1.1.{number}.{last}" for last in range(9)] for number in range(30)}
    names = zone([f"{number} h{number}.example." for number in range(30)], **many)
    resolver = ZoneResolver(names)
    route = await Router(resolver, random=lambda: 0.5).route("example.com")
    assert [len(host.addresses) for host in route.hosts] == [4, 4, 2]
    assert sum(count for (_, kind), count in resolver.asked.items() if kind == "A") == 10
    single = zone([f"{number} h{number}.example." for number in range(30)], **{n: a[:1] for n, a in many.items()})
    assert len((await router(single).route("example.com")).hosts) == HOST_LIMIT < ROUTE_ADDRESSES


async def test_a_domain_that_is_an_alias() -> None:
    names = {**zone(["1 a.example."], a=[V4]), "alias.example": {"CNAME": ["example.com."]}}
    assert tried(await router(names).route("alias.example")) == [("a.example", V4)]


@pytest.mark.parametrize(
    "host", ["1.1.1.1.", "2600\\:\\:1.", "127.1.", "\\[1.1.1.1\\].", "a b.", "-x.example.", "0x7f000001.1."]
)
async def test_mx_data_that_is_no_host_name_is_ignored(host: str) -> None:
    host = host.replace("a b", "a\\032b")
    assert (await no_route(zone([f"1 {host}"]))).status == "4.4.4"
    assert tried(await router(zone([f"1 {host}", "2 a.example."], a=[V4])).route("example.com")) == [("a.example", V4)]


async def test_only_refused_networks_is_permanent() -> None:
    failed = await no_route(
        zone(["1 a.example.", "2 b.example.", "3 missing.example."], a=[PRIVATE], b=[LOOPBACK, "::1"])
    )
    assert (failed.permanent, failed.status) == (True, "5.4.4")
    assert failed.text == "example.com has no mail server with a public address"
    assert "10.0.0.1 is a private address (10.0.0.0/8)" in failed.detail
    assert "127.0.0.1 is a loopback address" in failed.detail


class ShortOf(frozenset[Address]):
    """Addresses of which cannot be told whether they are our own, for want of a descriptor."""

    def __contains__(self, address: object) -> bool:
        if super().__contains__(address):
            raise Shortage("Too many open files")
        return False


async def test_a_shortage_is_no_fault_of_the_destination() -> None:
    own = ShortOf({ip_address(V4)})
    only = zone(["5 a.example."], a=[V4])
    for names in (only, zone(["5 a.example.", "9 b.example."], a=[V4], b=[V6])):
        with pytest.raises(Shortage, match="Too many open files"):
            await router(names, own=own).route("example.com")
    better = zone(["1 b.example.", "5 a.example."], a=[V4], b=[V6])
    assert tried(await router(better, own=own).route("example.com")) == [("b.example", V6)]


# ---- DNSSEC


@pytest.mark.parametrize(
    ("vouched", "mx", "host"),
    [
        ({"example.com", "a.example"}, True, True),
        ({"example.com"}, True, False),
        ({"a.example"}, False, True),
        (set(), False, False),
    ],
)
async def test_authentic_is_passed_on(vouched: set[str], mx: bool, host: bool) -> None:
    resolver = ZoneResolver(zone(["1 a.example."], a=[V4, V6]), authentic=frozenset(vouched))
    route = await Router(resolver, random=lambda: 0.5).route("example.com")
    assert (route.authentic, route.hosts[0].authentic) == (mx, host)


async def test_an_authentic_denial_of_mx() -> None:
    resolver = ZoneResolver({"example.com": {"A": [V4]}}, authentic=True)
    assert (await Router(resolver, random=lambda: 0.5).route("example.com")).authentic


# ---- relays


@pytest.mark.parametrize(
    ("domain", "relay"),
    [
        ("example.org", MAIN),
        ("partner.com", PARTNER),
        ("Partner.COM", PARTNER),
        ("a.partner.com", BELOW),
        ("a.b.partner.com", BELOW),
        ("notpartner.com", PARTNER),
        ("com", MAIN),
    ],
)
def test_which_relay(domain: str, relay: Relay) -> None:
    """A domain's own relay comes first, then that of the nearest wildcard above it, then the default."""
    assert relay_for(domain, TABLE) is relay


def test_no_relay() -> None:
    """Without a default, domains that have no relay go to their own MX."""
    assert relay_for("example.com", Relays(by_domain={"partner.com": PARTNER})) is None


async def test_the_route_to_a_relay() -> None:
    resolver = ZoneResolver({"smart.example": {"A": [PRIVATE], "AAAA": [V6]}})
    relays = Relays(Relay("smart.example", 465, "user", "secret", RelayTls.IMPLICIT))
    route = await Router(resolver, random=lambda: 0.5, relays=relays).route("example.com")
    assert tried(route) == [("smart.example", V6), ("smart.example", PRIVATE)]
    assert (route.port, route.relay) == (465, relays.default)
    assert ("example.com", "MX") not in resolver.asked
    assert "secret" not in repr(route)


async def test_a_relay_by_address() -> None:
    route = await router({}, relays=Relays(Relay("127.0.0.1", 2525))).route("example.com")
    assert route.hosts == (Host("127.0.0.1", (ip_address("127.0.0.1"),)),)


class Silent(ZoneResolver):
    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        raise LookupFailed(DnsFault.TEMPORARY, "no answer from 192.0.2.53", public="no answer")


async def test_customers_do_not_learn_the_resolver() -> None:
    with pytest.raises(NoRoute) as caught:
        await Router(Silent({}), random=lambda: 0.5).route("example.com")
    assert (caught.value.text, caught.value.detail) == ("no answer", "no answer from 192.0.2.53")


# ---- over real packets


async def test_over_a_real_dns_server() -> None:
    names = zone(["10 b.example.", "5 a.example."], a=[V4, V6], b=[V4_TWO])
    async with serving(DnsServer(names, authentic=True)) as resolver:
        route = await Router(resolver, random=lambda: 0.5).route("example.com")
    assert tried(route) == [("a.example", V6), ("a.example", V4), ("b.example", V4_TWO)]
    assert route.authentic
    assert route.hosts[0].authentic
