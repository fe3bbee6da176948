"""`appliance doctor`: checks everything that mail depends on; a finding says what is wrong and what to do."""

from enum import StrEnum

from msgspec import Struct


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"  # mail is delivered, but something is wrong or could not be checked
    FAULT = "fault"  # mail is not delivered, or not trusted by receivers


class RecordToPublish(Struct, frozen=True):
    name: str
    type: str
    value: str


class Finding(Struct, frozen=True):
    """One line of the report: `check` is the kind of check, `subject` its object, `text` the result."""

    level: FindingLevel
    check: str
    subject: str
    text: str
    advice: str = ""
    records: tuple[RecordToPublish, ...] = ()


def ok(check: str, subject: str, text: str) -> Finding:
    return Finding(FindingLevel.OK, check, subject, text)


def warning(check: str, subject: str, text: str, advice: str = "", *records: RecordToPublish) -> Finding:
    return Finding(FindingLevel.WARNING, check, subject, text, advice, records)


def fault(check: str, subject: str, text: str, advice: str, *records: RecordToPublish) -> Finding:
    return Finding(FindingLevel.FAULT, check, subject, text, advice, records)


def not_looked_up(check: str, subject: str, why: str) -> Finding:
    return warning(check, subject, f"could not be looked up: {why}", "Check dns.resolvers.")
