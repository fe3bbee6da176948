"""How to publish a domain's records: values, names relative to the DNS zone, the DNS host, and one verdict.

A domain can have only one SPF record, so our terms are merged into a published one and all its terms stay. The zone is
the closest name above the domain with an SOA record: DNS consoles show names relative to it.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.dns.check import CheckedRecord, check
from appliance.dns.records import RETURN_PATH_KINDS, DnsRecord, RecordKind
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.model.accounts import RecordStatus

LOOKUP_TIMEOUT = 3.0  # seconds to find a zone, or the published records
ZONE_LOOKUPS = 6  # names tried, from the domain upwards
NAME_SERVERS_SHOWN = 8

SPF_KINDS = frozenset((RecordKind.SPF, RecordKind.RETURN_PATH_SPF))
_OF_ANY_VALUE = frozenset((RecordKind.DMARC, RecordKind.TLS_RPT))  # the domain's owner chooses the value

_PLAIN = re.compile(r"[!#-\[\]-~]+")  # words that need no escapes in a zone file
_ALL = re.compile(r"[+?~-]?all", re.IGNORECASE)
_MODIFIER = re.compile(r"([a-z][a-z0-9._-]*)=", re.IGNORECASE)  # RFC 7208 4.6.1


def value_to_publish(checked: CheckedRecord) -> str:
    """Return the value that DNS should have: a correct one as it is, an SPF record with our terms merged in."""
    record, is_right = checked.record, checked.status is RecordStatus.OK
    if record.kind in SPF_KINDS and checked.found:
        return checked.found[0] if is_right else merged_spf(checked.found, record.value)
    has_own = is_right and checked.found and not checked.note  # the note names a parent's record
    if record.kind in _OF_ANY_VALUE and has_own:
        return checked.found[0]
    return record.value


def merged_spf(published: Sequence[str], ours: str) -> str:
    """Add our terms to a published SPF record, before its `all`; several records become one.

    Receivers ignore terms after `all`, and words of other characters are no terms: both are dropped.
    """
    version, *terms, _ = ours.split()
    mechanisms: dict[str, str] = {}
    modifiers: dict[str, str] = {}
    ends = []
    for text in published:
        has_ended = False
        for word in filter(_PLAIN.fullmatch, text.split()[1:]):
            if modifier := _MODIFIER.match(word):
                modifiers.setdefault(modifier[1].lower(), word)
            elif _ALL.fullmatch(word):
                ends += [] if has_ended else [word]
                has_ended = True
            elif not has_ended and word.lower().lstrip("?~-") not in terms:  # not a term that refuses our host
                mechanisms.setdefault(word.lower().removeprefix("+"), word)
    mechanisms |= {term: term for term in terms if term not in mechanisms}
    return " ".join([version, *mechanisms.values(), *ends[:1], *modifiers.values()])


# ---- the zone and its host


class DnsHost(NamedTuple):
    """A company that hosts zones; `{zone}` in the address of its console stands for the zone's name."""

    name: str
    console: str
    suffixes: str = ""  # the last two labels of its name servers


_HOSTS = (
    DnsHost("Cloudflare", "https://dash.cloudflare.com/?to=/:account/{zone}/dns/records", "cloudflare.com"),
    DnsHost("Google Cloud DNS", "https://console.cloud.google.com/net-services/dns/zones", "googledomains.com"),
    DnsHost(
        "Hetzner",
        "https://console.hetzner.com/",
        "hetzner.com hetzner.de your-server.de first-ns.de second-ns.de second-ns.com",
    ),
    DnsHost("OVHcloud", "https://www.ovh.com/manager/#/web/domain/{zone}/zone", "ovh.net anycast.me"),
    DnsHost("Gandi", "https://admin.gandi.net/domain/", "gandi.net"),
    DnsHost(
        "Namecheap",
        "https://ap.www.namecheap.com/Domains/DomainControlPanel/{zone}/advancedns",
        "registrar-servers.com",
    ),
    DnsHost("GoDaddy", "https://dcc.godaddy.com/manage/{zone}/dns", "domaincontrol.com"),
    DnsHost("DigitalOcean", "https://cloud.digitalocean.com/networking/domains/{zone}", "digitalocean.com"),
    DnsHost("deSEC", "https://desec.io/domains/{zone}", "desec.io desec.org"),
    DnsHost(
        "Azure DNS",
        "https://portal.azure.com/#browse/Microsoft.Network%2FdnsZones",
        "azure-dns.com azure-dns.net azure-dns.org azure-dns.info",
    ),
    DnsHost("DNSimple", "https://dnsimple.com/dashboard", "dnsimple.com dnsimple-edge.net dnsimple-edge.org"),
    DnsHost("IONOS", "https://my.ionos.com/domains", "ui-dns.com ui-dns.de ui-dns.org ui-dns.biz"),
    DnsHost("INWX", "https://www.inwx.com/en/nameserver2", "inwx.de inwx.com inwx.eu"),
    DnsHost("Linode", "https://cloud.linode.com/domains", "linode.com"),
    DnsHost("Vultr", "https://my.vultr.com/dns/", "vultr.com"),
    DnsHost("Porkbun", "https://porkbun.com/account/domainsSpeedy", "porkbun.com"),
    DnsHost("NS1", "https://my.nsone.net/", "nsone.net"),
    DnsHost("Vercel", "https://vercel.com/dashboard/domains", "vercel-dns.com"),
    DnsHost("bunny.net", "https://dash.bunny.net/dns", "bunny.net"),
)
DNS_HOSTS = {suffix: host for host in _HOSTS for suffix in host.suffixes.split()}
_ROUTE_53 = re.compile(r"ns-[0-9]+\.awsdns-[0-9]+\.(com|net|org|co\.uk)")
ROUTE_53 = DnsHost("Amazon Route 53", "https://console.aws.amazon.com/route53/v2/hostedzones")


