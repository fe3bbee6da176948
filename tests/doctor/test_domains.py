"""The advice on a domain's DMARC policy: the next step, with the record to publish, and own mail that fails."""

from appliance.dns.check import CheckedRecord
from appliance.dns.records import DnsRecord, RecordKind
from appliance.doctor import Finding, FindingLevel, RecordToPublish
from appliance.doctor.domains import judge_policy, judge_records
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.reports import DmarcDay, DmarcSource, DmarcStanding, SeenSource

SENDER = Domain("example.com", usable=True, created_at=0, return_path="bounces.example.com")
STRANGER = SeenSource(DmarcSource("198.51.100.7", 40, 0, 0, 0, 0, 0), 3, 14)


def standing(passed: int = 1000, policy: str = "none", days: int = 14) -> DmarcStanding:
    told = tuple(DmarcDay(each, 100, 90, policy, 100) for each in range(days))
    return DmarcStanding(days, told, (STRANGER,), 1000, passed)


def shown(*texts: str, note: str = "") -> list[CheckedRecord]:
    record = DnsRecord(RecordKind.DMARC, "_dmarc.example.com", "v=DMARC1; p=none", "")
    return [CheckedRecord(record, RecordStatus.OK if texts else RecordStatus.MISSING, texts, note)]


def judged(reports: DmarcStanding, checked: list[CheckedRecord], *, receives: bool = True) -> list[Finding]:
    return judge_policy(SENDER, reports, checked, receives=receives)


def test_the_next_step_is_advice_with_the_record() -> None:
    """The published record stays as it is but for the policy; nothing is wrong, so it is no warning."""
    (found,) = judged(standing(), shown("v=DMARC1; p=none;sp=none; rua=mailto:a@b.test"))
    assert (found.level, found.check, found.subject) == (FindingLevel.OK, "dmarc", "example.com")
    assert found.text == "100 % of 1,000 own messages passed, in reports of 14 days under p=none"
    assert found.advice.startswith("Change the record to p=quarantine, unless one of these sources")
    assert "198.51.100.7 (40 failed)" in found.advice
    value = "v=DMARC1; p=quarantine; sp=none; rua=mailto:a@b.test"
    assert found.records == (RecordToPublish("_dmarc.example.com", "TXT", value),)


def test_a_part_of_the_mail_comes_before_the_next_policy() -> None:
    reports = DmarcStanding(14, tuple(DmarcDay(each, 9, 9, "quarantine", 20) for each in range(14)), (), 99, 99)
    (found,) = judged(reports, shown("v=DMARC1; p=Quarantine; pct=20"))
    assert found.records == (RecordToPublish("_dmarc.example.com", "TXT", "v=DMARC1; p=quarantine"),)


def test_own_mail_that_fails_is_a_warning() -> None:
    (found,) = judged(standing(passed=800), shown("v=DMARC1; p=none"))
    assert (found.level, found.records) == (FindingLevel.WARNING, ())
    assert found.text.startswith("80 % of 1,000 own messages passed")
    assert found.advice.startswith("Before a stricter policy 99 % should pass")


def test_a_policy_that_was_just_changed_is_watched() -> None:
    (found,) = judged(standing(), shown("v=DMARC1; p=quarantine"))
    assert (found.level, found.records) == (FindingLevel.OK, ())
    assert found.advice == "The next step needs 14 days."


def test_without_reports() -> None:
    """The address is told where reports are taken and there is a record to put it into; else nothing is said."""
    (found,) = judged(DmarcStanding(), shown("v=DMARC1; p=none"))
    assert "rua=mailto:dmarc@bounces.example.com" in found.advice
    assert judged(DmarcStanding(), shown("v=DMARC1; p=none"), receives=False) == []
    assert judged(DmarcStanding(), shown()) == []


def test_where_dns_shows_no_policy_of_the_domain_the_reports_count() -> None:
    """A record of the parent domain is not to be copied, and two are none."""
    for checked in (shown("v=DMARC1; p=reject", note="by _dmarc.com"), shown("v=DMARC1; p=none", "v=DMARC1; p=reject")):
        (found,) = judged(standing(), checked)
        assert "Change the record to p=quarantine" in found.advice
        assert found.records == ()


def test_an_spf_record_gets_all_nodes_of_a_cluster_and_keeps_its_other_terms() -> None:
    ours = DnsRecord(RecordKind.SPF, "example.com", "v=spf1 a:a.example.com a:b.example.com -all", "", hosts=("a", "b"))
    there = "v=spf1 include:_spf.other.test +a:a.example.com ~all"
    (finding,) = judge_records("example.com", [CheckedRecord(ours, RecordStatus.DIFFERS, (there,), "wrong")])
    merged = "v=spf1 include:_spf.other.test +a:a.example.com a:b.example.com ~all"
    assert finding.records == (RecordToPublish("example.com", "TXT", merged),)
