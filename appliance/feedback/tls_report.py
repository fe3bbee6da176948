"""TLS reports (RFC 8460): how often other servers reached a domain's mail servers by TLS, and what failed where. No
I/O; raises UnreadableReport only.

The JSON is decoded into the few fields that are used; what else it has is passed over. A document of empty values would
take fifty times its size when decoded, so values are counted before. One call decodes the whole, and keeps the
interpreter lock: hence the limit to its size.
"""

import ipaddress
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from appliance.feedback.report_file import UnreadableReport, report_file
from appliance.message.decoding import one_line
from appliance.message.reader import ContentPart
from appliance.model.reports import TlsCounts, TlsDomainCounts
from appliance.times import SECOND

TLS_POLICIES: Final = 1_000  # in one report
TLS_FAILURES: Final = 10_000  # in one report
TLS_DOMAINS: Final = 100  # of one report that are recorded
FAILURES_PER_DOMAIN: Final = 100  # of one report that are recorded
SESSIONS_PER_POLICY: Final = 10**9  # so that no sum of reports is too large for a database
_DOCUMENT_BYTES: Final = 2 * 1024 * 1024  # at 2.7 ns each, to be decoded; 7,000 failures of 300 have room
_OBJECTS: Final = 25_000  # in the JSON: those of so many failures and policies
_VALUES: Final = 100_000
_SHOWN: Final = 255  # characters of a text
_MX_HOSTS: Final = 50  # of one policy
_COUNT: Final = 10**12

_KINDS: Final = ("application/tlsrpt+gzip", "application/tlsrpt+json", "application/json", "application/gzip")
_ENDINGS: Final = (".json", ".json.gz", ".gz")

_Number = Annotated[int, Meta(ge=0)]


class _Range(Struct):
    start: str = field(name="start-datetime")
    end: str = field(name="end-datetime")


class _Policy(Struct):
    kind: str = field(name="policy-type", default="")
    domain: str = field(name="policy-domain", default="")
    mx_hosts: list[str] | str | None = field(name="mx-host", default=None)


class _Summary(Struct):
    successes: _Number = field(name="total-successful-session-count", default=0)
    failures: _Number = field(name="total-failure-session-count", default=0)


class _Failure(Struct):
    result: str = field(name="result-type", default="")
    mx: str | None = field(name="receiving-mx-hostname", default=None)
    helo: str | None = field(name="receiving-mx-helo", default=None)
    sending_ip: str | None = field(name="sending-mta-ip", default=None)
    count: _Number = field(name="failed-session-count", default=0)
    reason: str | None = field(name="failure-reason-code", default=None)


class _Result(Struct):
    policy: _Policy
    summary: _Summary = field(default_factory=_Summary)
    failures: list[_Failure] | None = field(name="failure-details", default=None)


class _Document(Struct):
    dates: _Range = field(name="date-range")
    policies: list[_Result]
    org: str | None = field(name="organization-name", default=None)
    report_id: str | None = field(name="report-id", default=None)


_DECODER: Final = msgspec.json.Decoder(_Document, strict=False)  # some write counts as text


@dataclass(frozen=True, slots=True)
class TlsFailure:
    """Sessions that failed in one way at one server; `result` is a word of RFC 8460 4.3."""

    result: str
    mx: str
    sending_ip: str | None
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class TlsPolicyResult:
    """What happened under one policy: `sts`, `tlsa` or `no-policy-found`."""

    kind: str
    domain: str
    mx_hosts: tuple[str, ...]
    successes: int
    failures: int
    details: tuple[TlsFailure, ...]


@dataclass(frozen=True, slots=True)
class TlsReport:
    """One sender's report; `left_out` counts policies and failures over the limits."""

    org: str
    report_id: str
    begins_at: int  # microseconds
    ends_at: int
    policies: tuple[TlsPolicyResult, ...]
    left_out: int


