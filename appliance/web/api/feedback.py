"""What came back of an account's mail: bounces by class and provider, complaints, and reports about its domains.

One answer, /v1/feedback, for the dashboard's page: counts of recipients by day and provider, and for each domain what
DMARC and TLS reports say, with the next step of its DMARC policy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from appliance.dns.records import dmarc_value, tls_rpt_value
from appliance.feedback.dmarc_policy import PROPOSAL_DAYS, DmarcState, next_step
from appliance.model.accounts import User
from appliance.model.dashboard import FeedbackKind
from appliance.model.mail import BounceClass
from appliance.model.reports import REPORTS_KEPT_DAYS, DmarcStanding, DomainReports, SeenSource, TlsStanding
from appliance.times import DAY, rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, request_id, whole_number
from appliance.web.operations import Json, for_customers, parameter

FEEDBACK_DAYS = 30  # unless others are asked for
# Microseconds to add up a count, to show a day of an account, a domain, and a line of what reports say of it.
COUNT_COST, DAY_COST, DOMAIN_COST, REPORT_LINE_COST = 5, 20, 100, 6

_KINDS = ("delivered", "bounced", "failed", "late_bounced", "complained")


class BounceClassesObject(msgspec.Struct):
    """Recipients that bounced, bounced late or failed, by class; those of which no server said why have none."""

    invalid_recipient: int
    mailbox_full: int
    policy: int
    reputation: int
    content: int
    authentication: int
    temporary: int
    other: int


class FeedbackDayObject(msgspec.Struct):
    """What became of recipients on one day (UTC)."""

    start: Time
    delivered: int
    bounced: int
    failed: int
    late_bounced: int
    complained: int
    classes: BounceClassesObject


class FeedbackProviderObject(msgspec.Struct):
    """What became of recipients at one provider in the whole time; null: all that are no known provider's."""

    provider: str | None
    delivered: int
    bounced: int
    failed: int
    late_bounced: int
    complained: int
    complaint_rate: float | None
    classes: BounceClassesObject


class DmarcDayObject(msgspec.Struct):
    """Messages in the domain's name that receivers saw on one day (UTC), and whether they passed DMARC."""

    start: Time
    passed: int
    failed: int


class DmarcSourceObject(msgspec.Struct):
    """What came from one address in the domain's name; null: further addresses together."""

    address: str | None
    messages: int
    passed: int
    dkim_passed: int
    spf_passed: int
    quarantined: int
    rejected: int
    days: int
    last_seen: Time


class DmarcStepObject(msgspec.Struct):
    """The next step of the domain's DMARC policy, with the numbers that justify it."""

    state: DmarcState
    text: str
    policy: str | None
    percentage: int
    proposed: str | None
    days: int
    own_messages: int
    own_passed: int


class DmarcObject(msgspec.Struct):
    """What DMARC reports say of a domain."""

    record: str
    reports: int
    messages: int
    passed: int
    pass_rate: float | None
    days: list[DmarcDayObject]
    sources: list[DmarcSourceObject]
    next_step: DmarcStepObject


class TlsDayObject(msgspec.Struct):
    """Sessions with the domain's mail servers on one day (UTC)."""

    start: Time
    successes: int
    failures: int


class TlsFailuresObject(msgspec.Struct):
    """Sessions that failed at one server in one way; both null: further ones together."""

    mx: str | None
    type: str | None
    sessions: int


class TlsObject(msgspec.Struct):
    """What TLS reports say of a domain's mail servers."""

    record: str
    reports: int
    sessions: int
    failures: int
    days: list[TlsDayObject]
    by_mx: list[TlsFailuresObject]


class DomainFeedbackObject(msgspec.Struct):
    """What reports say of one domain."""

    domain: str
    return_path: str
    dmarc: DmarcObject
    tls: TlsObject


class FeedbackAnswer(msgspec.Struct):
    """What came back of the account's mail in the last days, test mail left out."""

    takes_reports: bool
    days: list[FeedbackDayObject]
    providers: list[FeedbackProviderObject]
    classes: BounceClassesObject
    domains: list[DomainFeedbackObject]
    request_id: str


_DAYS: Json = {"type": "integer", "minimum": 1, "maximum": REPORTS_KEPT_DAYS, "default": FEEDBACK_DAYS}


class FeedbackRoutes(Routes):
    @for_customers(
        "GET /v1/feedback",
        (200, FeedbackAnswer, "What came back."),
        parameters=(parameter("days", "query", "How many days (UTC), with today.", _DAYS),),
    )
    async def get_feedback(self, user: User) -> bytes:
        """Read what came back: bounces by class and provider, late bounces, complaints, DMARC and TLS reports."""
        days, today = whole_number("days", FEEDBACK_DAYS, REPORTS_KEPT_DAYS), self.services.env.now() // DAY
        account_id, first = user.account_id, today - days + 1
        counts = await self.store.statistics.feedback(account_id, first * DAY)
        reports = await self.store.reports.of(account_id, first * DAY)
        # The proposal is made of the same days, whichever are shown.
        judged = await self.store.reports.of(account_id, (today - PROPOSAL_DAYS + 1) * DAY)
        takes_reports = bool(self.services.config.inbound.bind)
        shown = takes_reports, counts, range(first, today + 1), reports, judged, request_id()
        cost = feedback_cost(counts, days, [*reports, *judged])
        return await self.services.intake.workers.run(account_id, cost, encoded_feedback, *shown)


