"""How records are published: SPF is merged, names are relative to the zone, and one verdict sums up all records."""

import pytest

from appliance.dns.check import CheckedRecord
from appliance.dns.publishing import (
    DnsZone,
    VerdictStatus,
    find_zone,
    merged_spf,
    proposals,
    value_to_publish,
    verdict,
)
from appliance.dns.records import DnsRecord, RecordKind
from appliance.model.accounts import RecordStatus
from tests.fakes.dns import Trouble, Zone, ZoneResolver

OURS = "v=spf1 a:mail.example.com -all"
SOA = ["ns1.host.test. hostmaster.host.test. 1 7200 3600 1209600 300"]
OK, MISSING, DIFFERS, UNKNOWN = (RecordStatus(each) for each in ("ok", "missing", "differs", "unknown"))


def record(kind: RecordKind, value: str = "", *, needed: bool = True, pending: bool = False) -> DnsRecord:
    return DnsRecord(kind, "acme.example", value, "", needed, pending=pending, hosts=("mail.example.com",))


# ---- SPF


@pytest.mark.parametrize(
    ("published", "merged"),
    [
        ("v=spf1 include:_spf.google.com ~all", "v=spf1 include:_spf.google.com a:mail.example.com ~all"),
        ("v=spf1 -all", "v=spf1 a:mail.example.com -all"),
        ("v=spf1", "v=spf1 a:mail.example.com"),
        ("v=spf1 redirect=_spf.other.test", "v=spf1 a:mail.example.com redirect=_spf.other.test"),
        ("v=spf1 mx ~all a:mail.example.com", "v=spf1 mx a:mail.example.com ~all"),  # after `all` it is ignored
        ("v=spf1 -a:mail.example.com mx -all", "v=spf1 mx a:mail.example.com -all"),
        ("v=spf1 +A:Mail.Example.com mx ?all", "v=spf1 +A:Mail.Example.com mx ?all"),
        ('v=spf1 "mx \x1b[0m mx -all', "v=spf1 mx a:mail.example.com -all"),
    ],
)
def test_a_published_record_keeps_its_terms_and_gets_ours_before_all(published: str, merged: str) -> None:
    assert merged_spf([published], OURS) == merged


def test_several_records_become_one() -> None:
    published = ["v=spf1 include:a.test ~all", "v=spf1 include:b.test include:a.test -all"]
    assert merged_spf(published, OURS) == "v=spf1 include:a.test include:b.test a:mail.example.com ~all"


@pytest.mark.parametrize(
    ("kind", "status", "found", "note", "value"),
    [
        (RecordKind.SPF, MISSING, (), "", OURS),
        (RecordKind.SPF, OK, ("v=spf1 mx -all",), "", "v=spf1 mx -all"),
        (RecordKind.SPF, DIFFERS, ("v=spf1 mx -all",), "no", "v=spf1 mx a:mail.example.com -all"),
        (RecordKind.DMARC, OK, ("v=DMARC1; p=reject",), "", "v=DMARC1; p=reject"),
        (RecordKind.DMARC, OK, ("v=DMARC1; p=reject",), "by _dmarc.example", OURS),
        (RecordKind.DKIM, DIFFERS, ("v=DKIM1; p=AAAA",), "it is another key", OURS),
    ],
)
def test_a_correct_value_stays(
    kind: RecordKind, status: RecordStatus, found: tuple[str, ...], note: str, value: str
) -> None:
    assert value_to_publish(CheckedRecord(record(kind, OURS), status, found, note)) == value


# ---- the zone


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        ({"acme.example": {"SOA": SOA}}, "acme.example"),
        ({"acme.example": {"SOA": SOA}, "mail.acme.example": {"SOA": SOA}}, "mail.acme.example"),
        ({"acme.example": {"SOA": SOA}, "mail.acme.example": {"TXT": ['"x"']}}, "acme.example"),
        ({"example": {"SOA": SOA}}, None),  # a top-level domain belongs to no customer
        ({"mail.acme.example": {"SOA": Trouble.SERVFAIL}, "acme.example": {"SOA": SOA}}, None),
        ({"mail.acme.example": {"CNAME": ["cdn.test."]}, "cdn.test": {"SOA": SOA}}, None),
    ],
)
async def test_the_zone_is_the_closest_name_with_an_soa(zone: Zone, name: str | None) -> None:
    known = await find_zone(ZoneResolver(zone), "mail.acme.example")
    assert (known and known.name) == name


async def test_a_long_name_costs_few_lookups() -> None:
    resolver = ZoneResolver({})
    assert await find_zone(resolver, ".".join(["a"] * 60)) is None
    assert resolver.asked.total() == 6


