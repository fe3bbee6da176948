"""What is kept of reports about a domain, as they are recorded and as they are shown: frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

REPORTS_KEPT_DAYS = 90  # counted from the day that a report is about
OTHER_SOURCES = ""  # in place of an address: all sources over the limit


class ReportResult(StrEnum):
    """What became of a report that was read."""

    RECORDED = "recorded"
    REPEATED = "repeated"  # this organisation sent a report of this id before
    UNKNOWN_DOMAIN = "unknown_domain"  # its domain is not registered at the address that it was sent to
    OUT_OF_TIME = "out_of_time"  # about a day that is not kept any more, or that has not come
    TOO_MANY = "too_many"  # about one domain and one day


@dataclass(frozen=True, slots=True)
class DmarcSource:
    """Messages in a domain's name from one address; `dkim` and `spf` passed and were aligned, `passed` had either."""

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
    """What is recorded of one DMARC aggregate report; few sources, the other ones summed under OTHER_SOURCES."""

    org: str
    report_id: str
    begins_at: int  # microseconds
    domain: str
    policy: str
    percentage: int
    sources: tuple[DmarcSource, ...]


@dataclass(frozen=True, slots=True)
class TlsDomainCounts:
    """Sessions with the servers of one domain, and the failed ones by (host name, type of failure)."""

    domain: str
    successes: int
    failures: int
    by_mx: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsCounts:
    """What is recorded of one TLS report."""

    org: str
    report_id: str
    begins_at: int
    domains: tuple[TlsDomainCounts, ...]


# ---- as they are shown


@dataclass(frozen=True, slots=True)
class DmarcDay:
    """The messages of a day (days since 1970, UTC) in a domain's name, and the policy that receivers saw last."""

    day: int
    messages: int
    passed: int
    policy: str
    percentage: int


@dataclass(frozen=True, slots=True)
class SeenSource:
    """What one source sent in some days."""

    counts: DmarcSource
    days: int  # on which it was seen
    last_day: int


@dataclass(frozen=True, slots=True)
class DmarcStanding:
    """What reports say of one domain, by day and by source: those with the most failures first."""

    reports: int = 0
    days: tuple[DmarcDay, ...] = ()
    sources: tuple[SeenSource, ...] = ()
    own_messages: int = 0  # of sources of which any mail passed
    own_passed: int = 0


@dataclass(frozen=True, slots=True)
class TlsDay:
    day: int
    successes: int
    failures: int


@dataclass(frozen=True, slots=True)
class TlsFailures:
    """Sessions that failed in one way at one server."""

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
    """One domain, where its reports are sent, and what they say."""

    domain: str
    return_path: str
    dmarc: DmarcStanding
    tls: TlsStanding
