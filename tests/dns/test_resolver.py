"""What the resolver makes of a real DNS server's packets, and how long it remembers them."""

import os
import resource
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import dns.flags
import dns.rdatatype
import dns.resolver
import pytest
import trio
from trio.testing import MockClock

from appliance.config.values import Endpoint
from appliance.dns import resolver as module
from appliance.dns import wire as wire_module
from appliance.dns.resolver import (
    DnsAnswer,
    DnsFault,
    DnsResolver,
    LookupFailed,
    NotAsked,
    Resolver,
    all_loopback,
    host_addresses,
)
from appliance.dns.wire import Mx, Tlsa
from tests.cpu_time import cpu_seconds
from tests.fakes.dns import SPOILED, DnsServer, Trouble, Zone, ZoneResolver, serving
from tests.stopwatch import Stopwatch

ZONE: Zone = {
    "example.com": {
        "MX": ["10 mx1.example.com", "20 MX2.Example.com"],
        "TXT": ['"v=STSv1; " "id=1"', '"other"'],
        "A": ["192.0.2.10", "192.0.2.11"],
        "AAAA": ["2001:db8::10"],
    },
    "null.example": {"MX": ["0 ."]},
    "_25._tcp.mx1.example.com": {"TLSA": ["3 1 1 " + "ab" * 32]},
    "alias.example": {"CNAME": ["middle.example."]},
    "middle.example": {"CNAME": ["example.com."]},
    "dangling.example": {"CNAME": ["missing.example."]},
    "loop.example": {"CNAME": ["pool.example."]},
    "pool.example": {"CNAME": ["loop.example."]},
    "many.example": {"TXT": [f'"{number:03} {"x" * 200}"' for number in range(40)]},
    "servfail.example": {"A": Trouble.SERVFAIL},
    "refused.example": {"A": Trouble.REFUSED},
    "silent.example": {"A": Trouble.SILENCE},
    "late.example": {"A": Trouble.SILENCE_ONCE},
    "garbage.example": {"A": Trouble.GARBAGE},
    "stranger.example": {"A": Trouble.STRANGER},
    "old.example": {"A": Trouble.NO_EDNS},
    "contradiction.example": {"A": Trouble.CONTRADICTION},
    "cut.example": {"A": Trouble.CUT_TCP},
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_TIMEOUT", 0.3)
    monkeypatch.setattr(module, "QUERY_RETRY_PAUSE", 0.001)


async def failure(resolver: Resolver, name: str) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await resolver.ipv4(name)
    return caught.value


async def test_each_kind_of_record_becomes_our_own_type() -> None:
    async with serving(DnsServer(ZONE)) as resolver:
        mx = await resolver.mx("Example.COM.")
        assert set(mx.records) == {Mx(10, "mx1.example.com"), Mx(20, "mx2.example.com")}
        assert mx.ttl == 300
        assert set((await resolver.ipv4("example.com")).records) == {
            IPv4Address("192.0.2.10"),
            IPv4Address("192.0.2.11"),
        }
        assert (await resolver.ipv6("example.com")).records == (IPv6Address("2001:db8::10"),)
        assert set((await resolver.txt("example.com")).records) == {"v=STSv1; id=1", "other"}
        tlsa = await resolver.tlsa("_25._tcp.mx1.example.com")
        assert tlsa.records == (Tlsa(3, 1, 1, b"\xab" * 32),)
        assert (await resolver.mx("null.example")).records == (Mx(0, ""),)


@pytest.mark.parametrize("follows", [True, False])
async def test_cnames_are_followed(follows: bool) -> None:
    """A chain of CNAMEs leads to the records at its end, whether or not the server follows it for us."""
    async with serving(DnsServer(ZONE, follows=follows)) as resolver:
        assert len((await resolver.mx("alias.example")).records) == 2
        assert (await failure(resolver, "dangling.example")).fault is DnsFault.NXDOMAIN


@pytest.mark.parametrize("follows", [True, False])
async def test_a_loop_of_cnames_is_temporary_and_ends(follows: bool, impatient: None) -> None:
    server = DnsServer(ZONE, follows=follows)
    async with serving(server) as resolver:
        assert (await failure(resolver, "loop.example")).fault is DnsFault.TEMPORARY
    assert sum(server.asked.values()) <= module.ALIAS_LIMIT * module.QUERY_TRIES


@pytest.mark.parametrize(
    ("name", "fault", "queries"),
    [
        ("missing.example", DnsFault.NXDOMAIN, 1),
        ("null.example", DnsFault.NODATA, 1),
        ("servfail.example", DnsFault.TEMPORARY, 3),
        ("refused.example", DnsFault.TEMPORARY, 3),
        ("silent.example", DnsFault.TEMPORARY, 3),
        ("garbage.example", DnsFault.TEMPORARY, 3),
        ("contradiction.example", DnsFault.TEMPORARY, 3),
        ("cut.example", DnsFault.TEMPORARY, 6),
    ],
)
async def test_faults(
    name: str, fault: DnsFault, queries: int, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to get no records is one of three faults, and a temporary one is tried three times."""
    if name in ("silent.example", "garbage.example"):
        monkeypatch.setattr(module, "QUERY_TIMEOUT", 0.05)  # no answer comes
    server = DnsServer(ZONE)
    async with serving(server) as resolver:
        failed = await failure(resolver, name)
    assert failed.fault is fault
    assert name in failed.text
    if name == "silent.example":
        assert "127.0.0." in failed.text
        assert failed.public == module.NO_ANSWER
    assert server.count(name, "A") == queries


@pytest.mark.parametrize(
    ("name", "address"),
    [("late.example", "192.0.2.1"), ("stranger.example", "192.0.2.2"), ("old.example", "192.0.2.3")],
)
async def test_trouble_on_the_way_is_overcome(name: str, address: str, impatient: None) -> None:
    async with serving(DnsServer(ZONE)) as resolver:
        assert (await resolver.ipv4(name)).records == (IPv4Address(address),)


async def test_a_big_answer_comes_over_tcp() -> None:
    server = DnsServer(ZONE)
    async with serving(server) as resolver:
        assert len((await resolver.txt("many.example")).records) == 40
    assert server.asked == {("many.example", "TXT", "udp"): 1, ("many.example", "TXT", "tcp"): 1}


async def test_the_next_resolver_is_asked(impatient: None) -> None:
    bad, good = DnsServer({"example.com": {"A": Trouble.REFUSED}}), DnsServer(ZONE)
    async with trio.open_nursery() as nursery:
        resolver = DnsResolver([await nursery.start(bad.run), await nursery.start(good.run)])
        assert len((await resolver.ipv4("example.com")).records) == 2
        nursery.cancel_scope.cancel()
    assert bad.count("example.com", "A") == good.count("example.com", "A") == 1


async def test_a_question_that_could_not_be_asked_is_no_answer() -> None:
    async with serving(DnsServer(ZONE)) as resolver:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(NotAsked, match="Too many open files") as caught:
                await resolver.mx("example.com")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.fault is DnsFault.TEMPORARY
        assert len((await resolver.mx("example.com")).records) == 2


async def test_nothing_listening_is_temporary(impatient: None) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    endpoint = Endpoint("127.0.0.1", listener.socket.getsockname()[1])  # nothing listens there for UDP
    assert (await failure(DnsResolver([endpoint]), "example.com")).fault is DnsFault.TEMPORARY
    await listener.aclose()


@pytest.mark.parametrize("name", ["a..b", "", "x" * 64 + ".com", "é.example", ".".join(["a" * 60] * 5), "\\046"])
async def test_what_cannot_be_a_name_is_not_asked(name: str) -> None:
    server = DnsServer(ZONE)
    async with serving(server) as resolver:
        assert (await failure(resolver, name)).fault is DnsFault.NXDOMAIN
    assert [query.question[0].name.labels[0] for query in server.queries] in ([], [b"\\046"])


# ---- the cache


def counting(resolver: DnsResolver, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], DnsAnswer[Mx]]) -> list[str]:
    """Put `answer` in the place of the network; the names that were asked for."""
    asked: list[str] = []

    async def follow(name: str, kind: str) -> DnsAnswer[Mx]:
        asked.append(name)
        await trio.sleep(1)
        return answer()

    monkeypatch.setattr(resolver, "_follow", follow)
    return asked


def found(ttl: float = 60) -> DnsAnswer[Mx]:
    return DnsAnswer((Mx(1, "mx.example"),), ttl, False)


async def test_answers_are_kept_for_their_ttl(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = DnsResolver([Endpoint("127.0.0.1", 53)])
    asked = counting(resolver, monkeypatch, found)
    await resolver.mx("example.com")
    await trio.sleep(59)
    await resolver.mx("EXAMPLE.com.")
    assert asked == ["example.com"]
    await trio.sleep(2)
    await resolver.mx("example.com")
    assert asked == ["example.com"] * 2


async def test_the_ttl_is_capped() -> None:
    async with serving(DnsServer(ZONE, ttl=864_000, negative_ttl=86_400)) as resolver:
        assert (await resolver.mx("example.com")).ttl == 3600
        assert (await failure(resolver, "missing.example")).ttl == 300


async def test_negative_answers_are_kept_by_the_soa() -> None:
    server = DnsServer(ZONE, negative_ttl=30)
    async with serving(server) as resolver:
        for _ in range(3):
            assert (await failure(resolver, "missing.example")).ttl == 30
            assert (await failure(resolver, "null.example")).ttl == 30
    assert server.count("missing.example", "A") == server.count("null.example", "A") == 1


async def test_failures_are_kept_for_a_second(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is remembered for one second, so that a burst of mail does not repeat it, and no longer."""

    def fail() -> DnsAnswer[Mx]:
        raise LookupFailed(DnsFault.TEMPORARY, "SERVFAIL")

    resolver = DnsResolver([Endpoint("127.0.0.1", 53)])
    asked = counting(resolver, monkeypatch, fail)
    for pause in (0.5, 0.6, 0):
        with pytest.raises(LookupFailed, match="SERVFAIL"):
            await resolver.mx("example.com")
        await trio.sleep(pause)
    assert len(asked) == 2


async def test_a_ttl_of_zero_is_not_kept(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = DnsResolver([Endpoint("127.0.0.1", 53)])
    asked = counting(resolver, monkeypatch, lambda: found(0))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(resolver.mx, "example.com")
    await resolver.mx("example.com")
    assert len(asked) == 2


async def test_a_cancelled_asker_does_not_take_the_others_along(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = DnsResolver([Endpoint("127.0.0.1", 53)])
    asked, answers = counting(resolver, monkeypatch, found), []

    async def leave() -> None:
        with trio.move_on_after(0.5):
            await resolver.mx("example.com")

    async def stay() -> None:
        await trio.sleep(0.1)
        answers.append(await resolver.mx("example.com"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        for _ in range(3):
            nursery.start_soon(stay)
    assert len(asked) == 2
    assert answers == [found()] * 3
    assert not resolver._running._running


# ---- DNSSEC


@pytest.mark.parametrize(("says", "authentic"), [(True, True), (False, False)])
async def test_authentic_as_the_validator_says(says: bool, authentic: bool) -> None:
    server = DnsServer(ZONE, authentic=says)
    async with serving(server) as resolver:
        assert (await resolver.mx("example.com")).authentic is authentic
        assert (await failure(resolver, "missing.example")).authentic is authentic
    assert all(query.flags & dns.flags.AD and query.ednsflags & dns.flags.DO for query in server.queries)


async def test_a_distant_validator_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = DnsServer(ZONE, authentic=True)
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(server.run)
        resolver = DnsResolver([endpoint, Endpoint("192.0.2.53", 53)])
        assert not (await resolver.mx("example.com")).authentic
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("hosts", "loopback"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.53", "::1"], True),
        (["127.0.0.1", "192.0.2.1"], False),
        (["10.0.0.1"], False),
        (["fe80::1%eth0"], False),
    ],
)
def test_loopback_resolvers(hosts: list[str], loopback: bool) -> None:
    """Only a list that is wholly on loopback counts as a validator on this machine."""
    assert all_loopback([Endpoint(host, 53) for host in hosts]) is loopback


def test_the_system_resolvers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without configured resolvers those of resolv.conf are asked, and without any this machine."""
    path = tmp_path / "resolv.conf"
    original = dns.resolver.Resolver.read_resolv_conf
    monkeypatch.setattr(dns.resolver.Resolver, "read_resolv_conf", lambda self, _: original(self, str(path)))
    assert module.system_resolvers() == (Endpoint("127.0.0.1", 53),)
    path.write_text("search example.com\nnameserver 192.0.2.53\nnameserver ::1\noptions edns0\n")
    assert module.system_resolvers() == (Endpoint("192.0.2.53", 53), Endpoint("::1", 53))


async def test_the_fake_answers_as_the_server_does(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*ZONE, "missing.example"]
    overcome = {"late.example", "stranger.example", "old.example"}

    async def said(resolver: Resolver, name: str) -> list[object]:
        results: list[object] = []
        for ask in (resolver.mx, resolver.ipv4, resolver.ipv6, resolver.txt, resolver.tlsa):
            try:
                results.append(frozenset((await ask(name)).records))
            except LookupFailed as failed:
                results.append(failed.fault)
        return results

    fake = ZoneResolver(ZONE)
    async with serving(DnsServer(ZONE)) as resolver:
        for name in names:
            if name not in overcome:
                waited_for = ZONE.get(name, {}).get("A") in (Trouble.SILENCE, Trouble.GARBAGE)
                monkeypatch.setattr(module, "QUERY_TIMEOUT", 0.15 if waited_for else 60.0)  # no answer is late here
                assert await said(fake, name) == await said(resolver, name), name


# ---- the addresses of a host: both families, in turn, and cheap once they are known

HOSTS: Zone = {
    "both.example": {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]},
    "four.example": {"A": ["192.0.2.1"]},
    "half.example": {"A": ["192.0.2.1"], "AAAA": Trouble.SERVFAIL},
    "mute.example": {"A": ["192.0.2.1"], "AAAA": Trouble.SILENCE},
    "late.example": {"A": Trouble.SILENCE_ONCE},
    "broken.example": {"A": Trouble.SERVFAIL},
}


async def test_the_families_take_turns() -> None:
    resolver = ZoneResolver(HOSTS)
    found, _ = await host_addresses(resolver, "both.example")
    assert found == tuple(map(ip_address, ("2001:db8::1", "192.0.2.1", "192.0.2.2")))
    for name in ("four.example", "half.example"):
        assert (await host_addresses(resolver, name))[0] == (ip_address("192.0.2.1"),)


async def test_a_family_that_no_server_answers_for_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OTHER_FAMILY_TIMEOUT", 0.2)
    async with serving(DnsServer(HOSTS)) as resolver:
        watch = Stopwatch(os.getpid())
        found, _ = await host_addresses(resolver, "mute.example")
        assert found == (ip_address("192.0.2.1"),)
        assert watch.taken < 3


async def test_a_family_without_addresses_hurries_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.dns.resolver.OTHER_FAMILY_TIMEOUT", 0.0)
    monkeypatch.setattr("appliance.dns.resolver.QUERY_TIMEOUT", 0.2)
    async with serving(DnsServer(HOSTS)) as resolver:
        found, _ = await host_addresses(resolver, "late.example")
        assert found == tuple(map(ip_address, SPOILED[Trouble.SILENCE_ONCE]))


@pytest.mark.parametrize(
    ("name", "fault"), [("broken.example", DnsFault.TEMPORARY), ("none.example", DnsFault.NXDOMAIN)]
)
async def test_trouble_counts_for_more_than_absence(name: str, fault: DnsFault) -> None:
    with pytest.raises(LookupFailed) as caught:
        await host_addresses(ZoneResolver(HOSTS), name)
    assert caught.value.fault is fault


async def test_what_is_remembered_is_the_same() -> None:
    dns = DnsServer(HOSTS)
    async with serving(dns) as resolver:
        assert not resolver.remembers_addresses("both.example")
        first = await host_addresses(resolver, "both.example")
        assert resolver.remembers_addresses("Both.example.")
        assert await host_addresses(resolver, "both.example") == first
        assert sum(dns.asked.values()) == 2


async def test_what_may_not_be_kept_is_not_remembered() -> None:
    dns = DnsServer(HOSTS, ttl=0, negative_ttl=0)
    async with serving(dns) as resolver:
        for _ in range(2):
            await host_addresses(resolver, "both.example")
            assert not resolver.remembers_addresses("both.example")
        assert sum(dns.asked.values()) == 4


# ---- replies made to take long


def crowded(kind: str, data: Callable[[int], bytes], size: int) -> tuple[bytes, bytes]:
    """A query for a name of 124 labels, and a reply of this size with as many records of it as there is room for."""
    question = b"\x01a" * 124 + b"\x00" + dns.rdatatype.from_text(kind).to_bytes(2) + b"\x00\x01"
    head = b"\xc0\x0c" + question[-4:] + bytes(4)
    records = list[bytes]()
    while 12 + len(question) + sum(map(len, records)) < size - 40:
        records.append(head + len(data(len(records))).to_bytes(2) + data(len(records)))
    counts = b"\x00\x01" + len(records).to_bytes(2) + bytes(4)
    return b"\x00\x07\x01\x00\x00\x01" + bytes(6) + question, b"\x00\x07\x81\x80" + counts + question + b"".join(
        records
    )


@pytest.mark.parametrize("size", [module.UDP_PAYLOAD, module.REPLY_BYTES])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("MX", lambda number: number.to_bytes(2) + b"\xc0\x0c"),
        ("PTR", lambda number: bytes([0xC0, 12 + 2 * (number % 100)])),
        ("A", lambda number: number.to_bytes(4)),
        ("TXT", lambda number: b"\x00"),
    ],
)
def test_no_reply_takes_longer_than_an_event_loop_may_be_held(
    kind: str, data: Callable[[int], bytes], size: int
) -> None:
    """The owner of a domain chooses its records; long names in them took dnspython a fifth of a second."""
    query, wire = crowded(kind, data, size)
    assert size - 100 < len(wire) <= size

    def read() -> None:
        wire_module.host_text.cache_clear()
        assert module.read_answer(wire_module.read_reply(query, wire), kind, validated=False)[0].records

    assert cpu_seconds(read) < 0.005


def test_a_long_way_of_pointers_is_gone_once() -> None:
    question = b"\x01a\x00\x00\x01\x00\x01"
    begin = 12 + len(question) + 13
    way = b"".join((0xC000 | at).to_bytes(2) for at in (12, *range(begin, begin + 2 * 3_999, 2)))
    text = b"\xc0\x0c\x00\x10\x00\x01" + bytes(4) + (len(way) + 1).to_bytes(2) + b"\x00" + way
    named = (0xC000 | begin + 2 * 3_999).to_bytes(2) + b"\x00\x01\x00\x01" + bytes(4) + b"\x00\x04"
    addresses = b"".join(named + number.to_bytes(4) for number in range(500))
    head = b"\x00\x01" + (501).to_bytes(2) + bytes(4)
    query, wire = (
        b"\x00\x07\x01\x00\x00\x01" + bytes(6) + question,
        b"\x00\x07\x81\x80" + head + question + text + addresses,
    )
    assert len(wire) <= module.REPLY_BYTES

    def read() -> None:
        assert len(module.read_answer(wire_module.read_reply(query, wire), "A", validated=False)[0].records) == 100

    assert cpu_seconds(read) < 0.01


async def test_of_a_name_with_many_records_some_are_kept() -> None:
    zone: Zone = {"crowd.example": {"A": [f"198.51.{number // 250}.{number % 250}" for number in range(500)]}}
    async with serving(DnsServer(zone)) as resolver:
        assert len((await resolver.ipv4("crowd.example")).records) == module.RECORDS_KEPT


async def test_a_reply_that_is_too_large_is_not_read() -> None:
    """TCP has room for 64 KB, which would hold the event loop."""
    zone: Zone = {
        "large.example": {
            "A": [f"198.{number // 62_500}.{number // 250 % 250}.{number % 250}" for number in range(1_100)]
        }
    }
    async with serving(DnsServer(zone)) as resolver:
        failed = await failure(resolver, "large.example")
    assert (failed.fault, failed.public) == (DnsFault.TEMPORARY, module.NO_ANSWER)
    assert "the limit is 16,384" in failed.text