def read_tls_report(mime: bytes) -> TlsReport:
    """The report that a message carries. Raises UnreadableReport."""
    return parse_tls_report(report_file(mime, _may_be_report))


def tls_counts(mime: bytes) -> TlsCounts:
    """What is recorded of the report that a message carries. Raises UnreadableReport."""
    return by_domain(read_tls_report(mime))


def by_domain(report: TlsReport) -> TlsCounts:
    """A report by domain. Of many failures those of the most sessions are kept apart."""
    sessions: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    failures: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for policy in report.policies:
        sessions[policy.domain][True] += min(policy.successes, SESSIONS_PER_POLICY)
        sessions[policy.domain][False] += min(policy.failures, SESSIONS_PER_POLICY)
        for failure in policy.details:
            failures[policy.domain][failure.mx, failure.result] += min(failure.count, SESSIONS_PER_POLICY)
    return TlsCounts(
        org=report.org,
        report_id=report.report_id,
        begins_at=report.begins_at,
        domains=tuple(
            TlsDomainCounts(
                domain, counts[True], counts[False], dict(failures[domain].most_common(FAILURES_PER_DOMAIN))
            )
            for domain, counts in sorted(sessions.items())[:TLS_DOMAINS]
        ),
    )


def _may_be_report(part: ContentPart) -> bool:
    return part.kind in _KINDS or part.filename.lower().endswith(_ENDINGS)


def parse_tls_report(document: bytes) -> TlsReport:
    """The report in an expanded document. Raises UnreadableReport."""
    if len(document) > _DOCUMENT_BYTES:
        raise UnreadableReport(f"the JSON is larger than {_DOCUMENT_BYTES} bytes")
    if document.count(b"{") > _OBJECTS or document.count(b",") > _VALUES:
        raise UnreadableReport("the JSON has too many values")
    try:
        decoded = _DECODER.decode(document.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise UnreadableReport("the JSON is malformed, or no TLS report") from cause
    policies, room = [], TLS_FAILURES
    for result in decoded.policies[:TLS_POLICIES]:
        details = (result.failures or [])[:room]
        room -= len(details)
        policies.append(_result(result, details))
    failures = sum(len(result.failures or ()) for result in decoded.policies)
    return TlsReport(
        org=_shown(decoded.org),
        report_id=_shown(decoded.report_id),
        begins_at=_time(decoded.dates.start),
        ends_at=_time(decoded.dates.end),
        policies=tuple(policies),
        left_out=len(decoded.policies) - len(policies) + failures - sum(len(each.details) for each in policies),
    )


def _result(result: _Result, details: list[_Failure]) -> TlsPolicyResult:
    hosts = result.policy.mx_hosts or []
    return TlsPolicyResult(
        kind=_shown(result.policy.kind).lower(),
        domain=_shown(result.policy.domain).lower().strip("."),
        mx_hosts=tuple(map(_shown, [hosts] if isinstance(hosts, str) else hosts[:_MX_HOSTS])),
        successes=min(result.summary.successes, _COUNT),
        failures=min(result.summary.failures, _COUNT),
        details=tuple(map(_failure, details)),
    )


def _failure(failure: _Failure) -> TlsFailure:
    return TlsFailure(
        result=_shown(failure.result).lower(),
        mx=_shown(failure.mx or failure.helo).lower().strip("."),
        sending_ip=_ip(failure.sending_ip or ""),
        count=min(failure.count, _COUNT),
        reason=_shown(failure.reason),
    )


def _shown(value: str | None) -> str:
    return one_line((value or "")[:_SHOWN])


def _ip(value: str) -> str | None:
    try:
        return str(ipaddress.ip_address(value[:50]))
    except ValueError:
        return None


def _time(value: str) -> int:
    """A time of RFC 3339 in microseconds; one without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(value[:40].strip())
        seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as cause:
        raise UnreadableReport("the report has no time") from cause
    return max(seconds, 0) * SECOND
