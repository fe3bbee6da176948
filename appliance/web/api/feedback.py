"""Bounces by class and provider, complaints, DMARC and TLS reports: /v1/feedback. Feedback by mail: /v1/feedback/inbox.

One response serves the dashboard's page: recipient counts by day and provider, and per domain the reports with the next
step of its DMARC policy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.dns.records import dmarc_value, tls_rpt_value
from appliance.errors import Code, Refused
from appliance.feedback.dmarc import PROPOSAL_DAYS, DmarcState, next_step
from appliance.feedback.mime import open_mail
from appliance.message.characters import cost_of_size
from appliance.model.accounts import Permission, Principal, User
from appliance.model.dashboard import FeedbackKind
from appliance.model.feedback import InboxMail
from appliance.model.mail import BounceClass
from appliance.model.numbers import rates
from appliance.model.reports import REPORTS_KEPT_DAYS, DmarcStanding, DomainReports, SeenSource, TlsStanding
from appliance.store.engine import NEWEST
from appliance.times import DAY, rfc3339
from appliance.web.api.stats import BounceMark, BounceRate, Complained, ComplaintMark, ComplaintRate, LateBounced
from appliance.web.app import Routes, page_limit, whole_number
from appliance.web.exchange import ApiAnswer, NextPage, Time, object_from, request_id
from appliance.web.operations import PAGING_BACK, Tag, for_customers, number_parameter, parameter

FEEDBACK_DAYS = 30  # default
# Microseconds per count, per day, per domain, and per line of a report.
COUNT_COST, DAY_COST, DOMAIN_COST, REPORT_LINE_COST = 5, 20, 100, 6

_KINDS = ("delivered", "bounced", "failed", "late_bounced", "complained")  # shown


class BounceClassesObject(msgspec.Struct):
    """Recipients that bounced or failed, by class. Recipients without a server's reason have no class."""

    invalid_recipient: Annotated[int, Meta(description="The mailbox does not exist.")]
    mailbox_full: Annotated[int, Meta(description="The mailbox is full.")]
    policy: Annotated[int, Meta(description="A policy of the receiver rejects the message.")]
    reputation: Annotated[int, Meta(description="The receiver rejects the sender: blocklisted, or too much mail.")]
    content: Annotated[int, Meta(description="The receiver rejects the content or the size.")]
    authentication: Annotated[int, Meta(description="SPF, DKIM, DMARC or reverse DNS fails the receiver's checks.")]
    temporary: Annotated[int, Meta(description="No server accepted the message in time.")]
    other: Annotated[int, Meta(description="Any other reason.")]


class FeedbackDayObject(msgspec.Struct):
    """Results of one day (UTC)."""

    start: Annotated[Time, Meta(description="Start of the day.")]
    delivered: Annotated[int, Meta(description="Recipients delivered in this period.")]
    bounced: Annotated[int, Meta(description="Recipients that bounced in this period.")]
    failed: Annotated[int, Meta(description="Recipients that failed in this period.")]
    late_bounced: LateBounced
    complained: Complained
    classes: Annotated[BounceClassesObject, Meta(description="Bounces of the day by class.")]


class FeedbackProviderObject(msgspec.Struct):
    """Results at one provider over the whole period."""

    provider: Annotated[str | None, Meta(description="Provider pool; null for all domains without a known provider.")]
    delivered: Annotated[int, Meta(description="Recipients delivered in this period.")]
    bounced: Annotated[int, Meta(description="Recipients that bounced in this period.")]
    failed: Annotated[int, Meta(description="Recipients that failed in this period.")]
    late_bounced: LateBounced
    complained: Complained
    bounce_rate: BounceRate
    bounce_mark: BounceMark
    complaint_rate: ComplaintRate
    complaint_mark: ComplaintMark
    classes: Annotated[BounceClassesObject, Meta(description="Bounces at the provider by class.")]


class DmarcDayObject(msgspec.Struct):
    """DMARC results of one day (UTC)."""

    start: Annotated[Time, Meta(description="Start of the day or hour.")]
    passed: Annotated[int, Meta(description="Messages that passed DMARC.")]
    failed: Annotated[int, Meta(description="Messages that failed DMARC.")]