def test_names_are_relative_to_the_zone() -> None:
    zone = DnsZone("acme.example")
    names = ("acme.example", "mail.acme.example", "_dmarc.mail.acme.example", "other.test", "notacme.example")
    assert [zone.relative(name) for name in names] == ["@", "mail", "_dmarc.mail", "other.test.", "notacme.example."]


@pytest.mark.parametrize(
    ("server", "host"),
    [
        ("amy.ns.cloudflare.com", "Cloudflare"),
        ("ns-1536.awsdns-00.co.uk", "Amazon Route 53"),
        ("ns-cloud-a1.googledomains.com", "Google Cloud DNS"),
        ("hydrogen.ns.hetzner.com", "Hetzner"),
        ("dns104.ovh.net", "OVHcloud"),
        ("ns-1-a.gandi.net", "Gandi"),
        ("dns1.registrar-servers.com", "Namecheap"),
        ("ns01.domaincontrol.com", "GoDaddy"),
        ("ns1.digitalocean.com", "DigitalOcean"),
        ("ns2.desec.org", "deSEC"),
        ("ns1.acme.example", None),
        ("ns1.notcloudflare.com", None),
    ],
)
def test_a_dns_host_is_known_by_its_name_servers(server: str, host: str | None) -> None:
    known = DnsZone("acme.example", ("ns.elsewhere.test", server)).host
    assert (known and known.name) == host
    assert known is None or (known.console.startswith("https://") and "{" not in known.console)


async def test_proposals_merge_spf_and_name_the_zone() -> None:
    zone: Zone = {
        "acme.example": {
            "SOA": SOA,
            "NS": ["amy.ns.cloudflare.com."],
            "TXT": ['"v=spf1 mx ~all"'],
            "MX": ["1 x.test."],
        },
        "x.test": {"A": ["192.0.2.1"]},
        "mail.example.com": {"A": ["192.0.2.25"]},
    }
    asked = [record(RecordKind.DKIM, "v=DKIM1; p=A"), record(RecordKind.SPF, OURS)]
    records, known = await proposals(ZoneResolver(zone), "acme.example", asked)
    assert [one.value for one in records] == ["v=DKIM1; p=A", "v=spf1 mx a:mail.example.com ~all"]
    assert known == DnsZone("acme.example", ("amy.ns.cloudflare.com",))


async def test_without_dns_the_records_stay() -> None:
    asked = [record(RecordKind.SPF, OURS)]
    silent = ZoneResolver({"acme.example": {"SOA": Trouble.SERVFAIL, "TXT": Trouble.SERVFAIL}})
    assert await proposals(silent, "acme.example", asked) == (asked, None)


# ---- the verdict

RSA, ED25519 = record(RecordKind.DKIM, "v=DKIM1; k=rsa; p=A"), record(RecordKind.DKIM, "v=DKIM1; k=ed25519; p=B")
SPF, DMARC = record(RecordKind.SPF, OURS), record(RecordKind.DMARC)
RETURN_PATH = record(RecordKind.RETURN_PATH_MX, needed=False)
NEW_KEY = record(RecordKind.DKIM, "v=DKIM1; k=rsa; p=C", pending=True)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({}, "No problems: DNS has all required records."),
        ({RSA: MISSING, ED25519: MISSING, SPF: DIFFERS, DMARC: MISSING}, "4 problems: Gmail rejects mail."),
        ({RSA: DIFFERS, ED25519: MISSING}, "2 problems: Gmail may reject mail."),
        ({RSA: MISSING}, "1 problem: Gmail may reject mail."),
        ({SPF: DIFFERS, DMARC: MISSING}, "2 problems: Gmail may reject mail."),
        ({DMARC: MISSING}, "1 problem: Gmail may reject bulk mail."),
        ({RETURN_PATH: DIFFERS}, "1 problem: late bounces may get lost."),
        ({RETURN_PATH: MISSING, NEW_KEY: MISSING}, "No problems: DNS has all required records."),
        ({ED25519: MISSING}, "1 problem: some receivers cannot verify the second signature."),
        ({SPF: UNKNOWN}, "DNS has not answered for all records."),
        ({SPF: UNKNOWN, DMARC: MISSING}, "1 problem: Gmail may reject bulk mail."),
    ],
)
def test_the_verdict_names_the_worst_consequence(wrong: dict[DnsRecord, RecordStatus], text: str) -> None:
    records = (RSA, ED25519, SPF, DMARC, RETURN_PATH, NEW_KEY)
    result = verdict(CheckedRecord(one, wrong.get(one, OK)) for one in records)
    assert result.text == text
    assert result.status is (
        VerdictStatus.PROBLEMS
        if result.problems
        else VerdictStatus.UNKNOWN
        if "not answered" in text
        else VerdictStatus.OK
    )
