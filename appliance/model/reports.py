"""DMARC and TLS reports about a domain, as recorded and as shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

REPORTS_KEPT_DAYS = 90  # after the day that a report covers
OTHER_SOURCES = ""  # instead of an address: all sources over the limit


class ReportResult(StrEnum):
    """The result of processing a report."""

    RECORDED = "recorded"
    REPEATED = "repeated"  # duplicate id of this organisation
    UNKNOWN_DOMAIN = "unknown_domain"  # not registered at the recipient address
    OUT_OF_TIME = "out_of_time"  # too old, or in the future
    TOO_MANY = "too_many"  # for one domain and day


@dataclass(frozen=True, slots=True)
class DmarcSource:
    """Messages of a domain from one address; `dkim` and `spf`: passed and aligned; `passed`: either."""

    address: str
    messages: int
    passed: int
    dkim: int
    spf: int
    quarantined: int
    rejected: int

    @property
    def failed(self) -> int:
        return self.messages - self.passed


@dataclass(frozen=True, slots=True, kw_only=True)
class DmarcCounts:
    """One DMARC aggregate report; sources over the limit are summed under OTHER_SOURCES."""

    org: str
    report_id: str
    begins_at: int  # microseconds
    domain: str
    policy: str
    percentage: int
    sources: tuple[DmarcSource, ...]


@dataclass(frozen=True, slots=True)
class TlsDomainCounts:
    """Sessions with the servers of one domain; failures by (host name, type)."""

    domain: str
    successes: int
    failures: int
    by_mx: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsCounts:
    """One TLS report."""

    org: str
    report_id: str
    begins_at: int
    domains: tuple[TlsDomainCounts, ...]


# ---- for display


@dataclass(frozen=True, slots=True)
class DmarcDay:
    """Messages of a domain on one day (days since 1970, UTC), and the last policy that receivers saw."""

    day: int
    messages: int
    passed: int
    policy: str
    percentage: int


@dataclass(frozen=True, slots=True)
class SeenSource:
    """One source over several days."""

    counts: DmarcSource
    days: int  # seen
    last_day: int


@dataclass(frozen=True, slots=True)
class DmarcStanding:
    """The reports of one domain, by day and by source, most failures first."""

    reports: int = 0
    days: tuple[DmarcDay, ...] = ()
    sources: tuple[SeenSource, ...] = ()
    own_messages: int = 0  # from sources with any passed mail
    own_passed: int = 0


@dataclass(frozen=True, slots=True)
class TlsDay:
    day: int
    successes: int
    failures: int


@dataclass(frozen=True, slots=True)
class TlsFailures:
    """Failed sessions of one type at one server."""

    mx: str
    type: str
    sessions: int


@dataclass(frozen=True, slots=True)
class TlsStanding:
    reports: int = 0
    days: tuple[TlsDay, ...] = ()
    failures: tuple[TlsFailures, ...] = ()


@dataclass(frozen=True, slots=True)
class DomainReports:
    """One domain, the address of its reports, and their results."""

    domain: str
    return_path: str
    dmarc: DmarcStanding
    tls: TlsStanding
