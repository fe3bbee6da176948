"""Findings on the DNS records of a From domain: DKIM, SPF, DMARC, MX."""

import re

from appliance.dns.check import CheckedRecord, RecordStatus, addresses_of
from appliance.dns.records import RecordKind
from appliance.dns.resolver import DnsFault, LookupFailed, Mx, Resolver
from appliance.doctor import Finding, FindingLevel, RecordToPublish, not_looked_up, ok, warning

RECORD_LENGTH = 450  # characters of a record that are shown, and of one that our term may be added to
_PLAIN = re.compile(r"[ !#-\[\]-~]+")  # what needs no escapes in a zone

_NAMES = {RecordKind.DKIM: "DKIM", RecordKind.SPF: "SPF", RecordKind.DMARC: "DMARC"}


def judge_record(domain: str, checked: CheckedRecord) -> list[Finding]:
    """One record: a wrong one is a fault if receivers need it, and a warning if it only helps."""
    record = checked.record
    name, subject = _NAMES[record.kind].lower(), domain if record.kind is not RecordKind.DKIM else record.name
    if checked.status is RecordStatus.OK:
        return [ok(name, subject, f"is published{f' ({checked.note})' if checked.note else ''}")]
    if checked.status is RecordStatus.UNKNOWN:
        return [not_looked_up(name, subject, checked.note)]
    text = "is missing" if checked.status is RecordStatus.MISSING else f"is not as it should be: {checked.note}"
    paste = () if _needs_manual_repair(checked) else (RecordToPublish(record.name, record.type, _value(checked)),)
    helps_only = record.kind is RecordKind.DMARC or not record.needed or "k=ed25519" in record.value or record.pending
    level = FindingLevel.WARNING if helps_only else FindingLevel.FAULT
    return [Finding(level, name, subject, text, _advice(checked), paste)]


def _needs_manual_repair(checked: CheckedRecord) -> bool:
    """Whether publishing our record would not help: the one that is there is broken, or right already."""
    return checked.record.kind is RecordKind.SPF and (checked.permerror or _value(checked) in checked.found)


def _value(checked: CheckedRecord) -> str:
    """What to publish. A domain may have one SPF record only, so ours goes into one that is there."""
    record = checked.record
    there = checked.found[0] if len(checked.found) == 1 else ""
    if record.kind is not RecordKind.SPF or not there or len(there) > RECORD_LENGTH or not _PLAIN.fullmatch(there):
        return record.value
    version, term, *_ = record.value.split()
    others = [word for word in there.split()[1:] if word.lower() not in (term, f"+{term}")]
    return " ".join([version, term, *others])  # first, because whatever stands behind `all` is not read


def _advice(checked: CheckedRecord) -> str:
    record = checked.record
    if not record.needed or record.pending:
        return f"{record.purpose}."
    if checked.status is not RecordStatus.DIFFERS:
        return "Publish this record."
    found = " | ".join(text if len(text) <= RECORD_LENGTH else f"{text[:RECORD_LENGTH]}…" for text in checked.found)
    if record.kind is RecordKind.SPF and len(checked.found) > 1:
        return f"Make one record of these, with {record.value.split()[1]} in it: {found}"
    if _needs_manual_repair(checked):
        return f"Mend that first. The record that is there: {found}"
    return f"Publish this record in place of: {found}"


async def check_mx(resolver: Resolver, domain: str) -> list[Finding]:
    """Whether the sender address can receive: some servers refuse a domain that cannot."""
    exchangers: tuple[Mx, ...] = ()
    try:
        exchangers = (await resolver.mx(domain)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return [not_looked_up("mx", domain, failed.text)]
    advice = "Let the domain have an MX: some servers refuse senders that can receive nothing."
    if any(mx.host == "" for mx in exchangers):
        return [warning("mx", domain, "takes no mail (null MX)", advice)]
    try:
        if not exchangers and not await addresses_of(resolver, domain):
            return [warning("mx", domain, "has neither an MX nor an address", advice)]
    except LookupFailed as failed:
        return [not_looked_up("mx", domain, failed.text)]
    hosts = ", ".join(mx.host for mx in sorted(exchangers, key=lambda mx: mx.preference))
    return [ok("mx", domain, f"mail for it goes to {hosts or 'its own address'}")]
