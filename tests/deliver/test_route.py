"""Where mail for a domain goes, and why some of it can go nowhere."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from random import Random

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


# ---- order


async def test_hosts_by_preference() -> None:
    """The MX hosts are tried by preference, lowest number first, each with its addresses."""
    names = zone(["20 b.example.", "5 c.example.", "10 a.example."], a=[V4], b=[V4_TWO], c=[V6])
    route = await router(names, port=2525).route("example.com")
    assert tried(route) == [("c.example", V6), ("a.example", V4), ("b.example", V4_TWO)]
    assert (route.domain, route.port, route.relay) == ("example.com", 2525, None)


def test_equal_hosts_are_shuffled() -> None:
    """Hosts of one preference come in every order, and never before a better one."""
    records = (Mx(10, "a"), Mx(10, "b"), Mx(10, "c"), Mx(5, "z"))
    random = Random(1)
    orders = {tuple(record.host for record in in_order(records, random.random)) for _ in range(200)}
    assert len(orders) == 6
    assert {order[0] for order in orders} == {"z"}


def test_a_host_named_twice_is_tried_once() -> None:
    assert in_order((Mx(20, "a"), Mx(10, "b"), Mx(5, "a"), Mx(5, "a")), lambda: 0) == [Mx(5, "a"), Mx(10, "b")]


async def test_families_in_turn() -> None:
    """The addresses of a host alternate between IPv6 and IPv4, IPv6 first, each family in the order of the DNS."""
    route = await router(zone(["1 a.example."], a=[V4, V4_TWO, V6, V6_TWO])).route("example.com")
    assert [address for _, address in tried(route)] == [V6, V4, V6_TWO, V4_TWO]


@pytest.mark.parametrize("family", [[V4], [V6]])
async def test_one_family_is_enough(family: list[str]) -> None:
    route = await router(zone(["1 a.example."], a=family)).route("example.com")
    assert tried(route) == [("a.example", family[0])]


@pytest.mark.parametrize(("good", "bad", "address"), [("A", "AAAA", V4), ("AAAA", "A", V6)])
async def test_one_family_in_trouble_leaves_the_other(good: str, bad: str, address: str) -> None:
    names: Zone = {"example.com": {"MX": ["1 a.example."]}, "a.example": {good: [address], bad: Trouble.SERVFAIL}}
    assert tried(await router(names).route("example.com")) == [("a.example", address)]


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


# ---- the implicit MX


async def test_without_mx_the_domain_itself_is_tried() -> None:
    """A domain without MX records is its own mail host (RFC 5321 5.1)."""
    names = {"example.com": {"A": [V4], "AAAA": [V6]}}
    assert tried(await router(names).route("example.com")) == [("example.com", V6), ("example.com", V4)]


async def test_with_mx_the_domain_itself_is_not_tried() -> None:
    """Where MX records lead nowhere, the address of the domain is no way out (RFC 5321 5.1)."""
    names = {"example.com": {"MX": ["1 missing.example."], "A": [V4]}}
    assert (await no_route(names)).status == "4.4.4"


async def test_a_domain_that_is_an_alias() -> None:
    names = {**zone(["1 a.example."], a=[V4]), "alias.example": {"CNAME": ["example.com."]}}
    assert tried(await router(names).route("alias.example")) == [("a.example", V4)]


# ---- no route


async def test_a_missing_domain_is_permanent() -> None:
    failed = await no_route({})
    assert (failed.permanent, failed.status) == (True, "5.1.2")
    assert failed.text == "example.com does not exist"


async def test_a_null_mx_is_permanent() -> None:
    """A single MX with an empty host says that there is no mail here (RFC 7505)."""
    failed = await no_route({"example.com": {"MX": ["0 ."], "A": [V4]}})
    assert (failed.permanent, failed.status) == (True, "5.1.10")


async def test_a_null_mx_beside_others_means_nothing() -> None:
    assert tried(await router(zone(["0 .", "5 a.example."], a=[V4])).route("example.com")) == [("a.example", V4)]


@pytest.mark.parametrize("trouble", [Trouble.SERVFAIL, Trouble.REFUSED, Trouble.SILENCE])
async def test_dns_trouble_is_temporary(trouble: Trouble) -> None:
    """When the MX records, or the addresses of every host, cannot be looked up, it is tried again."""
    for names in (zone(trouble), zone(["1 a.example."], a=trouble)):
        failed = await no_route(names)
        assert (failed.permanent, failed.status) == (False, "4.4.3")


async def test_a_loop_of_cnames_is_temporary() -> None:
    names = {"example.com": {"CNAME": ["b.example."]}, "b.example": {"CNAME": ["example.com."]}}
    assert (await no_route(names)).status == "4.4.3"


@pytest.mark.parametrize(
    "names",
    [
        {"example.com": {}},
        {"example.com": {"MX": ["1 missing.example."]}},
        {"example.com": {"MX": ["1 a.example."]}, "a.example": {}},
    ],
)
async def test_no_address_is_temporary(names: Zone) -> None:
    failed = await no_route(names)
    assert (failed.permanent, failed.status) == (False, "4.4.4")


@pytest.mark.parametrize(
    "host", ["1.1.1.1.", "2600\\:\\:1.", "127.1.", "\\[1.1.1.1\\].", "a b.", "-x.example.", "0x7f000001.1."]
)
async def test_mx_data_that_is_no_host_name_is_ignored(host: str) -> None:
    host = host.replace("a b", "a\\032b")
    assert (await no_route(zone([f"1 {host}"]))).status == "4.4.4"
    assert tried(await router(zone([f"1 {host}", "2 a.example."], a=[V4])).route("example.com")) == [("a.example", V4)]


async def test_hosts_that_do_not_resolve_are_skipped() -> None:
    names = zone(["1 missing.example.", "2 b.example.", "3 a_1.example."], b=Trouble.SERVFAIL, a_1=[V4])
    assert tried(await router(names).route("example.com")) == [("a_1.example", V4)]


# ---- refused networks


async def test_only_refused_networks_is_permanent() -> None:
    failed = await no_route(
        zone(["1 a.example.", "2 b.example.", "3 missing.example."], a=[PRIVATE], b=[LOOPBACK, "::1"])
    )
    assert (failed.permanent, failed.status) == (True, "5.4.4")
    assert failed.text == "example.com has no mail server with a public address"
    assert "10.0.0.1 is a private address (10.0.0.0/8)" in failed.detail
    assert "127.0.0.1 is a loopback address" in failed.detail


async def test_an_implicit_mx_in_a_refused_network_is_permanent() -> None:
    assert (await no_route({"example.com": {"AAAA": ["::ffff:8.8.8.8"]}})).status == "5.4.4"


async def test_refused_addresses_are_left_out() -> None:
    names = zone(["1 a.example.", "2 b.example."], a=[PRIVATE, V4, "fd00::1"], b=["169.254.169.254"])
    assert tried(await router(names).route("example.com")) == [("a.example", V4)]


async def test_refused_beside_trouble_is_temporary() -> None:
    """As long as one host cannot be looked up, it is not known that all are refused."""
    failed = await no_route(zone(["1 a.example.", "2 b.example."], a=[PRIVATE], b=Trouble.SERVFAIL))
    assert (failed.permanent, failed.status) == (False, "4.4.3")


async def test_refused_hosts_before_others_not_looked_at_are_temporary() -> None:
    bad = {f"h{number}": [PRIVATE] for number in range(10)}
    names = zone([f"{n} h{n}.example." for n in range(10)] + ["50 good.example."], **bad, good=[V4])
    failed = await no_route(names)
    assert (failed.permanent, failed.status) == (False, "4.4.4")


async def test_allowed_networks() -> None:
    """The operator's list admits what would be refused."""
    names = zone(["1 a.example."], a=[LOOPBACK, PRIVATE])
    route = await router(names, allowed=(ip_network("127.0.0.0/8"),)).route("example.com")
    assert tried(route) == [("a.example", LOOPBACK)]


