"""The ramp: /v1/admin/ramp compares direct delivery with the relay, for administrators."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.model.accounts import User
from appliance.model.ramp import Action, RampComparison, RampPlan, Via, in_force, total
from appliance.times import rfc3339
from appliance.web.app import Routes
from appliance.web.exchange import ApiAnswer, object_from
from appliance.web.operations import Tag, for_admins

ALL = "Provider pool; null for the sum of all providers."


class RouteResults(msgspec.Struct):
    """Results of one route in the last 24 hours."""

    provider: Annotated[str | None, Meta(description=ALL)]
    route: Annotated[Via, Meta(description="`direct` or `relay`.")]
    delivered: Annotated[int, Meta(description="Recipients delivered.")]
    deferred: Annotated[int, Meta(description="Attempts deferred.")]
    bounced: Annotated[int, Meta(description="Recipients bounced.")]
    failed: Annotated[int, Meta(description="Recipients whose attempts are used up.")]
    complaints: Annotated[int, Meta(description="Spam complaints.")]
    mean_seconds: Annotated[float | None, Meta(description="Mean time from acceptance to delivery; null without any.")]
    within_minute: Annotated[int, Meta(description="Recipients delivered within a minute of acceptance.")]


class SuggestionObject(msgspec.Struct):
    """A suggested percentage."""

    provider: Annotated[
        str | None, Meta(description="Provider pool; null for all providers without a percentage of their own.")
    ]
    action: Annotated[Action, Meta(description="`raise`, `hold` or `lower`.")]
    percent: Annotated[int, Meta(description="The suggested percentage; with `hold` the current one.")]
    reason: Annotated[str, Meta(description="Reason for the suggestion.")]


class RampAnswer(ApiAnswer):
    """The ramp, with the results of both routes in the last 24 hours."""

    percent: Annotated[int | None, Meta(description="Percent of recipients that go direct; null if the ramp is off.")]
    providers: Annotated[dict[str, int], Meta(description="Percentages of providers that have their own.")]
    auto: Annotated[bool, Meta(description="Whether the percentages change automatically.")]
    changed_at: Annotated[str | None, Meta(description="Time of the last change; null without one.")]
    reason: Annotated[str | None, Meta(description="Reason for the last automatic change; null without one.")]
    figures: Annotated[
        list[RouteResults], Meta(description="Results by route: first of all providers, then of each provider.")
    ]
    suggestions: Annotated[
        list[SuggestionObject], Meta(description="First for all providers without a percentage of their own.")
    ]


class RampRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/ramp", RampAnswer)
    async def get_ramp(self, _admin: User) -> RampAnswer:
        """Compare direct delivery with the relay, and read the suggested percentages."""
        config = self.services.config
        plan = in_force(await self.store.ramp.stored(), config)
        if plan is None:
            return _answer(RampPlan(), RampComparison([], []))
        return _answer(plan, await self.store.ramp.comparison(plan, config.warmup))


def _answer(plan: RampPlan, comparison: RampComparison) -> RampAnswer:
    sums = [total(comparison.figures, via) for via in Via] if comparison.figures else []
    changed_at = max(plan.changed_at.values(), default=None)
    return RampAnswer(
        plan.percent,
        plan.providers,
        plan.auto,
        None if changed_at is None else rfc3339(changed_at),
        plan.reason or None,
        [object_from(RouteResults, row, provider=row.provider or None) for row in [*sums, *comparison.figures]],
        [
            object_from(SuggestionObject, suggested, provider=suggested.provider or None)
            for suggested in comparison.suggestions
        ],
    )
