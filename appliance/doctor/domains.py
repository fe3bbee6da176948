"""In charge of judging the records of a From domain as DNS shows them. PURE."""

import re

from appliance.dns.check import CheckedRecord, RecordStatus
from appliance.dns.records import RecordKind
from appliance.doctor.facts import MxFacts
from appliance.doctor.finding import Finding, Level, Paste, ok, warning

LONGEST = 450  # characters of a record that is shown, and of one that another term is put into
_PLAIN = re.compile(r"[ !#-\[\]-~]+")  # what needs no escapes in a zone

_NAMES = {RecordKind.DKIM: "DKIM", RecordKind.SPF: "SPF", RecordKind.DMARC: "DMARC"}


def judge_record(domain: str, checked: CheckedRecord) -> list[Finding]:
    """One record: what is needed to be believed is a fault when it is wrong, what only helps a warning."""
    record = checked.record
    name, subject = _NAMES[record.kind].lower(), domain if record.kind is not RecordKind.DKIM else record.name
    if checked.status is RecordStatus.OK:
        return [ok(name, subject, f"is published{f' ({checked.note})' if checked.note else ''}")]
    if checked.status is RecordStatus.UNKNOWN:
        return [warning(name, subject, f"could not be looked up: {checked.note}", "Check dns.resolvers.")]
    text = "is missing" if checked.status is RecordStatus.MISSING else f"is not as it should be: {checked.note}"
    paste = () if _needs_a_hand(checked) else (Paste(record.name, record.type, _value(checked)),)
    return [Finding(_level(checked), name, subject, text, _advice(checked), paste)]


def _level(checked: CheckedRecord) -> Level:
    record = checked.record
    helps_only = record.kind is RecordKind.DMARC or not record.needed or "k=ed25519" in record.value
    return Level.WARNING if helps_only else Level.FAULT


def _needs_a_hand(checked: CheckedRecord) -> bool:
    """Whether no record of ours would help: one that is there is spoiled, or right already."""
    return checked.record.kind is RecordKind.SPF and (checked.spoiled or _value(checked) in checked.found)


def _value(checked: CheckedRecord) -> str:
    """What to publish. A domain may have one SPF record only, so ours goes into one that is there."""
    record = checked.record
    there = checked.found[0] if len(checked.found) == 1 else ""
    if record.kind is not RecordKind.SPF or not there or len(there) > LONGEST or not _PLAIN.fullmatch(there):
        return record.value
    version, term, *_ = record.value.split()
    others = [word for word in there.split()[1:] if word.lower() not in (term, f"+{term}")]
    return " ".join([version, term, *others])  # first, because whatever stands behind `all` is not read


def _advice(checked: CheckedRecord) -> str:
    record = checked.record
    if not record.needed:
        return f"{record.purpose}."
    if checked.status is not RecordStatus.DIFFERS:
        return "Publish this record."
    found = " | ".join(text if len(text) <= LONGEST else f"{text[:LONGEST]}…" for text in checked.found)
    if record.kind is RecordKind.SPF and len(checked.found) > 1:
        return f"Make one record of these, with {record.value.split()[1]} in it: {found}"
    if _needs_a_hand(checked):
        return f"Mend that first. The record that is there: {found}"
    return f"Publish this record in place of: {found}"


def judge_keys(domain: str, has_keys: bool) -> list[Finding]:
    """Whether the domain has anything to sign with."""
    if has_keys:
        return []
    text = "has no signing keys yet: they are made with its first message"
    return [warning("dkim", domain, text, "Make them now, and publish what is shown: appliance domain records.")]


def judge_mx(facts: MxFacts) -> list[Finding]:
    """Whether the sender address can receive: some servers refuse a domain that cannot."""
    if facts.mx is None:
        return [warning("mx", facts.domain, f"could not be looked up: {facts.trouble}", "Check dns.resolvers.")]
    advice = "Let the domain have an MX: some servers refuse senders that can receive nothing."
    if any(mx.host == "" for mx in facts.mx):
        return [warning("mx", facts.domain, "takes no mail (null MX)", advice)]
    if not facts.mx and not facts.address:
        return [warning("mx", facts.domain, "has neither an MX nor an address", advice)]
    hosts = ", ".join(mx.host for mx in sorted(facts.mx, key=lambda mx: mx.preference))
    return [ok("mx", facts.domain, f"mail for it goes to {hosts or 'its own address'}")]
