"""Reports about a domain: each counts once, for the account that has the domain, within bounds and for 90 days."""

import pytest

from appliance.model.accounts import Account
from appliance.model.reports import (
    OTHER_SOURCES,
    REPORTS_KEPT_DAYS,
    DmarcCounts,
    DmarcDay,
    DmarcSource,
    DmarcStanding,
    DomainReports,
    ReportResult,
    SeenSource,
    TlsCounts,
    TlsDay,
    TlsDomainCounts,
    TlsFailures,
    TlsStanding,
)
from appliance.store import Store, reports
from appliance.store.reports import record_dmarc_report, record_tls_report
from tests.store.samples import DAY, MORNING, Clock, expire

TODAY = MORNING // DAY
NAME = "bounces.example.com"
TABLES = ("dmarc_reports", "dmarc_sources", "tls_reports", "tls_failures")
GOOD = DmarcSource("192.0.2.1", 100, 99, 99, 90, 0, 0)
BAD = DmarcSource("198.51.100.7", 10, 0, 0, 0, 4, 5)


@pytest.fixture
async def owner(store: Store, account: Account) -> Account:
    await store.access.add_domain(account.id, "example.com", usable=True)
    return account


def dmarc(
    report_id: str = "1", *sources: DmarcSource, day: int = TODAY, domain: str = "example.com", policy: str = "none"
) -> DmarcCounts:
    return DmarcCounts(
        org="google.com",
        report_id=report_id,
        begins_at=day * DAY,
        domain=domain,
        policy=policy,
        percentage=100,
        sources=sources or (GOOD, BAD),
    )


def tls(report_id: str = "1", *domains: TlsDomainCounts, day: int = TODAY) -> TlsCounts:
    failed = TlsDomainCounts("example.com", 90, 3, {("mx.example.com", "certificate-expired"): 3})
    return TlsCounts(org="google.com", report_id=report_id, begins_at=day * DAY, domains=domains or (failed,))


async def take(store: Store, report: DmarcCounts | TlsCounts, name: str = NAME) -> ReportResult:
    now = store.reports.env.now()
    if isinstance(report, DmarcCounts):
        return await store.engine.write(lambda tx: record_dmarc_report(tx, now, name, report))
    return await store.engine.write(lambda tx: record_tls_report(tx, now, name, report))


async def counted(store: Store) -> dict[str, int]:
    return {table: (await store.engine.rows(f"SELECT count(*) FROM {table}", {}))[0][0] for table in TABLES}


async def test_what_reports_say_is_summed_by_day_and_source(store: Store, owner: Account) -> None:
    yesterday = TODAY - 1
    for each in (
        dmarc("1", day=yesterday),
        dmarc("2", policy="quarantine"),
        dmarc("3", GOOD, policy="quarantine"),
        dmarc("4", GOOD),
        tls("1"),
        tls("2", TlsDomainCounts("example.com", 10, 2, {("", "starttls-not-supported"): 2}), day=yesterday),
    ):
        assert await take(store, each) is ReportResult.RECORDED
    (found,) = await store.reports.of(owner.id, 0)
    assert found == DomainReports(
        "example.com",
        NAME,
        DmarcStanding(
            reports=4,
            days=(DmarcDay(yesterday, 110, 99, "none", 100), DmarcDay(TODAY, 310, 297, "quarantine", 100)),
            sources=(
                SeenSource(DmarcSource("198.51.100.7", 20, 0, 0, 0, 8, 10), 2, TODAY),
                SeenSource(DmarcSource("192.0.2.1", 400, 396, 396, 360, 0, 0), 2, TODAY),
            ),
            own_messages=400,
            own_passed=396,
        ),
        TlsStanding(
            reports=2,
            days=(TlsDay(yesterday, 10, 2), TlsDay(TODAY, 90, 3)),
            failures=(
                TlsFailures("mx.example.com", "certificate-expired", 3),
                TlsFailures("", "starttls-not-supported", 2),
            ),
        ),
    )
    (found,) = await store.reports.of(owner.id, TODAY * DAY)
    assert (found.dmarc.reports, found.tls.reports) == (3, 1)
    assert found.dmarc.sources[0].counts.messages == 10


@pytest.mark.parametrize("report", [dmarc(), tls()], ids=["dmarc", "tls"])
async def test_a_repeated_report_counts_once(store: Store, owner: Account, report: DmarcCounts | TlsCounts) -> None:
    assert await take(store, report) is ReportResult.RECORDED
    before = await counted(store)
    assert await take(store, report) is ReportResult.REPEATED
    assert await counted(store) == before


@pytest.mark.parametrize(
    ("report", "name"),
    [
        (dmarc(domain="other.example"), NAME),
        (dmarc(domain="news.example.com"), NAME),
        (dmarc(), "bounces.other.example"),
        (tls("1", TlsDomainCounts("other.example", 1, 0, {})), NAME),
        (tls(), "bounces.other.example"),
    ],
)
async def test_a_report_about_a_domain_that_is_not_registered_there_is_dropped(
    store: Store, owner: Account, report: DmarcCounts | TlsCounts, name: str
) -> None:
    assert await take(store, report, name) is ReportResult.UNKNOWN_DOMAIN
    assert set((await counted(store)).values()) == {0}