class DmarcSourceObject(msgspec.Struct):
    """Mail from one address in the domain's name."""

    address: Annotated[str | None, Meta(description="IP address; null for all other addresses together.")]
    messages: Annotated[int, Meta(description="Messages from this address.")]
    passed: Annotated[int, Meta(description="Messages that passed DMARC.")]
    dkim_passed: Annotated[int, Meta(description="Messages with a valid, aligned DKIM signature.")]
    spf_passed: Annotated[int, Meta(description="Messages with an aligned SPF pass.")]
    quarantined: Annotated[int, Meta(description="Messages that receivers quarantined.")]
    rejected: Annotated[int, Meta(description="Messages that receivers rejected.")]
    days: Annotated[int, Meta(description="Number of days with mail from this address.")]
    last_seen: Annotated[Time, Meta(description="Last day with mail from this address.")]


_STATE = Meta(description="`no_reports`, `collect`, `mend`, `step` (publish `proposed`) or `done`.")


class DmarcStepObject(msgspec.Struct):
    """The next step of the domain's DMARC policy, and its basis."""

    state: Annotated[DmarcState, _STATE]
    text: Annotated[str, Meta(description="What to do, and why.")]
    policy: Annotated[str | None, Meta(description="Current policy: `none`, `quarantine`, `reject` or null.")]
    percentage: Annotated[int, Meta(description="Share of mail that the policy covers (`pct`), in percent.")]
    proposed: Annotated[str | None, Meta(description="Policy to publish next; null if no change is proposed.")]
    days: Annotated[int, Meta(description="Days with reports under this policy, within the last 30 days.")]
    own_messages: Annotated[int, Meta(description="Messages from addresses with at least one DMARC pass.")]
    own_passed: Annotated[int, Meta(description="Messages from these addresses that passed DMARC.")]


class DmarcObject(msgspec.Struct):
    """DMARC reports about a domain."""

    record: Annotated[str, Meta(description="Record for `_dmarc.<domain>` with the proposed policy.")]
    reports: Annotated[int, Meta(description="Number of reports.")]
    messages: Annotated[int, Meta(description="Messages covered by the reports.")]
    passed: Annotated[int, Meta(description="Messages that passed DMARC.")]
    pass_rate: Annotated[float | None, Meta(description="`passed` as a share of `messages`; null without messages.")]
    days: Annotated[list[DmarcDayObject], Meta(description="Days covered by reports, oldest first.")]
    sources: Annotated[list[DmarcSourceObject], Meta(description="Up to 20 sending addresses, most failures first.")]
    next_step: Annotated[DmarcStepObject, Meta(description="Next step, from the reports of the last 30 days.")]


class TlsDayObject(msgspec.Struct):
    """TLS sessions with the domain's mail servers on one day (UTC)."""

    start: Annotated[Time, Meta(description="Start of the day.")]
    successes: Annotated[int, Meta(description="Sessions that met the domain's TLS policy.")]
    failures: Annotated[int, Meta(description="Sessions that failed the domain's TLS policy.")]


class TlsFailuresObject(msgspec.Struct):
    """Failed sessions by server and type. Both are null for all others together."""

    mx: Annotated[str | None, Meta(description="Host name of the mail server; null if not reported.")]
    type: Annotated[str | None, Meta(description="Failure type (RFC 8460 4.3), for example `certificate-expired`.")]
    sessions: Annotated[int, Meta(description="Number of failed sessions.")]


class TlsObject(msgspec.Struct):
    """TLS reports about a domain's mail servers."""

    record: Annotated[str, Meta(description="Record for `_smtp._tls.<domain>` that requests reports.")]
    reports: Annotated[int, Meta(description="Number of reports.")]
    sessions: Annotated[int, Meta(description="Sessions covered by the reports.")]
    failures: Annotated[int, Meta(description="Failed sessions.")]
    days: Annotated[list[TlsDayObject], Meta(description="Days covered by reports, oldest first.")]
    by_mx: Annotated[list[TlsFailuresObject], Meta(description="Failures by server and type; the 50 most frequent.")]


class DomainFeedbackObject(msgspec.Struct):
    """Reports about one domain."""

    domain: Annotated[str, Meta(description="Domain, in A-labels.")]
    return_path: Annotated[str, Meta(description="Host name that receives the reports.")]
    dmarc: Annotated[DmarcObject, Meta(description="DMARC reports.")]
    tls: Annotated[TlsObject, Meta(description="TLS reports.")]


