"""In charge of how a server is encrypted to: a demand of its owner, turned into a plan for the SMTP client."""

import ssl
from dataclasses import dataclass, field

import trio

from appliance.config.settings import RelayTls
from appliance.deliver import dane
from appliance.deliver.route import Host, Route
from appliance.deliver.smtp.tls import TlsPlan, TrustStore, opportunistic_context
from appliance.deliver.tls_policy import Level, TlsDemand, TlsPolicies

FRESH = 1.0  # seconds for which messages share what was found out about a server
KEPT = 1_000


@dataclass(slots=True)
class TlsChoice:
    """Plans for direct delivery and for relays; `verifying` has the roots that count."""

    policies: TlsPolicies
    verifying: ssl.SSLContext
    _opportunistic: ssl.SSLContext = field(default_factory=opportunistic_context)
    _trust: TrustStore | None = None
    _demands: dict[tuple[str, str], tuple[TlsDemand, Route, float]] = field(default_factory=dict)

    async def demand(self, route: Route, host: Host) -> TlsDemand:
        """What a connection to this host must fulfil; found once for all messages of a moment on the same route."""
        known = self._demands.get((route.domain, host.name))
        if known is not None and known[1] is route and trio.current_time() < known[2]:
            return known[0]
        demand = await self.policies.demand(route, host)
        if len(self._demands) >= KEPT:
            self._demands.clear()
        self._demands[route.domain, host.name] = demand, route, trio.current_time() + FRESH
        return demand

    def plan(self, demand: TlsDemand, route: Route, host: Host) -> TlsPlan | None:
        """How to fulfil it; None: without TLS."""
        if demand.level is Level.OFF:
            return None
        if demand.level is Level.VERIFIED:
            implicit = route.relay is not None and route.relay.tls is RelayTls.IMPLICIT
            return TlsPlan(self.verifying, host.name, required=True, implicit=implicit)
        if demand.level is Level.DANE:
            verify = dane.verifier(demand.records, demand.names)
            return TlsPlan(self._opportunistic, host.name, required=True, verify=verify, must_verify=True)
        required = demand.level is Level.ENCRYPTED
        return TlsPlan(self._opportunistic, host.name, required=required, verify=self._roots().verify)

    def _roots(self) -> TrustStore:
        """By which an opportunistic connection is said to be verified or not; read when first needed."""
        if self._trust is None:
            self._trust = TrustStore(self.verifying.get_ca_certs(binary_form=True))
        return self._trust
