"""How well a connection to a mail server must be encrypted: the demand of its owner (DANE, MTA-STS) or of the operator,
and the plan for the SMTP client that meets it.

DANE (RFC 7672) counts where DNSSEC vouches for the MX records, the addresses and the TLSA records alike, and then it
alone decides: MTA-STS must never make good what DANE finds wrong (RFC 8461 2). Where the TLSA records are unusable, so
that DANE can only demand encryption, MTA-STS may still demand more.

A TLSA lookup that fails is no proof that there is none, so such a host gets no mail for now (RFC 7672 2.1.2). A policy
that cannot be fetched is none (RFC 8461 3.3), as long as no earlier one is still valid.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.settings import RelayTls
from appliance.deliver import dane
from appliance.deliver.mta_sts import BadPolicy, NoPolicy, Policy, PolicyMode, policy_id, read_policy
from appliance.deliver.route import Host, Relay, Route
from appliance.deliver.smtp.tls import DANE, MTA_STS, PKIX, TlsPlan, TrustStore, opportunistic_context
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver
from appliance.dns.wire import Tlsa
from appliance.net.dial import Shortage

POLICIES_KEPT = 10_000  # domains remembered
POLICY_LEAST_AGE = 300  # seconds a policy is kept even if it says less: otherwise every message would fetch it
DEMAND_FRESH = 1.0  # seconds for which messages share what was found out about a server
DEMANDS_KEPT = 1_000
POLICY_RETRY = 300  # seconds until a policy that could not be fetched is fetched again, RFC 8461 3.3


class TlsLevel(StrEnum):
    OFF = "off"  # the operator wants none
    OPPORTUNISTIC = "opportunistic"  # if it can be had; any certificate, or none
    ENCRYPTED = "encrypted"  # any certificate
    VERIFIED = "verified"  # by MTA-STS or for a relay: a certificate of a trusted authority, for one of `names`
    DANE = "dane"  # a certificate that one of `records` names
    NOT_NOW = "not now"  # no mail to this host at present


@dataclass(frozen=True, slots=True)
class TlsDemand:
    """What a connection to one host must fulfil, and why."""

    level: TlsLevel
    reason: str
    names: tuple[str, ...] = ()
    records: tuple[Tlsa, ...] = field(default=(), repr=False)


def relay_demand(relay: Relay) -> TlsDemand:
    if relay.tls in (RelayTls.REQUIRED, RelayTls.IMPLICIT):
        return TlsDemand(TlsLevel.VERIFIED, "the relay's TLS is required by configuration", (relay.host,))
    level = TlsLevel.OFF if relay.tls is RelayTls.OFF else TlsLevel.OPPORTUNISTIC
    return TlsDemand(level, f"the relay's TLS is {relay.tls.value} by configuration")


def mta_sts_demand(policy: Policy | NoPolicy, domain: str, host: str) -> TlsDemand:
    if isinstance(policy, NoPolicy):
        return TlsDemand(TlsLevel.OPPORTUNISTIC, f"{domain} has no TLS policy: {policy}")
    if policy.mode is not PolicyMode.ENFORCE:
        return TlsDemand(TlsLevel.OPPORTUNISTIC, f"the MTA-STS policy of {domain} is in mode {policy.mode.value}")
    if not policy.names(host):
        return TlsDemand(TlsLevel.NOT_NOW, f"the MTA-STS policy of {domain} does not name {host}")
    return TlsDemand(TlsLevel.VERIFIED, f"the MTA-STS policy of {domain} is enforced", (host,))


_Announced = tuple[str, str]  # a domain and the id of its policy


class TlsPolicies:
    """Finds and remembers what domains demand; `fetch` gives the text of a domain's policy or raises `NoPolicy`."""

    def __init__(
        self, resolver: Resolver, fetch: Callable[[str], Awaitable[str]], remembered: int = POLICIES_KEPT
    ) -> None:
        self._resolver, self._fetch = resolver, fetch
        self._kept: TtlCache[str, tuple[str, Policy]] = TtlCache(remembered, POLICY_LEAST_AGE)  # with its id
        self._failed: TtlCache[_Announced, NoPolicy] = TtlCache(remembered, POLICY_RETRY)
        self._fetching: SingleFlight[_Announced, Policy | NoPolicy] = SingleFlight()

    async def demand(self, route: Route, host: Host) -> TlsDemand:
        if route.relay is not None:
            return relay_demand(route.relay)
        by_dane = await self._dane(route, host)
        if by_dane is not None and by_dane.level is not TlsLevel.ENCRYPTED:
            return by_dane
        demand = mta_sts_demand(await self.policy(route.domain), route.domain, host.name)
        return by_dane if by_dane is not None and demand.level is TlsLevel.OPPORTUNISTIC else demand

    async def _dane(self, route: Route, host: Host) -> TlsDemand | None:
        if not (route.authentic and host.authentic):
            return None
        try:
            answer = await self._resolver.tlsa(f"_{route.port}._tcp.{host.name}")
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            text = f"the TLSA records of {host.name} cannot be looked up: {failed.public}"
            return TlsDemand(TlsLevel.NOT_NOW, text) if failed.fault is DnsFault.TEMPORARY else None
        if not answer.authentic:
            return None
        if not (good := dane.usable(answer.records)):
            return TlsDemand(TlsLevel.ENCRYPTED, f"{host.name} publishes TLSA records, none of them usable")
        # RFC 7672 3.2.2: the certificate under a DANE-TA may be for the host or for the recipients' domain.
        return TlsDemand(TlsLevel.DANE, f"{host.name} publishes TLSA records", (host.name, route.domain), good)

    async def policy(self, domain: str) -> Policy | NoPolicy:
        """The MTA-STS policy of a domain that is in force now, or why there is none."""
        known_id, known = self._kept.get(domain) or ("", None)
        try:
            announced = policy_id((await self._resolver.txt(f"_mta-sts.{domain}")).records)
        except NotAsked as failed:  # not the same as none: a machine short of descriptors must not send in the clear
            raise Shortage(failed.lack) from failed
        except LookupFailed:
            announced = None
        if known is not None and announced in (known_id, None):
            return known
        if announced is None:
            return NoPolicy("none is announced")
        fetched = await self._fetching.run((domain, announced), partial(self._fetch_and_keep, domain, announced))
        return known if known is not None and isinstance(fetched, NoPolicy) else fetched

    async def _fetch_and_keep(self, domain: str, announced: str) -> Policy | NoPolicy:
        if (fault := self._failed.get((domain, announced))) is not None:
            return fault
        try:
            policy = read_policy(await self._fetch(domain))
        except (NoPolicy, BadPolicy) as failed:
            fault = NoPolicy(f"the one announced is of no use: {failed}")
            self._failed.put((domain, announced), fault)
            return fault
        self._kept.put(domain, (announced, policy), max(policy.max_age, POLICY_LEAST_AGE))
        return policy


