"""Delivery by provider over time, and the refusals of its servers by cause: /v1/deliverability."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from quart import request

from appliance.errors import invalid
from appliance.message.characters import cost_of_size
from appliance.message.limits import STREAM_LENGTH
from appliance.model.accounts import User
from appliance.model.dashboard import Deliverability, MailProblem, Pairing
from appliance.model.mail import BounceClass
from appliance.store.breakdown import DEFERRED, SLOWER, TIME_STEPS, time_kind
from appliance.store.mail_log import PROBLEMS_READ
from appliance.times import DAY, rfc3339
from appliance.web.api.stats import MAX_DAYS, RatedCounts, rated
from appliance.web.app import Routes, text_filter, whole_number
from appliance.web.exchange import ApiAnswer, Time, request_id, time_or_none
from appliance.web.operations import STREAM_FILTER, Tag, for_customers, number_parameter, parameter

_DEFAULT_DAYS = 30
OTHER = "other"  # stands for all servers without a known provider
REPLIES_SHOWN = 50
WORDS_COMPARED = 30  # of a reply
PROBLEM_COST = 600  # bytes, for the cost estimate


class _Delivery(RatedCounts):
    deferred: Annotated[int, Meta(description="Recipients that were tried more than once before their result.")]
    median_seconds: Annotated[
        int | None, Meta(description="Time that half of the deliveries met, in seconds; null without any.")
    ]
    p95_seconds: Annotated[
        int | None, Meta(description="Time that 95 % of the deliveries met, in seconds; null without any.")
    ]


class ProviderDeliveryObject(_Delivery):
    """The totals of one provider."""

    provider: Annotated[str | None, Meta(description="Provider pool; null for all other servers.")]


class DeliveryDayObject(_Delivery):
    """One day (UTC)."""

    start: Annotated[Time, Meta(description="Start of the day.")]


class ReplyObject(msgspec.Struct):
    """Replies with the same cause, which differ only in numbers and addresses."""

    provider: Annotated[str | None, Meta(description="Provider pool; null for all other servers.")]
    bounce_class: Annotated[BounceClass | None, Meta(description="Bounce class, or null.")]
    response: Annotated[str, Meta(description="The newest of these replies.")]
    recipients: Annotated[int, Meta(description="Recipients with such a reply as their last.")]
    last_at: Annotated[Time, Meta(description="Time of the newest reply.")]
    message_id: Annotated[str, Meta(description="Message of the newest reply.")]


class DeliverabilityAnswer(ApiAnswer):
    """Delivery by provider and day, without test mail."""

    providers: Annotated[
        list[ProviderDeliveryObject], Meta(description="Providers with the most recipients first; others last.")
    ]
    days: Annotated[list[DeliveryDayObject], Meta(description="All days, oldest first.")]
    replies: Annotated[list[ReplyObject], Meta(description="Up to 50 causes, the most frequent first.")]
    until: Annotated[Time | None, Meta(description="End of the data; null if it is complete.")]


_DAYS = number_parameter("days", "Number of days (UTC), including today.", _DEFAULT_DAYS, MAX_DAYS)
_TEXT = {"type": "string"}
_PROVIDER = parameter("provider", "query", "`days` and `replies` of this provider pool only, or of `other`.", _TEXT)
_DOMAIN = parameter("domain", "query", "Only mail from this domain.", _TEXT)
_TEMPLATE = parameter("template", "query", "Only mail with this template.", _TEXT)
_PAIRS = _DOMAIN, _TEMPLATE, STREAM_FILTER
_PAIRINGS = {"domain": Pairing.DOMAIN, "template": Pairing.TEMPLATE, "stream": Pairing.STREAM}


class _Filter(Struct, frozen=True):
    provider: str | None = None  # empty: servers without a known provider
    pair: tuple[Pairing, str] | None = None

    def has(self, problem: MailProblem) -> bool:
        pairs = (
            None,
            (Pairing.DOMAIN, problem.envelope_from.rpartition("@")[2].lower()),
            (Pairing.TEMPLATE, problem.template_alias),
            (Pairing.STREAM, problem.stream),
        )
        return self.provider in (None, provider_of(problem.pool)) and self.pair in pairs


class DeliverabilityRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/deliverability", DeliverabilityAnswer, _DAYS, _PROVIDER, *_PAIRS)
    async def get_deliverability(self, user: User) -> DeliverabilityAnswer:
        """Read results, delays and delivery times by provider and day, and the replies of its servers by cause."""
        count, today = whole_number("days", _DEFAULT_DAYS, MAX_DAYS), self.services.env.now() // DAY
        first = today - count + 1
        chosen = _chosen()
        counted = await self.store.breakdown.by_provider(user.account_id, first * DAY, chosen.provider, chosen.pair)
        problems = await self.store.mail_log.problems(user.account_id, PROBLEMS_READ, first * DAY)
        cost = cost_of_size(PROBLEM_COST * len(problems))
        replies = await self.services.intake.workers.run(user.account_id, cost, by_cause, problems, chosen.has)
        return DeliverabilityAnswer(
            providers(counted),
            [
                DeliveryDayObject(**_delivery(counted.by_day.get(day, {})), start=rfc3339(day * DAY))
                for day in range(first, today + 1)
            ],
            replies,
            time_or_none(counted.until),
            request_id=request_id(),
        )


def _chosen() -> _Filter:
    provider, stream = request.args.get("provider"), text_filter("stream", STREAM_LENGTH)
    named = [
        (pairing, value)
        for name, pairing in _PAIRINGS.items()
        if (value := stream if name == "stream" else request.args.get(name))
    ]
    if len(named) > 1:
        raise invalid(named[1][0].name.lower(), "cannot be combined with domain, template or stream. Send one of them.")
    pair = named[0] if named else None
    if pair is not None and pair[0] is Pairing.DOMAIN:
        pair = Pairing.DOMAIN, pair[1].lower()
    return _Filter("" if provider == OTHER else provider or None, pair)


# ---- pure
def providers(counted: Deliverability) -> list[ProviderDeliveryObject]:
    shown = [
        ProviderDeliveryObject(**_delivery(counts), provider=name or None)
        for name, counts in counted.by_provider.items()
    ]
    return sorted(shown, key=lambda entry: (entry.provider is None, -entry.sent, entry.provider or ""))


def _delivery(counts: Mapping[str, int]) -> dict[str, Any]:
    times = {"median_seconds": within(counts, 0.5), "p95_seconds": within(counts, 0.95)}
    return rated(counts) | times | {"deferred": counts.get(DEFERRED, 0)}


def within(counts: Mapping[str, int], share: float) -> int | None:
    """The shortest step of TIME_STEPS in which this share of the deliveries fits; twice the last if none does."""
    by_step = [counts.get(time_kind(step), 0) for step in TIME_STEPS]
    total = sum(by_step) + counts.get(SLOWER, 0)
    if not total:
        return None
    done = 0
    for step, number in zip(TIME_STEPS, by_step, strict=True):
        done += number
        if done >= share * total:
            return step
    return 2 * TIME_STEPS[-1]


def provider_of(pool: str) -> str:
    """The name of a known provider; empty for pools that are named after a host, as in store/statistics.py."""
    return "" if "." in pool or ":" in pool else pool


def cause_of(reply: str) -> str:
    """A reply, which is not blank, without the words that differ by recipient and time; its codes stay."""
    code, *words = reply.split()[:WORDS_COMPARED]
    varies = ("@" in word or (at > 0 and any(map(str.isdigit, word))) for at, word in enumerate(words))
    return " ".join([code, *("…" if does else word for does, word in zip(varies, words, strict=True))])


def by_cause(problems: Iterable[MailProblem], has: Callable[[MailProblem], bool]) -> list[ReplyObject]:
    newest: dict[tuple[str, str | None, str], MailProblem] = {}
    recipients = Counter[tuple[str, str | None, str]]()
    for problem in problems:
        if problem.last_smtp_response and problem.last_smtp_response.strip() and has(problem):
            key = provider_of(problem.pool), problem.bounce_class, cause_of(problem.last_smtp_response)
            newest.setdefault(key, problem)
            recipients[key] += 1
    replies = []
    for key in sorted(newest, key=lambda key: (-recipients[key], key[2]))[:REPLIES_SHOWN]:
        shown = newest[key].last_smtp_response or "", recipients[key], rfc3339(newest[key].happened_at)
        bounce_class = BounceClass(key[1]) if key[1] else None
        replies.append(ReplyObject(key[0] or None, bounce_class, *shown, newest[key].message_id))
    return replies
