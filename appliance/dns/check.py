"""Checks in DNS whether the records of a sending domain are published and right: DKIM, SPF and DMARC, and optionally
its return path and TLS reports.

SPF is evaluated as receivers do it (RFC 7208), except for macros: a term with one matches no address here, because it
depends on the single message.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import chain
from typing import TypeVar

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import Config
from appliance.dns.records import RETURN_PATH_KINDS, SPF_NAMES, DnsRecord, RecordKind, Senders, senders, spf_term
from appliance.dns.resolver import DnsAnswer, LookupFailed, Resolver, records_of
from appliance.dns.wire import Mx
from appliance.message.limits import RETURN_PATH_LENGTH
from appliance.model.accounts import DomainDns, RecordStatus
from appliance.model.sources import OutgoingSource
from appliance.net.address_policy import Address, Network, refusal

SPF_LOOKUPS = 10  # terms that need a DNS lookup, RFC 7208 4.6.4
SPF_VOID_LOOKUPS = 2  # of them may find nothing
SPF_EXCHANGERS = 10  # hosts of one `mx`
SHOWN_CHARACTERS = 80  # of a term in an error text

PASS, NEUTRAL = "+", "?"

T = TypeVar("T", Mx, IPv4Address, IPv6Address, str)

_DIRECTIVE = re.compile(r"([+?~-]?)([a-z0-9]+)(?::(.+?))?(?:/(\d{1,3}))?(?://(\d{1,3}))?")
_MODIFIER = re.compile(r"([a-z][a-z0-9._-]*)=(.*)")
_NEED_VALUE = {"include", "ip4", "ip6", "exists"}
_TAKE_LENGTH = {"a", "mx", "ip4", "ip6"}
_MECHANISMS = _NEED_VALUE | {"all", "a", "mx", "ptr"}


class SpfPermError(Exception):
    """A permanent error (RFC 7208 2.6.7): receivers ignore the record; the text says why."""


def is_spf(text: str) -> bool:
    return text.lower() == "v=spf1" or text.lower().startswith("v=spf1 ")


async def permits(resolver: Resolver, domain: str, text: str, address: Address) -> bool:
    """Whether the domain's record `text` permits this address; raises SpfPermError, or LookupFailed."""
    return await _Evaluation(resolver, address).evaluate(domain, text) == PASS


class _Directive(Struct, frozen=True):
    """`sign` is the qualifier; `prefixes` are the prefix lengths for IPv4 and IPv6."""

    sign: str
    mechanism: str
    value: str
    prefixes: tuple[int, int]
    network: Network | None = None


def _read(text: str) -> tuple[list[_Directive], str]:
    """The directives, and the name of a redirect; any fault makes the whole record an error (RFC 7208 4.6)."""
    directives, redirect = [], ""
    for term in text.lower().split()[1:]:
        if modifier := _MODIFIER.fullmatch(term):
            if modifier[1] == "redirect":
                if redirect or not modifier[2].strip("."):
                    raise SpfPermError(f"redirect is there twice, or without a name: {_short(term)}")
                redirect = modifier[2].rstrip(".")
            continue
        directives.append(_directive(term))
    return directives, redirect


def _directive(term: str) -> _Directive:
    read = _DIRECTIVE.fullmatch(term)
    if read is None or not _is_in_order(read):
        raise SpfPermError(f"{_short(term)} is no term of SPF")
    mechanism, value = read[2], (read[3] or "").rstrip(".")
    prefixes = int(read[4] or 32), int(read[5] or 128)
    if mechanism in ("ip4", "ip6"):
        try:
            network = ip_network(read[3] if read[4] is None else f"{read[3]}/{read[4]}", strict=False)
        except ValueError:
            raise SpfPermError(f"{_short(term)} is no network") from None
        if f"ip{network.version}" != mechanism:
            raise SpfPermError(f"{_short(term)} must be ip{network.version}")
        return _Directive(read[1] or PASS, mechanism, value, (32, 128), network)
    if prefixes[0] > 32 or prefixes[1] > 128:
        raise SpfPermError(f"{_short(term)} has a length that no network has")
    return _Directive(read[1] or PASS, mechanism, value, prefixes)