@dataclass(slots=True)
class TlsChoice:
    """Finds the TLS demand and the plan for a server; `verifying` has the roots that count."""

    policies: TlsPolicies
    verifying: ssl.SSLContext
    _opportunistic: ssl.SSLContext = field(default_factory=opportunistic_context)
    _trust: TrustStore | None = None  # by which an opportunistic connection is said to be verified; read when needed
    _demands: TtlCache[tuple[str, str], tuple[TlsDemand, Route]] = field(
        default_factory=lambda: TtlCache(DEMANDS_KEPT, DEMAND_FRESH)
    )

    async def demand(self, route: Route, host: Host) -> TlsDemand:
        """What a connection to this host must fulfil; found once for all messages of a moment on the same route."""
        known = self._demands.get((route.domain, host.name))
        if known is not None and known[1] is route:
            return known[0]
        demand = await self.policies.demand(route, host)
        self._demands.put((route.domain, host.name), (demand, route))
        return demand

    def plan(self, demand: TlsDemand, route: Route, host: Host) -> TlsPlan | None:
        """How to fulfil it; None: without TLS."""
        if demand.level is TlsLevel.OFF:
            return None
        if demand.level is TlsLevel.VERIFIED:
            implicit = route.relay is not None and route.relay.tls is RelayTls.IMPLICIT
            by = MTA_STS if route.relay is None else PKIX
            return TlsPlan(self.verifying, host.name, required=True, implicit=implicit, by=by)
        if demand.level is TlsLevel.DANE:
            verify = dane.verifier(demand.records, demand.names)
            return TlsPlan(self._opportunistic, host.name, required=True, verify=verify, must_verify=True, by=DANE)
        if self._trust is None:
            self._trust = TrustStore(self.verifying.get_ca_certs(binary_form=True))
        required = demand.level is TlsLevel.ENCRYPTED
        return TlsPlan(self._opportunistic, host.name, required=required, verify=self._trust.verify)
