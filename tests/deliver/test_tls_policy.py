"""What mail servers demand of our TLS: MTA-STS read, fetched over real HTTPS and remembered; DANE on real chains."""

import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import ip_address, ip_network

import pytest
import trio
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_der_x509_certificate
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.config.settings import RelayTls
from appliance.deliver.route import Host, Relay, Route
from appliance.deliver.smtp.tls import TlsFault, encrypt
from appliance.deliver.tls_policy import (
    BadPolicy,
    NoPolicy,
    Policy,
    PolicyFetcher,
    PolicyMode,
    TlsChoice,
    TlsDemand,
    TlsLevel,
    TlsPolicies,
    matches,
    mta_sts_demand,
    policy_id,
    public_key,
    read_policy,
    relay_demand,
    usable,
    verifier,
)
from appliance.dns.resolver import DnsAnswer, NotAsked
from appliance.dns.wire import Tlsa
from appliance.net.address_policy import Address
from appliance.net.dial import Shortage
from tests.fakes.dns import Records, Trouble, Zone, ZoneResolver

POLICY = "version: STSv1\nmode: enforce\nmx: mx1.example.com\nmx: *.mail.example.com\nmax_age: 86400\n"
ENFORCED = Policy(PolicyMode.ENFORCE, ("mx1.example.com", "*.mail.example.com"), 86400)

# ---- the record that announces a policy


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["v=STSv1; id=20160831085700Z;"], "20160831085700Z"),
        (["v=STSv1;id=1"], "1"),
        (["v=STSv1 ; id=1"], None),
        (["v=STSv1; id=1 ; other=x"], "1"),
        (["v=spf1 -all", "v=STSv1; id=a"], "a"),
        (["v=STSv1; id=a", "v=STSv1; id=b"], None),
        (["v=STSv1; id=" + "a" * 32], "a" * 32),
        (["v=STSv1; id=" + "a" * 33], None),
        (["v=STSv1; id=a-b"], None),
        (["v=STSv1; id="], None),
        (["v=STSv1;"], None),
        (["v=STSv1; what"], None),
        (["v=STSv2; id=1"], None),
        ([" v=STSv1; id=1"], None),
        ([], None),
    ],
)
def test_the_announced_id(texts: list[str], found: str | None) -> None:
    """An id counts only when exactly one record announces it, in the form of RFC 8461 3.1."""
    assert policy_id(tuple(texts)) == found


# ---- the policy


def test_a_policy_is_read() -> None:
    assert read_policy(POLICY) == ENFORCED
    assert read_policy(POLICY.replace("\n", "\r\n")) == ENFORCED
    assert read_policy("max_age:86400\n\nx_y.z-1: any thing\n" + POLICY.replace("mx1", "MX1")) == ENFORCED
    assert read_policy("version: STSv1\nmode: none\nmax_age: 0") == Policy(PolicyMode.NONE, (), 0)
    assert read_policy(POLICY + "mode: none\nmax_age: 1\n") == ENFORCED


def test_the_age_is_capped() -> None:
    assert read_policy(POLICY.replace("86400", "9999999999")).max_age == 31_557_600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STSv1", "STSv2"),
        ("version: STSv1\n", ""),
        ("enforce", "Enforce"),
        ("mode: enforce\n", ""),
        ("86400", "-1"),
        ("86400", "1.5"),
        ("86400", "99999999999"),
        ("max_age: 86400\n", ""),
        ("mx: mx1.example.com\nmx: *.mail.example.com\n", ""),
        ("*.mail", "mail.*"),
        ("*.mail", "*.*"),
        ("mx1.example.com", "mx1..example.com"),
        ("mx1.example.com", "http://mx1.example.com"),
        ("mx1.example.com", "mx1 example.com"),
        ("mx1.example.com", ""),
        ("max_age", "max age"),
        ("mode", "<html>"),
        ("enforce", "enforce\x00"),
        ("mode: enforce", "mode enforce"),
    ],
)
def test_a_bad_policy_is_none(old: str, new: str) -> None:
    with pytest.raises(BadPolicy, match=r"^it "):
        read_policy(POLICY.replace(old, new))


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("mx1.example.com", True),
        ("MX1.Example.com.", True),
        ("mx2.example.com", False),
        ("a.mail.example.com", True),
        ("b.a.mail.example.com", False),
        ("mail.example.com", False),
        ("xmail.example.com", False),
        ("mx1.example.com.evil.example", False),
    ],
)
def test_named_hosts(host: str, named: bool) -> None:
    """A wildcard stands for exactly one label; case does not matter."""
    assert ENFORCED.names(host) is named