class DnsZone(Struct, frozen=True):
    name: str
    name_servers: tuple[str, ...] = ()

    @property
    def host(self) -> DnsHost | None:
        """The company whose name servers these are, with the address of its console for this zone."""
        for server in self.name_servers:
            labels = server.split(".")
            known = DNS_HOSTS.get(".".join(labels[-2:])) or (ROUTE_53 if _ROUTE_53.fullmatch(server) else None)
            if known is not None:
                return known._replace(console=known.console.replace("{zone}", self.name))
        return None

    def relative(self, name: str) -> str:
        """Return a name as consoles expect it: without the zone, `@` for the zone itself."""
        if name == self.name:
            return "@"
        return name.removesuffix(f".{self.name}") if name.endswith(f".{self.name}") else f"{name}."


async def find_zone(resolver: Resolver, domain: str) -> DnsZone | None:
    """Return the domain's zone; None if DNS does not answer, or if only a top-level domain has an SOA record."""
    with trio.move_on_after(LOOKUP_TIMEOUT):
        try:
            return await _find_zone(resolver, domain)
        except LookupFailed:
            return None
    return None


async def _find_zone(resolver: Resolver, domain: str) -> DnsZone | None:
    labels = domain.split(".")
    for at in range(min(len(labels) - 1, ZONE_LOOKUPS)):
        name = ".".join(labels[at:])
        try:
            if (await resolver.lookup(name, "SOA")).aliased:
                continue  # the SOA record is that of a CNAME's target
        except LookupFailed as failed:
            if failed.fault is DnsFault.TEMPORARY:
                raise
            continue
        try:
            servers = (await resolver.lookup(name, "NS")).records
        except LookupFailed:
            servers = ()
        return DnsZone(name, tuple(sorted(servers)[:NAME_SERVERS_SHOWN]))
    return None


async def proposals(
    resolver: Resolver, domain: str, records: Sequence[DnsRecord]
) -> tuple[list[DnsRecord], DnsZone | None]:
    """Return the records with the values to publish, and the zone; unchanged if DNS does not answer in time."""
    zone, values = None, {}

    async def look_up_zone() -> None:
        nonlocal zone
        zone = await find_zone(resolver, domain)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up_zone)
        with trio.move_on_after(LOOKUP_TIMEOUT):
            checked = await check(resolver, [one for one in records if one.kind in SPF_KINDS | _OF_ANY_VALUE])
            values = {one.record: value_to_publish(one) for one in checked}
    return [replace(record, value=values.get(record, record.value)) for record in records], zone


# ---- the verdict


class VerdictStatus(StrEnum):
    OK = "ok"
    PROBLEMS = "problems"
    UNKNOWN = "unknown"


class DnsVerdict(NamedTuple):
    """All records of a domain in one sentence: the number of problems and the worst consequence."""

    status: VerdictStatus
    problems: int
    text: str


def is_problem(checked: CheckedRecord) -> bool:
    """Whether the owner must correct this record now. A key that does not sign yet is no problem."""
    return checked.is_wrong and checked.status is not RecordStatus.UNKNOWN and not checked.record.pending


def verdict(checked: Iterable[CheckedRecord]) -> DnsVerdict:
    checked = list(checked)
    problems = [one for one in checked if is_problem(one)]
    if problems:
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        return DnsVerdict(VerdictStatus.PROBLEMS, len(problems), f"{count}: {_consequence(checked, problems)}.")
    if any(one.record.needed and one.status is RecordStatus.UNKNOWN for one in checked):
        return DnsVerdict(VerdictStatus.UNKNOWN, 0, "DNS has not answered for all records.")
    return DnsVerdict(VerdictStatus.OK, 0, "No problems: DNS has all required records.")


def _consequence(checked: Sequence[CheckedRecord], problems: Sequence[CheckedRecord]) -> str:
    """The worst effect on mail. Gmail requires SPF or DKIM of every sender, and of bulk senders both and DMARC."""
    kinds = {one.record.kind for one in problems}
    signing = [one for one in checked if one.record.proves and not one.record.pending]
    # Gmail verifies no Ed25519 signatures.
    is_signed = any(one.status is RecordStatus.OK and "k=ed25519" not in one.record.value for one in signing)
    is_unsigned = RecordKind.DKIM in kinds and not is_signed
    if is_unsigned and RecordKind.SPF in kinds:
        return "Gmail rejects mail"
    if is_unsigned or RecordKind.SPF in kinds:
        return "Gmail may reject mail"
    if RecordKind.DMARC in kinds:
        return "Gmail may reject bulk mail"
    if RecordKind.RECEIVING_MX in kinds:
        return "no mail arrives for a receiving domain"
    if kinds & RETURN_PATH_KINDS:
        return "late bounces may get lost"
    return "some receivers cannot verify the second signature"
