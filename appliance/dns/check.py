"""Checks in DNS whether the records that a sending domain needs are published and right: DKIM, SPF and DMARC."""

import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

import trio

from appliance.dns import spf
from appliance.dns.records import DnsRecord, RecordKind, spf_term
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.net.address_policy import Address


class RecordStatus(StrEnum):
    """Whether DNS has a record as it should be."""

    OK = "ok"
    MISSING = "missing"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # the lookup failed


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """A record, what DNS has in its place, and what is wrong with that."""

    record: DnsRecord
    status: RecordStatus
    found: tuple[str, ...] = ()
    note: str = ""
    permerror: bool = False  # an SPF record that is a permanent error to receivers, whatever is added to it


async def check(
    resolver: Resolver, sending_host: str, wanted: Iterable[DnsRecord], *, for_operator: bool = False
) -> list[CheckedRecord]:
    """Each record as DNS has it now, in the order given; all are looked up at once.

    Operators see what each resolver did, customers only that there was no answer.
    """
    wanted = list(wanted)
    checked: dict[DnsRecord, CheckedRecord] = {}

    async def check_one(record: DnsRecord) -> None:
        try:
            checked[record] = await _CHECKS[record.kind](resolver, sending_host, record)
        except LookupFailed as failed:
            note = failed.text if for_operator else failed.public
            checked[record] = CheckedRecord(record, RecordStatus.UNKNOWN, note=note)

    async with trio.open_nursery() as nursery:
        for record in wanted:
            nursery.start_soon(check_one, record)
    return [checked[record] for record in wanted]


async def _texts(resolver: Resolver, name: str) -> tuple[str, ...]:
    try:
        return (await resolver.txt(name)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            raise
        return ()


def read_tags(text: str) -> dict[str, str]:
    """The tags of a DKIM or DMARC record, RFC 6376 3.2; whitespace in a value is ignored."""
    pairs = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip(): "".join(value.split()) for name, _, value in pairs}


def _differs(record: DnsRecord, found: tuple[str, ...], note: str) -> CheckedRecord:
    return CheckedRecord(record, RecordStatus.DIFFERS, found, note)


# ---- DKIM


async def _check_dkim(resolver: Resolver, _: str, record: DnsRecord) -> CheckedRecord:
    found = await _texts(resolver, record.name)
    if not found:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(found) > 1:
        return _differs(record, found, "there must be one record of this name")
    if _key_of(found[0]) != _key_of(record.value):
        return _differs(record, found, "it is another key")
    return CheckedRecord(record, RecordStatus.OK, found)


def _key_of(text: str) -> tuple[str, str]:
    read = read_tags(text)
    return read.get("k", "rsa"), read.get("p", "")


# ---- DMARC

DMARC_POLICIES = ("none", "quarantine", "reject")
_DMARC = re.compile(r"v\s*=\s*DMARC1\s*(?:;|$)")


async def _check_dmarc(resolver: Resolver, _: str, record: DnsRecord) -> CheckedRecord:
    """Any policy is right, also that of a parent domain, which counts where the domain has none (RFC 7489 6.6.3)."""
    labels = record.name.removeprefix("_dmarc.").split(".")
    for at in range(max(1, len(labels) - 1)):
        name = "_dmarc." + ".".join(labels[at:])
        found = tuple(text for text in await _texts(resolver, name) if _DMARC.match(text))
        if len(found) > 1:
            return _differs(record, found, f"{name} has more than one DMARC record, so none counts")
        if found and read_tags(found[0]).get("p", "").lower() not in DMARC_POLICIES:
            return _differs(record, found, f"it names no policy: p= must be {' or '.join(DMARC_POLICIES)}")
        if found:
            return CheckedRecord(record, RecordStatus.OK, found, "" if at == 0 else f"by {name}")
    return CheckedRecord(record, RecordStatus.MISSING)


# ---- SPF


async def _check_spf(resolver: Resolver, host: str, record: DnsRecord) -> CheckedRecord:
    found = tuple(text for text in await _texts(resolver, record.name) if spf.is_spf(text))
    if not found:
        return CheckedRecord(record, RecordStatus.MISSING)
    if len(found) > 1:
        return _differs(record, found, "more than one SPF record: receivers take that for none")
    addresses = await addresses_of(resolver, host)
    if not addresses:
        return _differs(record, found, f"{host} has no address in DNS, so nothing lets it in")
    try:
        refused = [each for each in addresses if not await spf.permits(resolver, record.name, found[0], each)]
    except spf.SpfPermError as reason:
        return CheckedRecord(record, RecordStatus.DIFFERS, found, f"receivers give up on it: {reason}", permerror=True)
    if not refused:
        return CheckedRecord(record, RecordStatus.OK, found)
    source = "" if len(refused) == len(addresses) else f" from {', '.join(map(str, refused))}"
    note = f"it does not let {host} send{source}: put {spf_term(host)} into it"
    return _differs(record, found, note)


async def addresses_of(resolver: Resolver, host: str) -> list[Address]:
    """All addresses of a host, or the address that it is; raises LookupFailed for a temporary failure."""
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    found: list[Address] = []
    for ask in (resolver.ipv4, resolver.ipv6):
        try:
            found += (await ask(host)).records
        except LookupFailed as failed:
            if failed.fault is DnsFault.TEMPORARY:
                raise
    return found


_Check = Callable[[Resolver, str, DnsRecord], Coroutine[Any, Any, CheckedRecord]]
_CHECKS: dict[RecordKind, _Check] = {
    RecordKind.DKIM: _check_dkim,
    RecordKind.SPF: _check_spf,
    RecordKind.DMARC: _check_dmarc,
}
