"""DMARC aggregate reports: what they say is read, in every packing; DTDs, entities, depth and size are refused."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.dmarc_report import (
    DMARC_ROWS,
    MESSAGES_PER_ROW,
    SOURCES_PER_REPORT,
    DmarcReport,
    DmarcRow,
    dmarc_counts,
    parse_dmarc_report,
    read_dmarc_report,
    summed,
)
from appliance.feedback.report_file import EXPANDED_BYTES, UnreadableReport
from appliance.model.reports import OTHER_SOURCES, DmarcSource
from appliance.times import SECOND
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped

CORPUS = Path(__file__).parent / "corpus" / "dmarc"
GOOGLE = (CORPUS / "google.xml").read_bytes()
HEAD = b"<feedback><report_metadata><date_range><begin>1</begin><end>2</end></date_range></report_metadata>"
POLICY = b"<policy_published><domain>a.b</domain></policy_published>"
ROW = b"<record><row><source_ip>192.0.2.1</source_ip><count>1</count></row></record>"

EXPECTED = DmarcReport(
    org="google.com",
    report_id="12345678901234567890",
    begins_at=1_789_948_800 * SECOND,
    ends_at=1_790_035_199 * SECOND,
    domain="example.com",
    policy="quarantine",
    subdomain_policy="none",
    percentage=50,
    rows=(
        DmarcRow("192.0.2.1", 42, "none", dkim=True, spf=True, header_from="example.com"),
        DmarcRow("2001:db8::7", 3, "quarantine", dkim=False, spf=False, header_from="news.example.com"),
    ),
    left_out=0,
)


@pytest.mark.parametrize(
    "mime",
    [
        alone(zipped(GOOGLE), "application/zip"),
        alone(gzipped(GOOGLE), "application/gzip"),
        as_mail(gzipped(GOOGLE), "application/gzip", "google.com!example.com!1789948800!1790035199.xml.gz"),
        as_mail(zipped(GOOGLE), "application/octet-stream", "google.com!example.com!1!2.zip"),
        as_mail(GOOGLE, "text/xml"),
        as_mail(GOOGLE, "application/octet-stream", "report.xml"),
        as_mail(b"\xef\xbb\xbf" + GOOGLE, "application/xml"),
    ],
)
def test_a_report_in_every_packing(mime: bytes) -> None:
    """Zip, gzip or plain; alone or attached; by its type or its name."""
    assert read_dmarc_report(mime) == EXPECTED


def test_passing_is_either() -> None:
    """DMARC passes if one of the two is aligned (RFC 7489 3.1)."""
    assert [row.passed for row in EXPECTED.rows] == [True, False]
    (row,) = parse_dmarc_report((CORPUS / "microsoft.xml").read_bytes()).rows
    assert (row.dkim, row.spf, row.passed, row.count) == (True, False, True, 7)


def test_a_report_with_a_namespace() -> None:
    """As the successor of RFC 7489 has it; rows without an address or a count are left out."""
    report = parse_dmarc_report((CORPUS / "dmarcbis.xml").read_bytes())
    assert (report.org, report.domain, report.policy) == ("Sample Reporter", "example.com", "none")
    assert report.percentage == 100
    assert report.subdomain_policy is None
    assert [(row.source_ip, row.count, row.disposition) for row in report.rows] == [("192.0.2.123", 123, "none")]
    assert report.left_out == 2


BILLION_LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE feedback [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><feedback><version>&c;</version></feedback>"""


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (BILLION_LAUGHS, "document type"),
        (b'<!DOCTYPE feedback SYSTEM "file:///etc/passwd"><feedback/>', "document type"),
        (b'<!DOCTYPE feedback [<!ENTITY x SYSTEM "file:///etc/passwd">]><feedback>&x;</feedback>', "document type"),
        (b"<!DOCTYPE feedback><feedback/>", "document type"),
        (b"<feedback>&x;</feedback>", "malformed: undefined entity"),
        (b"<html/>", "no DMARC report"),
        (b"", "malformed: no element found"),
        (b"<feedback>", "malformed"),
        (b"<feedback/>", "no domain"),
        (HEAD + b"</feedback>", "no domain"),
        (b"<feedback>" + POLICY + b"</feedback>", "no time"),
        (b"<feedback>" + b"<a>" * 50, "too deep"),
        (b"<feedback>" + b"<a/>" * 500_000 + b"</feedback>", "too many"),
        (b"<feedback>" + b"<a b='' c=''/>" * 20_000 + b"</feedback>", "too many attributes"),
        (b"<feedback><!--" + b"a>" * 20_000 + b"--></feedback>", "too long"),
        (b"<!--" + b"a" * 40_000 + b"--><feedback/>", "too long"),
        (b"<feedback><a b='" + b"c" * 40_000 + b"'/></feedback>", "too long"),
        (b"\xff\xfe<\0f\0", "malformed"),
    ],
)
def test_what_is_refused(document: bytes, reason: str) -> None:
    """No document type, no entity, no other document, nothing endless."""
    with pytest.raises(UnreadableReport, match=reason):
        parse_dmarc_report(document)


