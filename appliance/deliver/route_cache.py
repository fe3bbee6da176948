"""In charge of routes for many parcels at once: one is found once for all who want it within a moment."""

from dataclasses import dataclass, field
from functools import partial

import trio

from appliance.concurrency.single_flight import SingleFlight
from appliance.deliver.route import NoRoute, Route, Router
from appliance.telemetry.log import get_logger

FRESH = 1.0  # seconds for which parcels for one domain share a route
KEPT = 1_000

log = get_logger("deliver")


@dataclass(slots=True)
class SharedRoutes:
    """The ways to domains, as the router finds them."""

    router: Router
    _known: dict[str, tuple[Route, float]] = field(default_factory=dict)  # by domain, with until when
    _finding: SingleFlight[str, Route | NoRoute] = field(default_factory=SingleFlight)

    def known(self, domain: str) -> Route | None:
        """The way to a domain, if it was found a moment ago."""
        known = self._known.get(domain)
        return known[0] if known is not None and trio.current_time() < known[1] else None

    async def find(self, domain: str) -> Route:
        """The way to a domain; raises `NoRoute`."""
        if (route := self.known(domain)) is not None:
            return route
        found = await self._finding.run(domain, partial(self._find, domain))
        if isinstance(found, NoRoute):
            raise NoRoute(found.status, found.text, found.detail)
        return found

    async def _find(self, domain: str) -> Route | NoRoute:
        try:
            route = await self.router.route(domain)
        except NoRoute as reason:
            if reason.detail:  # what customers are not told
                log.info("no route", domain=domain, status=reason.status, reason=reason.detail)
            return reason
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[domain] = route, trio.current_time() + FRESH
        return route
