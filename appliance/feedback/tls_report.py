"""TLS reports (RFC 8460): how often other servers reached a domain's mail servers over TLS, and what failed.

No I/O; raises only UnreadableReport. Only the recorded fields of the JSON are decoded. Empty values would take fifty
times their size in memory, so they are counted first. One call decodes the whole document and holds the interpreter
lock, hence the limit on its size.
"""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from appliance.feedback.mime import UnreadableReport, report_file
from appliance.message.decoding import one_line
from appliance.model.reports import TlsCounts, TlsDomainCounts
from appliance.times import SECOND

TLS_POLICIES: Final = 1_000  # in one report
TLS_FAILURES: Final = 10_000  # in one report
TLS_DOMAINS: Final = 100  # recorded of one report
FAILURES_PER_DOMAIN: Final = 100  # recorded of one report
SESSIONS_PER_POLICY: Final = 10**9  # so that no sum of reports overflows in a database
_DOCUMENT_BYTES: Final = 2 * 1024 * 1024  # at 2.7 ns each; 7,000 failures of 300 bytes fit
_OBJECTS: Final = 25_000  # in the JSON
_VALUES: Final = 100_000
_SHOWN: Final = 255  # characters of a text

_KINDS: Final = ("application/tlsrpt+gzip", "application/tlsrpt+json", "application/json", "application/gzip")
_ENDINGS: Final = (".json", ".json.gz", ".gz")

_Number = Annotated[int, Meta(ge=0)]


class _Range(Struct):
    start: str = field(name="start-datetime")


class _Policy(Struct):
    domain: str = field(name="policy-domain", default="")


class _Summary(Struct):
    successes: _Number = field(name="total-successful-session-count", default=0)
    failures: _Number = field(name="total-failure-session-count", default=0)


class _Failure(Struct):
    result: str = field(name="result-type", default="")
    mx: str | None = field(name="receiving-mx-hostname", default=None)
    helo: str | None = field(name="receiving-mx-helo", default=None)
    count: _Number = field(name="failed-session-count", default=0)


class _Result(Struct):
    policy: _Policy
    summary: _Summary = field(default_factory=_Summary)
    failures: list[_Failure] | None = field(name="failure-details", default=None)


class _Document(Struct):
    dates: _Range = field(name="date-range")
    policies: list[_Result]
    org: str | None = field(name="organization-name", default=None)
    report_id: str | None = field(name="report-id", default=None)


_DECODER: Final = msgspec.json.Decoder(_Document, strict=False)  # some servers write counts as text


def tls_counts(mime: bytes) -> TlsCounts:
    """Return the counts of the report in a message. Raises UnreadableReport."""
    return parse_tls_report(report_file(mime, _KINDS, _ENDINGS))


def parse_tls_report(document: bytes) -> TlsCounts:
    """Return the counts of an expanded document. Raises UnreadableReport."""
    if len(document) > _DOCUMENT_BYTES:
        raise UnreadableReport(f"the JSON is larger than {_DOCUMENT_BYTES} bytes")
    if document.count(b"{") > _OBJECTS or document.count(b",") > _VALUES:
        raise UnreadableReport("the JSON has too many values")
    try:
        report = _DECODER.decode(document.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise UnreadableReport("the JSON is malformed or not a TLS report") from cause
    return TlsCounts(
        org=_shown(report.org),
        report_id=_shown(report.report_id),
        begins_at=_time(report.dates.start),
        domains=tuple(_by_domain(report.policies)),
    )


def _by_domain(results: list[_Result]) -> list[TlsDomainCounts]:
    """Sum up by domain. Of many failures, keep those with the most sessions."""
    sessions: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    failures: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    room = TLS_FAILURES
    for result in results[:TLS_POLICIES]:
        domain = _shown(result.policy.domain).lower().strip(".")
        sessions[domain][True] += min(result.summary.successes, SESSIONS_PER_POLICY)
        sessions[domain][False] += min(result.summary.failures, SESSIONS_PER_POLICY)
        details = (result.failures or [])[:room]
        room -= len(details)
        for failure in details:
            mx = _shown(failure.mx or failure.helo).lower().strip(".")
            failures[domain][mx, _shown(failure.result).lower()] += min(failure.count, SESSIONS_PER_POLICY)
    return [
        TlsDomainCounts(domain, counts[True], counts[False], dict(failures[domain].most_common(FAILURES_PER_DOMAIN)))
        for domain, counts in sorted(sessions.items())[:TLS_DOMAINS]
    ]


def _shown(value: str | None) -> str:
    return one_line((value or "")[:_SHOWN])


def _time(value: str) -> int:
    """Parse RFC 3339 to microseconds; UTC without a zone."""
    try:
        moment = datetime.fromisoformat(value[:40].strip())
        seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as cause:
        raise UnreadableReport("the report has no time") from cause
    return max(seconds, 0) * SECOND
