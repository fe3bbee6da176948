"""The records a domain needs, and whether DNS shows them."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import pytest

from appliance.config.load import parse
from appliance.dns.check import CheckedRecord, check, find_senders, permits, read_tags
from appliance.dns.records import (
    SPF_NAMES,
    DnsRecord,
    RecordKind,
    Senders,
    receiving_record,
    records,
    return_path_records,
    spf_term,
)
from appliance.model.accounts import RecordStatus, StoredDkimKey
from appliance.times import DAY
from tests.fakes.dns import Trouble, Zone, ZoneResolver, zone_text

NOW = 1_794_664_800_000_000  # 2026-11-14
HOST = "mail.example.com"
RECEIVING = "in.acme.example"
SENDING = Senders((HOST,))
RSA = StoredDkimKey("ma-rsa-1", "rsa", b"", "v=DKIM1; k=rsa; p=" + "A" * 392)
ED25519 = StoredDkimKey("ma-ed25519-1", "ed25519", b"", "v=DKIM1; k=ed25519; p=BBBB")
OLD = StoredDkimKey("ma-rsa-0", "rsa", b"", "v=DKIM1; k=rsa; p=CCCC", 0, NOW - 6 * DAY)
OLDER = StoredDkimKey("ma-rsa-00", "rsa", b"", "v=DKIM1; k=rsa; p=DDDD", 0, NOW - 7 * DAY)
SERVER: Zone = {HOST: {"A": ["192.0.2.25"], "AAAA": ["2001:db8::25"]}}


def wanted() -> list[DnsRecord]:
    return records("acme.example", SENDING, [RSA, ED25519], NOW)


def published() -> dict[str, Mapping[str, list[str] | Trouble]]:
    return {record.name: {"TXT": [zone_text(record.value)]} for record in wanted()}


async def checked(zone: Zone, kind: RecordKind) -> CheckedRecord:
    found = await check(ZoneResolver({**SERVER, **zone}), wanted())
    return next(each for each in found if each.record.kind is kind)


def text(value: str) -> dict[str, list[str]]:
    return {"TXT": [f'"{value}"']}


# ---- what to publish


def test_a_domain_needs_two_keys_spf_and_dmarc() -> None:
    assert [(record.name, record.type, record.value) for record in wanted()] == [
        ("ma-rsa-1._domainkey.acme.example", "TXT", RSA.record),
        ("ma-ed25519-1._domainkey.acme.example", "TXT", ED25519.record),
        ("acme.example", "TXT", "v=spf1 a:mail.example.com -all"),
        ("_dmarc.acme.example", "TXT", "v=DMARC1; p=none"),
    ]
    assert [record.purpose.partition(":")[0] for record in wanted()] == ["DKIM", "DKIM", "SPF", "DMARC"]


def test_a_retired_key_is_kept_for_seven_days() -> None:
    """Its record is told with the day until which it must stay, and then no more."""
    found = records("acme.example", SENDING, [OLDER, OLD, RSA], NOW)
    assert [record.name for record in found if record.kind is RecordKind.DKIM] == [
        "ma-rsa-1._domainkey.acme.example",
        "ma-rsa-0._domainkey.acme.example",
    ]
    assert "keep until 2026-11-15" in found[-1].purpose
    assert [record.needed for record in found] == [True, True, True, False]


def test_spf_names_addresses_by_their_kind() -> None:
    assert [spf_term(host) for host in (HOST, "192.0.2.1", "2001:db8::1")] == [
        "a:mail.example.com",
        "ip4:192.0.2.1",
        "ip6:2001:db8::1",
    ]


# ---- the SPF record of a cluster


def cluster(nodes: int) -> tuple[Zone, list[str]]:
    names = [f"node{number}.example.com" for number in range(nodes)]
    addresses = [{"A": [f"192.0.2.{number}"], "AAAA": [f"2001:db8::{number}"]} for number in range(nodes)]
    return dict(zip(names, addresses, strict=True)), names


async def spf_of(zone: Zone, asked: str, nodes: list[str]) -> DnsRecord:
    config = parse(f'[server]\nhostname = "{asked}"\n', Path("/tmp/config.toml"))
    sending = await find_senders(ZoneResolver(zone), config, nodes)
    return next(one for one in records("acme.example", sending, [RSA], NOW) if one.kind is RecordKind.SPF)


@pytest.mark.parametrize("nodes", [2, SPF_NAMES, SPF_NAMES + 1, 20])
async def test_every_node_prints_the_same_spf_record_and_it_permits_all_nodes(nodes: int) -> None:
    zone, names = cluster(nodes)
    first, *others = [await spf_of(zone, asked, names) for asked in names]
    assert {record.value for record in others} == {first.value}
    assert first.value.count(" a:") == (nodes if nodes <= SPF_NAMES else 0)
    (result,) = await check(ZoneResolver({**zone, "acme.example": {"TXT": [zone_text(first.value)]}}), [first])
    assert (result.status, result.note) == (RecordStatus.OK, "")


@pytest.mark.parametrize(
    ("nodes", "term"), [(2, "a:node1.example.com"), (SPF_NAMES + 1, "ip4:192.0.2.1 ip6:2001:db8::1")]
)
async def test_a_record_without_one_node_is_wrong_and_the_note_says_what_to_add(nodes: int, term: str) -> None:
    zone, names = cluster(nodes)
    record = await spf_of(zone, names[0], names)
    without = record.value.replace(f" {term}", "")
    assert without != record.value
    (result,) = await check(ZoneResolver({**zone, "acme.example": text(without)}), [record])
    assert (result.status, result.is_wrong) == (RecordStatus.DIFFERS, True)
    assert result.note == f"it does not let node1.example.com send: put {term} into it"


@pytest.mark.parametrize(("nodes", "by_name"), [(2, True), (3, False)])
async def test_nodes_without_ipv6_are_listed_by_address_before_receivers_give_up(nodes: int, by_name: bool) -> None:
    """To a client with IPv6 each of their names is a void lookup, of which RFC 7208 4.6.4 allows two."""
    zone, names = cluster(nodes)
    zone = {name: {"A": kinds["A"]} for name, kinds in zone.items()} | {"other.test": {"AAAA": ["2001:db8::99"]}}
    record = await spf_of(zone, names[0], names)
    assert (" a:" in record.value) is by_name
    merged = record.value.replace("-all", "a:other.test -all")
    assert await permits(ZoneResolver(zone), "acme.example", merged, ip_address("2001:db8::99"))


async def test_a_node_that_dns_does_not_know_keeps_its_name_in_the_record() -> None:
    zone, names = cluster(SPF_NAMES + 1)
    record = await spf_of({**zone, "node0.example.com": {"A": Trouble.SERVFAIL}}, names[0], names)
    assert " a:node0.example.com " in record.value
    assert " ip4:192.0.2.1 " in record.value


# ---- what DNS shows


async def test_all_is_right_when_all_is_published() -> None:
    found = await check(ZoneResolver({**SERVER, **published()}), wanted())
    assert [each.status for each in found] == [RecordStatus.OK] * 4
    assert [each.record for each in found] == wanted()
    assert found[0].found == (RSA.record,)


async def test_nothing_published_is_missing() -> None:
    empty: Zone = {record.name: {} for record in wanted()}
    for zone in (SERVER, empty):
        found = await check(ZoneResolver({**SERVER, **zone}), wanted())
        assert {each.status for each in found} == {RecordStatus.MISSING}


async def test_a_resolver_in_trouble_is_not_a_missing_record() -> None:
    """When DNS cannot be asked, nothing is known."""
    found = await check(ZoneResolver({record.name: {"TXT": Trouble.SERVFAIL} for record in wanted()}), wanted())
    assert {each.status for each in found} == {RecordStatus.UNKNOWN}
    assert "SERVFAIL" in found[0].note


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([RSA.record], RecordStatus.OK),
        ([RSA.record.replace("v=DKIM1; k=rsa; ", "")], RecordStatus.OK),
        ([RSA.record.replace("; ", " ;\t").replace("AAAA", "AA AA")], RecordStatus.OK),
        ([RSA.record.replace("AAAA", "AAAB")], RecordStatus.DIFFERS),
        (["v=DKIM1; k=rsa; p="], RecordStatus.DIFFERS),
        (["hello"], RecordStatus.DIFFERS),
        ([RSA.record, "v=DKIM1; p=EEEE"], RecordStatus.DIFFERS),
    ],
)
async def test_a_key_is_compared_by_what_it_means(values: list[str], status: RecordStatus) -> None:
    zone = {"ma-rsa-1._domainkey.acme.example": {"TXT": [zone_text(value) for value in values]}}
    assert (await checked(zone, RecordKind.DKIM)).status is status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("v=spf1 a:mail.example.com -all", RecordStatus.OK),
        ("V=SPF1 +A:Mail.Example.com mx ~all", RecordStatus.OK),
        ("v=spf1 ip4:192.0.2.0/24 ip6:2001:db8::/32 -all", RecordStatus.OK),
        ("v=spf1 include:_spf.other.example include:_spf.host.example ~all", RecordStatus.OK),
        ("v=spf1 redirect=_spf.host.example", RecordStatus.OK),
        ("v=spf1 ip4:192.0.2.0/24 -all", RecordStatus.DIFFERS),  # and what of IPv6?
        ("v=spf1 ip4:rubbish -all", RecordStatus.DIFFERS),
        ("v=spf1 -a:mail.example.com -all", RecordStatus.DIFFERS),
        ("v=spf1 include:loop.example -all", RecordStatus.DIFFERS),
        ("v=spf1 mx -all", RecordStatus.DIFFERS),
        ("v=spf1", RecordStatus.DIFFERS),
        ("v=spf10 a:mail.example.com", RecordStatus.MISSING),
        ("google-site-verification=x", RecordStatus.MISSING),
    ],
)
async def test_spf_must_let_the_server_in(value: str, status: RecordStatus) -> None:
    zone: Zone = {
        "acme.example": text(value),
        "_spf.host.example": text("v=spf1 a:mail.example.com ?all"),
        "_spf.other.example": text("v=spf1 ip4:198.51.100.1 -all"),
        "loop.example": text("v=spf1 include:loop.example -all"),
    }
    assert (await checked(zone, RecordKind.SPF)).status is status


async def test_two_spf_records_are_as_good_as_none() -> None:
    """Receivers give up on them (RFC 7208 4.5), so both are shown."""
    found = await checked({"acme.example": {"TXT": ['"v=spf1 -all"', '"v=spf1 a:mail.example.com"']}}, RecordKind.SPF)
    assert (found.status, len(found.found)) == (RecordStatus.DIFFERS, 2)


async def test_a_server_without_an_address_is_let_in_by_nothing() -> None:
    found = await checked({HOST: {}, "acme.example": text("v=spf1 a:mail.example.com -all")}, RecordKind.SPF)
    assert found.status is RecordStatus.DIFFERS
    assert "no address" in found.note


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("_dmarc.acme.example", "v=DMARC1; p=none", RecordStatus.OK),
        ("_dmarc.acme.example", "v=DMARC1; p=reject; rua=mailto:d@acme.example", RecordStatus.OK),
        ("_dmarc.acme.example", "v=DMARC1; rua=mailto:d@acme.example", RecordStatus.DIFFERS),
        ("_dmarc.acme.example", "v=DMARC1; p=perhaps", RecordStatus.DIFFERS),
        ("_dmarc.acme.example", "v = DMARC1 ;p=none", RecordStatus.OK),
        ("_dmarc.acme.example", "v=DMARC10; p=none", RecordStatus.MISSING),
        ("_dmarc.acme.example", "v=spf1 -all", RecordStatus.MISSING),
        ("_dmarc.example", "v=DMARC1; p=none", RecordStatus.MISSING),
    ],
)
async def test_any_dmarc_policy_will_do(name: str, value: str, status: RecordStatus) -> None:
    """The starter, or whatever the owner decided on."""
    assert (await checked({name: text(value)}, RecordKind.DMARC)).status is status


async def test_the_policy_of_the_domain_above_counts() -> None:
    resolver = ZoneResolver({"_dmarc.acme.example": text("v=DMARC1; p=reject")})
    record = DnsRecord(RecordKind.DMARC, "_dmarc.news.acme.example", "v=DMARC1; p=none", "")
    (found,) = await check(resolver, [record])
    assert (found.status, found.note) == (RecordStatus.OK, "by _dmarc.acme.example")


def test_tags_are_read_without_their_spaces() -> None:
    """A tag list is what RFC 6376 3.2 says, and rubbish in it is passed over."""
    assert read_tags(" v=DMARC1 ; p = none;; x;rua=mailto:a@b") == {"v": "DMARC1", "p": "none", "rua": "mailto:a@b"}


# ---- the return path, and reports

RETURN_PATH = "bounces.acme.example"
RIGHT_SPF = "v=spf1 a:mail.example.com -all"


def with_return_path(*receiving: str) -> list[DnsRecord]:
    return records("acme.example", SENDING, [RSA], NOW, return_path=RETURN_PATH, receiving=receiving)


async def return_path(zone: Zone, receiving: tuple[str, ...] = (HOST,)) -> list[CheckedRecord]:
    return await check(ZoneResolver({**SERVER, **zone}), return_path_records(RETURN_PATH, SENDING, receiving))


def test_feedback_has_records_where_it_is_taken() -> None:
    assert [(record.name, record.type, record.value, record.needed) for record in with_return_path(HOST)[1:]] == [
        ("acme.example", "TXT", RIGHT_SPF, True),
        ("_dmarc.acme.example", "TXT", f"v=DMARC1; p=none; rua=mailto:dmarc@{RETURN_PATH}", True),
        (RETURN_PATH, "MX", "10 mail.example.com.", False),
        (RETURN_PATH, "TXT", RIGHT_SPF, False),
        ("_smtp._tls.acme.example", "TXT", f"v=TLSRPTv1; rua=mailto:tlsrpt@{RETURN_PATH}", False),
    ]
    assert [record.value for record in with_return_path()[1:]] == [RIGHT_SPF, "v=DMARC1; p=none"]


@pytest.mark.parametrize(
    ("zone", "status"),
    [
        ({RETURN_PATH: {"MX": ["10 mail.example.com."]}}, RecordStatus.OK),
        ({RETURN_PATH: {"MX": ["0 MAIL.example.com.", "20 backup.example."]}}, RecordStatus.OK),
        ({RETURN_PATH: {"CNAME": ["mail.example.com."]}}, RecordStatus.OK),
        ({RETURN_PATH: {"A": ["192.0.2.25"]}}, RecordStatus.OK),
        ({RETURN_PATH: {"MX": ["10 mx.example."]}, "mx.example": {"A": ["192.0.2.25"]}}, RecordStatus.OK),
        ({RETURN_PATH: {"MX": ["10 node2.example.com."]}, "node2.example.com": {"A": ["192.0.2.9"]}}, RecordStatus.OK),
        ({}, RecordStatus.MISSING),
        ({RETURN_PATH: {"TXT": [f'"{RIGHT_SPF}"']}}, RecordStatus.MISSING),
        ({RETURN_PATH: {"MX": ["10 mx.example."]}, "mx.example": {"A": ["192.0.2.26"]}}, RecordStatus.DIFFERS),
        (
            {RETURN_PATH: {"MX": ["10 mail.example.com.", "10 mx.example."]}, "mx.example": {"A": ["192.0.2.26"]}},
            RecordStatus.DIFFERS,
        ),
        ({RETURN_PATH: {"MX": ["10 nowhere.example."]}}, RecordStatus.DIFFERS),
        ({RETURN_PATH: {"MX": ["0 ."]}}, RecordStatus.DIFFERS),
        ({RETURN_PATH: {"A": ["192.0.2.26"]}}, RecordStatus.DIFFERS),
        ({RETURN_PATH: {"MX": Trouble.SERVFAIL}}, RecordStatus.UNKNOWN),
        ({RETURN_PATH: {"MX": ["10 mx.example."]}, "mx.example": {"A": Trouble.SERVFAIL}}, RecordStatus.UNKNOWN),
        ({RETURN_PATH: {"MX": ["10 mail.example.com."]}, HOST: {}}, RecordStatus.DIFFERS),
    ],
)
async def test_a_return_path_must_lead_here_first(zone: Zone, status: RecordStatus) -> None:
    found = (await return_path(zone, (HOST, "node2.example.com")))[0]
    assert found.status is status
    assert found.is_wrong is (status is RecordStatus.DIFFERS)


@pytest.mark.parametrize(
    ("zone", "status"),
    [
        ({RECEIVING: {"MX": ["10 mail.example.com."]}}, RecordStatus.OK),
        ({RECEIVING: {"MX": ["10 node2.example.com."]}, "node2.example.com": {"A": ["192.0.2.9"]}}, RecordStatus.OK),
        ({}, RecordStatus.MISSING),
        ({RECEIVING: {"MX": ["10 mx.example."]}, "mx.example": {"A": ["192.0.2.7"]}}, RecordStatus.DIFFERS),
        ({RECEIVING: {"MX": ["0 ."]}}, RecordStatus.DIFFERS),
    ],
)
async def test_a_receiving_domain_needs_an_mx(zone: Zone, status: RecordStatus) -> None:
    """One that leads elsewhere is no fault: that server may forward some of its mail."""
    record = receiving_record(RECEIVING, (HOST, "node2.example.com"))
    assert (record.name, record.type, record.value) == (RECEIVING, "MX", "10 mail.example.com.")
    (found,) = await check(ZoneResolver({**SERVER, **zone}), [record])
    assert found.status is status
    assert found.is_wrong is (status is RecordStatus.MISSING)


async def test_spf_of_the_return_path_is_that_of_its_name() -> None:
    right, wrong = text(RIGHT_SPF), text("v=spf1 -all")
    for zone, status in (
        ({RETURN_PATH: right}, RecordStatus.OK),
        ({RETURN_PATH: {"CNAME": [f"{HOST}."]}, HOST: {"A": ["192.0.2.25"], **text("v=spf1 a -all")}}, RecordStatus.OK),
        ({"acme.example": right}, RecordStatus.MISSING),
        ({RETURN_PATH: wrong}, RecordStatus.DIFFERS),
    ):
        assert (await return_path(zone))[1].status is status


async def test_a_name_too_long_for_a_token_is_not_used() -> None:
    """With 26 octets before the @ the address would be longer than 254."""
    name = ".".join(["a" * 50] * 4 + ["bounces.acme.example"])
    zone: Zone = {**SERVER, name: {"MX": [f"10 {HOST}."]}}
    for longer, status in ((name[1:], RecordStatus.OK), (f"{'b' * 5}.{name}", RecordStatus.DIFFERS)):
        zone = {**zone, longer: {"MX": [f"10 {HOST}."]}}
        (mx, _) = await check(ZoneResolver(zone), return_path_records(longer, SENDING, (HOST,)))
        assert mx.status is status, len(longer)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([], RecordStatus.MISSING),
        (["v=TLSRPTv1; rua=mailto:tlsrpt@bounces.acme.example"], RecordStatus.OK),
        (["v=TLSRPTv1;rua=https://reports.example/"], RecordStatus.OK),
        (["v=TLSRPTv1; "], RecordStatus.DIFFERS),
        (["v=TLSRPTv1; rua=mailto:a@b.example", "v=TLSRPTv1; rua=mailto:c@d.example"], RecordStatus.DIFFERS),
        (["something else"], RecordStatus.MISSING),
    ],
)
async def test_tls_reports_may_go_anywhere(values: list[str], status: RecordStatus) -> None:
    zone: Zone = {"_smtp._tls.acme.example": {"TXT": [zone_text(value) for value in values]}}
    (found,) = await check(ZoneResolver(zone), with_return_path(HOST)[-1:])
    assert (found.status, found.is_wrong) == (status, False)