def _is_in_order(read: re.Match[str]) -> bool:
    mechanism, value, length = read[2], read[3], read[4] or read[5]
    if length and mechanism not in _TAKE_LENGTH and "%" not in read[0]:
        return False
    if value is None:
        return mechanism in _MECHANISMS - _NEED_VALUE
    return mechanism in _MECHANISMS - {"all"} and bool(value.strip("."))


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")


class _Evaluation:
    def __init__(self, resolver: Resolver, address: Address) -> None:
        self._resolver, self._address = resolver, address
        self._lookups = self._voids = 0

    async def evaluate(self, domain: str, text: str) -> str:
        directives, redirect = _read(text)
        for directive in directives:
            if await self._matches(domain, directive):
                return directive.sign
        if not redirect:
            return NEUTRAL
        self._count()
        return NEUTRAL if "%" in redirect else await self.evaluate(redirect, await self._record(redirect))

    async def _matches(self, domain: str, term: _Directive) -> bool:
        if term.mechanism == "all":
            return True
        if term.network is not None:
            return self._address in term.network
        self._count()
        name = term.value or domain
        if "%" in name or term.mechanism == "ptr":
            return False
        if term.mechanism == "include":
            return await self.evaluate(name, await self._record(name)) == PASS
        if term.mechanism == "exists":
            return bool(await self._found(self._resolver.ipv4, name))
        if term.mechanism == "a":
            return await self._matches_host(name, term)
        exchangers = await self._found(self._resolver.mx, name)
        if len(exchangers) > SPF_EXCHANGERS:
            raise SpfPermError(f"{_short(name)} has more than {SPF_EXCHANGERS} mail exchangers")
        for exchanger in exchangers:
            if exchanger.host and await self._matches_host(exchanger.host, term):
                return True
        return False

    async def _matches_host(self, host: str, term: _Directive) -> bool:
        addresses: tuple[Address, ...]
        if self._address.version == 4:
            addresses, length = await self._found(self._resolver.ipv4, host), term.prefixes[0]
        else:
            addresses, length = await self._found(self._resolver.ipv6, host), term.prefixes[1]
        return any(self._address in ip_network(f"{one}/{length}", strict=False) for one in addresses)

    async def _record(self, domain: str) -> str:
        records = [text for text in await self._found(self._resolver.txt, domain) if is_spf(text)]
        if len(records) != 1:
            count = "several SPF records" if records else "no SPF record"
            raise SpfPermError(f"it leads to {_short(domain)}, which has {count}")
        return records[0]

    async def _found(self, ask: Callable[[str], Awaitable[DnsAnswer[T]]], name: str) -> tuple[T, ...]:
        if records := await records_of(ask, name):
            return records
        self._voids += 1
        if self._voids > SPF_VOID_LOOKUPS:
            raise SpfPermError(f"more than {SPF_VOID_LOOKUPS} of its names lead nowhere, {_short(name)} too")
        return ()

    def _count(self) -> None:
        self._lookups += 1
        if self._lookups > SPF_LOOKUPS:
            raise SpfPermError(f"receivers would have to ask DNS more than {SPF_LOOKUPS} times")


# ---- records

SENDERS_TIMEOUT = 5  # seconds to look up the addresses of a cluster's nodes
DMARC_POLICIES = ("none", "quarantine", "reject")

_WORST_FIRST = (RecordStatus.DIFFERS, RecordStatus.MISSING, RecordStatus.UNKNOWN, RecordStatus.OK)

_DMARC = re.compile(r"v\s*=\s*DMARC1\s*(?:;|$)")
_TLS_RPT = re.compile(r"v=TLSRPTv1\s*;")  # RFC 8460 3


