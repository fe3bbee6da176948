"""TLS reports: what they say is read, as JSON and gzip; what is no report, too deep or too much is refused or cut."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.mime import UnreadableReport
from appliance.feedback.tls_report import (
    FAILURES_PER_DOMAIN,
    SESSIONS_PER_POLICY,
    TLS_DOMAINS,
    TLS_FAILURES,
    TLS_POLICIES,
    parse_tls_report,
    tls_counts,
)
from appliance.model.reports import TlsCounts, TlsDomainCounts
from tests.feedback.report_mail import alone, as_mail, gzipped

CORPUS = Path(__file__).parent / "corpus" / "tls"
GOOGLE = (CORPUS / "google.json").read_bytes()
DAY = 1_794_700_800_000_000  # 2026-11-15

EXPECTED = TlsCounts(
    org="Google Inc.",
    report_id="2026-11-15T00:00:00Z_example.com",
    begins_at=DAY,
    domains=(TlsDomainCounts("example.com", 5, 0, {}),),
)


def document(policies: Sequence[object]) -> bytes:
    dates = {"start-datetime": "2026-11-15T00:00:00Z", "end-datetime": "2026-11-15T23:59:59Z"}
    return msgspec.json.encode({"date-range": dates, "policies": policies})


@pytest.mark.parametrize(
    "mime",
    [
        alone(gzipped(GOOGLE), "application/tlsrpt+gzip"),
        as_mail(gzipped(GOOGLE), "application/tlsrpt+gzip"),
        as_mail(GOOGLE, "application/tlsrpt+json"),
        as_mail(b"\xef\xbb\xbf" + GOOGLE, "application/json"),
        as_mail(gzipped(GOOGLE), "application/octet-stream", "google.com!example.com!1!2!001.json.gz"),
    ],
)
def test_a_report_in_every_packing(mime: bytes) -> None:
    assert tls_counts(mime) == EXPECTED


def test_failures_by_server() -> None:
    """The example of RFC 8460, its one host written as a text."""
    (domain,) = parse_tls_report((CORPUS / "rfc8460.json").read_bytes()).domains
    assert (domain.successes, domain.failures) == (5326, 303)
    assert domain.by_mx["mx-backup.mail.company-y.example", "validation-failure"] == 3


def test_counts_as_text_and_nulls() -> None:
    """Some write numbers as text, and null where RFC 8460 leaves a field out."""
    domains = parse_tls_report((CORPUS / "microsoft.json").read_bytes()).domains
    assert sum(domain.successes for domain in domains) >= 12
    assert domains[0].by_mx == {("mail.example.com", "certificate-host-mismatch"): 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"a":"\xff"}',
        b"[" * 100_000,
        b'{"a":' + b"[" * 100_000,
        document([{}]),
        document([{"policy": {}, "summary": {"total-failure-session-count": -1}}]),
        document([{"policy": {}, "summary": {"total-failure-session-count": "many"}}]),
        document("x"),
        document([{"policy": {}}] * 20_000),
        document([{"policy": {"mx-host": [""] * 300_000}}]),
        document([]).replace(b"2026-11-15T00", b"yesterday"),
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        parse_tls_report(data)


def test_policies_and_failures_are_bounded() -> None:
    one = {"policy": {"policy-domain": "a" * 1_000}, "summary": {"total-successful-session-count": 1}}
    (domain,) = parse_tls_report(document([one] * (TLS_POLICIES + 7))).domains
    assert (len(domain.domain), domain.successes) == (255, TLS_POLICIES)
    half = {"policy": {}, "failure-details": [{"failed-session-count": 1}] * (TLS_FAILURES // 2 + 3)}
    assert parse_tls_report(document([half, half])).domains[0].by_mx == {("", ""): TLS_FAILURES}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    try:
        parse_tls_report(data)
    except UnreadableReport:
        return


# ---- what is recorded


def policy(domain: str, successes: int, failures: int, *details: tuple[str, str, int]) -> dict[str, object]:
    """One policy; details are result type, host and count."""
    names = ("result-type", "receiving-mx-hostname", "failed-session-count")
    return {
        "policy": {"policy-domain": domain},
        "summary": {"total-successful-session-count": successes, "total-failure-session-count": failures},
        "failure-details": [dict(zip(names, detail, strict=True)) for detail in details],
    }


def test_a_report_is_summed_by_domain() -> None:
    expired, most = ("certificate-expired", "mx.a.b", 2), SESSIONS_PER_POLICY
    policies = [
        policy("a.b", 5, 2, expired),
        policy("a.b", 1, 10**12, expired, ("dnssec-invalid", "", 2**62)),
        policy("c.d", 7, 0),
    ]
    assert parse_tls_report(document(policies)).domains == (
        TlsDomainCounts("a.b", 6, most + 2, {("", "dnssec-invalid"): most, ("mx.a.b", "certificate-expired"): 4}),
        TlsDomainCounts("c.d", 7, 0, {}),
    )


def test_of_many_domains_and_failures_few_are_recorded() -> None:
    failures = [("validation-failure", f"mx{n}.a.b", n) for n in range(1000)]
    policies = [policy("0.a.b", 1, 1, *failures), *(policy(f"{n}.a.b", 1, 1) for n in range(1, 200))]
    domains = parse_tls_report(document(policies)).domains
    assert len(domains) == TLS_DOMAINS
    assert list(domains[0].by_mx.values()) == list(range(999, 999 - FAILURES_PER_DOMAIN, -1))
