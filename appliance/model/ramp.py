"""The ramp: the share of recipients that goes to the MX while a relay still delivers the others. No I/O.

A stable hash puts each address into one of 100 buckets. Buckets below the percentage go direct, so a higher percentage
only adds recipients. `suggestion` compares the two routes; docs/ramp.md has its rules as a table.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import Config, DeliveryMode
from appliance.model.sources import SourceTable, configured_sources
from appliance.times import DAY, HOUR

STEPS = (0, 5, 10, 20, 35, 50, 75, 100)  # percent
OTHER_PROVIDERS = "other"  # all organisations without a built-in or configured pool


class Via(StrEnum):
    """The route of an attempt."""

    DIRECT = "direct"
    RELAY = "relay"


def bucket_of(address: str) -> int:
    """The bucket of an address, from 0 to 99: it goes direct if the percentage is higher."""
    return int.from_bytes(sha256(address.lower().encode()).digest()[:8]) % 100


class RampPlan(Struct, frozen=True, omit_defaults=True):
    """The percentages in force; stored as JSON if a command or `auto` set them."""

    percent: int | None = None  # None: the ramp is off
    providers: dict[str, int] = {}  # providers with a percentage of their own
    auto: bool = False
    changed_at: dict[str, int] = {}  # by provider; "" for all others
    reason: str = ""  # of the last change by `auto`

    def of(self, provider: str) -> int:
        return self.providers.get(provider, self.percent or 0)

    @property
    def goes_direct(self) -> bool:
        """Whether any mail goes direct."""
        return bool(self.percent or any(self.providers.values()))

    def having(self, provider: str, percent: int, now: int, reason: str = "") -> "RampPlan":
        """The plan with another percentage; "" changes the one of all providers without their own."""
        changed_at = {**self.changed_at, provider: now}
        if not provider:
            return replace(self, percent=percent, changed_at=changed_at, reason=reason)
        return replace(self, providers={**self.providers, provider: percent}, changed_at=changed_at, reason=reason)

    def without(self, provider: str) -> "RampPlan":
        providers = {name: percent for name, percent in self.providers.items() if name != provider}
        return replace(self, providers=providers)


def in_force(stored: RampPlan | None, config: Config) -> RampPlan | None:
    """The plan in force; None: the ramp is off. A stored percentage wins over the settings."""
    if config.delivery.mode is not DeliveryMode.RELAY or not config.delivery.relay_host:
        return None
    plan = stored or RampPlan()
    plan = replace(plan, percent=config.delivery_ramp.percent) if plan.percent is None else plan
    return None if plan.percent is None else plan


def sources_in_use(config: Config, plan: RampPlan | None) -> SourceTable | None:
    """The sources that mail may leave from; None: all mail goes by a relay, from an address that the system chooses."""
    return None if config.delivery.mode is DeliveryMode.RELAY and plan is None else configured_sources(config)


class RampLane(NamedTuple):
    """Mail for one domain by one route; None: mail that is not under the ramp."""

    via: Via | None
    percent: int  # of the domain


class RampFigures(Struct, frozen=True):
    """Results of recipients under the ramp, of one route to one provider."""

    provider: str
    route: Via
    delivered: int = 0
    deferred: int = 0  # attempts
    bounced: int = 0
    failed: int = 0  # attempts used up
    complaints: int = 0
    seconds: int = 0  # from acceptance to delivery, in total
    within_minute: int = 0  # delivered within a minute of acceptance
    busiest_hour: int = 0  # recipients with a final result

    @property
    def results(self) -> int:
        return self.delivered + self.bounced + self.failed

    @property
    def bounce_rate(self) -> float:
        return (self.bounced + self.failed) / max(1, self.results)

    @property
    def deferral_rate(self) -> float:
        return self.deferred / max(1, self.results + self.deferred)

    @property
    def complaint_rate(self) -> float:
        return self.complaints / max(1, self.delivered)

    @property
    def mean_seconds(self) -> float | None:
        return round(self.seconds / self.delivered, 1) if self.delivered else None


_COUNTS = ("delivered", "deferred", "bounced", "failed", "complaints", "seconds", "within_minute", "busiest_hour")


def total(figures: Iterable[RampFigures], route: Via, provider: str = "") -> RampFigures:
    """The sum over providers, with the busiest hours added up."""
    of_route = [row for row in figures if row.route is route]
    return RampFigures(provider, route, *(sum(getattr(row, name) for row in of_route) for name in _COUNTS))


WINDOW = DAY  # that figures are compared over; less if the percentage changed since
ENOUGH = 50  # results of a route; fewer prove nothing
RELAY_BOUNCES, RELAY_DEFERRALS = 0.02, 0.10  # assumed of a relay with too few results
LOWER_BOUNCES, LOWER_DEFERRALS, LOWER_COMPLAINTS = 0.03, 0.20, 0.003  # above the relay's rate; complaints: in all
HOLD_BOUNCES, HOLD_DEFERRALS, HOLD_COMPLAINTS = 0.01, 0.05, 0.001
FEW_COMPLAINTS = 3  # fewer never lower the percentage


class Action(StrEnum):
    RAISE = "raise"
    HOLD = "hold"
    LOWER = "lower"


class Suggestion(Struct, frozen=True):
    provider: str  # "": all without a percentage of their own
    action: Action
    percent: int  # the suggested percentage
    reason: str


class Standing(Struct, frozen=True):
    """What a suggestion for one provider, or for all without a percentage of their own, depends on."""

    provider: str
    percent: int
    changed_at: int
    direct: RampFigures  # since the last change
    relay: RampFigures
    held: str | None = None  # why the provider's pool is held
    busiest_hour: int = 0  # recipients by both routes, of the provider that its warm-up limits most
    hourly_limit: int | None = None  # recipients that this warm-up allows now


def suggestion(standing: Standing, now: int) -> Suggestion:
    """Suggest a percentage, with the reason; the first rule that applies decides."""
    percent, age = standing.percent, now - standing.changed_at
    higher = next((step for step in STEPS if step > percent), 100)
    lower = next((step for step in reversed(STEPS) if step < percent), 0)

    def suggest(action: Action, reason: str) -> Suggestion:
        to = {Action.RAISE: higher, Action.LOWER: lower}.get(action, percent)
        return Suggestion(standing.provider, action, to, reason)

    if 0 <= age < HOUR:
        return suggest(Action.HOLD, "the percentage changed less than an hour ago")
    if percent and (trouble := _trouble(standing)) is not None:
        return suggest(Action.LOWER, trouble)
    if percent >= 100:
        return suggest(Action.HOLD, "all mail goes direct")
    if 0 <= age < DAY:
        return suggest(Action.HOLD, "the percentage changed less than a day ago")
    if not percent:
        return suggest(Action.RAISE, "no mail goes direct yet")
    if standing.direct.results < ENOUGH:
        return suggest(Action.HOLD, f"{standing.direct.results} direct results; {ENOUGH} are needed to judge")
    if (doubt := _doubt(standing)) is not None:
        return suggest(Action.HOLD, doubt)
    if standing.hourly_limit is not None and standing.busiest_hour * higher > standing.hourly_limit * 100:
        share = -(-standing.busiest_hour * higher // 100)
        limit = f"the warm-up allows {standing.hourly_limit} recipients an hour"
        return suggest(Action.HOLD, f"{limit}, and {higher} % of the busiest hour would be {share}")
    return suggest(Action.RAISE, "the direct route does as well as the relay")


def _trouble(standing: Standing) -> str | None:
    """Why less mail should go direct."""
    direct = standing.direct
    if standing.held is not None:
        return f"the pool {standing.provider} is held: {standing.held}"
    if direct.complaints >= FEW_COMPLAINTS and direct.complaint_rate > LOWER_COMPLAINTS:
        return f"{direct.complaint_rate:.2%} of the recipients complained; the limit is {LOWER_COMPLAINTS:.1%}"
    return _worse(standing, LOWER_BOUNCES, LOWER_DEFERRALS)


def _doubt(standing: Standing) -> str | None:
    """Why no more mail should go direct."""
    if standing.direct.complaint_rate > HOLD_COMPLAINTS:
        return f"{standing.direct.complaint_rate:.2%} of the recipients complained; above {HOLD_COMPLAINTS:.1%}"
    return _worse(standing, HOLD_BOUNCES, HOLD_DEFERRALS)


def _worse(standing: Standing, bounces: float, deferrals: float) -> str | None:
    """Whether the direct route bounces or defers more mail than the relay, by more than these shares."""
    direct, relay = standing.direct, standing.relay
    has_relay = relay.results >= ENOUGH
    relay_bounces = relay.bounce_rate if has_relay else RELAY_BOUNCES
    relay_deferrals = relay.deferral_rate if has_relay else RELAY_DEFERRALS
    if direct.results >= ENOUGH and direct.bounce_rate > relay_bounces + bounces:
        return f"{direct.bounce_rate:.1%} bounced or failed directly, {relay_bounces:.1%} by the relay"
    if direct.results + direct.deferred >= ENOUGH and direct.deferral_rate > relay_deferrals + deferrals:
        return f"{direct.deferral_rate:.1%} of the attempts were deferred directly, {relay_deferrals:.1%} by the relay"
    return None


class RampHour(Struct, frozen=True):
    hour: int  # since 1970
    figures: RampFigures


class RampComparison(Struct, frozen=True):
    figures: list[RampFigures]  # of the last day
    suggestions: list[Suggestion]  # first for all providers without a percentage of their own


def compared(
    plan: RampPlan, hours: Iterable[RampHour], held: Mapping[str, str], limits: Mapping[str, int], now: int
) -> RampComparison:
    """Compare the routes. `held` has the reasons of held pools, `limits` the recipients an hour of warm-ups."""
    hours = list(hours)
    figures = [row for _, row in sorted(_summed(hours).items())]
    providers = {row.provider for row in figures} | plan.providers.keys()

    def judged(provider: str, of: set[str]) -> Suggestion:
        changed_at = plan.changed_at.get(provider, 0)
        # The hour of the change counts for neither percentage.
        first = max((now - WINDOW) // HOUR, changed_at // HOUR + 1)
        since = [row for row in hours if row.hour >= first and row.figures.provider in of]
        rows = list(_summed(since).values())
        direct, relay = total(rows, Via.DIRECT, provider), total(rows, Via.RELAY, provider)
        hours_of = {name: sum(row.busiest_hour for row in rows if row.provider == name) for name in of & limits.keys()}
        tightest = max(hours_of, key=lambda name: hours_of[name] / limits[name], default="")
        warmup = hours_of.get(tightest, 0), limits.get(tightest)
        return suggestion(
            Standing(provider, plan.of(provider), changed_at, direct, relay, held.get(provider), *warmup), now
        )

    of_all = judged("", providers - plan.providers.keys())
    of_one = [judged(provider, {provider}) for provider in sorted(providers - {OTHER_PROVIDERS})]
    return RampComparison(figures, [of_all, *of_one])


def _summed(hours: Iterable[RampHour]) -> dict[tuple[str, Via], RampFigures]:
    """The figures by provider and route, with their busiest hour."""
    sums: dict[tuple[str, Via], RampFigures] = {}
    for row in hours:
        new, key = row.figures, (row.figures.provider, row.figures.route)
        counts = [new] if (known := sums.get(key)) is None else [known, new]
        summed = total(counts, new.route, new.provider)
        sums[key] = replace(summed, busiest_hour=max(count.busiest_hour for count in counts))
    return sums


def adjusted(plan: RampPlan, suggestions: Iterable[Suggestion], now: int) -> RampPlan:
    """The plan that `auto` makes of the suggestions.

    A provider that should get less gets a percentage of its own, until that has risen to the percentage of all others.
    """
    for suggested in suggestions:
        if suggested.action is Action.HOLD or (
            suggested.action is Action.RAISE and suggested.provider and suggested.provider not in plan.providers
        ):
            continue
        name = suggested.provider or "all others"
        before, of_all = plan.of(suggested.provider), plan.percent or 0
        reason = f"{name}: {before} % to {suggested.percent} %, because {suggested.reason}"
        plan = plan.having(suggested.provider, suggested.percent, now, reason)
        if suggested.provider and before < of_all <= suggested.percent:
            plan = plan.without(suggested.provider)
    return plan
