"""In charge of what an examination says: a line for each thing that was looked at, and what to do about it. PURE."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How it stands with one thing."""

    OK = "ok"
    WARNING = "warning"  # mail goes, but something is not as it should be, or could not be found out
    FAULT = "fault"  # mail does not go, or is not believed


@dataclass(frozen=True, slots=True)
class Paste:
    """A DNS record to publish, as it stands in a zone."""

    name: str
    type: str
    value: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `check` is what kind of thing, `subject` which one, `text` how it stands, `advice` what to do."""

    level: Level
    check: str
    subject: str
    text: str
    advice: str = ""
    records: tuple[Paste, ...] = ()


def ok(check: str, subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, check, subject, text)


def warning(check: str, subject: str, text: str, advice: str = "", *records: Paste) -> Finding:
    """Mail goes all the same."""
    return Finding(Level.WARNING, check, subject, text, advice, records)


def fault(check: str, subject: str, text: str, advice: str, *records: Paste) -> Finding:
    """Something has to be done."""
    return Finding(Level.FAULT, check, subject, text, advice, records)