@pytest.mark.parametrize(
    ("policy", "host", "level"),
    [
        (NoPolicy("none"), "mx1.example.com", TlsLevel.OPPORTUNISTIC),
        (replace(ENFORCED, mode=PolicyMode.NONE), "other.example", TlsLevel.OPPORTUNISTIC),
        (replace(ENFORCED, mode=PolicyMode.TESTING), "other.example", TlsLevel.OPPORTUNISTIC),
        (ENFORCED, "mx1.example.com", TlsLevel.VERIFIED),
        (ENFORCED, "other.example", TlsLevel.NOT_NOW),
    ],
)
def test_what_a_policy_demands(policy: Policy | NoPolicy, host: str, level: TlsLevel) -> None:
    """Only an enforced policy demands anything: a verified certificate, and a host that it names."""
    demand = mta_sts_demand(policy, "example.com", host)
    assert demand.level is level
    assert "example.com" in demand.reason
    assert demand.names == ((host,) if level is TlsLevel.VERIFIED else ())


@pytest.mark.parametrize(
    ("tls", "level"),
    [
        (RelayTls.REQUIRED, TlsLevel.VERIFIED),
        (RelayTls.IMPLICIT, TlsLevel.VERIFIED),
        (RelayTls.OPPORTUNISTIC, TlsLevel.OPPORTUNISTIC),
        (RelayTls.OFF, TlsLevel.OFF),
    ],
)
async def test_what_a_relay_demands(tls: RelayTls, level: TlsLevel) -> None:
    relay = Relay("smart.example", tls=tls)
    assert relay_demand(relay).level is level
    host = Host("smart.example", (ip_address("1.1.1.1"),), authentic=True)
    route = Route("example.com", (host,), 25, authentic=True, relay=relay)
    resolver = ZoneResolver({})
    assert await TlsPolicies(resolver, never).demand(route, host) == relay_demand(relay)
    assert not resolver.asked


# ---- fetching over real HTTPS


async def never(domain: str) -> str:
    raise AssertionError(f"fetched the policy of {domain}")


def response(body: str, status: str = "200 OK", kind: str = "text/plain; charset=utf-8", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body.encode()


class PolicyServer:
    def __init__(self, authority: trustme.CA, answer: bytes, name: str = "mta-sts.example.com") -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self.context)

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, connection: trio.SocketStream) -> None:
        stream = trio.SSLStream(connection, self.context, server_side=True, https_compatible=True)
        try:
            self.requests.append(bytes(await stream.receive_some(4096)))
            await stream.send_all(self.answer)
            if not self.answer:
                await trio.sleep_forever()
            await stream.aclose()
        except trio.BrokenResourceError:
            return  # the client did not like us, which is what some tests are about
        finally:
            await trio.aclose_forcefully(connection)


AUTHORITY = trustme.CA()
HERE: Zone = {"mta-sts.example.com": {"A": ["127.0.0.1"]}}
LOOPBACK = (ip_network("127.0.0.0/8"),)


@cache
def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@asynccontextmanager
async def fetching(server: PolicyServer, zone: Zone = HERE) -> AsyncIterator[PolicyFetcher]:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.run)
        yield PolicyFetcher(ZoneResolver(zone), trusting(), LOOPBACK, port=port)
        nursery.cancel_scope.cancel()


