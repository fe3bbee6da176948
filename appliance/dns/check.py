"""Checks in DNS whether the records that a sending domain needs are published and right: DKIM, SPF and DMARC.

Likewise those that it may have: the MX and SPF of its return path, and TLS reports.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address

import trio

from appliance.config.settings import Config
from appliance.dns import spf
from appliance.dns.records import RETURN_PATH_KINDS, SPF_NAMES, DnsRecord, RecordKind, Senders, senders, spf_term
from appliance.dns.resolver import LookupFailed, Resolver, records_of
from appliance.message.limits import RETURN_PATH_LENGTH
from appliance.model.accounts import DomainDns, RecordStatus
from appliance.net.address_policy import Address

SENDERS_TIMEOUT = 5  # seconds to look up the addresses of a cluster's nodes
DMARC_POLICIES = ("none", "quarantine", "reject")

_WORST_FIRST = (RecordStatus.DIFFERS, RecordStatus.MISSING, RecordStatus.UNKNOWN, RecordStatus.OK)

_DMARC = re.compile(r"v\s*=\s*DMARC1\s*(?:;|$)")
_TLS_RPT = re.compile(r"v=TLSRPTv1\s*;")  # RFC 8460 3


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """A record, what DNS has in its place, and what is wrong with that."""

    record: DnsRecord
    status: RecordStatus
    found: tuple[str, ...] = ()
    note: str = ""
    permerror: bool = False  # an SPF record that is a permanent error to receivers, whatever is added to it

    @property
    def is_wrong(self) -> bool:
        """Whether it has to be mended: a return path need not be there, but is not to lead elsewhere."""
        if self.record.kind in RETURN_PATH_KINDS:
            return self.status is RecordStatus.DIFFERS
        return self.record.needed and self.status is not RecordStatus.OK


async def check(resolver: Resolver, wanted: Iterable[DnsRecord], *, for_operator: bool = False) -> list[CheckedRecord]:
    """Each record as DNS has it now, in the order given; all are looked up at once.

    Operators see what each resolver did, customers only that there was no answer.
    """
    wanted = list(wanted)
    checked: dict[DnsRecord, CheckedRecord] = {}

    async def check_one(record: DnsRecord) -> None:
        try:
            checked[record] = await _CHECKS[record.kind](resolver, record)
        except LookupFailed as failed:
            note = failed.text if for_operator else failed.public
            checked[record] = CheckedRecord(record, RecordStatus.UNKNOWN, note=note)

    async with trio.open_nursery() as nursery:
        for record in wanted:
            nursery.start_soon(check_one, record)
    return [checked[record] for record in wanted]


def summary(checked: Iterable[CheckedRecord], at: int) -> DomainDns:
    """What a check of a domain's records found, by kind. Keys that do not sign yet, or no more, do not count."""
    checked = list(checked)

    def worst(*kinds: RecordKind, needed: bool = True) -> RecordStatus | None:
        found = {
            each.status
            for each in checked
            if each.record.kind in kinds and each.record.needed == needed and not each.record.pending
        }
        return next((status for status in _WORST_FIRST if status in found), None)

    spf, dkim, dmarc = (
        worst(kind) or RecordStatus.MISSING for kind in (RecordKind.SPF, RecordKind.DKIM, RecordKind.DMARC)
    )
    return DomainDns(at, spf, dkim, dmarc, worst(*RETURN_PATH_KINDS, needed=False))


def read_tags(text: str) -> dict[str, str]:
    """The tags of a DKIM or DMARC record, RFC 6376 3.2; whitespace in a value is ignored."""
    pairs = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip(): "".join(value.split()) for name, _, value in pairs}


def _differs(record: DnsRecord, found: tuple[str, ...], note: str) -> CheckedRecord:
    return CheckedRecord(record, RecordStatus.DIFFERS, found, note)


