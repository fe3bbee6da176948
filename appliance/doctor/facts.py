"""In charge of what an examination observes, before anybody judges it: plain facts. PURE."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from appliance.dns.resolver import Mx
from appliance.model.queue import PoolHold
from appliance.net.address_policy import Address


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What DNS shows of the server's name, and the addresses mail leaves from; None: DNS could not be asked."""

    hostname: str
    addresses: tuple[Address, ...] | None  # of the name
    leaving: tuple[Address, ...]  # where mail leaves from, as far as the machine knows; none behind a NAT
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
class Knock:
    """A try to reach a mail server: what it said first, or why not."""

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
    """Who takes mail for a From domain: None when DNS could not be asked; `address` when it has none, but is a host."""

    domain: str
    mx: tuple[Mx, ...] | None
    address: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """Whether the system keeps the clock right (None: it does not say), and the newest message's time."""

    now: int
    synchronised: bool | None
    newest_message_at: int | None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Space where the database lies, in bytes."""

    directory: Path
    free: int
    total: int
    refused_below: int  # 0: the watermark is off


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """A certificate that a listener shows; `trouble` when it could not be read, or its key does not fit."""

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
    """The certificate that ACME keeps, without dates where there is none yet; and how the last try to get one went."""

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
    trouble: str = ""  # why it cannot be looked at


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """An address to listen on: whether it answers, and, if not, why it could not be had."""

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


@dataclass(frozen=True, slots=True)
class HeldFacts:
    """Mail that somebody, or the server itself, holds back."""

    holds: tuple[PoolHold, ...]
