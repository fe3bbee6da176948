"""In charge of asking DNS whether the records a domain needs are published as they should be."""

import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

import trio

from appliance.dns import spf
from appliance.dns.records import DnsRecord, Kind, spf_term
from appliance.dns.resolver import Fault, LookupFailed, Resolver
from appliance.net.address_policy import Address


class Status(StrEnum):
    """What DNS shows of a record."""

    OK = "ok"
    MISSING = "missing"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # DNS could not be asked


@dataclass(frozen=True, slots=True)
class Checked:
    """A record, what DNS shows in its place, and what is wrong with that."""

    record: DnsRecord
    status: Status
    found: tuple[str, ...] = ()
    note: str = ""
    spoiled: bool = False  # an SPF record that receivers give up on, whatever is put into it


async def check(
    resolver: Resolver, sending_host: str, wanted: Iterable[DnsRecord], *, for_operator: bool = False
) -> list[Checked]:
    """Each record as DNS shows it now, in the order given; all are asked for at once.

    An operator is told what each resolver did, a customer only that there was no answer.
    """
    wanted = list(wanted)
    checked: dict[DnsRecord, Checked] = {}

    async def check_one(record: DnsRecord) -> None:
        try:
            checked[record] = await _CHECKS[record.kind](resolver, sending_host, record)
        except LookupFailed as failed:
            note = failed.text if for_operator else failed.public
            checked[record] = Checked(record, Status.UNKNOWN, note=note)

    async with trio.open_nursery() as nursery:
        for record in wanted:
            nursery.start_soon(check_one, record)
    return [checked[record] for record in wanted]


async def _texts(resolver: Resolver, name: str) -> tuple[str, ...]:
    """The texts at a name, none when DNS says that there are none."""
    try:
        return (await resolver.txt(name)).records
    except LookupFailed as failed:
        if failed.fault is Fault.TEMPORARY:
            raise
        return ()


def tags(text: str) -> dict[str, str]:
    """The tags of a DKIM or DMARC record, RFC 6376 3.2; space within a value means nothing."""
    pairs = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip(): "".join(value.split()) for name, _, value in pairs}


# ---- DKIM


async def _check_dkim(resolver: Resolver, _: str, record: DnsRecord) -> Checked:
    found = await _texts(resolver, record.name)
    if not found:
        return Checked(record, Status.MISSING)
    if len(found) > 1:
        return Checked(record, Status.DIFFERS, found, "there must be one record of this name")
    same = _key_of(found[0]) == _key_of(record.value)
    return Checked(record, Status.OK if same else Status.DIFFERS, found, "" if same else "it is another key")


def _key_of(text: str) -> tuple[str, str]:
    read = tags(text)
    return read.get("k", "rsa"), read.get("p", "")


# ---- DMARC

POLICIES = ("none", "quarantine", "reject")
_DMARC = re.compile(r"v\s*=\s*DMARC1\s*(?:;|$)")


async def _check_dmarc(resolver: Resolver, _: str, record: DnsRecord) -> Checked:
    """Any policy will do, also that of a domain above, which counts where the domain has none (RFC 7489 6.6.3)."""
    labels = record.name.removeprefix("_dmarc.").split(".")
    for at in range(max(1, len(labels) - 1)):
        name = "_dmarc." + ".".join(labels[at:])
        found = tuple(text for text in await _texts(resolver, name) if _DMARC.match(text))
        if len(found) > 1:
            return Checked(record, Status.DIFFERS, found, f"{name} has more than one DMARC record, so none counts")
        if found and tags(found[0]).get("p", "").lower() not in POLICIES:
            return Checked(record, Status.DIFFERS, found, f"it names no policy: p= must be {' or '.join(POLICIES)}")
        if found:
            return Checked(record, Status.OK, found, "" if at == 0 else f"by {name}")
    return Checked(record, Status.MISSING)


# ---- SPF


async def _check_spf(resolver: Resolver, host: str, record: DnsRecord) -> Checked:
    found = tuple(text for text in await _texts(resolver, record.name) if spf.is_spf(text))
    if not found:
        return Checked(record, Status.MISSING)
    if len(found) > 1:
        return Checked(record, Status.DIFFERS, found, "more than one SPF record: receivers take that for none")
    addresses = await addresses_of(resolver, host)
    if not addresses:
        return Checked(record, Status.DIFFERS, found, f"{host} has no address in DNS, so nothing lets it in")
    try:
        refused = [each for each in addresses if not await spf.lets_in(resolver, record.name, found[0], each)]
    except spf.Unusable as reason:
        return Checked(record, Status.DIFFERS, found, f"receivers give up on it: {reason}", spoiled=True)
    if not refused:
        return Checked(record, Status.OK, found)
    source = "" if len(refused) == len(addresses) else f" from {', '.join(map(str, refused))}"
    note = f"it does not let {host} send{source}: put {spf_term(host)} into it"
    return Checked(record, Status.DIFFERS, found, note)


async def addresses_of(resolver: Resolver, host: str) -> list[Address]:
    """All addresses of a host, or the address that it is; raises LookupFailed when nobody can say."""
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    found: list[Address] = []
    for ask in (resolver.ipv4, resolver.ipv6):
        try:
            found += (await ask(host)).records
        except LookupFailed as failed:
            if failed.fault is Fault.TEMPORARY:
                raise
    return found


_Check = Callable[[Resolver, str, DnsRecord], Coroutine[Any, Any, Checked]]
_CHECKS: dict[Kind, _Check] = {Kind.DKIM: _check_dkim, Kind.SPF: _check_spf, Kind.DMARC: _check_dmarc}
