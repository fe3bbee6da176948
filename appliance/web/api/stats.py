"""Counts of an account's recipients by hour and day, delivery times, and what waits: /v1/stats; the newest recipients
that did not get their mail: /v1/problems.
"""

from collections.abc import Mapping

import msgspec

from appliance.model.accounts import User
from appliance.model.dashboard import AccountStatistics, CountsByValue, Dimension
from appliance.model.mail import BounceClass, RecipientOutcome, Source
from appliance.store.statistics import bucket_milliseconds
from appliance.times import HOUR, rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, choice, request_id, whole_number
from appliance.web.operations import Json, for_customers, parameter

DEFAULT_DAYS = 7
MAX_DAYS = 90
HOURLY_DAYS = 7  # the last of them are also given by hour
DAY_HOURS = 24
DEFAULT_PROBLEMS, MAX_PROBLEMS = 8, 50

KINDS = ("sent", "delivered", "bounced", "failed", "suppressed", "cancelled")


class CountsObject(msgspec.Struct):
    """Recipients of one hour or one day (UTC), from `start` on: accepted then, and final then."""

    start: Time
    sent: int
    delivered: int
    bounced: int
    failed: int
    suppressed: int
    cancelled: int


class TotalsObject(msgspec.Struct):
    """The whole time together. `bounce_rate` is the share of bounced among all that were tried, null without any."""

    sent: int
    delivered: int
    bounced: int
    failed: int
    suppressed: int
    cancelled: int
    bounce_rate: float | None
    median_ms: int | None
    p95_ms: int | None


class PreviousObject(msgspec.Struct):
    """The period of the same length just before, to the same time of its last day."""

    start: Time
    sent: int
    delivered: int
    bounced: int
    failed: int
    suppressed: int
    cancelled: int
    bounce_rate: float | None


class ClassCountsObject(msgspec.Struct):
    """Recipients that were refused for one kind of reason: bounced, and failed when all attempts were used up."""

    bounce_class: BounceClass
    bounced: int
    failed: int


class BreakdownObject(msgspec.Struct):
    """The whole time for one value of what the statistics are broken down by; null: all others together."""

    value: str | None
    sent: int
    delivered: int
    bounced: int
    failed: int
    suppressed: int
    cancelled: int
    bounce_rate: float | None


class WaitingObject(msgspec.Struct):
    """The account's mail that waits for one provider pool; null: for domains not looked up yet."""

    pool: str | None
    due: int
    deferred: int


class StatsAnswer(msgspec.Struct):
    """Numbers of the last days, test mail left out."""

    days: list[CountsObject]
    hours: list[CountsObject]
    totals: TotalsObject
    previous: PreviousObject | None
    bounce_classes: list[ClassCountsObject]
    queue: list[WaitingObject]
    sandbox: int
    breakdown: list[BreakdownObject] | None
    breakdown_until: Time | None
    request_id: str


class ProblemObject(msgspec.Struct):
    """A recipient that did not get its mail, or not yet: what its server said last, and when."""

    message_id: str
    recipient_id: str
    email: str
    subject: str
    source: Source
    outcome: RecipientOutcome
    last_smtp_code: int | None
    last_smtp_response: str | None
    bounce_class: BounceClass | None
    happened_at: Time
    next_attempt_at: Time | None


class ProblemsAnswer(msgspec.Struct):
    """The newest problems first."""

    problems: list[ProblemObject]
    request_id: str


_PROBLEMS: Json = parameter(
    "limit",
    "query",
    "How many.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PROBLEMS, "default": DEFAULT_PROBLEMS},
)
_BY: Json = parameter(
    "by", "query", "What to break the numbers down by, too.", {"type": "string", "enum": list(Dimension)}
)
_DAYS: Json = {"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": DEFAULT_DAYS}