def feedback_cost(counts: Mapping[FeedbackKind, int], days: int, reports: Iterable[DomainReports]) -> int:
    """An estimate for `encoded_feedback`, in microseconds. Pure."""
    parts = ((each.dmarc.days, each.dmarc.sources, each.tls.days, each.tls.failures) for each in reports)
    of_reports = sum(DOMAIN_COST + REPORT_LINE_COST * sum(map(len, part)) for part in parts)
    return COUNT_COST * len(counts) + DAY_COST * days + of_reports


def encoded_feedback(
    takes_reports: bool,
    counts: Mapping[FeedbackKind, int],
    days: Iterable[int],
    reports: Iterable[DomainReports],
    judged: Iterable[DomainReports],
    asked_by: str,
) -> bytes:
    """The FeedbackAnswer to a request, as JSON. Pure."""
    standing = {each.domain: each.dmarc for each in judged}
    found = FeedbackAnswer(
        takes_reports=takes_reports,
        days=by_day(counts, days),
        providers=by_provider(counts),
        classes=classes(counts),
        domains=[_domain(each, standing.get(each.domain, DmarcStanding())) for each in reports],
        request_id=asked_by,
    )
    return msgspec.json.encode(found)


def by_day(counts: Mapping[FeedbackKind, int], days: Iterable[int]) -> list[FeedbackDayObject]:
    """Each of these days, also those without mail. Pure."""
    parts: dict[int, Counter[FeedbackKind]] = {day: Counter() for day in days}
    for kind, count in counts.items():
        if kind.day in parts:
            parts[kind.day][kind] += count
    return [
        FeedbackDayObject(start=rfc3339(day * DAY), classes=classes(part), **_sums(part)) for day, part in parts.items()
    ]


def by_provider(counts: Mapping[FeedbackKind, int]) -> list[FeedbackProviderObject]:
    """Those with the most deliveries first, and last all that are no known provider's. Pure."""
    parts: dict[str, Counter[FeedbackKind]] = {}
    for kind, count in counts.items():
        parts.setdefault(kind.provider, Counter())[kind] += count
    found = []
    for provider, part in parts.items():
        sums = _sums(part)
        rate = round(sums["complained"] / sums["delivered"], 5) if sums["delivered"] else None
        shown = FeedbackProviderObject(provider=provider or None, complaint_rate=rate, classes=classes(part), **sums)
        found.append(shown)
    return sorted(found, key=lambda each: (each.provider is None, -each.delivered, each.provider or ""))


def classes(counts: Mapping[FeedbackKind, int]) -> BounceClassesObject:
    """Their sums by class. Pure."""
    sums: Counter[str] = Counter()
    for kind, count in counts.items():
        sums[kind.bounce_class] += count
    return BounceClassesObject(**{each.value: sums[each.value] for each in BounceClass})


def _sums(counts: Mapping[FeedbackKind, int]) -> dict[str, int]:
    sums = dict.fromkeys(_KINDS, 0)
    for kind, count in counts.items():
        sums[kind.kind] += count
    return sums


def _domain(reports: DomainReports, judged: DmarcStanding) -> DomainFeedbackObject:
    name = reports.return_path
    return DomainFeedbackObject(reports.domain, name, _dmarc(reports.dmarc, judged, name), _tls(reports.tls, name))


def _dmarc(standing: DmarcStanding, judged: DmarcStanding, name: str) -> DmarcObject:
    messages, passed = sum(each.messages for each in standing.days), sum(each.passed for each in standing.days)
    step = next_step(judged, name)
    return DmarcObject(
        record=dmarc_value(name, step.proposed or step.policy or "none"),
        reports=standing.reports,
        messages=messages,
        passed=passed,
        pass_rate=round(passed / messages, 4) if messages else None,
        days=[
            DmarcDayObject(rfc3339(each.day * DAY), each.passed, each.messages - each.passed) for each in standing.days
        ],
        sources=[_source(each) for each in standing.sources],
        next_step=object_from(DmarcStepObject, step),
    )


def _source(seen: SeenSource) -> DmarcSourceObject:
    each = seen.counts
    return DmarcSourceObject(
        address=each.address or None,
        messages=each.messages,
        passed=each.passed,
        dkim_passed=each.dkim,
        spf_passed=each.spf,
        quarantined=each.quarantined,
        rejected=each.rejected,
        days=seen.days,
        last_seen=rfc3339(seen.last_day * DAY),
    )


def _tls(standing: TlsStanding, name: str) -> TlsObject:
    failures = sum(each.failures for each in standing.days)
    return TlsObject(
        record=tls_rpt_value(name),
        reports=standing.reports,
        sessions=sum(each.successes for each in standing.days) + failures,
        failures=failures,
        days=[TlsDayObject(rfc3339(each.day * DAY), each.successes, each.failures) for each in standing.days],
        by_mx=[TlsFailuresObject(each.mx or None, each.type or None, each.sessions) for each in standing.failures],
    )