async def fault(fetcher: PolicyFetcher) -> str:
    with pytest.raises(NoPolicy) as caught:
        await fetcher.fetch("example.com")
    return str(caught.value)


async def test_a_policy_is_fetched() -> None:
    server = PolicyServer(AUTHORITY, response(POLICY))
    async with fetching(server) as fetcher:
        assert read_policy(await fetcher.fetch("example.com")) == ENFORCED
    assert server.requests[0].startswith(b"GET /.well-known/mta-sts.txt HTTP/1.1\r\nHost: mta-sts.example.com\r\n")


async def test_a_chunked_policy_is_fetched() -> None:
    chunked = f"{len(POLICY):x}\r\n{POLICY}\r\n0\r\n\r\n"
    early = "HTTP/1.1 103 Early Hints\r\n\r\n"
    head = "HTTP/1.1 200 OK\r\nContent-Type: Text/Plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with fetching(PolicyServer(AUTHORITY, (early + head + chunked).encode())) as fetcher:
        assert await fetcher.fetch("example.com") == POLICY


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (response("", "301 Moved", extra="Location: https://127.0.0.1/\r\n"), "answered 301"),
        (response("", "404 Not Found"), "answered 404"),
        (response(POLICY, kind="text/html"), "sent no text/plain"),
        (response(POLICY, extra="Content-Type: text/plain\r\n"), "sent no text/plain"),
        (response("x" * 70_000), "over 65536 bytes"),
        (response(POLICY)[:-10], "mta-sts.example.com at 127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "mta-sts.example.com at 127.0.0.1"),
        (b"220 mail.example.com ESMTP\r\n", "mta-sts.example.com at 127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n\xff", "UTF-8"),
    ],
)
async def test_what_is_no_policy(answer: bytes, words: str) -> None:
    server = PolicyServer(AUTHORITY, answer)
    async with fetching(server) as fetcher:
        assert words in await fault(fetcher)
    assert len(server.requests) == 1


async def test_a_certificate_for_another_name_is_refused() -> None:
    server = PolicyServer(AUTHORITY, response(POLICY), name="example.com")
    async with fetching(server) as fetcher:
        assert "certificate" in (await fault(fetcher)).lower()
    assert not any(server.requests)


async def test_an_unknown_authority_is_refused() -> None:
    server = PolicyServer(trustme.CA(), response(POLICY))
    async with fetching(server) as fetcher:
        assert "certificate" in (await fault(fetcher)).lower()
    assert not any(server.requests)


async def test_a_silent_server_is_left_soon() -> None:
    async with fetching(PolicyServer(AUTHORITY, b"")) as fetcher:
        assert "did not answer within 0.2 s" in await fault(replace(fetcher, timeout=0.2))


async def test_refused_networks_are_not_dialled() -> None:
    server = PolicyServer(AUTHORITY, response(POLICY))
    async with fetching(server) as fetcher:
        assert "127.0.0.1 is a loopback address" in await fault(replace(fetcher, allowed=()))
    assert not server.requests


async def test_the_next_address_is_tried() -> None:
    zone: Zone = {"mta-sts.example.com": {"A": ["127.0.0.1"], "AAAA": ["::1"]}}
    async with fetching(PolicyServer(AUTHORITY, response(POLICY)), zone) as fetcher:
        assert await fetcher.fetch("example.com") == POLICY
        dialled = replace(fetcher, allowed=(*LOOPBACK, ip_network("::1/128")))
        assert await dialled.fetch("example.com") == POLICY


@pytest.mark.parametrize("zone", [{}, {"mta-sts.example.com": {"A": Trouble.SERVFAIL}}, {"mta-sts.example.com": {}}])
async def test_a_policy_host_without_address(zone: Zone) -> None:
    """A policy host that does not resolve is a policy that cannot be fetched."""
    async with fetching(PolicyServer(AUTHORITY, b""), zone) as fetcher:
        assert "mta-sts.example.com" in await fault(fetcher)