class StatsRoutes(Routes):
    @for_customers(
        "GET /v1/stats",
        (200, StatsAnswer, "The numbers."),
        parameters=(parameter("days", "query", "How many days (UTC), with today.", _DAYS), _BY),
    )
    async def get_stats(self, user: User) -> StatsAnswer:
        """Read how many recipients were sent to by hour and day, what became of them, and what waits.

        With `by` also by sending domain, tag, template or provider, in `breakdown`.
        """
        days, now = whole_number("days", DEFAULT_DAYS, MAX_DAYS), self.services.env.now() // HOUR
        first = now - now % DAY_HOURS - (days - 1) * DAY_HOURS  # the midnight that the first day begins with
        times = (hour * HOUR for hour in (first, hourly_from(first, now), first - days * DAY_HOURS))
        numbers = await self.store.statistics.of(user.account_id, *times)
        by = choice("by", Dimension)
        parts = None if by is None else await self.store.breakdown.of(user.account_id, by, first * HOUR)
        return stats(numbers, first, now, days, request_id(), parts)

    @for_customers("GET /v1/problems", (200, ProblemsAnswer, "The newest problems."), parameters=(_PROBLEMS,))
    async def list_problems(self, user: User) -> ProblemsAnswer:
        """List the newest recipients of the last 30 days that bounced, failed or are deferred, with the reason."""
        most = whole_number("limit", DEFAULT_PROBLEMS, MAX_PROBLEMS)
        found = await self.store.mail_log.problems(user.account_id, most)
        return ProblemsAnswer([object_from(ProblemObject, each) for each in found], request_id())


def _named(counts: list[int]) -> dict[str, int]:
    return dict(zip(KINDS, counts, strict=True))


def _rate(counts: list[int]) -> float | None:
    """The share of bounced among all that were tried."""
    _, delivered, bounced, failed, _, _ = counts
    tried = delivered + bounced + failed
    return round(bounced / tried, 4) if tried else None


def hourly_from(first: int, now: int) -> int:
    """The first hour that is told by itself."""
    return max(first, now - now % DAY_HOURS - (HOURLY_DAYS - 1) * DAY_HOURS)


def _previous(by_kind: Mapping[str, int], start: int) -> PreviousObject:
    counts = [by_kind.get(kind, 0) for kind in KINDS]
    return PreviousObject(rfc3339(start * HOUR), **_named(counts), bounce_rate=_rate(counts))


def _broken_down(parts: CountsByValue) -> list[BreakdownObject]:
    counted = [(value, [counts.get(kind, 0) for kind in KINDS]) for value, counts in parts.by_value.items()]
    return [BreakdownObject(value or None, **_named(counts), bounce_rate=_rate(counts)) for value, counts in counted]


def stats(
    numbers: AccountStatistics,
    first: int,
    now: int,
    days: int,
    request_id: str,
    parts: CountsByValue | None = None,
) -> StatsAnswer:
    """The answer for the hours from `first` to `now`, also those without mail. Pure."""
    hourly = hourly_from(first, now)
    by_day = [[0] * len(KINDS) for _ in range(days)]
    by_hour = [[0] * len(KINDS) for _ in range(hourly, now + 1)]
    for (hour, kind), count in numbers.by_hour.items():
        at = KINDS.index(kind)
        if first <= hour <= now:
            by_day[(hour - first) // DAY_HOURS][at] += count
        if hourly <= hour <= now:
            by_hour[hour - hourly][at] += count
    totals = [sum(counts) for counts in zip(*by_day, strict=True)]
    median, p95 = quantile(numbers.by_bucket, 0.5), quantile(numbers.by_bucket, 0.95)
    return StatsAnswer(
        [CountsObject(rfc3339((first + day * DAY_HOURS) * HOUR), *each) for day, each in enumerate(by_day)],
        [CountsObject(rfc3339(hour * HOUR), *each) for hour, each in enumerate(by_hour, hourly)],
        TotalsObject(**_named(totals), bounce_rate=_rate(totals), median_ms=median, p95_ms=p95),
        None if numbers.previous is None else _previous(numbers.previous, first - days * DAY_HOURS),
        [ClassCountsObject(each, *counted) for each, counted in numbers.by_class.items() if any(counted)],
        [WaitingObject(each.pool, each.due, each.deferred) for each in numbers.waiting],
        numbers.simulated,
        None if parts is None else _broken_down(parts),
        rfc3339(parts.until) if parts is not None and parts.until is not None else None,
        request_id,
    )


def quantile(by_bucket: Mapping[int, int], share: float) -> int | None:
    """The time in milliseconds within which this share of all deliveries was done, to a tenth of it."""
    left = share * sum(by_bucket.values())
    for bucket in sorted(by_bucket):
        left -= by_bucket[bucket]
        if left <= 0 < by_bucket[bucket]:
            return round(bucket_milliseconds(bucket))
    return None
