"""DMARC and TLS reports about a domain, as recorded and as shown."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

REPORTS_KEPT_DAYS = 90  # after the day that a report covers
OTHER_SOURCES = ""  # instead of an address: all sources over the limit


class ReportResult(StrEnum):
    RECORDED = "recorded"
    REPEATED = "repeated"  # duplicate id of this organisation
    UNKNOWN_DOMAIN = "unknown_domain"  # not registered at the recipient address
    OUT_OF_TIME = "out_of_time"  # too old, or in the future
    TOO_MANY = "too_many"  # for one domain and day


class DmarcSource(Struct, frozen=True):
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


class DmarcCounts(Struct, frozen=True, kw_only=True):
    """One DMARC aggregate report; sources over the limit are summed under OTHER_SOURCES."""

    org: str
    report_id: str
    begins_at: int  # microseconds
    domain: str
    policy: str
    percentage: int
    sources: tuple[DmarcSource, ...]


class TlsDomainCounts(Struct, frozen=True):
    """Sessions with the servers of one domain; failures by (host name, type)."""

    domain: str
    successes: int
    failures: int
    by_mx: Mapping[tuple[str, str], int]


class TlsCounts(Struct, frozen=True, kw_only=True):
    org: str
    report_id: str
    begins_at: int
    domains: tuple[TlsDomainCounts, ...]


# ---- for display


class DmarcDay(Struct, frozen=True):
    """Messages of a domain on one day (days since 1970, UTC), and the last policy that receivers saw."""

    day: int
    messages: int
    passed: int
    policy: str
    percentage: int


class SeenSource(Struct, frozen=True):
    counts: DmarcSource
    days: int  # seen
    last_day: int


class DmarcStanding(Struct, frozen=True):
    """The reports of one domain, by day and by source, most failures first."""

    reports: int = 0
    days: tuple[DmarcDay, ...] = ()
    sources: tuple[SeenSource, ...] = ()
    own_messages: int = 0  # from sources with any passed mail
    own_passed: int = 0


class TlsDay(Struct, frozen=True):
    day: int
    successes: int
    failures: int


class TlsFailures(Struct, frozen=True):
    mx: str
    type: str
    sessions: int


class TlsStanding(Struct, frozen=True):
    reports: int = 0
    days: tuple[TlsDay, ...] = ()
    failures: tuple[TlsFailures, ...] = ()


class DomainReports(Struct, frozen=True):
    domain: str
    return_path: str
    dmarc: DmarcStanding
    tls: TlsStanding
