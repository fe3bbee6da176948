"""Recipient counts by hour and day, delivery times and the queue: /v1/stats. The latest undelivered recipients:
/v1/problems.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from appliance.errors import invalid
from appliance.message.limits import STREAM_LENGTH
from appliance.model.accounts import User
from appliance.model.dashboard import AccountStatistics, CountsByValue, Dimension
from appliance.model.mail import BounceClass, RecipientOutcome
from appliance.model.numbers import COUNTED, NUMBERS, RateMark, rates
from appliance.store.statistics import bucket_milliseconds
from appliance.times import HOUR, rfc3339
from appliance.web.api.message_objects import LastClass, LastCode, LastResponse, MessageSource, NextAttemptAt, Subject
from appliance.web.app import Routes, choice, text_filter, whole_number
from appliance.web.exchange import ApiAnswer, Time, object_from, request_id, time_or_none
from appliance.web.operations import STREAM_FILTER, Tag, choice_parameter, for_customers, number_parameter

DEFAULT_DAYS = 7
MAX_DAYS = 90
HOURLY_DAYS = 7  # the last days that are also shown by hour
DAY_HOURS = 24
DEFAULT_PROBLEMS, MAX_PROBLEMS = 8, 500


class _Counts(msgspec.Struct):
    sent: Annotated[int, Meta(description="Recipients of messages accepted in this period.")]
    delivered: Annotated[int, Meta(description="Recipients delivered in this period.")]
    bounced: Annotated[int, Meta(description="Recipients that bounced in this period.")]
    failed: Annotated[int, Meta(description="Recipients that failed in this period.")]
    suppressed: Annotated[int, Meta(description="Recipients skipped because their address is suppressed.")]
    cancelled: Annotated[int, Meta(description="Recipients cancelled in this period.")]


BounceRate = Annotated[
    float | None, Meta(description="`bounced` as a share of delivered, bounced and failed; null without any.")
]
BounceMark = Annotated[
    RateMark, Meta(description="`high` from 5 %, `too_high` from 10 %, `too_few` below 200 recipients, else `good`.")
]
ComplaintRate = Annotated[float | None, Meta(description="Complaints per delivery; null without deliveries.")]
ComplaintMark = Annotated[
    RateMark,
    Meta(description="`high` from 0.1 %, `too_high` from 0.3 %, `too_few` below 1,000 deliveries, else `good`."),
]
LateBounced = Annotated[int, Meta(description="Recipients that bounced by mail after delivery.")]
Complained = Annotated[int, Meta(description="Recipients that reported the message as spam.")]


class RatedCounts(_Counts):
    late_bounced: LateBounced
    complained: Complained
    bounce_rate: BounceRate
    bounce_mark: BounceMark
    complaint_rate: ComplaintRate
    complaint_mark: ComplaintMark


class CountsObject(_Counts):
    """Recipients of one hour or day (UTC): accepted then, and final then."""

    start: Annotated[Time, Meta(description="Start of the day or hour.")]


class TotalsObject(RatedCounts):
    """Totals of the period."""

    median_ms: Annotated[int | None, Meta(description="Median delivery time in milliseconds; null without any.")]
    p95_ms: Annotated[int | None, Meta(description="Delivery time that 95 % meet, in milliseconds; null without any.")]


class PreviousObject(_Counts):
    """The preceding period of the same length, up to the same time of its last day."""

    bounce_rate: BounceRate
    start: Annotated[Time, Meta(description="Start of the period.")]


class BreakdownObject(RatedCounts):
    """Totals for one value of `by`."""

    value: Annotated[str | None, Meta(description="Value of `by`; null (always last) for all others.")]


class ClassCountsObject(msgspec.Struct):
    """Rejected recipients of one class: bounced, and failed after all attempts."""

    bounce_class: Annotated[BounceClass, Meta(description="Bounce class.")]
    bounced: Annotated[int, Meta(description="Recipients that bounced in this period.")]
    failed: Annotated[int, Meta(description="Recipients that failed in this period.")]


class WaitingObject(msgspec.Struct):
    """The account's queue for one provider pool; null for domains not looked up yet."""

    pool: Annotated[str | None, Meta(description="Provider pool; null until the domain has been looked up.")]
    due: Annotated[int, Meta(description="Recipients due now.")]
    deferred: Annotated[int, Meta(description="Recipients that were tried and will be retried.")]


