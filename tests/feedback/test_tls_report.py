"""TLS reports: what they say is read, as JSON and gzip; what is no report, too deep or too much is refused or cut."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.report_file import UnreadableReport
from appliance.feedback.tls_report import (
    FAILURES_PER_DOMAIN,
    SESSIONS_PER_POLICY,
    TLS_DOMAINS,
    TLS_FAILURES,
    TLS_POLICIES,
    TlsFailure,
    TlsPolicyResult,
    TlsReport,
    by_domain,
    parse_tls_report,
    read_tls_report,
    tls_counts,
)
from appliance.model.reports import TlsDomainCounts
from tests.feedback.report_mail import alone, as_mail, gzipped

CORPUS = Path(__file__).parent / "corpus" / "tls"
GOOGLE = (CORPUS / "google.json").read_bytes()
DAY = 1_794_700_800_000_000  # 2026-11-15

EXPECTED = TlsReport(
    org="Google Inc.",
    report_id="2026-11-15T00:00:00Z_example.com",
    begins_at=DAY,
    ends_at=DAY + 86_399_000_000,
    policies=(TlsPolicyResult("sts", "example.com", ("mail.example.com",), 5, 0, ()),),
    left_out=0,
)


def document(policies: list[object], **fields: object) -> bytes:
    """A report with these policies."""
    dates = {"start-datetime": "2026-11-15T00:00:00Z", "end-datetime": "2026-11-15T23:59:59Z"}
    return msgspec.json.encode({"date-range": dates, "policies": policies, **fields})


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
    """By its type or its name, compressed or not."""
    assert read_tls_report(mime) == EXPECTED


def test_failures_by_server() -> None:
    """The example of RFC 8460, its one host written as a text."""
    report = parse_tls_report((CORPUS / "rfc8460.json").read_bytes())
    (policy,) = report.policies
    assert (policy.successes, policy.failures, policy.mx_hosts) == (5326, 303, ("*.mail.company-y.example",))
    reason = "X509_V_ERR_PROXY_PATH_LENGTH_EXCEEDED"
    backup = TlsFailure("validation-failure", "mx-backup.mail.company-y.example", "198.51.100.62", 3, reason)
    assert policy.details[2] == backup


def test_counts_as_text_and_nulls() -> None:
    """Some write numbers as text, and null where RFC 8460 leaves a field out."""
    first, second = parse_tls_report((CORPUS / "microsoft.json").read_bytes()).policies
    assert (first.kind, first.successes, first.failures) == ("no-policy-found", 12, 1)
    assert first.details == (TlsFailure("certificate-host-mismatch", "mail.example.com", None, 1, ""),)
    assert (second.kind, second.mx_hosts, second.details) == ("tlsa", (), ())


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
        document("x"),  # type: ignore[arg-type]
        document([{"policy": {}}] * 20_000),
        document([{"policy": {"mx-host": [""] * 300_000}}]),
        document([]).replace(b"2026-11-15T00", b"yesterday"),
    ],
)
def test_what_is_refused(data: bytes) -> None:
    """Anything that is no report."""
    with pytest.raises(UnreadableReport):
        parse_tls_report(data)


def test_policies_and_failures_are_bounded() -> None:
    """What is over a limit is counted, not kept; so are texts and numbers."""
    report = parse_tls_report(document([{"policy": {"policy-domain": "a" * 1_000}}] * (TLS_POLICIES + 7)))
    assert (len(report.policies), report.left_out, len(report.policies[0].domain)) == (TLS_POLICIES, 7, 255)
    failure = {"failed-session-count": 2**62}
    half = {"policy": {}, "failure-details": [failure] * (TLS_FAILURES // 2 + 3)}
    report = parse_tls_report(document([half, half]))
    assert [len(policy.details) for policy in report.policies] == [TLS_FAILURES // 2 + 3, TLS_FAILURES // 2 - 3]
    assert report.left_out == 6
    assert report.policies[0].details[0].count == 10**12


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    """Nothing else is raised."""
    try:
        parse_tls_report(data)
    except UnreadableReport:
        return


# ---- what is recorded


def test_a_report_is_summed_by_domain() -> None:
    """Policies of one domain are one; failures are counted by server and type."""
    expired = TlsFailure("certificate-expired", "mx.a.b", None, 2, "")
    policies = (
        TlsPolicyResult("sts", "a.b", (), 5, 2, (expired,)),
        TlsPolicyResult("tlsa", "a.b", (), 1, 10**12, (expired, TlsFailure("dnssec-invalid", "", None, 10**12, ""))),
        TlsPolicyResult("sts", "c.d", (), 7, 0, ()),
    )
    most = SESSIONS_PER_POLICY
    assert by_domain(replace(EXPECTED, policies=policies)).domains == (
        TlsDomainCounts("a.b", 6, most + 2, {("", "dnssec-invalid"): most, ("mx.a.b", "certificate-expired"): 4}),
        TlsDomainCounts("c.d", 7, 0, {}),
    )
    found = tls_counts(alone(gzipped(GOOGLE), "application/tlsrpt+gzip"))
    assert found == by_domain(EXPECTED)
    assert (found.org, found.report_id, found.begins_at) == (EXPECTED.org, EXPECTED.report_id, DAY)


def test_of_many_domains_and_failures_few_are_recorded() -> None:
    """Those of the most sessions."""
    failures = tuple(TlsFailure("validation-failure", f"mx{n}.a.b", None, n, "") for n in range(1000))
    policies = tuple(TlsPolicyResult("sts", f"{n}.a.b", (), 1, 1, failures) for n in range(200))
    found = by_domain(replace(EXPECTED, policies=policies)).domains
    assert len(found) == TLS_DOMAINS
    assert list(found[0].by_mx.values()) == list(range(999, 999 - FAILURES_PER_DOMAIN, -1))
