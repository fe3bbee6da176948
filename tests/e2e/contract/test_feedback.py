"""What came back of an account's mail: bounces by class and provider, complaints, reports about its domains."""

from functools import partial
from typing import Any

from appliance.environment import Environment
from appliance.model.reports import DmarcCounts, DmarcSource, ReportResult, TlsCounts, TlsDomainCounts
from appliance.store import Store
from appliance.store.engine import Tx
from appliance.store.reports import record_dmarc_report, record_tls_report
from appliance.times import DAY, rfc3339
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, owner

NAME = "bounces.example.com"
AT_GOOGLE = """INSERT INTO destinations (domain, pool, updated_at) VALUES ('gmail.example', 'google', 0)
    ON CONFLICT DO NOTHING"""
CLASSES = [
    "invalid_recipient",
    "mailbox_full",
    "policy",
    "reputation",
    "content",
    "authentication",
    "temporary",
    "other",
]


def feedback(caller: Caller, **query: Any) -> Any:
    response = owner(caller).get("/v1/feedback", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def recorded(tx: Tx, now: int, report: DmarcCounts | TlsCounts) -> ReportResult:
    record = record_dmarc_report if isinstance(report, DmarcCounts) else record_tls_report
    return record(tx, now, NAME, report)  # type: ignore[arg-type]  # by its kind


def take(caller: Caller, *reports: DmarcCounts | TlsCounts) -> None:
    """Record reports about example.com for the one account that has it as its domain here."""

    async def record(store: Store) -> None:
        for report in reports:
            result = await store.engine.write(partial(recorded, now=store.reports.env.now(), report=report))
            assert result is ReportResult.RECORDED

    change(caller.running.data_dir, record)


def today() -> int:
    """Days since 1970."""
    return Environment().now() // DAY


def test_bounces_are_counted_by_class_and_provider(new_account: NewAccount) -> None:
    """A moment after they are final; domains of no known provider are counted together, and tests are left out."""
    caller = new_account()
    change(caller.running.data_dir, lambda store: store.engine.change(AT_GOOGLE, {}))
    test = caller.using(bearer(caller.account.test_key)).send(to="bounce@gmail.example")
    caller.final(test["id"])
    caller.delivered(to=["ok@gmail.example", "bounce@gmail.example", "fine@example.net", "bounce@example.net"])
    told = feedback(caller, days=7)
    assert len(told["days"]) == 7
    assert sum(each["bounced"] for each in told["days"]) == sum(each["delivered"] for each in told["days"]) == 2
    assert [(each["provider"], each["delivered"], each["bounced"]) for each in told["providers"]] == [
        ("google", 1, 1),
        (None, 1, 1),
    ]
    assert told["providers"][0]["complaint_rate"] == 0
    assert list(told["classes"]) == CLASSES
    assert (told["classes"]["invalid_recipient"], sum(told["classes"].values())) == (2, 2)


def test_an_account_without_mail_is_told_what_to_publish(new_account: NewAccount) -> None:
    """Each day has its line, nothing is counted, and each domain has the records that ask for reports."""
    told = feedback(new_account())
    assert len(told["days"]) == 30
    assert told["providers"] == []
    assert set(told["classes"].values()) == {0}
    assert told["takes_reports"] is False
    (domain,) = told["domains"]
    assert (domain["domain"], domain["return_path"]) == ("example.com", NAME)
    assert domain["dmarc"]["record"] == f"v=DMARC1; p=none; rua=mailto:dmarc@{NAME}"
    assert domain["tls"]["record"] == f"v=TLSRPTv1; rua=mailto:tlsrpt@{NAME}"
    assert domain["dmarc"]["next_step"]["state"] == "no_reports"
    assert (domain["dmarc"]["pass_rate"], domain["dmarc"]["days"], domain["tls"]["by_mx"]) == (None, [], [])


def test_reports_lead_to_the_next_step(new_account: NewAccount) -> None:
    """Two weeks of reports: pass rates by day and source, who fails, TLS by server, and what they justify."""
    caller = new_account()
    now = today()
    good, bad = DmarcSource("192.0.2.1", 100, 100, 100, 90, 0, 0), DmarcSource("198.51.100.7", 5, 0, 0, 0, 2, 1)
    head: dict[str, Any] = {
        "org": f"google.com {caller.account.name}",
        "domain": "example.com",
        "policy": "none",
        "percentage": 100,
    }
    reports = [
        DmarcCounts(report_id=str(back), begins_at=(now - back) * DAY, sources=(good, bad), **head)
        for back in range(14)
    ]
    failed = TlsDomainCounts("example.com", 90, 10, {("mx.example.com", "certificate-expired"): 10})
    take(caller, *reports, TlsCounts(org=head["org"], report_id="1", begins_at=now * DAY, domains=(failed,)))
    (domain,) = feedback(caller)["domains"]
    told = domain["dmarc"]
    assert (told["reports"], told["messages"], told["passed"], told["pass_rate"]) == (14, 1470, 1400, 0.9524)
    assert told["days"][-1] == {"start": rfc3339(now * DAY), "passed": 100, "failed": 5}
    assert told["sources"][0] == {
        "address": "198.51.100.7",
        "messages": 70,
        "passed": 0,
        "dkim_passed": 0,
        "spf_passed": 0,
        "quarantined": 28,
        "rejected": 14,
        "days": 14,
        "last_seen": rfc3339(now * DAY),
    }
    step = told["next_step"]
    assert (step["state"], step["policy"], step["proposed"], step["days"]) == ("step", "none", "quarantine", 14)
    assert (step["own_messages"], step["own_passed"]) == (1400, 1400)
    assert "198.51.100.7 (70 failed)" in step["text"]
    assert told["record"].startswith("v=DMARC1; p=quarantine;")
    assert (domain["tls"]["sessions"], domain["tls"]["failures"]) == (100, 10)
    assert domain["tls"]["by_mx"] == [{"mx": "mx.example.com", "type": "certificate-expired", "sessions": 10}]
    (short,) = feedback(caller, days=1)["domains"]
    assert short["dmarc"]["reports"] == 1
    assert short["dmarc"]["next_step"] == step, "the proposal does not depend on the days that are shown"