class FeedbackAnswer(ApiAnswer):
    """Feedback on the account's mail, without test mail."""

    takes_reports: Annotated[bool, Meta(description="Whether the service receives feedback by mail.")]
    days: Annotated[list[FeedbackDayObject], Meta(description="Every day of the period (UTC), oldest first.")]
    providers: Annotated[list[FeedbackProviderObject], Meta(description="Most deliveries first; other domains last.")]
    classes: Annotated[BounceClassesObject, Meta(description="Bounces of the period by class.")]
    domains: Annotated[list[DomainFeedbackObject], Meta(description="The first 50 usable domains, by name.")]


class InboxMailObject(msgspec.Struct):
    """A message in the feedback inbox."""

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    kind: Annotated[str, Meta(description="Local part of the address: `fbl`, `postmaster` or `abuse`.")]
    address: Annotated[str, Meta(description="Recipient address.")]
    sender: Annotated[str, Meta(description="From header. Not authenticated.")]
    subject: Annotated[str, Meta(description="Subject header.")]
    result: Annotated[str, Meta(description="`not_understood`, `not_verified`, `kept` or `forwarded`.")]
    received_at: Annotated[Time, Meta(description="Time of receipt.")]
    size: Annotated[int, Meta(description="Size of the whole message in bytes.")]


class InboxAnswer(ApiAnswer):
    """A page of messages, newest first. Pass `next` as `before` to get the next page."""

    mails: Annotated[list[InboxMailObject], Meta(description="Messages, newest first.")]
    next: NextPage


class InboxMailAnswer(ApiAnswer):
    """One message and the start of its content."""

    mail: Annotated[InboxMailObject, Meta(description="The message, as in the list.")]
    text: Annotated[str, Meta(description="First text part, or the HTML as text, up to 64 KiB.")]
    source: Annotated[str, Meta(description="Start of the raw message, up to 64 KiB.")]
    truncated: Annotated[bool, Meta(description="Whether the message is longer than the stored part.")]


_MAIL_ID = parameter("id", "path", "Id from the list.", {"type": "string"})
_DAYS = number_parameter("days", "Number of days (UTC), including today.", FEEDBACK_DAYS, REPORTS_KEPT_DAYS)


class FeedbackRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/feedback", FeedbackAnswer, _DAYS)
    async def get_feedback(self, user: User) -> bytes:
        """Read bounces by class and provider, late bounces, complaints, and DMARC and TLS reports."""
        days, today = whole_number("days", FEEDBACK_DAYS, REPORTS_KEPT_DAYS), self.services.env.now() // DAY
        account_id, first = user.account_id, today - days + 1
        counts = await self.store.statistics.feedback(account_id, first * DAY)
        reports = await self.store.reports.of(account_id, first * DAY)
        # The proposal always uses the same days, whichever are shown.
        judged = await self.store.reports.of(account_id, (today - PROPOSAL_DAYS + 1) * DAY)
        takes_reports = bool(self.services.config.inbound.bind)
        shown = takes_reports, counts, range(first, today + 1), reports, judged, request_id()
        cost = feedback_cost(counts, days, [*reports, *judged])
        return await self.services.intake.workers.run(account_id, cost, encoded_feedback, *shown)

    @for_customers("GET /v1/feedback/inbox", InboxAnswer, *PAGING_BACK)
    async def list_feedback_inbox(self, user: Principal) -> InboxAnswer:
        """List mail to fbl@, postmaster@ and abuse@ of the account's return paths that needs a human.

        The newest 100 of each kind are kept, as long as message records. Administrators also see mail of return paths
        that belong to no account or to several.
        """
        limit, before = page_limit(), request.args.get("before", NEWEST)
        shared = Permission.ADMINISTER in user.permissions
        mails = await self.store.feedback_inbox.newest(user.account_id, limit + 1, before=before, shared=shared)
        following = mails[limit - 1].id if len(mails) > limit else None
        return InboxAnswer([object_from(InboxMailObject, mail) for mail in mails[:limit]], following)

    @for_customers("GET /v1/feedback/inbox/{id}", InboxMailAnswer, _MAIL_ID)
    async def get_feedback_mail(self, user: Principal, mail_id: str) -> bytes:
        """Read a message of the feedback inbox as text."""
        mail = await self.store.feedback_inbox.find(
            user.account_id, mail_id, shared=Permission.ADMINISTER in user.permissions
        )
        if mail is None:
            raise Refused(Code.NOT_FOUND, "The feedback inbox has no message with this id.")
        work = cost_of_size(2 * len(mail[1]))
        return await self.services.intake.workers.run(user.account_id, work, encoded_mail, *mail, request_id())


