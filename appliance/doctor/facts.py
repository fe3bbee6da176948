"""What an examination observes (facts) and what it reports (findings). Pure: no I/O, no state."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from appliance.dns.resolver import Mx
from appliance.net.address_policy import Address


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The server's name in the DNS, and the addresses mail leaves from; None: DNS could not be asked."""

    hostname: str
    addresses: tuple[Address, ...] | None  # of the name
    leaving: tuple[Address, ...]  # source addresses of mail, as far as the machine knows; none behind a NAT
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class PtrFacts:
    """The reverse name of one address, and the addresses of each name that was found; None: could not be asked."""

    address: Address
    hostname: str
    names: tuple[str, ...] | None
    confirmed: tuple[str, ...] = ()  # those of the names that lead back to the address
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class MailServerProbe:
    """An attempt to reach a mail server: its greeting, or why there is none."""

    target: str
    greeting: str | None
    trouble: str = ""
    dialled: bool = True  # False: its name could not be looked up


@dataclass(frozen=True, slots=True)
class Listing:
    """What a blocklist says of an address: the codes of its answer, none when it is not listed."""

    blocklist: str
    address: Address
    codes: tuple[str, ...] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MxFacts:
    """The MX of a From domain: None when DNS could not be asked; `address` when it has none, but is a host."""

    domain: str
    mx: tuple[Mx, ...] | None
    address: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Space where the database lies, in bytes."""

    directory: Path
    free: int
    total: int
    refused_below: int  # 0: the watermark is off


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The certificate of a listener; `trouble` when it could not be read, or its key does not match."""

    section: str  # of the settings: http or smtp
    file: Path | None  # None: none is configured
    names: tuple[str, ...] = ()
    not_before: datetime | None = None
    not_after: datetime | None = None
    key_mode: int = 0o600
    exposed: bool = False  # whether its listener can be reached from anywhere
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class AcmeFacts:
    """The certificate that ACME renews, without dates where there is none yet; and the result of the last try."""

    file: Path
    wanted: tuple[str, ...]  # the names it should be for
    renew_before: float | None = None
    names: frozenset[str] = frozenset()
    not_before: datetime | None = None
    not_after: datetime | None = None
    failures: int = 0  # in a row
    error: str = ""
    advice: str = ""
    next_try: int = 0  # seconds since 1970
    trouble: str = ""  # why it cannot be read


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """An address to listen on: whether it answers, and, if not, why it could not be bound."""

    key: str
    address: str
    answers: bool
    trouble: str = ""
    exposed: bool = False  # whether it can be reached from anywhere


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The database, and what goes with it."""

    path: Path
    exists: bool = True
    damage: str = ""
    finished: bool = True  # whether the check came to its end in the time it had
    schema: int = 0
    newest_schema: int = 0
    open_to_others: tuple[Path, ...] = ()
    unopened_keys: tuple[str, ...] = ()  # domains whose signing keys the key file does not open
    unopened_secrets: tuple[str, ...] = ()  # accounts whose webhook secret it does not open


# ---- findings


class FindingLevel(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"  # mail is delivered, but something is wrong or could not be checked
    FAULT = "fault"  # mail is not delivered, or not trusted by receivers


@dataclass(frozen=True, slots=True)
class RecordToPublish:
    """A DNS record, as it is written in a zone."""

    name: str
    type: str
    value: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `check` is the kind of thing, `subject` which one, `text` its state."""

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
