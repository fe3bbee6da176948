"""Reports about a domain: DMARC aggregate reports and TLS reports, each counted once, and their daily sums.

Anyone can send reports, so the number of reports, sources and failures per domain and day is limited. Values over a
limit are summed without their name, or dropped. A report counts only for accounts that may send from its domain, and
only if it was sent to that domain's return path.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

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
from appliance.store.engine import Bindings, Bulk, Row, StorePart, Tx, changed, one, rows
from appliance.times import DAY

REPORTS_PER_DAY = 1_000  # about one domain
SOURCES_PER_DAY = 1_000  # kept separately per domain
FAILURES_PER_DAY = 200
DOMAINS_SHOWN = 50
SOURCES_SHOWN = 20  # of one domain
FAILURES_SHOWN = 50

_ORG, _REPORT_ID = 100, 200  # characters: together they are a key
NO_FAILURE = ("", "")  # stands for all failures over the limit
_CLOCKS = 1  # days by which a reporter's clock may be ahead

_REGISTERED = """SELECT account_id FROM domains WHERE coalesce(return_path, 'bounces.' || name) = :name
    AND name = :domain AND usable = 1 AND removed_at IS NULL ORDER BY account_id"""

# ---- recording, as steps of a transaction

_OF_DAY = "SELECT {what} FROM {table} WHERE account_id = :account_id AND domain = :domain AND day = :day"
_ADD_DMARC = """INSERT INTO dmarc_reports
    (account_id, domain, org, report_id, day, policy, percentage, messages, passed, received_at)
    VALUES (:account_id, :domain, :org, :report_id, :day, :policy, :percentage, :messages, :passed, :now)
    ON CONFLICT DO NOTHING"""
_ADD_SOURCES = Bulk("""INSERT INTO dmarc_sources
    (account_id, domain, day, source, messages, passed, dkim, spf, quarantined, rejected)
    VALUES {(?, ?, ?i, ?, ?i, ?i, ?i, ?i, ?i, ?i)}
    ON CONFLICT (account_id, domain, day, source) DO UPDATE SET
        messages = dmarc_sources.messages + excluded.messages, passed = dmarc_sources.passed + excluded.passed,
        dkim = dmarc_sources.dkim + excluded.dkim, spf = dmarc_sources.spf + excluded.spf,
        quarantined = dmarc_sources.quarantined + excluded.quarantined,
        rejected = dmarc_sources.rejected + excluded.rejected""")
_ADD_TLS = """INSERT INTO tls_reports (account_id, domain, org, report_id, day, successes, failures, received_at)
    VALUES (:account_id, :domain, :org, :report_id, :day, :successes, :failures, :now) ON CONFLICT DO NOTHING"""
_ADD_FAILURES = Bulk("""INSERT INTO tls_failures (account_id, domain, day, mx, type, sessions)
    VALUES {(?, ?, ?i, ?, ?, ?i)}
    ON CONFLICT (account_id, domain, day, mx, type) DO UPDATE SET
        sessions = tls_failures.sessions + excluded.sessions""")


def record_dmarc_report(tx: Tx, now: int, name: str, report: DmarcCounts) -> ReportResult:
    """Count a report sent to the return path `name`, as a step of a transaction."""
    if not _is_in_time(report.begins_at, now):
        return ReportResult.OUT_OF_TIME
    return _best(_add_dmarc(tx, row, report.sources) for row in _new_rows(tx, now, name, report.domain, report))


def record_tls_report(tx: Tx, now: int, name: str, report: TlsCounts) -> ReportResult:
    """Likewise for a TLS report; only its registered domains count."""
    if not _is_in_time(report.begins_at, now):
        return ReportResult.OUT_OF_TIME
    return _best(
        _add_tls(tx, row, domain)
        for domain in report.domains
        for row in _new_rows(tx, now, name, domain.domain, report)
    )


def _is_in_time(begins_at: int, now: int) -> bool:
    return first_day_kept(now) <= begins_at // DAY <= now // DAY + _CLOCKS


def first_day_kept(now: int) -> int:
    return now // DAY - REPORTS_KEPT_DAYS


def _best(results: Iterable[ReportResult]) -> ReportResult:
    matches = set(results)
    order = (ReportResult.RECORDED, ReportResult.TOO_MANY, ReportResult.REPEATED)
    return next((item for item in order if item in matches), ReportResult.UNKNOWN_DOMAIN)


def _new_rows(tx: Tx, now: int, name: str, domain: str, report: DmarcCounts | TlsCounts) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"domain": domain, "org": report.org[:_ORG], "day": report.begins_at // DAY, "now": now}
    row["report_id"] = report.report_id[:_REPORT_ID]
    if isinstance(report, DmarcCounts):
        row |= {"policy": report.policy, "percentage": report.percentage}
    selected = rows(tx, _REGISTERED, {"domain": domain, "name": name})
    return [{**row, "account_id": account_id} for (account_id,) in selected]


def _add_dmarc(tx: Tx, row: Bindings, sources: Iterable[DmarcSource]) -> ReportResult:
    sources = list(sources)
    messages, passed = sum(item.messages for item in sources), sum(item.passed for item in sources)
    result = _add(tx, "dmarc_reports", _ADD_DMARC, {**row, "messages": messages, "passed": passed})
    if result is not ReportResult.RECORDED:
        return result
    known = {source for (source,) in rows(tx, _OF_DAY.format(what="source", table="dmarc_sources"), row)}
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for item in sources:
        address = item.address
        if address not in known and len(known) >= SOURCES_PER_DAY:
            address = OTHER_SOURCES
        known.add(address)
        numbers = (item.messages, item.passed, item.dkim, item.spf, item.quarantined, item.rejected)
        counts[address] = [old + new for old, new in zip(counts[address], numbers, strict=True)]
    place = (row["account_id"], row["domain"], row["day"])
    _ADD_SOURCES.run(tx, [(*place, address, *numbers) for address, numbers in sorted(counts.items())])
    return result


def _add_tls(tx: Tx, row: Bindings, domain: TlsDomainCounts) -> ReportResult:
    numbers = {"successes": domain.successes, "failures": domain.failures}
    result = _add(tx, "tls_reports", _ADD_TLS, {**row, **numbers})
    if result is not ReportResult.RECORDED:
        return result
    known = {(mx, kind) for mx, kind in rows(tx, _OF_DAY.format(what="mx, type", table="tls_failures"), row)}
    counts: Counter[tuple[str, str]] = Counter()
    for failure, sessions in domain.by_mx.items():
        if failure not in known and len(known) >= FAILURES_PER_DAY:
            failure = NO_FAILURE
        known.add(failure)
        counts[failure] += sessions
    place = (row["account_id"], row["domain"], row["day"])
    _ADD_FAILURES.run(tx, [(*place, *failure, sessions) for failure, sessions in sorted(counts.items())])
    return result


def _add(tx: Tx, table: str, insert: str, row: Bindings) -> ReportResult:
    if (one(tx, int, _OF_DAY.format(what="count(*)", table=table), row) or 0) >= REPORTS_PER_DAY:
        return ReportResult.TOO_MANY
    return ReportResult.RECORDED if changed(tx, insert, row) else ReportResult.REPEATED


# ---- reading

_DOMAINS = """SELECT name, coalesce(return_path, 'bounces.' || name) FROM domains
    WHERE account_id = :account_id AND usable = 1 AND removed_at IS NULL ORDER BY name LIMIT :most"""
_WANTED = "account_id = :account_id AND day >= :since"
_DMARC_DAYS = f"""SELECT domain, day, policy, percentage, count(*), sum(messages), sum(passed) FROM dmarc_reports
    WHERE {_WANTED} GROUP BY domain, day, policy, percentage ORDER BY domain, day, 5, policy, percentage"""
_COUNTED_SOURCES = f"""SELECT domain, source, sum(messages) AS messages, sum(passed) AS passed, sum(dkim) AS dkim,
        sum(spf) AS spf, sum(quarantined) AS quarantined, sum(rejected) AS rejected, count(*) AS days,
        max(day) AS last_day
    FROM dmarc_sources WHERE {_WANTED} GROUP BY domain, source"""
_SOURCES = f"""SELECT domain, source, messages, passed, dkim, spf, quarantined, rejected, days, last_day FROM (
        SELECT counted.*, row_number() OVER
            (PARTITION BY domain ORDER BY messages - passed DESC, messages DESC, source) AS place
        FROM ({_COUNTED_SOURCES}) counted
    ) placed WHERE place <= :most ORDER BY domain, place"""
# If any mail of a source passed, it has the domain's keys or permission: all its mail counts as the domain's own.
_OWN = f"""SELECT domain, sum(messages), sum(passed) FROM ({_COUNTED_SOURCES}) counted
    WHERE passed > 0 AND source <> '{OTHER_SOURCES}' GROUP BY domain"""
_TLS_DAYS = f"""SELECT domain, day, count(*), sum(successes), sum(failures) FROM tls_reports
    WHERE {_WANTED} GROUP BY domain, day ORDER BY domain, day"""
_FAILURES = f"""SELECT domain, mx, type, sessions FROM (
        SELECT counted.*, row_number() OVER (PARTITION BY domain ORDER BY sessions DESC, mx, type) AS place FROM (
            SELECT domain, mx, type, sum(sessions) AS sessions FROM tls_failures
            WHERE {_WANTED} GROUP BY domain, mx, type
        ) counted
    ) placed WHERE place <= :most ORDER BY domain, place"""


class Reports(StorePart):
    async def of(self, account_id: str, since: int) -> list[DomainReports]:
        """Reports about an account's domains since a day, including domains without any."""
        bindings = {"account_id": account_id, "since": since // DAY}
        return await self.engine.scan(lambda tx: _read(tx, bindings), account_id)


def _read(tx: Tx, bindings: dict[str, Any]) -> list[DomainReports]:
    dmarc_days, sources = _by_domain(tx, _DMARC_DAYS, bindings), _by_domain(tx, _SOURCES, bindings, SOURCES_SHOWN)
    own = _by_domain(tx, _OWN, bindings)
    tls_days, failures = _by_domain(tx, _TLS_DAYS, bindings), _by_domain(tx, _FAILURES, bindings, FAILURES_SHOWN)
    return [
        DomainReports(
            domain,
            return_path,
            _dmarc(dmarc_days[domain], sources[domain], own[domain]),
            TlsStanding(
                sum(reports for _, reports, *_ in tls_days[domain]),
                tuple(TlsDay(day, successes, failed) for day, _, successes, failed in tls_days[domain]),
                tuple(TlsFailures(*row) for row in failures[domain]),
            ),
        )
        for domain, return_path in rows(tx, _DOMAINS, bindings | {"most": DOMAINS_SHOWN})
    ]


def _by_domain(tx: Tx, query: str, bindings: dict[str, Any], most: int = 0) -> defaultdict[str, list[Row]]:
    results: defaultdict[str, list[Row]] = defaultdict(list)
    for domain, *values in rows(tx, query, bindings | {"most": most} if most else bindings):
        results[domain].append(tuple(values))
    return results


def _dmarc(by_policy: list[Row], sources: list[Row], own: list[Row]) -> DmarcStanding:
    days: dict[int, DmarcDay] = {}
    for day, policy, percentage, _, messages, passed in by_policy:  # the policy of the most reports comes last
        before = days.get(day, DmarcDay(day, 0, 0, policy, percentage))
        days[day] = DmarcDay(day, before.messages + messages, before.passed + passed, policy, percentage)
    ((messages, passed),) = own or [(0, 0)]
    return DmarcStanding(
        sum(row[3] for row in by_policy),
        tuple(days.values()),
        tuple(SeenSource(DmarcSource(*counts), seen, last) for *counts, seen, last in sources),
        messages,
        passed,
    )