class StatsAnswer(ApiAnswer):
    """Statistics of the last days, without test mail."""

    days: Annotated[list[CountsObject], Meta(description="All days (UTC), oldest first.")]
    hours: Annotated[list[CountsObject], Meta(description="Hours of the last 7 days, oldest first.")]
    totals: Annotated[TotalsObject, Meta(description="Totals of the period.")]
    previous: Annotated[PreviousObject | None, Meta(description="The preceding period; null if incomplete.")]
    bounce_classes: Annotated[list[ClassCountsObject], Meta(description="Bounced and failed, by class.")]
    queue: Annotated[list[WaitingObject], Meta(description="Queued recipients by provider pool.")]
    sandbox: Annotated[int, Meta(description="Recipients queued for simulated delivery. They belong to no pool.")]
    breakdown: Annotated[list[BreakdownObject] | None, Meta(description="Totals by value, largest first.")]
    breakdown_until: Annotated[Time | None, Meta(description="End of the data in `breakdown`; null if it is complete.")]


class ProblemObject(msgspec.Struct):
    """An undelivered recipient, with the last reply of its server."""

    message_id: Annotated[str, Meta(description="Message id.")]
    recipient_id: Annotated[str, Meta(description="Recipient id.")]
    email: Annotated[str, Meta(description="Recipient address.")]
    subject: Subject
    source: MessageSource
    outcome: Annotated[RecipientOutcome, Meta(description="`bounced`, `failed` or `deferred`.")]
    last_smtp_code: LastCode
    last_smtp_response: LastResponse
    bounce_class: LastClass
    happened_at: Annotated[Time, Meta(description="Time of the result, or of the last attempt if deferred.")]
    next_attempt_at: NextAttemptAt
    stream: Annotated[str, Meta(description="Stream of the message.")]


class ProblemsAnswer(ApiAnswer):
    """The latest problems."""

    problems: Annotated[list[ProblemObject], Meta(description="Problems, newest first.")]


_PROBLEMS = number_parameter("limit", "Number of problems.", DEFAULT_PROBLEMS, MAX_PROBLEMS)
_BY = choice_parameter("by", "Also break the totals down by this.", Dimension)
_DAYS = number_parameter("days", "Number of days (UTC), including today.", DEFAULT_DAYS, MAX_DAYS)


class StatsRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/stats", StatsAnswer, _DAYS, _BY, STREAM_FILTER)
    async def get_stats(self, user: User) -> StatsAnswer:
        """Read recipient counts by hour and day, their results, and the queue.

        With `by`, `breakdown` has the totals by sending domain, tag, template, provider or stream. With `stream`, all
        numbers are of this stream only, and `queue` is empty. The two cannot be combined.
        """
        days, now = whole_number("days", DEFAULT_DAYS, MAX_DAYS), self.services.env.now() // HOUR
        first = now - now % DAY_HOURS - (days - 1) * DAY_HOURS  # midnight at the start of the first day
        since, hourly, compared = (hour * HOUR for hour in (first, hourly_from(first, now), first - days * DAY_HOURS))
        by, stream = choice("by", Dimension), text_filter("stream", STREAM_LENGTH)
        if by is not None and stream is not None:
            raise invalid(
                "stream", "cannot be combined with by. GET /v1/deliverability breaks a stream down by provider."
            )
        numbers = await self.store.statistics.of(user.account_id, since, hourly, compared, stream or "")
        parts = None if by is None else await self._breakdown(user.account_id, by, since)
        return stats(numbers, first, now, days, request_id(), parts)

    async def _breakdown(self, account_id: str, by: Dimension, since: int) -> CountsByValue:
        if by is not Dimension.STREAM:
            return await self.store.breakdown.of(account_id, by, since)
        streams = await self.store.statistics.by_stream(account_id, since)
        used = {name: counts for name, counts in streams.items() if any(counts.values())}
        return CountsByValue(dict(sorted(used.items(), key=lambda item: -item[1].get("sent", 0))), None)

    @for_customers("GET /v1/problems", ProblemsAnswer, _PROBLEMS)
    async def list_problems(self, user: User) -> ProblemsAnswer:
        """List the latest recipients of the last 30 days that bounced, failed or are deferred, with the reason.

        Test mail is not listed.
        """
        most = whole_number("limit", DEFAULT_PROBLEMS, MAX_PROBLEMS)
        problems = await self.store.mail_log.problems(user.account_id, most)
        return ProblemsAnswer([object_from(ProblemObject, problem) for problem in problems])