# ---- remembering


class Publisher:
    def __init__(self, text: str = POLICY, id: str = "1") -> None:
        self.text: str | None = text
        self.fetched = 0
        self.zone: dict[str, dict[str, Records]] = {}
        self.announce(id)

    def announce(self, id: str | None) -> None:
        self.zone.clear()
        if id is not None:
            self.zone["_mta-sts.example.com"] = {"TXT": [f'"v=STSv1; id={id};"']}

    async def fetch(self, domain: str) -> str:
        assert domain == "example.com"
        self.fetched += 1
        await trio.sleep(1)
        if self.text is None:
            raise NoPolicy("down")
        return self.text

    def policies(self) -> TlsPolicies:
        resolver = ZoneResolver({})
        resolver.zone = self.zone  # type: ignore[assignment] # shared, so that announcements are seen
        return TlsPolicies(resolver, self.fetch)


async def test_a_policy_is_kept_for_its_age(autojump_clock: MockClock) -> None:
    publisher = Publisher()
    policies = publisher.policies()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(policies.policy, "example.com")
    await trio.sleep(86_300)
    assert await policies.policy("example.com") == ENFORCED
    assert publisher.fetched == 1
    await trio.sleep(200)
    assert await policies.policy("example.com") == ENFORCED
    assert publisher.fetched == 2


async def test_a_new_id_fetches_again(autojump_clock: MockClock) -> None:
    publisher = Publisher()
    policies = publisher.policies()
    assert await policies.policy("example.com") == ENFORCED
    publisher.announce("2")
    publisher.text = POLICY.replace("enforce", "none")
    policy = await policies.policy("example.com")
    assert isinstance(policy, Policy)
    assert policy.mode is PolicyMode.NONE


async def test_a_kept_policy_outlives_its_announcement(autojump_clock: MockClock) -> None:
    """An attacker who hides the record or blocks the web server does not undo a policy that is still valid."""
    publisher = Publisher()
    policies = publisher.policies()
    assert await policies.policy("example.com") == ENFORCED
    publisher.announce(None)
    assert await policies.policy("example.com") == ENFORCED
    publisher.announce("2")
    publisher.text = None
    assert await policies.policy("example.com") == ENFORCED
    publisher.text = "rubbish"
    assert await policies.policy("example.com") == ENFORCED
    await trio.sleep(86_400)
    publisher.announce(None)
    assert isinstance(await policies.policy("example.com"), NoPolicy)


async def test_a_failed_fetch_is_not_repeated_at_once(autojump_clock: MockClock) -> None:
    """A policy that cannot be fetched is none, for five minutes; then it is tried again."""
    publisher = Publisher()
    publisher.text = None
    policies = publisher.policies()
    for _ in range(3):
        assert str(await policies.policy("example.com")) == "the one announced is of no use: down"
    assert publisher.fetched == 1
    await trio.sleep(301)
    publisher.text = POLICY
    assert await policies.policy("example.com") == ENFORCED
    assert publisher.fetched == 2


async def test_a_short_age_is_five_minutes(autojump_clock: MockClock) -> None:
    publisher = Publisher(POLICY.replace("86400", "0"))
    policies = publisher.policies()
    for _ in range(5):
        await policies.policy("example.com")
        await trio.sleep(50)
    assert publisher.fetched == 1


async def test_no_announcement_fetches_nothing() -> None:
    zones: list[Zone] = [
        {},
        {"_mta-sts.example.com": {"TXT": Trouble.SERVFAIL}},
        {"_mta-sts.example.com": {"TXT": ['"x"']}},
    ]
    for zone in zones:
        assert isinstance(await TlsPolicies(ZoneResolver(zone), never).policy("example.com"), NoPolicy)


# ---- DANE: records against certificates

MIDDLE = AUTHORITY.create_child_ca()
LEAF = MIDDLE.issue_cert("mx1.example.com")
Maker = Callable[[bytes], bytes]