class CheckedRecord(Struct, frozen=True):
    """A record, what DNS has in its place, and what is wrong with that."""

    record: DnsRecord
    status: RecordStatus
    found: tuple[str, ...] = ()
    note: str = ""
    permerror: bool = False  # an SPF record that is a permanent error to receivers, whatever is added to it

    @property
    def is_wrong(self) -> bool:
        """Whether the owner must correct it: a return path may be missing, but must not lead elsewhere.

        A receiving domain needs an MX record. One to a server that forwards some of its mail is right as well.
        """
        if self.record.kind is RecordKind.RECEIVING_MX:
            return self.status is RecordStatus.MISSING
        if self.record.kind in RETURN_PATH_KINDS:
            return self.status is RecordStatus.DIFFERS
        return self.record.needed and self.status is not RecordStatus.OK


async def check(resolver: Resolver, records: Iterable[DnsRecord], *, for_operator: bool = False) -> list[CheckedRecord]:
    """Check each record in DNS, all at once. Operators see what each resolver did, customers only that it failed."""
    records = list(records)
    checked: dict[DnsRecord, CheckedRecord] = {}

    async def check_one(record: DnsRecord) -> None:
        try:
            checked[record] = await _CHECKS[record.kind](resolver, record)
        except LookupFailed as failed:
            note = failed.text if for_operator else failed.public
            checked[record] = CheckedRecord(record, RecordStatus.UNKNOWN, note=note)

    async with trio.open_nursery() as nursery:
        for record in records:
            nursery.start_soon(check_one, record)
    return [checked[record] for record in records]


def summary(checked: Iterable[CheckedRecord], at: int) -> DomainDns:
    """The worst status of each kind of record. Keys that do not sign yet, or no more, do not count."""
    checked = list(checked)

    def worst(*kinds: RecordKind, needed: bool = True) -> RecordStatus | None:
        statuses = {
            result.status
            for result in checked
            if result.record.kind in kinds and result.record.needed == needed and not result.record.pending
        }
        return next((status for status in _WORST_FIRST if status in statuses), None)

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


def _not_one(record: DnsRecord, found: tuple[str, ...], note: str) -> CheckedRecord:
    return _differs(record, found, note) if found else CheckedRecord(record, RecordStatus.MISSING)