async def test_only_an_account_that_may_send_from_the_domain_gets_its_reports(store: Store, owner: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", "hash")
    await store.domains.register(other.id, "example.com")
    assert await take(store, dmarc()) is ReportResult.RECORDED
    assert await store.reports.of(other.id, 0) == []
    await store.domains.prove(other.id, "example.com")
    ((proven,), (first,)) = [await store.reports.of(each.id, 0) for each in (other, owner)]
    assert (proven.dmarc.reports, first.dmarc.reports) == (0, 1)
    assert await take(store, dmarc("2")) is ReportResult.RECORDED
    ((proven,), (first,)) = [await store.reports.of(each.id, 0) for each in (other, owner)]
    assert (proven.dmarc.reports, first.dmarc.reports) == (1, 2)
    await store.domains.remove(owner.id, "example.com")
    assert await store.reports.of(owner.id, 0) == []


async def test_a_return_path_of_its_own_takes_the_place_of_the_default(store: Store, owner: Account) -> None:
    name = "feedback.example.com"
    await store.access.add_domain(owner.id, "example.com", usable=True, return_path=name)
    assert await take(store, dmarc()) is ReportResult.UNKNOWN_DOMAIN
    assert await take(store, dmarc(), name) is ReportResult.RECORDED
    (found,) = await store.reports.of(owner.id, 0)
    assert (found.return_path, found.dmarc.reports) == (name, 1)


async def test_of_a_tls_report_about_several_domains_the_registered_ones_count(store: Store, owner: Account) -> None:
    domains = [TlsDomainCounts(name, 5, 0, {}) for name in ("a.example", "example.com", "z.example")]
    assert await take(store, tls("1", *domains)) is ReportResult.RECORDED
    assert (await counted(store))["tls_reports"] == 1
    (found,) = await store.reports.of(owner.id, 0)
    assert found.tls.days == (TlsDay(TODAY, 5, 0),)


@pytest.mark.parametrize("day", [0, TODAY - REPORTS_KEPT_DAYS - 1, TODAY + 2, 10**7])
async def test_a_report_about_another_time_is_dropped(store: Store, owner: Account, day: int) -> None:
    """One that would be deleted at once, and could then count again; and one about the future."""
    for report in (dmarc(day=day), tls(day=day)):
        assert await take(store, report) is ReportResult.OUT_OF_TIME
    assert set((await counted(store)).values()) == {0}


async def test_rows_are_bounded(store: Store, owner: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the limits sources and failures are summed without a name, and reports are left out; no message is lost."""
    monkeypatch.setattr(reports, "SOURCES_PER_DAY", 3)
    monkeypatch.setattr(reports, "FAILURES_PER_DAY", 3)
    monkeypatch.setattr(reports, "REPORTS_PER_DAY", 4)
    for number in range(6):
        sources = [DmarcSource(f"192.0.2.{number}{each}", 2, 1, 1, 1, 0, 0) for each in range(2)]
        failures = {(f"mx{number}{each}.example.com", "validation-failure"): 2 for each in range(2)}
        expected = ReportResult.RECORDED if number < 4 else ReportResult.TOO_MANY
        assert await take(store, dmarc(str(number), *sources)) is expected
        assert await take(store, tls(str(number), TlsDomainCounts("example.com", 0, 4, failures))) is expected
    assert await counted(store) == {"dmarc_reports": 4, "dmarc_sources": 4, "tls_reports": 4, "tls_failures": 4}
    (found,) = await store.reports.of(owner.id, 0)
    assert (found.dmarc.days[0].messages, found.dmarc.days[0].passed) == (16, 8)
    assert found.dmarc.sources[0].counts == DmarcSource(OTHER_SOURCES, 10, 5, 5, 5, 0, 0)
    assert found.tls.failures[0] == TlsFailures("", "", 10)


async def test_the_largest_values_are_taken(store: Store, owner: Account) -> None:
    long = "\U0001f4e7" * 255
    sources = tuple(DmarcSource(f"2001:db8::{n:x}", *[10**13] * 6) for n in range(200))
    for number in range(3):
        report = DmarcCounts(
            org=long,
            report_id=f"{number}{long}",
            begins_at=TODAY * DAY,
            domain="example.com",
            policy="reject",
            percentage=100,
            sources=sources,
        )
        assert await take(store, report) is ReportResult.RECORDED
        failures = TlsDomainCounts("example.com", 10**12, 10**13, {(long, long): 10**13})
        whole = TlsCounts(org=long, report_id=f"{number}{long}", begins_at=TODAY * DAY, domains=(failures,))
        assert await take(store, whole) is ReportResult.RECORDED
    (found,) = await store.reports.of(owner.id, 0)
    assert found.dmarc.days[0].messages == 3 * 200 * 10**13
    assert found.tls.failures == (TlsFailures(long, long, 3 * 10**13),)


async def test_reports_are_kept_for_ninety_days(store: Store, owner: Account, clock: Clock) -> None:
    for report in (dmarc(), tls()):
        await take(store, report)
    clock.now = (TODAY + REPORTS_KEPT_DAYS) * DAY + DAY - 1000
    assert await expire(store) == 0
    clock.now += 1000
    assert await expire(store) > 0
    assert set((await counted(store)).values()) == {0}