def der(pem: trustme.Blob) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.bytes().decode())


CHAIN = (der(LEAF.cert_chain_pems[0]), der(MIDDLE.cert_pem))
ROOT = der(AUTHORITY.cert_pem)
STRANGER = der(trustme.CA().issue_cert("mx1.example.com").cert_chain_pems[0])
ANOTHER = der(trustme.CA().issue_cert("mx1.example.com").cert_chain_pems[0])
SELECTORS: list[Maker] = [bytes, public_key]
MATCHINGS: list[Maker] = [bytes, lambda data: hashlib.sha256(data).digest(), lambda data: hashlib.sha512(data).digest()]


def tlsa(usage: int, selector: int, matching: int, certificate: bytes) -> Tlsa:
    return Tlsa(usage, selector, matching, MATCHINGS[matching](SELECTORS[selector](certificate)))


@pytest.mark.parametrize("matching", [0, 1, 2])
@pytest.mark.parametrize("selector", [0, 1])
def test_dane_ee(selector: int, matching: int) -> None:
    """A DANE-EE record of any form takes its own certificate under any name, and no other."""
    record = tlsa(3, selector, matching, CHAIN[0])
    assert matches(record, CHAIN[0])
    assert not matches(record, STRANGER)
    verify = verifier((tlsa(3, 1, 1, ANOTHER), record))
    assert verify(CHAIN, "another.name") is None
    assert verify(CHAIN[:1], "mx1.example.com") is None
    assert "none that its TLSA records name" in str(verify((STRANGER, *CHAIN), "mx1.example.com"))


@pytest.mark.parametrize("matching", [0, 1, 2])
@pytest.mark.parametrize("selector", [0, 1])
def test_dane_ta(selector: int, matching: int) -> None:
    """A DANE-TA record takes a chain that leads to its authority, under the host's name or the domain's."""
    verify = verifier((tlsa(2, selector, matching, CHAIN[1]),))
    assert verify(CHAIN, "mx1.example.com") is None
    assert verify(CHAIN, "other.example.com") is not None
    assert verify((STRANGER, CHAIN[1]), "mx1.example.com") is not None
    further = verifier((tlsa(2, selector, matching, CHAIN[1]),), ("mx1.example.com",))
    assert further(CHAIN, "other.example.com") is None


def test_dane_ta_of_the_root() -> None:
    assert verifier((tlsa(2, 1, 1, ROOT),))((*CHAIN, ROOT), "mx1.example.com") is None
    assert verifier((tlsa(2, 1, 1, ROOT),))(CHAIN, "mx1.example.com") is not None
    assert verifier((tlsa(2, 0, 0, ROOT),))(CHAIN, "mx1.example.com") is None


def test_a_leaf_is_no_authority() -> None:
    assert verifier((tlsa(2, 0, 1, CHAIN[0]),))(CHAIN, "mx1.example.com") is not None


@pytest.mark.parametrize(
    "chain", [(), (b"",), (b"\x30",), (b"\x30\x80\x00\x00",), (b"\x30\x84\xff\xff\xff\xff",), (b"x" * 99,)]
)
def test_rubbish_is_not_verified(chain: tuple[bytes, ...]) -> None:
    records = (tlsa(3, 1, 1, CHAIN[0]), tlsa(2, 1, 1, CHAIN[1]), Tlsa(2, 0, 0, b"rubbish"))
    assert verifier(records)(chain, "mx1.example.com") is not None
    assert verifier(records)((STRANGER, *chain), "mx1.example.com") is not None


@pytest.mark.parametrize("certificate", [*CHAIN, ROOT, STRANGER])
def test_the_key_is_found(certificate: bytes) -> None:
    key = load_der_x509_certificate(certificate).public_key()
    assert public_key(certificate) == key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(("named", "good"), [(CHAIN[0], True), (STRANGER, False)])