def test_rows_are_bounded() -> None:
    """What is over the limit is counted, not kept."""
    report = parse_dmarc_report(HEAD + POLICY + ROW * (DMARC_ROWS + 5) + b"</feedback>")
    assert (len(report.rows), report.left_out) == (DMARC_ROWS, 5)


@pytest.mark.parametrize("length", [*range(16_300, 16_384, 7), 32_700, 70_000])
def test_a_report_in_several_pieces(length: int) -> None:
    """It is the same wherever a piece ends: in a tag, a comment, a text or a character."""
    organisation = "Größe €😀"
    told = f"<report_metadata><org_name>{organisation}</org_name></report_metadata><!-- a > b -->".encode()
    report = parse_dmarc_report(HEAD + b" " * (length - len(HEAD)) + told + POLICY + ROW * 500 + b"</feedback>")
    assert (report.org, report.domain, len(report.rows), report.left_out) == (organisation, "a.b", 500, 0)


def test_a_charset_may_double_the_size() -> None:
    """The limit holds for UTF-8, too, which expat reads."""
    start = b"<?xml version='1.0' encoding='koi8-r'?>" + HEAD + POLICY
    for octets, fits in ((EXPANDED_BYTES // 2 - 1_000, True), (EXPANDED_BYTES // 2, False)):
        with nullcontext() if fits else pytest.raises(UnreadableReport, match="expands to more than"):
            parse_dmarc_report(start + b"\xc1" * octets + b"</feedback>")


def test_texts_are_bounded() -> None:
    """A long text is cut, whether it comes in one piece or in many."""
    for piece in (b"a", b"a&amp;", b"<![CDATA[a]]>"):
        metadata = b"<report_metadata><org_name>" + piece * 100_000 + b"</org_name></report_metadata>"
        assert len(parse_dmarc_report(HEAD + metadata + POLICY + b"</feedback>").org) == 255


@pytest.mark.parametrize(
    ("encoding", "expected"), [("windows-1252", "Grüße"), ("iso-8859-1", "Grüße"), ("utf-8", "Grüße")]
)
def test_a_charset_of_our_list(encoding: str, expected: str) -> None:
    """Is decoded before expat sees it."""
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + (HEAD + POLICY).decode()
    metadata = f"<report_metadata><org_name>{expected}</org_name></report_metadata></feedback>"
    assert parse_dmarc_report((text + metadata).encode(encoding)).org == expected


@pytest.mark.parametrize("encoding", ["punycode", "idna", "utf-7", "rot13", "no-such", "unicode_escape"])
def test_no_other_codec_is_looked_up(encoding: str) -> None:
    """Any other name leaves the document UTF-8."""
    document = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + HEAD + POLICY + b"</feedback>"
    assert parse_dmarc_report(document).domain == "a.b"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    """Alone, and inside of a report."""
    for document in (data, HEAD + POLICY + b"<record>" + data + b"</record></feedback>"):
        try:
            parse_dmarc_report(document)
        except UnreadableReport:
            continue


# ---- what is recorded


def test_a_report_is_summed_by_source() -> None:
    """Rows of one source are one, and what passed, was quarantined or rejected is counted in messages."""
    rows = (
        DmarcRow("192.0.2.1", 5, "none", dkim=True, spf=False, header_from="a.b"),
        DmarcRow("192.0.2.1", 2, "reject", dkim=False, spf=False, header_from="c.a.b"),
        DmarcRow("192.0.2.2", 3, "quarantine", dkim=False, spf=True, header_from="a.b"),
    )
    found = summed(replace(EXPECTED, rows=rows))
    assert found.sources == (
        DmarcSource("192.0.2.1", 7, 5, 5, 0, 0, 2),
        DmarcSource("192.0.2.2", 3, 3, 0, 3, 3, 0),
    )
    assert (found.org, found.report_id, found.domain) == (EXPECTED.org, EXPECTED.report_id, EXPECTED.domain)
    assert (found.begins_at, found.policy, found.percentage) == (EXPECTED.begins_at, "quarantine", 50)
    assert dmarc_counts(alone(zipped(GOOGLE), "application/zip")) == summed(EXPECTED)


def test_of_many_sources_those_that_fail_are_kept_apart() -> None:
    """The others are summed without their addresses, and no count is larger than a database can add up."""
    good = [DmarcRow(f"192.0.{n // 250}.{n % 250}", 10, "none", True, True, "a.b") for n in range(500)]
    bad = [DmarcRow(f"198.51.100.{n}", 10**12 - 1, "none", False, False, "a.b") for n in range(100)]
    sources = summed(replace(EXPECTED, rows=(*good, *bad))).sources
    assert len(sources) == SOURCES_PER_REPORT + 1
    assert {each.failed for each in sources[:100]} == {MESSAGES_PER_ROW}
    assert sources[-1] == DmarcSource(OTHER_SOURCES, 4000, 4000, 4000, 4000, 0, 0)
