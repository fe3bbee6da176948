"""The mail of the whole installation by the hour, for administrators: /v1/admin/stats."""

from typing import Annotated

from msgspec import Meta

from appliance.model.accounts import User
from appliance.model.numbers import COUNTED
from appliance.times import HOUR, rfc3339
from appliance.web.api.stats import DAY_HOURS, CountsObject
from appliance.web.app import Routes
from appliance.web.exchange import ApiAnswer
from appliance.web.operations import Tag, for_admins


class InstallationStatsAnswer(ApiAnswer):
    """Recipients of all accounts in the last 24 hours. A result is counted after a minute at most."""

    hours: Annotated[list[CountsObject], Meta(description="Hours, oldest first; the last one has not ended.")]


class InstallationStatsRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/stats", InstallationStatsAnswer)
    async def get_installation_stats(self, _admin: User) -> InstallationStatsAnswer:
        """Read the recipients of all accounts by hour, with their results, for the last 24 hours."""
        last = self.services.env.now() // HOUR
        hours = range(last - DAY_HOURS + 1, last + 1)
        by_hour = await self.store.statistics.of_all_accounts(hours.start * HOUR)
        return InstallationStatsAnswer(
            [
                CountsObject(**{kind: by_hour[hour, kind] for kind in COUNTED}, start=rfc3339(hour * HOUR))
                for hour in hours
            ]
        )
