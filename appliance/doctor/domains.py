"""In charge of judging the records of a From domain as DNS shows them. PURE."""

from appliance.dns_check import Checked, Status
from appliance.dns_records import Kind
from appliance.doctor.facts import MxFacts
from appliance.doctor.finding import Finding, Level, Paste, ok, warning

_NAMES = {Kind.DKIM: "DKIM", Kind.SPF: "SPF", Kind.DMARC: "DMARC"}


def judge_record(domain: str, checked: Checked) -> list[Finding]:
    """One record: what is needed to be believed is a fault when it is wrong, what only helps a warning."""
    record = checked.record
    name, subject = _NAMES[record.kind].lower(), domain if record.kind is not Kind.DKIM else record.name
    if checked.status is Status.OK:
        return [ok(name, subject, f"is published{f' ({checked.note})' if checked.note else ''}")]
    if checked.status is Status.UNKNOWN:
        return [warning(name, subject, f"could not be looked up: {checked.note}", "Check dns.resolvers.")]
    text = "is missing" if checked.status is Status.MISSING else f"is not as it should be: {checked.note}"
    paste = Paste(record.name, record.type, record.value)
    return [Finding(_level(checked), name, subject, text, _advice(checked), (paste,))]


def _level(checked: Checked) -> Level:
    record = checked.record
    helps_only = record.kind is Kind.DMARC or not record.needed or "k=ed25519" in record.value
    return Level.WARNING if helps_only else Level.FAULT


def _advice(checked: Checked) -> str:
    record = checked.record
    if not record.needed:
        return f"{record.purpose}."
    if record.kind is Kind.SPF and checked.status is Status.DIFFERS:
        term = record.value.split()[1]
        return f"Put {term} into the record that is there: {' | '.join(checked.found)}"
    if checked.status is Status.DIFFERS:
        return f"Publish this record in place of: {' | '.join(checked.found)}"
    return "Publish this record."


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