def _counts(counts: Sequence[int]) -> dict[str, int]:
    return dict(zip(COUNTED, counts, strict=True))


def rated(by_kind: Mapping[str, int]) -> dict[str, Any]:
    return {kind: by_kind.get(kind, 0) for kind in NUMBERS} | rates(by_kind)


def _previous(by_kind: Mapping[str, int]) -> dict[str, Any]:
    return {kind: by_kind.get(kind, 0) for kind in COUNTED} | {"bounce_rate": rates(by_kind)["bounce_rate"]}


def hourly_from(first: int, now: int) -> int:
    return max(first, now - now % DAY_HOURS - (HOURLY_DAYS - 1) * DAY_HOURS)


def stats(
    numbers: AccountStatistics, first: int, now: int, days: int, request_id: str, parts: CountsByValue | None = None
) -> StatsAnswer:
    """The response for the hours from `first` to `now`, including hours without mail. Pure."""
    hourly = hourly_from(first, now)
    by_day = [[0] * len(COUNTED) for _ in range(days)]
    by_hour = [[0] * len(COUNTED) for _ in range(hourly, now + 1)]
    for (hour, kind), count in numbers.by_hour.items():
        at = COUNTED.index(kind)
        if first <= hour <= now:
            by_day[(hour - first) // DAY_HOURS][at] += count
        if hourly <= hour <= now:
            by_hour[hour - hourly][at] += count
    totals = _counts([sum(counts) for counts in zip(*by_day, strict=True)])
    previous, start = numbers.previous, rfc3339((first - days * DAY_HOURS) * HOUR)
    broken_down = None
    if parts is not None:
        broken_down = [
            BreakdownObject(**rated(counts), value=value or None) for value, counts in parts.by_value.items()
        ]
    return StatsAnswer(
        days=[
            CountsObject(**_counts(counts), start=rfc3339((first + day * DAY_HOURS) * HOUR))
            for day, counts in enumerate(by_day)
        ],
        hours=[
            CountsObject(**_counts(counts), start=rfc3339(hour * HOUR)) for hour, counts in enumerate(by_hour, hourly)
        ],
        totals=TotalsObject(
            **rated({**totals, **numbers.returned}),
            median_ms=quantile(numbers.by_bucket, 0.5),
            p95_ms=quantile(numbers.by_bucket, 0.95),
        ),
        previous=None if previous is None else PreviousObject(**_previous(previous), start=start),
        bounce_classes=[ClassCountsObject(name, *counts) for name, counts in numbers.by_class.items() if any(counts)],
        queue=[WaitingObject(row.pool, row.due, row.deferred) for row in numbers.waiting],
        sandbox=numbers.simulated,
        breakdown=broken_down,
        breakdown_until=time_or_none(parts and parts.until),
        request_id=request_id,
    )


def quantile(by_bucket: Mapping[int, int], share: float) -> int | None:
    """The delivery time in milliseconds that this share of deliveries met, to within a tenth."""
    left = share * sum(by_bucket.values())
    for bucket in sorted(by_bucket):
        left -= by_bucket[bucket]
        if left <= 0 < by_bucket[bucket]:
            return round(bucket_milliseconds(bucket))
    return None
