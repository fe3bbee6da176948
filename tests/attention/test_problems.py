"""Which facts are problems, and how serious."""

import pytest

from appliance.attention.problems import (
    CERTIFICATE_EXPIRES_WITHIN,
    QUEUE_DUE,
    judge_certificates,
    judge_credits,
    judge_disk,
    judge_domains,
    judge_holds,
    judge_keys,
    judge_queue,
    judge_rates,
    judge_webhook,
)
from appliance.config.values import MIB
from appliance.model.accounts import Account, ApiKey, Domain, DomainDns, RecordStatus, Scope
from appliance.model.attention import AttentionItem, AttentionKind, Severity
from appliance.model.queue import PoolHold
from appliance.model.webhooks import Webhook
from appliance.store.attention import RecentMail
from appliance.store.pools import EVERY
from appliance.store.queue_control import Depth
from appliance.times import DAY, MINUTE, SECOND

NOW = 1_700_000_000 * SECOND
OK, MISSING, DIFFERS, UNKNOWN = RecordStatus
CRITICAL, WARNING = Severity


def domain(spf: RecordStatus = OK, dkim: RecordStatus = OK, dmarc: RecordStatus = OK, *, usable: bool = True) -> Domain:
    return Domain("a.example", usable, 0, dns=DomainDns(NOW, spf, dkim, dmarc))


@pytest.mark.parametrize(
    ("checked", "severity", "words"),
    [
        (domain(dkim=MISSING), CRITICAL, "DKIM is missing"),
        (domain(spf=DIFFERS, dmarc=MISSING), CRITICAL, "SPF is wrong and DMARC is missing"),
        (domain(dmarc=MISSING), WARNING, "DMARC is missing"),
        (domain(MISSING, MISSING, MISSING), CRITICAL, "In DNS, DKIM, SPF and DMARC are missing."),
    ],
)
def test_a_wrong_record_of_a_domain_is_a_problem(checked: Domain, severity: Severity, words: str) -> None:
    (problem,) = judge_domains([checked])
    assert (problem.severity, problem.link) == (severity, "/dashboard/domains/a.example")
    assert words in problem.detail


def test_a_failed_lookup_and_a_pending_domain_are_no_problem() -> None:
    assert list(judge_domains([domain(), domain(dkim=UNKNOWN), domain(dkim=MISSING, usable=False)])) == []


def test_a_return_path_counts_once_it_was_in_use() -> None:
    dns = DomainDns(NOW, OK, OK, OK, MISSING)
    assert list(judge_domains([Domain("a.example", True, 0, dns=dns)])) == []
    (problem,) = judge_domains([Domain("a.example", True, 0, return_path_at=NOW, dns=dns)])
    assert "return path is missing" in problem.detail


@pytest.mark.parametrize(
    ("left", "used", "severity"),
    [(None, 9, None), (100, 100, None), (99, 0, WARNING), (500, 501, WARNING), (0, 0, CRITICAL)],
)
def test_credits_are_low_below_a_hundred_or_a_days_use(left: int | None, used: int, severity: Severity | None) -> None:
    problems = list(judge_credits(Account("acc_1", "a", "a@a.example", left, None, False, 0), used))
    assert [problem.severity for problem in problems] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        (RecentMail(180, 19, 0, 0, 0), []),  # too few to judge
        (RecentMail(960, 40, 0, 0, 0), []),
        (RecentMail(190, 10, 0, 0, 0), [("Bounce rate is 5.0 %", WARNING)]),
        (RecentMail(890, 100, 10, 0, 0), [("Bounce rate is 10.0 %", CRITICAL)]),
        (RecentMail(999, 0, 0, 3, 0), []),
        (RecentMail(1000, 0, 0, 1, 0), [("Complaint rate is 0.10 %", WARNING)]),
        (RecentMail(1000, 0, 0, 3, 0), [("Complaint rate is 0.30 %", CRITICAL)]),
    ],
)
def test_rates_are_judged_from_enough_mail(recent: RecentMail, expected: list[tuple[str, Severity]]) -> None:
    assert [(problem.title, problem.severity) for problem in judge_rates(recent)] == expected


def test_a_key_that_expires_is_named() -> None:
    key = ApiKey("key_1", "a", "abcd", Scope.SEND, False, 0, None, "Shop", expires_at=NOW + 3 * DAY)
    (problem,) = judge_keys([key], NOW)
    assert (problem.title, problem.severity) == ("API key Shop expires in 3 days", WARNING)
    assert problem.since == NOW - 4 * DAY
    assert list(judge_keys([key], NOW + MINUTE)) == [problem]  # an open page gets no new text each minute


def test_certificates() -> None:
    def judged(left: int) -> list[AttentionItem]:
        return list(judge_certificates({"http": (NOW + left) / SECOND}, NOW))

    assert judged(CERTIFICATE_EXPIRES_WITHIN) == []
    assert [problem.severity for problem in judged(CERTIFICATE_EXPIRES_WITHIN - SECOND)] == [WARNING]
    assert [problem.title for problem in judged(-SECOND)] == ["The certificate of http has expired"]


def test_disk_and_queue() -> None:
    assert [problem.severity for problem in judge_disk(99, 100)] == [CRITICAL]
    assert [problem.severity for problem in judge_disk(124, 100)] == [WARNING]
    assert list(judge_disk(125, 100)) == []
    shown = {next(judge_disk(free * MIB, 9_000 * MIB)).detail.partition(".")[0] for free in (3_199, 3_105)}
    assert shown == {"3,100 MiB are free"}
    (growing,) = judge_queue(Depth(QUEUE_DUE, 0, 600.0, ()), NOW)
    assert growing.kind is AttentionKind.QUEUE_GROWING
    for depth in (Depth(QUEUE_DUE - 1, 0, 600.0, ()), Depth(QUEUE_DUE, 0, 599.0, ()), Depth(9_999, 0, 9e9, (EVERY,))):
        assert list(judge_queue(depth, NOW)) == []


def test_a_failing_webhook_is_named_without_the_secrets_of_its_url() -> None:
    url = "https://user:secret@hooks.example:8443/secret?key=secret"
    webhook = Webhook("whk_1", "acc_1", url, (), True, b"", "", 0, 0, None, NOW)
    (problem,) = judge_webhook(webhook)
    assert problem.detail.startswith("https://hooks.example:8443/… rejects events")
    assert "secret" not in problem.detail


def test_customers_do_not_see_what_servers_said_to_us() -> None:
    held = PoolHold("google", "550 5.7.1 blocked 192.0.2.7", NOW, probe_at=NOW + DAY)
    (theirs,), (ours,) = judge_holds([held]), judge_holds([held], for_operator=True)
    assert "192.0.2.7" not in theirs.detail
    assert "192.0.2.7" in ours.detail
    assert (theirs.kind, theirs.severity, theirs.since) == (AttentionKind.PROVIDER_BLOCKING, CRITICAL, NOW)