def feedback_cost(counts: Mapping[FeedbackKind, int], days: int, reports: Iterable[DomainReports]) -> int:
    parts = ((domain.dmarc.days, domain.dmarc.sources, domain.tls.days, domain.tls.failures) for domain in reports)
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
    standing = {domain.domain: domain.dmarc for domain in judged}
    answer = FeedbackAnswer(
        takes_reports=takes_reports,
        days=by_day(counts, days),
        providers=by_provider(counts),
        classes=classes(counts),
        domains=[_domain(domain, standing.get(domain.domain, DmarcStanding())) for domain in reports],
        request_id=asked_by,
    )
    return msgspec.json.encode(answer)


def by_day(counts: Mapping[FeedbackKind, int], days: Iterable[int]) -> list[FeedbackDayObject]:
    parts: dict[int, Counter[FeedbackKind]] = {day: Counter() for day in days}
    for kind, count in counts.items():
        if kind.day in parts:
            parts[kind.day][kind] += count
    return [
        FeedbackDayObject(start=rfc3339(day * DAY), classes=classes(part), **_sums(part)) for day, part in parts.items()
    ]


def by_provider(counts: Mapping[FeedbackKind, int]) -> list[FeedbackProviderObject]:
    """Providers by deliveries; domains without a known provider come last. Pure."""
    parts: dict[str, Counter[FeedbackKind]] = {}
    for kind, count in counts.items():
        parts.setdefault(kind.provider, Counter())[kind] += count
    providers = []
    for provider, part in parts.items():
        sums = _sums(part)
        shown = {"provider": provider or None, "classes": classes(part), **sums, **rates(sums)}
        providers.append(FeedbackProviderObject(**shown))
    return sorted(providers, key=lambda entry: (entry.provider is None, -entry.delivered, entry.provider or ""))


def classes(counts: Mapping[FeedbackKind, int]) -> BounceClassesObject:
    sums: Counter[str] = Counter()
    for kind, count in counts.items():
        sums[kind.bounce_class] += count
    return BounceClassesObject(**{name.value: sums[name.value] for name in BounceClass})


def _sums(counts: Mapping[FeedbackKind, int]) -> dict[str, int]:
    sums = dict.fromkeys(_KINDS, 0)
    for kind, count in counts.items():
        if kind.kind in sums:
            sums[kind.kind] += count
    return sums


def _domain(reports: DomainReports, judged: DmarcStanding) -> DomainFeedbackObject:
    name = reports.return_path
    return DomainFeedbackObject(reports.domain, name, _dmarc(reports.dmarc, judged, name), _tls(reports.tls, name))


def _dmarc(standing: DmarcStanding, judged: DmarcStanding, name: str) -> DmarcObject:
    messages, passed = sum(day.messages for day in standing.days), sum(day.passed for day in standing.days)
    step = next_step(judged, name)
    return DmarcObject(
        record=dmarc_value(name, step.proposed or step.policy or "none"),
        reports=standing.reports,
        messages=messages,
        passed=passed,
        pass_rate=round(passed / messages, 4) if messages else None,
        days=[DmarcDayObject(rfc3339(day.day * DAY), day.passed, day.messages - day.passed) for day in standing.days],
        sources=[_source(day) for day in standing.sources],
        next_step=object_from(DmarcStepObject, step),
    )


def _source(seen: SeenSource) -> DmarcSourceObject:
    counts, last_seen = seen.counts, rfc3339(seen.last_day * DAY)
    fields = {"address": counts.address or None, "dkim_passed": counts.dkim, "spf_passed": counts.spf}
    return object_from(DmarcSourceObject, counts, **fields, days=seen.days, last_seen=last_seen)


def _tls(standing: TlsStanding, name: str) -> TlsObject:
    failures = sum(row.failures for row in standing.days)
    return TlsObject(
        record=tls_rpt_value(name),
        reports=standing.reports,
        sessions=sum(row.successes for row in standing.days) + failures,
        failures=failures,
        days=[TlsDayObject(rfc3339(row.day * DAY), row.successes, row.failures) for row in standing.days],
        by_mx=[TlsFailuresObject(row.mx or None, row.type or None, row.sessions) for row in standing.failures],
    )


def encoded_mail(mail: InboxMail, mime: bytes, asked_by: str) -> bytes:
    text, source = open_mail(mime).text, mime.decode("utf-8", "replace")
    shown = object_from(InboxMailObject, mail), text, source, mail.size > len(mime)
    return msgspec.json.encode(InboxMailAnswer(*shown, request_id=asked_by))
