"""DMARC aggregate reports: what they say is read, in every packing; DTDs, entities, depth and size are refused."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.dmarc import (
    DAYS_NEEDED,
    DMARC_ROWS,
    MESSAGES_PER_ROW,
    SOURCES_PER_REPORT,
    STRANGERS_NAMED,
    DmarcState,
    DmarcStep,
    dmarc_counts,
    next_step,
    parse_dmarc_report,
)
from appliance.feedback.mime import EXPANDED_BYTES, UnreadableReport
from appliance.model.reports import OTHER_SOURCES, DmarcCounts, DmarcDay, DmarcSource, DmarcStanding, SeenSource
from appliance.times import SECOND
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped

CORPUS = Path(__file__).parent / "corpus" / "dmarc"
GOOGLE = (CORPUS / "google.xml").read_bytes()
HEAD = b"<feedback><report_metadata><date_range><begin>1</begin><end>2</end></date_range></report_metadata>"
POLICY = b"<policy_published><domain>a.b</domain></policy_published>"
ROW = b"<record><row><source_ip>192.0.2.1</source_ip><count>1</count></row></record>"

EXPECTED = DmarcCounts(
    org="google.com",
    report_id="12345678901234567890",
    begins_at=1_789_948_800 * SECOND,
    domain="example.com",
    policy="quarantine",
    percentage=50,
    sources=(DmarcSource("2001:db8::7", 3, 0, 0, 0, 3, 0), DmarcSource("192.0.2.1", 42, 42, 42, 42, 0, 0)),
)


def rows(*values: tuple[str, int, str, str, str]) -> DmarcCounts:
    """The counts of a report with rows of source, count, disposition, DKIM and SPF."""
    row = "<source_ip>%s</source_ip><count>%d</count><policy_evaluated><disposition>%s</disposition><dkim>%s</dkim>"
    written = "".join(f"<record><row>{row}<spf>%s</spf></policy_evaluated></row></record>" % value for value in values)
    return parse_dmarc_report(HEAD + POLICY + written.encode() + b"</feedback>")


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
    assert dmarc_counts(mime) == EXPECTED


def test_passing_is_either() -> None:
    """DMARC passes if one of the two is aligned (RFC 7489 3.1)."""
    (source,) = parse_dmarc_report((CORPUS / "microsoft.xml").read_bytes()).sources
    assert (source.dkim, source.spf, source.passed, source.messages) == (7, 0, 7, 7)


def test_a_report_with_a_namespace() -> None:
    """As the successor of RFC 7489 has it; rows without an address or a count are left out."""
    report = parse_dmarc_report((CORPUS / "dmarcbis.xml").read_bytes())
    assert (report.org, report.domain, report.policy) == ("Sample Reporter", "example.com", "none")
    assert report.percentage == 100
    assert [(source.address, source.messages) for source in report.sources] == [("192.0.2.123", 123)]


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
        (b"<html/>", "not a DMARC report"),
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
    with pytest.raises(UnreadableReport, match=reason):
        parse_dmarc_report(document)


def test_rows_are_bounded() -> None:
    report = parse_dmarc_report(HEAD + POLICY + ROW * (DMARC_ROWS + 5) + b"</feedback>")
    assert [source.messages for source in report.sources] == [DMARC_ROWS]


@pytest.mark.parametrize("length", [*range(16_300, 16_384, 7), 32_700, 70_000])
def test_a_report_in_several_pieces(length: int) -> None:
    """It is the same wherever a piece ends: in a tag, a comment, a text or a character."""
    organisation = "Größe €😀"
    told = f"<report_metadata><org_name>{organisation}</org_name></report_metadata><!-- a > b -->".encode()
    report = parse_dmarc_report(HEAD + b" " * (length - len(HEAD)) + told + POLICY + ROW * 500 + b"</feedback>")
    assert (report.org, report.domain, report.sources[0].messages) == (organisation, "a.b", 500)


def test_a_charset_may_double_the_size() -> None:
    start = b"<?xml version='1.0' encoding='koi8-r'?>" + HEAD + POLICY
    for octets, fits in ((EXPANDED_BYTES // 2 - 1_000, True), (EXPANDED_BYTES // 2, False)):
        with nullcontext() if fits else pytest.raises(UnreadableReport, match="expands to more than"):
            parse_dmarc_report(start + b"\xc1" * octets + b"</feedback>")


def test_texts_are_bounded() -> None:
    for piece in (b"a", b"a&amp;", b"<![CDATA[a]]>"):
        metadata = b"<report_metadata><org_name>" + piece * 100_000 + b"</org_name></report_metadata>"
        assert len(parse_dmarc_report(HEAD + metadata + POLICY + b"</feedback>").org) == 255


@pytest.mark.parametrize(
    ("encoding", "expected"), [("windows-1252", "Grüße"), ("iso-8859-1", "Grüße"), ("utf-8", "Grüße")]
)
def test_a_charset_of_our_list(encoding: str, expected: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + (HEAD + POLICY).decode()
    metadata = f"<report_metadata><org_name>{expected}</org_name></report_metadata></feedback>"
    assert parse_dmarc_report((text + metadata).encode(encoding)).org == expected


@pytest.mark.parametrize("encoding", ["punycode", "idna", "utf-7", "rot13", "no-such", "unicode_escape"])
def test_no_other_codec_is_looked_up(encoding: str) -> None:
    document = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + HEAD + POLICY + b"</feedback>"
    assert parse_dmarc_report(document).domain == "a.b"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    for document in (data, HEAD + POLICY + b"<record>" + data + b"</record></feedback>"):
        try:
            parse_dmarc_report(document)
        except UnreadableReport:
            continue


# ---- what is recorded


def test_a_report_is_summed_by_source() -> None:
    report = rows(
        ("192.0.2.1", 5, "none", "pass", "fail"),
        ("192.0.2.1", 2, "reject", "fail", "fail"),
        ("192.0.2.2", 3, "quarantine", "fail", "pass"),
    )
    assert report.sources == (DmarcSource("192.0.2.1", 7, 5, 5, 0, 0, 2), DmarcSource("192.0.2.2", 3, 3, 0, 3, 3, 0))


def test_of_many_sources_those_that_fail_are_kept_apart() -> None:
    good = [(f"192.0.{n // 250}.{n % 250}", 10, "none", "pass", "pass") for n in range(500)]
    bad = [(f"198.51.100.{n}", 10**12 - 1, "none", "fail", "fail") for n in range(100)]
    sources = rows(*good, *bad).sources
    assert len(sources) == SOURCES_PER_REPORT + 1
    assert {each.failed for each in sources[:100]} == {MESSAGES_PER_ROW}
    assert sources[-1] == DmarcSource(OTHER_SOURCES, 4000, 4000, 4000, 4000, 0, 0)


NAME = "bounces.example.com"
OWN = SeenSource(DmarcSource("192.0.2.1", 1000, 995, 995, 0, 0, 0), 14, 14)
STRANGER = SeenSource(DmarcSource("198.51.100.7", 40, 0, 0, 0, 0, 0), 3, 14)


def standing(
    days: int = DAYS_NEEDED,
    *sources: SeenSource,
    policy: str = "none",
    percentage: int = 100,
    before: tuple[DmarcDay, ...] = (),
    own: tuple[int, int] = (1000, 995),
) -> DmarcStanding:
    here = tuple(DmarcDay(100 + each, 80, 70, policy, percentage) for each in range(days))
    return DmarcStanding(days, before + here, sources, *own)


@pytest.mark.parametrize(
    ("policy", "percentage", "proposed"),
    [
        ("none", 100, "quarantine"),
        ("quarantine", 100, "reject"),
        ("quarantine", 25, "quarantine"),
        ("reject", 10, "reject"),
    ],
)
def test_each_policy_has_its_next_step(policy: str, percentage: int, proposed: str) -> None:
    found = next_step(standing(policy=policy, percentage=percentage), NAME)
    assert (found.state, found.policy, found.proposed) == (DmarcState.STEP, policy, proposed)
    assert f"Change the record to p={proposed}" in found.text
    assert ("without pct" in found.text) == (percentage < 100)


def test_the_numbers_justify_the_step() -> None:
    """They are in the text and beside it, and sources that never passed are named for the owner to recognise."""
    found = next_step(standing(14, STRANGER, OWN), NAME)
    text = (
        "99.5 % of 1,000 own messages passed, in reports of 14 days under p=none. Change the record to p=quarantine, "
        "unless one of these sources, of which nothing passed, is yours: 198.51.100.7 (40 failed)."
    )
    assert found == DmarcStep(DmarcState.STEP, text, "none", 100, "quarantine", 14, 1000, 995, (STRANGER,))


def test_without_a_report_the_address_is_told() -> None:
    found = next_step(DmarcStanding(), NAME)
    assert (found.state, found.policy, found.proposed) == (DmarcState.NO_REPORTS, None, None)
    assert "rua=mailto:dmarc@bounces.example.com" in found.text


@pytest.mark.parametrize("days", [1, DAYS_NEEDED - 1])
def test_few_days_are_not_enough(days: int) -> None:
    found = next_step(standing(days, own=(100, 100)), NAME)
    assert (found.state, found.proposed, found.days) == (DmarcState.COLLECT, None, days)
    assert f"100 % of 100 own messages passed, in reports of {'1 day' if days == 1 else '13 days'} under" in found.text


def test_days_under_an_earlier_policy_do_not_count() -> None:
    before = tuple(DmarcDay(each, 80, 80, "none", 100) for each in range(20))
    found = next_step(standing(3, policy="quarantine", before=before), NAME)
    assert (found.state, found.days, found.policy) == (DmarcState.COLLECT, 3, "quarantine")


@pytest.mark.parametrize(
    ("own", "share"), [((1000, 989), "98.9 %"), ((100_000, 98_999), "98.9 %"), ((3, 2), "66.6 %"), ((0, 0), "None")]
)
def test_own_mail_that_fails_is_mended_first(own: tuple[int, int], share: str) -> None:
    failing = SeenSource(DmarcSource("192.0.2.9", 200, 189, 189, 0, 0, 0), 14, 14)
    found = next_step(standing(14, STRANGER, failing, own=own), NAME)
    assert (found.state, found.proposed, found.failing) == (DmarcState.MEND, None, (failing,))
    assert found.text.startswith(f"{share} of {own[0]:,} own messages passed")
    assert found.text.endswith("99 % should pass: set up DKIM or SPF at 192.0.2.9 (11 failed).")


def test_ninety_nine_percent_is_enough() -> None:
    assert next_step(standing(own=(1000, 990)), NAME).state is DmarcState.STEP


def test_nothing_passes_at_all() -> None:
    found = next_step(standing(14, STRANGER, own=(0, 0)), NAME)
    assert (found.state, found.failing) == (DmarcState.MEND, (STRANGER,))


def test_after_reject_nothing_is_left() -> None:
    found = next_step(standing(2, STRANGER, policy="reject"), NAME)
    assert (found.state, found.proposed) == (DmarcState.DONE, None)


def test_few_strangers_are_named() -> None:
    others = SeenSource(DmarcSource(OTHER_SOURCES, 900, 0, 0, 0, 0, 0), 14, 14)
    strangers = [SeenSource(DmarcSource(f"198.51.100.{n}", 50 - n, 0, 0, 0, 0, 0), 1, 14) for n in range(20)]
    found = next_step(standing(14, others, *strangers), NAME)
    assert found.failing == tuple(strangers[:STRANGERS_NAMED])


def test_the_policy_in_dns_counts_before_what_receivers_saw() -> None:
    found = next_step(standing(20), NAME, ("quarantine", 100))
    assert (found.state, found.policy, found.days) == (DmarcState.COLLECT, "quarantine", 0)
    assert next_step(standing(20), NAME, ("none", 100)).state is DmarcState.STEP
