"""In charge of how well a connection to a mail server must be encrypted, as its owner demands by DANE or MTA-STS.

DANE (RFC 7672) counts where DNSSEC vouches for the MX records, the addresses and the TLSA records alike, and then it
alone decides: MTA-STS must never make good what DANE finds wrong (RFC 8461 2). Where the TLSA records are unusable, so
that DANE can only demand encryption, MTA-STS may still demand more.

A TLSA lookup that fails is no proof that there is none, so such a host gets no mail for now (RFC 7672 2.1.2). A policy
that cannot be fetched is none (RFC 8461 3.3), as long as no earlier one is still valid.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeVar

import trio

from appliance.concurrency.single_flight import SingleFlight
from appliance.config.settings import RelayTls
from appliance.deliver.dane import usable
from appliance.deliver.mta_sts import BadPolicy, Mode, Policy, policy_id, read_policy
from appliance.deliver.policy_fetch import NoPolicy
from appliance.deliver.route import Host, Relay, Route
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, Tlsa
from appliance.system.shortage import Shortage

POLICIES = 10_000  # domains remembered
LEAST_AGE = 300  # seconds a policy is kept even if it says less: otherwise every message would fetch it
RETRY_AFTER = 300  # seconds until a policy that could not be fetched is fetched again, RFC 8461 3.3


class Level(StrEnum):
    """How well."""

    OFF = "off"  # the operator wants none
    OPPORTUNISTIC = "opportunistic"  # if it can be had; any certificate, or none
    ENCRYPTED = "encrypted"  # any certificate
    VERIFIED = "verified"  # a certificate of a public authority, for one of `names`
    DANE = "dane"  # a certificate that one of `records` names
    NOT_NOW = "not now"  # no mail to this host at present


@dataclass(frozen=True, slots=True)
class TlsDemand:
    """What a connection to one host must fulfil, and why."""

    level: Level
    reason: str
    names: tuple[str, ...] = ()
    records: tuple[Tlsa, ...] = field(default=(), repr=False)

    @property
    def plaintext_allowed(self) -> bool:
        """Whether a failed handshake may be followed by a connection without TLS."""
        return self.level in (Level.OFF, Level.OPPORTUNISTIC)


# ---- pure


def relay_demand(relay: Relay) -> TlsDemand:
    """What the operator's settings for a relay demand."""
    if relay.tls in (RelayTls.REQUIRED, RelayTls.IMPLICIT):
        return TlsDemand(Level.VERIFIED, "the relay's TLS is required by configuration", (relay.host,))
    level = Level.OFF if relay.tls is RelayTls.OFF else Level.OPPORTUNISTIC
    return TlsDemand(level, f"the relay's TLS is {relay.tls.value} by configuration")


def mta_sts_demand(policy: Policy | NoPolicy, domain: str, host: str) -> TlsDemand:
    """What a domain's policy demands of a connection to this host."""
    if isinstance(policy, NoPolicy):
        return TlsDemand(Level.OPPORTUNISTIC, f"{domain} has no TLS policy: {policy}")
    if policy.mode is not Mode.ENFORCE:
        return TlsDemand(Level.OPPORTUNISTIC, f"the MTA-STS policy of {domain} is in mode {policy.mode.value}")
    if not policy.names(host):
        return TlsDemand(Level.NOT_NOW, f"the MTA-STS policy of {domain} does not name {host}")
    return TlsDemand(Level.VERIFIED, f"the MTA-STS policy of {domain} is enforced", (host,))


def _dane_demand(records: tuple[Tlsa, ...], domain: str, host: str) -> TlsDemand:
    good = usable(records)
    if not good:
        return TlsDemand(Level.ENCRYPTED, f"{host} publishes TLSA records, none of them usable")
    # RFC 7672 3.2.2: the certificate under a DANE-TA may be for the host or for the recipients' domain.
    return TlsDemand(Level.DANE, f"{host} publishes TLSA records", (host, domain), good)


# ---- I/O


_Announced = tuple[str, str]  # a domain and the id of its policy
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Kept:
    id: str
    policy: Policy
    until: float  # Trio's clock


class TlsPolicies:
    """Finds and remembers what domains demand; `fetch` gives the text of a domain's policy or raises `NoPolicy`."""

    def __init__(self, resolver: Resolver, fetch: Callable[[str], Awaitable[str]]) -> None:
        self._resolver = resolver
        self._fetch = fetch
        self._kept: dict[str, _Kept] = {}
        self._failed: dict[_Announced, tuple[float, NoPolicy]] = {}  # until when, why
        self._fetching: SingleFlight[_Announced, Policy | NoPolicy] = SingleFlight()

    async def demand(self, route: Route, host: Host) -> TlsDemand:
        """What a connection to this host of this route must fulfil."""
        if route.relay is not None:
            return relay_demand(route.relay)
        dane = await self._dane(route, host)
        if dane is not None and dane.level is not Level.ENCRYPTED:
            return dane
        demand = mta_sts_demand(await self.policy(route.domain), route.domain, host.name)
        return dane if dane is not None and demand.level is Level.OPPORTUNISTIC else demand

    async def _dane(self, route: Route, host: Host) -> TlsDemand | None:
        if not (route.authentic and host.authentic):
            return None
        try:
            answer = await self._resolver.tlsa(f"_{route.port}._tcp.{host.name}")
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            if failed.fault is DnsFault.TEMPORARY:
                return TlsDemand(Level.NOT_NOW, f"the TLSA records of {host.name} cannot be looked up: {failed.public}")
            return None
        return _dane_demand(answer.records, route.domain, host.name) if answer.authentic else None

    async def policy(self, domain: str) -> Policy | NoPolicy:
        """The MTA-STS policy of a domain that is in force now, or why there is none."""
        kept = self._kept.get(domain)
        known = kept if kept is not None and trio.current_time() < kept.until else None
        announced = await self._announced(domain)
        if known is not None and announced in (known.id, None):
            return known.policy
        if announced is None:
            return NoPolicy("none is announced")
        fetched = await self._fetching.run((domain, announced), partial(self._fetch_and_keep, domain, announced))
        return known.policy if known is not None and isinstance(fetched, NoPolicy) else fetched

    async def _announced(self, domain: str) -> str | None:
        try:
            return policy_id((await self._resolver.txt(f"_mta-sts.{domain}")).records)
        except NotAsked as failed:  # not the same as none: a machine short of descriptors must not send in the clear
            raise Shortage(failed.lack) from failed
        except LookupFailed:
            return None

    async def _fetch_and_keep(self, domain: str, announced: str) -> Policy | NoPolicy:
        until, fault = self._failed.get((domain, announced), (0.0, None))
        if fault is not None and trio.current_time() < until:
            return fault
        try:
            policy = read_policy(await self._fetch(domain))
        except (NoPolicy, BadPolicy) as failed:
            fault = NoPolicy(f"the one announced is of no use: {failed}")
            _keep(self._failed, (domain, announced), (trio.current_time() + RETRY_AFTER, fault))
            return fault
        until = trio.current_time() + max(policy.max_age, LEAST_AGE)
        _keep(self._kept, domain, _Kept(announced, policy, until))
        return policy


def _keep(kept: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Put it last, and forget the first when there are too many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > POLICIES:
        del kept[next(iter(kept))]
