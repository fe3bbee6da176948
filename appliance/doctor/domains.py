"""Findings on a From domain: its records for DKIM, SPF, DMARC, MX and its return path, and its DMARC policy."""

import re
from collections.abc import Mapping, Sequence

from appliance.dns.check import DMARC_POLICIES, CheckedRecord, addresses_of, read_tags
from appliance.dns.records import RETURN_PATH_KINDS, RecordKind
from appliance.dns.resolver import DnsFault, LookupFailed, Mx, Resolver
from appliance.doctor import Finding, FindingLevel, RecordToPublish, not_looked_up, ok, warning
from appliance.feedback.dmarc_policy import DmarcState, next_step
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.reports import DmarcStanding

RECORD_LENGTH = 450  # characters of a record that are shown, and of one that our term may be added to
_PLAIN = re.compile(r"[ !#-\[\]-~]+")  # what needs no escapes in a zone

_CHECKS = dict.fromkeys(RETURN_PATH_KINDS, "return_path")  # of other kinds as the kind is called
_AT_THE_DOMAIN = frozenset((RecordKind.SPF, RecordKind.DMARC, RecordKind.TLS_RPT))
_SPF = frozenset((RecordKind.SPF, RecordKind.RETURN_PATH_SPF))
_WHAT = {RecordKind.RETURN_PATH_MX: "its MX ", RecordKind.RETURN_PATH_SPF: "its SPF record "}


def judge_records(domain: str, checked: Sequence[CheckedRecord]) -> list[Finding]:
    """All records of a domain. Nothing is wrong with a return path that nothing was published for.

    Many zones have an SPF record for every name that has no other.
    """
    begun = any(
        each.record.kind is RecordKind.RETURN_PATH_MX and each.status is not RecordStatus.MISSING for each in checked
    )
    return [finding for each in checked for finding in _judge_record(domain, each, return_path_begun=begun)]


def _judge_record(domain: str, checked: CheckedRecord, *, return_path_begun: bool) -> list[Finding]:
    """One record: a wrong one is a fault if receivers need it, and a warning if it only helps."""
    record, missing = checked.record, checked.status is RecordStatus.MISSING
    name, subject = _CHECKS.get(record.kind, record.kind.value), record.name
    subject, what = domain if record.kind in _AT_THE_DOMAIN else subject, _WHAT.get(record.kind, "")
    if record.kind is RecordKind.TLS_RPT and missing:
        return []  # few domains have one, and none needs it
    if checked.status is RecordStatus.OK:
        return [ok(name, subject, f"{what}is published{f' ({checked.note})' if checked.note else ''}")]
    if checked.status is RecordStatus.UNKNOWN:
        return [not_looked_up(name, subject, checked.note)]
    text = what + ("is missing" if missing else f"is not as it should be: {checked.note}")
    paste = () if _needs_manual_repair(checked) else (RecordToPublish(record.name, record.type, _value(checked)),)
    helps_only = record.kind is RecordKind.DMARC or "k=ed25519" in record.value or record.pending
    if record.kind in RETURN_PATH_KINDS:
        helps_only = not return_path_begun
    level = FindingLevel.FAULT if checked.is_wrong and not helps_only else FindingLevel.WARNING
    return [Finding(level, name, subject, text, _advice(checked), paste)]


def _needs_manual_repair(checked: CheckedRecord) -> bool:
    """Whether publishing our record would not help: the one that is there is broken, or right already."""
    return checked.record.kind in _SPF and (checked.permerror or _value(checked) in checked.found)


def _value(checked: CheckedRecord) -> str:
    """What to publish. A domain may have one SPF record only, so ours goes into one that is there."""
    record = checked.record
    there = checked.found[0] if len(checked.found) == 1 else ""
    if record.kind not in _SPF or not there or len(there) > RECORD_LENGTH or not _PLAIN.fullmatch(there):
        return record.value
    version, term, *_ = record.value.split()
    others = [word for word in there.split()[1:] if word.lower() not in (term, f"+{term}")]
    return " ".join([version, term, *others])  # first, because whatever stands behind `all` is not read


def _advice(checked: CheckedRecord) -> str:
    record = checked.record
    if record.pending or (not record.needed and (record.kind is RecordKind.DKIM or not checked.found)):
        return f"{record.purpose}."
    if checked.status is not RecordStatus.DIFFERS:
        return "Publish this record."
    found = " | ".join(text if len(text) <= RECORD_LENGTH else f"{text[:RECORD_LENGTH]}…" for text in checked.found)
    if record.kind in _SPF and len(checked.found) > 1:
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


# ---- the policy


def judge_policy(
    sender: Domain, standing: DmarcStanding, checked: Sequence[CheckedRecord], *, receives: bool
) -> list[Finding]:
    """The next step of a domain's DMARC policy. A proposal is advice: nothing is wrong with a policy that only watches.

    Without a report nothing is said where the installation does not take any.
    """
    texts = next((each.found for each in checked if each.record.kind is RecordKind.DMARC and not each.note), ())
    tags = read_tags(texts[0]) if len(texts) == 1 else {}
    published = _published(tags)
    if not standing.days and not (receives and published):
        return []
    step = next_step(standing, sender.return_path, published)
    if step.state is DmarcState.MEND:
        return [warning("dmarc", sender.name, *_halves(step.text))]
    records: tuple[RecordToPublish, ...] = ()
    if step.proposed and published:
        value = "; ".join(f"{name}={value}" for name, value in (tags | {"p": step.proposed}).items() if name != "pct")
        records = (RecordToPublish(f"_dmarc.{sender.name}", "TXT", value),)
    return [Finding(FindingLevel.OK, "dmarc", sender.name, *_halves(step.text), records)]


def _published(tags: Mapping[str, str]) -> tuple[str, int] | None:
    policy, percentage = tags.get("p", "").lower(), tags.get("pct", "")
    if policy not in DMARC_POLICIES:
        return None
    return policy, min(int(percentage), 100) if re.fullmatch(r"[0-9]{1,3}", percentage) else 100


def _halves(text: str) -> tuple[str, str]:
    """What is so, and what to do."""
    said, _, advice = text.partition(". ")
    return said, advice