async def _check_dkim(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    texts = await records_of(resolver.txt, record.name)
    if len(texts) != 1:
        return _not_one(record, texts, "there must be one record of this name")
    published, ours = read_tags(texts[0]), read_tags(record.value)
    if (published.get("k", "rsa"), published.get("p", "")) != (ours.get("k", "rsa"), ours.get("p", "")):
        return _differs(record, texts, "it is another key")
    return CheckedRecord(record, RecordStatus.OK, texts)


async def _check_dmarc(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Any policy is right, also a parent domain's, which applies if the domain has no record (RFC 7489 6.6.3)."""
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
    texts = tuple(text for text in await records_of(resolver.txt, record.name) if is_spf(text))
    if len(texts) != 1:
        return _not_one(record, texts, "more than one SPF record: receivers take that for none")
    missing, refused = [], []
    for host in record.hosts:
        addresses = await addresses_of(resolver, host)
        if not addresses:
            return _differs(record, texts, f"{host} has no address in DNS, so nothing lets it in")
        try:
            kept_out = [one for one in addresses if not await permits(resolver, record.name, texts[0], one)]
        except SpfPermError as reason:
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


async def _check_mx(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Whether mail for the name reaches our hosts first. A name without an MX is its own server (RFC 5321 5.1)."""
    exchangers = sorted(await records_of(resolver.mx, record.name), key=lambda mx: (mx.preference, mx.host))
    published = tuple(f"{mx.preference} {mx.host}." for mx in exchangers)
    first = [mx.host for mx in exchangers if mx.preference == exchangers[0].preference] or [record.name]
    reached = {host: await addresses_of(resolver, host) if host else [] for host in first}  # "": a null MX
    if not exchangers and not reached[record.name]:
        return CheckedRecord(record, RecordStatus.MISSING)
    if record.kind is RecordKind.RETURN_PATH_MX and len(record.name) > RETURN_PATH_LENGTH:
        return _differs(record, published, f"a return path has at most {RETURN_PATH_LENGTH} characters")
    own = await addresses_of(resolver, record.hosts[0])
    for host, addresses in reached.items():
        if not addresses:
            note = f"{host} has no address in DNS" if host else "it takes no mail (null MX)"
            return _differs(record, published, note)
        if host not in record.hosts and not set(addresses) <= set(own):
            published = published or tuple(map(str, addresses))
            return _differs(record, published, f"mail for it goes to {host}, not to {record.hosts[0]}")
    note = "" if exchangers else f"by the address of {record.hosts[0]}"
    return CheckedRecord(record, RecordStatus.OK, published, note)


async def _check_tls_rpt(resolver: Resolver, record: DnsRecord) -> CheckedRecord:
    """Reports to any address are right: the domain's owner decides who reads them."""
    texts = tuple(text for text in await records_of(resolver.txt, record.name) if _TLS_RPT.match(text))
    if len(texts) != 1:
        return _not_one(record, texts, "more than one record, so that none counts")
    if not read_tags(texts[0]).get("rua"):
        return _differs(record, texts, "it names no address: rua= is missing")
    return CheckedRecord(record, RecordStatus.OK, texts)


async def find_senders(
    resolver: Resolver,
    config: Config,
    nodes: Iterable[str],
    *,
    ramp: bool = False,
    sources: Iterable[OutgoingSource] = (),
) -> Senders:
    """The hosts that send, by address if a record with their names would exceed the limits of receivers.

    A host whose addresses DNS does not have now keeps its name.
    """
    sending = senders(config, nodes, ramp=ramp, sources=sources)
    if len(sending.hosts) <= SPF_VOID_LOOKUPS:
        return sending
    known: dict[str, list[Address]] = {host: [] for host in sending.hosts}

    async def look_up(host: str) -> None:
        with suppress(LookupFailed):
            known[host] = sorted(await addresses_of(resolver, host), key=lambda one: (one.version, one.packed))

    with trio.move_on_after(SENDERS_TIMEOUT):
        async with trio.open_nursery() as nursery:
            for host in sending.hosts:
                nursery.start_soon(look_up, host)
    # A name without an address of the client's family is a void lookup.
    void = sum(len({address.version for address in addresses}) == 1 for addresses in known.values())
    if len(sending.hosts) <= SPF_NAMES and void <= SPF_VOID_LOOKUPS:
        return sending
    terms = ([str(address) for address in addresses] or [host] for host, addresses in known.items())
    return replace(sending, addresses=tuple(chain.from_iterable(terms)))


async def addresses_of(resolver: Resolver, host: str) -> list[Address]:
    """All addresses of a host, or the address that it is; raises LookupFailed for a temporary failure."""
    try:
        return [ip_address(host)]
    except ValueError:
        return [*await records_of(resolver.ipv4, host), *await records_of(resolver.ipv6, host)]


async def public_addresses(resolver: Resolver, host: str) -> list[Address]:
    """The public addresses of a host; behind NAT they are those that other servers see. None after a failed lookup."""
    try:
        return [address for address in await addresses_of(resolver, host) if refusal(address) is None]
    except LookupFailed:
        return []


_CHECKS = {
    RecordKind.DKIM: _check_dkim,
    RecordKind.SPF: _check_spf,
    RecordKind.DMARC: _check_dmarc,
    RecordKind.RETURN_PATH_MX: _check_mx,
    RecordKind.RETURN_PATH_SPF: _check_spf,
    RecordKind.TLS_RPT: _check_tls_rpt,
    RecordKind.RECEIVING_MX: _check_mx,
}