async def test_dane_in_a_handshake(named: bytes, good: bool) -> None:
    """The verifier fits the SMTP client's TLS: a real handshake is good or broken off by the records alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    LEAF.configure_cert(context)
    ours, theirs = trio.testing.memory_stream_pair()
    demand = TlsDemand(TlsLevel.DANE, "TLSA records", (HOST.name, ROUTE.domain), (tlsa(3, 1, 1, named),))
    plan = TlsChoice(TlsPolicies(ZoneResolver({}), never), trusting()).plan(demand, ROUTE, HOST)
    assert plan is not None

    async def serve() -> None:
        await trio.SSLStream(theirs, context, server_side=True).do_handshake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        if good:
            _, record = await encrypt(ours, plan)
            assert str(record).endswith(", verified by DANE")
        else:
            with pytest.raises(TlsFault, match="TLSA"):
                await encrypt(ours, plan)


@pytest.mark.parametrize(
    ("level", "relay", "by"),
    [
        (TlsLevel.DANE, None, "DANE"),
        (TlsLevel.VERIFIED, None, "MTA-STS"),
        (TlsLevel.VERIFIED, Relay("mx1.example.com"), "PKIX"),
        (TlsLevel.ENCRYPTED, None, "PKIX"),
        (TlsLevel.OPPORTUNISTIC, None, "PKIX"),
        (TlsLevel.OPPORTUNISTIC, Relay("mx1.example.com", tls=RelayTls.OPPORTUNISTIC), "PKIX"),
    ],
)
def test_a_plan_says_by_what_it_verifies(level: TlsLevel, relay: Relay | None, by: str) -> None:
    choice = TlsChoice(TlsPolicies(ZoneResolver({}), never), trusting())
    plan = choice.plan(TlsDemand(level, "why"), replace(ROUTE, relay=relay), HOST)
    assert plan is not None
    assert plan.by == by


def test_usable_records() -> None:
    """PKIX usages, and selectors and unknown matching types cannot verify anything."""
    good = [Tlsa(3, 1, 1, b""), Tlsa(2, 0, 2, b"")]
    bad = [Tlsa(0, 1, 1, b""), Tlsa(1, 1, 1, b""), Tlsa(3, 2, 1, b""), Tlsa(3, 1, 3, b""), Tlsa(255, 0, 0, b"")]
    assert usable(good + bad) == tuple(good)


# ---- what is demanded in the end

TLSA_TEXT = "3 1 1 " + "ab" * 32
HOST = Host("mx1.example.com", (ip_address("1.1.1.1"),), authentic=True)
ROUTE = Route("example.com", (HOST,), 25, authentic=True)
TLSA_NAME, STS_NAME = "_25._tcp.mx1.example.com", "_mta-sts.example.com"
ANNOUNCED: dict[str, Records] = {"TXT": ['"v=STSv1; id=1"']}


async def demand_level(zone: Zone, route: Route = ROUTE, *, authentic: bool = True) -> TlsLevel:
    async def fetch(domain: str) -> str:
        return POLICY

    demand = await TlsPolicies(ZoneResolver(zone, authentic=authentic), fetch).demand(route, route.hosts[0])
    assert demand.reason
    return demand.level


@pytest.mark.parametrize(
    ("records", "alone", "with_policy"),
    [
        ([TLSA_TEXT], TlsLevel.DANE, TlsLevel.DANE),
        (["2 1 1 " + "ab" * 32], TlsLevel.DANE, TlsLevel.DANE),
        (["1 1 1 " + "ab" * 32], TlsLevel.ENCRYPTED, TlsLevel.VERIFIED),
        (Trouble.SERVFAIL, TlsLevel.NOT_NOW, TlsLevel.NOT_NOW),
        ([], TlsLevel.OPPORTUNISTIC, TlsLevel.VERIFIED),
    ],
)
async def test_dane_goes_before_mta_sts(records: Records, alone: TlsLevel, with_policy: TlsLevel) -> None:
    assert await demand_level({TLSA_NAME: {"TLSA": records}}) is alone
    assert await demand_level({TLSA_NAME: {"TLSA": records}, STS_NAME: ANNOUNCED}) is with_policy


@pytest.mark.parametrize(
    "route", [replace(ROUTE, authentic=False), replace(ROUTE, hosts=(Host(HOST.name, HOST.addresses),))]
)
async def test_without_dnssec_no_tlsa_is_asked(route: Route) -> None:
    resolver = ZoneResolver({TLSA_NAME: {"TLSA": Trouble.SERVFAIL}}, authentic=True)
    demand = await TlsPolicies(resolver, never).demand(route, route.hosts[0])
    assert demand.level is TlsLevel.OPPORTUNISTIC
    assert (TLSA_NAME, "TLSA") not in resolver.asked


async def test_tlsa_records_without_dnssec_mean_nothing() -> None:
    assert await demand_level({TLSA_NAME: {"TLSA": [TLSA_TEXT]}}, authentic=False) is TlsLevel.OPPORTUNISTIC


async def test_a_dane_demand_brings_its_records() -> None:
    zone: Zone = {TLSA_NAME: {"TLSA": [TLSA_TEXT, "0 1 1 " + "cd" * 32]}}
    demand = await TlsPolicies(ZoneResolver(zone, authentic=True), never).demand(ROUTE, HOST)
    assert demand.records == (Tlsa(3, 1, 1, b"\xab" * 32),)
    assert demand.names == ("mx1.example.com", "example.com")
    assert demand.level is TlsLevel.DANE


# ---- a machine that is short of something


class Short(ZoneResolver):
    """Whose questions of one kind cannot be asked."""

    async def txt(self, name: str) -> DnsAnswer[str]:
        raise NotAsked("Too many open files")


async def test_a_lack_of_this_machine_is_no_missing_policy() -> None:
    """What could not be asked for may well be there: nothing goes in the clear because descriptors ran out."""
    route = Route("example.com", (Host("mx1.example.com", (ip_address("192.0.2.1"),)),), 25)

    async def fetch(domain: str) -> str:
        raise Shortage("Too many open files")

    with pytest.raises(Shortage):
        await TlsPolicies(Short({}), fetch).demand(route, route.hosts[0])
    announced = ZoneResolver({"_mta-sts.example.com": {"TXT": ['"v=STSv1; id=1"']}})
    policies = TlsPolicies(announced, fetch)
    for _ in range(2):  # nor is it remembered as one that cannot be fetched
        with pytest.raises(Shortage):
            await policies.demand(route, route.hosts[0])


async def test_a_policy_that_cannot_be_dialled_for_want_of_descriptors() -> None:
    """The fetcher tells a lack of this machine from a server that cannot be reached."""

    async def dial(address: object, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise OSError(24, "Too many open files")

    resolver = ZoneResolver({"mta-sts.example.com": {"A": ["192.0.2.1"]}})
    allowed = (ip_network("192.0.2.0/24"),)
    with pytest.raises(Shortage):
        await PolicyFetcher(resolver, ssl.create_default_context(), allowed, dial=dial).fetch("example.com")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Shortage("Too many open files"), Shortage),
        (OSError(24, "Too many open files"), Shortage),
        (OSError(1, "Operation not permitted"), NoPolicy),
    ],
)
async def test_a_policy_whose_address_cannot_be_checked(fault: Exception, told: type[Exception]) -> None:
    """Without a descriptor it is not known whether an address is our own: a lack of this machine, too."""

    class Own(frozenset[Address]):
        def __contains__(self, address: object) -> bool:
            raise fault

    resolver = ZoneResolver({"mta-sts.example.com": {"A": ["1.1.1.1"]}})
    with pytest.raises(told, match=fault.args[-1]):
        await PolicyFetcher(resolver, ssl.create_default_context(), own=Own()).fetch("example.com")