async def _check_dkim(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    texts = await records_of(resolver.txt, record.name)
    if not texts:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(texts) > 1:
        return _differs(record, texts, "there must be one record of this name")
    here, wanted = read_tags(texts[0]), read_tags(record.value)
    if (here.get("k", "rsa"), here.get("p", "")) != (wanted.get("k", "rsa"), wanted.get("p", "")):
        return _differs(record, texts, "it is another key")
    return CheckedRecord(record, RecordStatus.OK, texts)


async def _check_dmarc(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Any policy is right, also that of a parent domain, which counts where the domain has none (RFC 7489 6.6.3)."""
    labels = record.name.removeprefix("_dmarc.").split(".")
    for at in range(max(1, len(labels) - 1)):
        name = "_dmarc." + ".".join(labels[at:])
        texts = tuple(text for text in await records_of(resolver.txt, name) if _DMARC.match(text))
        if len(texts) > 1:
            return _differs(record, texts, f"{name} has more than one DMARC record, so none counts")
        if texts and read_tags(texts[0]).get("p", "").lower() not in DMARC_POLICIES:
            return _differs(record, texts, f"it names no policy: p= must be {' or '.join(DMARC_POLICIES)}")
        if texts:
            return CheckedRecord(record, RecordStatus.OK, texts, "" if at == 0 else f"by {name}")
    return CheckedRecord(record, RecordStatus.MISSING)


async def _check_spf(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    texts = tuple(text for text in await records_of(resolver.txt, record.name) if spf.is_spf(text))
    if not texts:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(texts) > 1:
        return _differs(record, texts, "more than one SPF record: receivers take that for none")
    missing, refused = [], []
    for host in record.hosts:
        addresses = await addresses_of(resolver, host)
        if not addresses:
            return _differs(record, texts, f"{host} has no address in DNS, so nothing lets it in")
        try:
            kept_out = [one for one in addresses if not await spf.permits(resolver, record.name, texts[0], one)]
        except spf.SpfPermError as reason:
            note = f"receivers give up on it: {reason}"
            return CheckedRecord(record, RecordStatus.DIFFERS, texts, note, permerror=True)
        if kept_out:
            source = "" if len(kept_out) == len(addresses) else f" from {', '.join(map(str, kept_out))}"
            refused.append(f"{host} send{source}")
            by_name = spf_term(host) in record.value.split()
            missing += [spf_term(host)] if by_name else [spf_term(str(one)) for one in kept_out]
    if not refused:
        return CheckedRecord(record, RecordStatus.OK, texts)
    return _differs(record, texts, f"it does not let {' or '.join(refused)}: put {' '.join(missing)} into it")


async def _check_return_path_mx(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Whether mail for the name goes to us first: to a host of ours by its name, or by the addresses of the first.

    A name without an MX is its own mail server (RFC 5321 5.1), so a CNAME to our host leads here.
    """
    exchangers = sorted(await records_of(resolver.mx, record.name), key=lambda mx: (mx.preference, mx.host))
    found = tuple(f"{mx.preference} {mx.host}." for mx in exchangers)
    first = [mx.host for mx in exchangers if mx.preference == exchangers[0].preference] or [record.name]
    reached = {host: await addresses_of(resolver, host) if host else [] for host in first}  # "": a null MX
    if not exchangers and not reached[record.name]:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(record.name) > RETURN_PATH_LENGTH:
        return _differs(record, found, f"a return path has at most {RETURN_PATH_LENGTH} characters")
    own = await addresses_of(resolver, record.hosts[0])
    for host, addresses in reached.items():
        if not addresses:
            return _differs(record, found, f"{host} has no address in DNS" if host else "it takes no mail (null MX)")
        if host not in record.hosts and not set(addresses) <= set(own):
            found = found or tuple(map(str, addresses))
            return _differs(record, found, f"mail for it goes to {host}, not to {record.hosts[0]}")
    return CheckedRecord(record, RecordStatus.OK, found, "" if exchangers else f"by the address of {record.hosts[0]}")


async def _check_tls_rpt(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Reports to any address are right: the domain's owner decides who reads them."""
    texts = tuple(text for text in await records_of(resolver.txt, record.name) if _TLS_RPT.match(text))
    if not texts:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(texts) > 1:
        return _differs(record, texts, "more than one record, so that none counts")
    if not read_tags(texts[0]).get("rua"):
        return _differs(record, texts, "it names no address: rua= is missing")
    return CheckedRecord(record, RecordStatus.OK, texts)


async def find_senders(resolver: Resolver, config: Config, nodes: Iterable[str]) -> Senders:
    """The hosts that send, by address if they are too many for an SPF record that names them.

    A host whose addresses DNS does not have now keeps its name.
    """
    sending = senders(config, nodes)
    if len(sending.hosts) <= SPF_NAMES:
        return sending
    known: dict[str, list[str]] = {host: [host] for host in sending.hosts}

    async def look_up(host: str) -> None:
        with suppress(LookupFailed):
            addresses = await addresses_of(resolver, host)
            known[host] = sorted(map(str, addresses)) or [host]

    with trio.move_on_after(SENDERS_TIMEOUT):
        async with trio.open_nursery() as nursery:
            for host in sending.hosts:
                nursery.start_soon(look_up, host)
    return replace(sending, addresses=tuple(name for names in known.values() for name in names))


async def addresses_of(resolver: Resolver, host: str) -> list[Address]:
    """All addresses of a host, or the address that it is; raises LookupFailed for a temporary failure."""
    try:
        return [ip_address(host)]
    except ValueError:
        return [*await records_of(resolver.ipv4, host), *await records_of(resolver.ipv6, host)]


_CHECKS = {
    RecordKind.DKIM: _check_dkim,
    RecordKind.SPF: _check_spf,
    RecordKind.DMARC: _check_dmarc,
    RecordKind.RETURN_PATH_MX: _check_return_path_mx,
    RecordKind.RETURN_PATH_SPF: _check_spf,
    RecordKind.TLS_RPT: _check_tls_rpt,
}
