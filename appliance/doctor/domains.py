"""Checks of a sending domain: its DKIM, SPF, DMARC, MX and return-path records, and its DMARC policy."""

import re
from collections.abc import Mapping, Sequence

from appliance.dns.check import DMARC_POLICIES, CheckedRecord, addresses_of, read_tags
from appliance.dns.publishing import SPF_KINDS, value_to_publish
from appliance.dns.records import RETURN_PATH_KINDS, RecordKind
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.dns.wire import Mx
from appliance.doctor import Finding, FindingLevel, RecordToPublish, not_looked_up, ok, warning
from appliance.feedback.dmarc import DmarcState, next_step
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.reports import DmarcStanding

RECORD_LENGTH = 450  # characters of a record that are shown

_CHECKS = dict.fromkeys(RETURN_PATH_KINDS, "return_path")  # other kinds have their own name
_AT_THE_DOMAIN = frozenset((RecordKind.SPF, RecordKind.DMARC, RecordKind.TLS_RPT))
_WHAT = {
    RecordKind.RECEIVING_MX: "its MX ",
    RecordKind.RETURN_PATH_MX: "its MX ",
    RecordKind.RETURN_PATH_SPF: "its SPF record ",
}


def judge_records(domain: str, checked: Sequence[CheckedRecord]) -> list[Finding]:
    """Judge all records of a domain. A return path without an MX record is not a fault.

    Its SPF record alone means nothing: many zones have one for every name without other records.
    """
    has_mx = any(
        one.record.kind is RecordKind.RETURN_PATH_MX and one.status is not RecordStatus.MISSING for one in checked
    )
    return [finding for one in checked for finding in _judge_record(domain, one, uses_return_path=has_mx)]


def _judge_record(domain: str, checked: CheckedRecord, *, uses_return_path: bool) -> list[Finding]:
    """Judge one record: a wrong one is a fault if receivers need it, otherwise a warning."""
    record, missing = checked.record, checked.status is RecordStatus.MISSING
    name, subject = _CHECKS.get(record.kind, record.kind.value), record.name
    subject, what = domain if record.kind in _AT_THE_DOMAIN else subject, _WHAT.get(record.kind, "")
    if record.kind is RecordKind.TLS_RPT and missing:
        return []  # optional, and rare
    if checked.status is RecordStatus.OK:
        return [ok(name, subject, f"{what}is published{f' ({checked.note})' if checked.note else ''}")]
    if checked.status is RecordStatus.UNKNOWN:
        return [not_looked_up(name, subject, checked.note)]
    text = what + ("is missing" if missing else f"is wrong: {checked.note}")
    paste = (
        () if _needs_manual_repair(checked) else (RecordToPublish(record.name, record.type, value_to_publish(checked)),)
    )
    helps_only = record.kind is RecordKind.DMARC or "k=ed25519" in record.value or record.pending
    if record.kind in RETURN_PATH_KINDS:
        helps_only = not uses_return_path
    level = FindingLevel.FAULT if checked.is_wrong and not helps_only else FindingLevel.WARNING
    return [Finding(level, name, subject, text, _advice(checked), paste)]


def _needs_manual_repair(checked: CheckedRecord) -> bool:
    """Whether pasting a record would not help: the published one is broken, contains ours, or is too long to show."""
    is_long = any(len(text) > RECORD_LENGTH for text in checked.found)
    is_useless = checked.permerror or is_long or value_to_publish(checked) in checked.found
    return checked.record.kind in SPF_KINDS and is_useless


def _advice(checked: CheckedRecord) -> str:
    record = checked.record
    if record.pending or (not record.needed and (record.kind is RecordKind.DKIM or not checked.found)):
        return f"{record.purpose}."
    if record.kind is RecordKind.RECEIVING_MX:
        return f"Publish this record if no mailbox of {record.name} is elsewhere, or receive at a subdomain."
    if checked.status is not RecordStatus.DIFFERS:
        return "Publish this record."
    published = " | ".join(text if len(text) <= RECORD_LENGTH else f"{text[:RECORD_LENGTH]}…" for text in checked.found)
    if record.kind in SPF_KINDS and len(checked.found) > 1:
        return f"Merge these into one record that contains {' '.join(record.value.split()[1:-1])}: {published}"
    if _needs_manual_repair(checked):
        return f"Fix that first. The published record: {published}"
    return f"Publish this record instead of: {published}"


async def check_mx(resolver: Resolver, domain: str) -> list[Finding]:
    """Check that the domain can receive mail: some servers refuse senders that cannot."""
    exchangers: tuple[Mx, ...] = ()
    try:
        exchangers = (await resolver.mx(domain)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return [not_looked_up("mx", domain, failed.text)]
    advice = "Publish an MX record: some servers refuse senders that cannot receive mail."
    if any(mx.host == "" for mx in exchangers):
        return [warning("mx", domain, "accepts no mail (null MX)", advice)]
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
    """Return the next step of a domain's DMARC policy. A proposal is only advice: p=none is not a fault.

    Without any report there is no finding, unless the installation receives reports.
    """
    texts = next((one.found for one in checked if one.record.kind is RecordKind.DMARC and not one.note), ())
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
    state, _, advice = text.partition(". ")
    return state, advice