# ---- mail loops

OWN = frozenset({ip_address("1.1.1.9")})


async def test_this_machine_as_best_mx_is_a_loop() -> None:
    for names in (zone(["1 a.example."], a=["1.1.1.9"]), zone(["1 mail.example."], mail=[V4])):
        failed = await no_route(names, own=OWN, own_names=lambda: {"mail.example"})
        assert (failed.permanent, failed.status) == (True, "5.4.6")


async def test_only_hosts_better_than_this_machine_are_tried() -> None:
    """MX hosts at or after our own preference are left out: they would send it to us (RFC 5321 5.1)."""
    names = zone(
        ["1 a.example.", "5 me.example.", "5 b.example.", "9 c.example."], a=[V4], me=["1.1.1.9"], b=[V6], c=[V6_TWO]
    )
    assert tried(await router(names, own=OWN).route("example.com")) == [("a.example", V4)]


async def test_a_better_host_in_trouble_is_waited_for() -> None:
    """A host better than this machine that cannot be looked up makes it temporary; a worse one does not."""
    better = zone(["1 a.example.", "5 me.example."], a=Trouble.SERVFAIL, me=["1.1.1.9"])
    assert (await no_route(better, own=OWN)).status == "4.4.3"
    worse = zone(["9 a.example.", "5 me.example."], a=Trouble.SERVFAIL, me=["1.1.1.9"])
    assert (await no_route(worse, own=OWN)).status == "5.4.6"


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


async def test_an_allowed_own_address_is_no_loop() -> None:
    own: frozenset[Address] = frozenset({ip_address(LOOPBACK)})
    names = zone(["1 a.example."], a=[LOOPBACK])
    route = await router(names, own=own, allowed=(ip_network("127.0.0.1/32"),)).route("example.com")
    assert tried(route) == [("a.example", LOOPBACK)]


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

MAIN, PARTNER, BELOW = Relay("smart.example"), Relay("partner.example", 25), Relay("below.example")
TABLE = Relays(MAIN, {"partner.com": PARTNER, "*.partner.com": BELOW, "*.com": PARTNER})


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


@pytest.mark.parametrize("names", [{}, {"smart.example": {"A": Trouble.SERVFAIL}}])
async def test_a_relay_that_cannot_be_found_is_temporary(names: Zone) -> None:
    """Mail waits for a relay whose name does not resolve: that is never the recipient's fault."""
    assert (await no_route(names, relays=Relays(MAIN))).status == "4.4.3"


# ---- over real packets


async def test_over_a_real_dns_server() -> None:
    names = zone(["10 b.example.", "5 a.example."], a=[V4, V6], b=[V4_TWO])
    async with serving(DnsServer(names, authentic=True)) as resolver:
        route = await Router(resolver, random=lambda: 0.5).route("example.com")
    assert tried(route) == [("a.example", V6), ("a.example", V4), ("b.example", V4_TWO)]
    assert route.authentic
    assert route.hosts[0].authentic
