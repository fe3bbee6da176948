"""Sending domains: /v1/domains.

A domain becomes usable once DNS shows one of its DKIM records. Only the domain's owner can publish that key, and no
other account has it.
"""

from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
import trio
from msgspec import Meta, Struct, field
from quart import request

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.deliver.domain_watch import is_proven, use_if_published
from appliance.dns import records as dns_records
from appliance.dns.check import CheckedRecord, check, find_senders, summary
from appliance.dns.publishing import DnsZone, VerdictStatus, find_zone, is_problem, value_to_publish, verdict
from appliance.dns.records import DnsRecord, Senders
from appliance.dns.resolver import DnsResolver
from appliance.errors import Code, PublicError, Refused
from appliance.intake.account_rules import domain_name, return_path
from appliance.model.accounts import Domain, KeyPrincipal, Principal, RecordStatus
from appliance.model.sources import OutgoingSource
from appliance.store.audit import about, unnoted
from appliance.web.app import ApiServices, Routes, page_limit
from appliance.web.auth import check_reach
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, NextPage, RequestId, Time, object_from
from appliance.web.operations import PAGING, Limited, Tag, for_customers, parameter

DNS_TIMEOUT = 12.0  # seconds for all records of a domain
SENDERS_KEPT = 60.0  # seconds for which the nodes' addresses are not looked up again
ZONES_KEPT = 60.0  # seconds for which a domain's zone is not looked up again
ZONES = 1_000  # cached
DNS_CHECKS = 10  # concurrent domain checks of all accounts
ACCOUNT_DNS_CHECKS = 3  # of one account, so that a domain whose DNS never answers does not block the others


class DomainStatus(StrEnum):
    """Whether the account may send from a domain: not yet, proven by DNS, or allowed by the operator."""

    PENDING = "pending"
    VERIFIED = "verified"
    ALLOWED = "allowed"


_RETURN_PATH = Meta(min_length=1, max_length=253, examples=["bounces.example.com"])


class DomainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A domain to add."""

    domain: Annotated[str, Meta(min_length=1, max_length=253, examples=["example.com"], description="Domain to add.")]
    return_path: Annotated[str, Meta(description="Default: `bounces.<domain>`."), _RETURN_PATH] | None = None


class DomainDnsObject(msgspec.Struct):
    """Result of the last DNS check. Of several records of a kind, the worst counts."""

    checked_at: Annotated[Time, Meta(description="Time of the last check.")]
    spf: Annotated[RecordStatus, Meta(description="State of the SPF record.")]
    dkim: Annotated[RecordStatus, Meta(description="State of the DKIM records in use.")]
    dmarc: Annotated[RecordStatus, Meta(description="State of the DMARC record.")]
    return_path: Annotated[RecordStatus | None, Meta(description="State of the return path; null if unused.")]


class DomainObject(msgspec.Struct):
    """One domain in a list."""

    name: Annotated[str, Meta(description="Domain, in A-labels.")]
    status: Annotated[DomainStatus, Meta(description="`pending`, `verified` (by DNS) or `allowed` (by the operator).")]
    created_at: CreatedAt
    verified_at: Annotated[Time | None, Meta(description="Time DNS proved ownership; null if it has not.")]
    return_path: Annotated[str, Meta(description="Host name that receives bounces.")]
    return_path_at: Annotated[Time | None, Meta(description="Time DNS showed the return path; null if it does not.")]
    dns: Annotated[DomainDnsObject | None, Meta(description="Result of the last DNS check; null before the first.")]


class RecordObject(msgspec.Struct):
    """A record to publish, and its current state in DNS."""

    name: Annotated[str, Meta(description="Record name.")]
    relative_name: Annotated[
        str | None, Meta(description="Name within the zone, `@` for the zone itself; null if the zone is unknown.")
    ]
    type: Annotated[str, Meta(description="Record type.")]
    value: Annotated[str, Meta(description="Value to publish: an existing SPF record with this server added.")]
    purpose: Annotated[str, Meta(description="Purpose of the record.")]
    needed: Annotated[bool, Meta(description="Whether delivery depends on the record.")]
    pending: Annotated[bool, Meta(description="Whether it is for a new DKIM key, which signs once DNS shows it.")]
    proves: Annotated[bool, Meta(description="Whether this record proves ownership of the domain.")]
    status: Annotated[RecordStatus, Meta(description="`ok`, `missing`, `differs` or `unknown` (no answer yet).")]
    found: Annotated[list[str], Meta(description="Values that DNS returned for this name.")]
    note: Annotated[str, Meta(description="Problem with the published record, or empty.")]
    problem: Annotated[bool, Meta(description="Whether you must correct this record: the verdict counts it.")]


class ZoneObject(msgspec.Struct):
    """The DNS zone that contains the domain."""

    name: Annotated[str, Meta(description="Zone: the closest name at or above the domain with an SOA record.")]
    name_servers: Annotated[tuple[str, ...], Meta(description="Name servers, at most 8.")]
    host: Annotated[str | None, Meta(description="DNS host, recognized by its name servers; null if unknown.")]
    console_url: Annotated[str | None, Meta(description="Address of the DNS host's console, or null.")]


class VerdictObject(msgspec.Struct):
    """The state of all records in one sentence."""

    status: Annotated[VerdictStatus, Meta(description="`ok`, `problems`, or `unknown` if DNS did not answer.")]
    problems: Annotated[int, Meta(ge=0, description="Number of records to correct.")]
    text: Annotated[str, Meta(description="Number of problems and their worst consequence.")]


class DomainAnswer(DomainObject):
    """One domain with its records."""

    verdict: Annotated[VerdictObject, Meta(description="Summary of all records.")]
    zone: Annotated[ZoneObject | None, Meta(description="DNS zone; null before a check or if DNS does not answer.")]
    records: Annotated[list[RecordObject], Meta(description="DNS records to publish.")]
    request_id: RequestId


class DomainsAnswer(ApiAnswer):
    """A page of domains by name. Pass `next` as `after` to get the next page."""

    domains: Annotated[list[DomainObject], Meta(description="Domains, by name.")]
    next: NextPage


# Nodes, whether the ramp is on, and the sources of an account.
_Sending = tuple[tuple[str, ...], bool, tuple[OutgoingSource, ...]]


class DomainLookups(Struct, frozen=True):
    """The records of a domain and their state in DNS. Nothing is cached, because the client has just changed DNS."""

    services: ApiServices
    _making: trio.Lock = field(default_factory=trio.Lock)
    _senders: TtlCache[_Sending, Senders] = field(default_factory=lambda: TtlCache(10, SENDERS_KEPT))
    _finding: SingleFlight[_Sending, Senders] = field(default_factory=SingleFlight)
    _zones: TtlCache[str, DnsZone] = field(default_factory=lambda: TtlCache(ZONES, ZONES_KEPT))
    _limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(DNS_CHECKS))
    _own_limiters: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)

    async def records(self, account_id: str, domain: Domain) -> list[DnsRecord]:
        """The records to publish. Creates DKIM keys for a domain without any."""
        async with self._making:  # concurrent requests must not create keys twice
            keys = await self.services.signing_keys.known(account_id, domain.name)
        config, now = self.services.config, self.services.env.now()
        nodes = await self.services.store.engine.hosts()
        sources = await self.services.store.sources.of_account(account_id, config)
        key = nodes, ramp, _ = nodes, self.services.store.ramping.plan is not None, sources
        if (sending := self._senders.get(key)) is None:
            find = partial(find_senders, DnsResolver(config.dns.resolvers), config, nodes, ramp=ramp, sources=sources)
            sending = await self._finding.run(key, find)
            self._senders.put(key, sending)
        receives = await self.services.store.receiving.domains(account_id, domain.name)
        return dns_records.records_for(config, domain, keys, now, sending, nodes, receives)

    async def look(self, account_id: str, domain: Domain) -> list[CheckedRecord]:
        """Check DNS now and store the result, without an entry in the audit log."""
        with unnoted():
            checked = await self.check(account_id, await self.records(account_id, domain), domain.name)
            dns = summary(checked, self.services.env.now())
            with suppress(PublicError):  # the response does not depend on it
                await self.services.store.domains.record_dns(account_id, domain, dns)
        return checked

    def zone(self, domain: Domain) -> DnsZone | None:
        """The zone that the last look found."""
        return self._zones.get(domain.name)

    async def _find_zone(self, resolver: DnsResolver, name: str) -> None:
        if name not in self._zones and (zone := await find_zone(resolver, name)) is not None:
            self._zones.put(name, zone)

    async def check(self, account_id: str, records: list[DnsRecord], domain: str = "") -> list[CheckedRecord]:
        own = self._own_limiters.setdefault(account_id, trio.CapacityLimiter(ACCOUNT_DNS_CHECKS))
        with trio.move_on_after(DNS_TIMEOUT):
            async with own, self._limiter:
                resolver = DnsResolver(self.services.config.dns.resolvers)
                async with trio.open_nursery() as nursery:
                    if domain:
                        nursery.start_soon(self._find_zone, resolver, domain)
                    return await check(resolver, records)
        return _unchecked(records, "DNS did not answer in time")


_NAME = parameter("domain", "path", "The domain.", {"type": "string", "examples": ["example.com"]})
_ADDED = (201, DomainAnswer, "The domain with the DNS records to publish.")


class DomainRoutes(Routes):
    tag = Tag.DOMAINS

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.lookups = DomainLookups(services)

    @for_customers("GET /v1/domains", DomainsAnswer, *PAGING, limited=Limited.NARROWED)
    async def list_domains(self, user: Principal) -> DomainsAnswer:
        """List the account's domains by name. An API key that is limited to a domain sees only that domain."""
        limit = page_limit()
        if isinstance(user, KeyPrincipal) and user.domain is not None:
            try:
                return DomainsAnswer([_listed(await self.store.domains.find(user.account_id, user.domain))], None)
            except Refused as refused:
                if refused.code is not Code.NOT_FOUND:
                    raise
                return DomainsAnswer([], None)
        domains = await self.store.domains.page(user.account_id, request.args.get("after", ""), limit + 1)
        following = domains[limit - 1].name if len(domains) > limit else None
        return DomainsAnswer([_listed(domain) for domain in domains[:limit]], following)

    @for_customers("POST /v1/domains", _ADDED, Code.CONFLICT, action="domain.added", limited=Limited.NARROWED)
    async def add_domain(self, user: Principal, body: DomainRequest) -> DomainAnswer:
        """Add a domain. The account may send from it once it is verified.

        Publish the `records` in DNS, then call `verifyDomain`. A subdomain is a separate domain.
        """
        name = domain_name(body.domain)
        check_reach(user, name)
        about(name, {"return_path": body.return_path})
        path = None if body.return_path is None else return_path(body.return_path, name)
        added = await self.store.domains.register(user.account_id, name, path)
        records = await self.lookups.records(user.account_id, added)
        return _answer(added, _unchecked(records, "not checked yet"), None)

    @for_customers("GET /v1/domains/{domain}", DomainAnswer, _NAME, limited=Limited.NARROWED)
    async def get_domain(self, user: Principal, name: str) -> DomainAnswer:
        """Read a domain, the DNS records to publish, and their current state in DNS."""
        domain = await self.store.domains.find(user.account_id, _spelled(user, name))
        checked = await self.lookups.look(user.account_id, domain)
        domain = await self.store.domains.find(user.account_id, domain.name)
        return _answer(domain, checked, self.lookups.zone(domain))

    @for_customers(
        "POST /v1/domains/{domain}/verify", DomainAnswer, _NAME, action="domain.checked", limited=Limited.NARROWED
    )
    async def verify_domain(self, user: Principal, name: str) -> DomainAnswer:
        """Check DNS, and verify the domain if one of its DKIM records is published.

        New DKIM keys sign once all their records are published. Mail uses the return path once both of its records are
        published.
        """
        domain = await self.store.domains.find(user.account_id, _spelled(user, name))
        checked = await self.lookups.look(user.account_id, domain)
        if await self.services.signing_keys.switch(user.account_id, domain.name, checked):
            checked = await self.lookups.look(user.account_id, domain)
        if is_proven(checked):
            domain = await self.store.domains.prove(user.account_id, domain.name)
            self.services.auth.forget()
        if domain.usable:
            await use_if_published(self.store, user.account_id, domain, checked)
        domain = await self.store.domains.find(user.account_id, domain.name)
        return _answer(domain, checked, self.lookups.zone(domain))

    @for_customers(
        "DELETE /v1/domains/{domain}", DeletedAnswer, _NAME, action="domain.removed", limited=Limited.NARROWED
    )
    async def remove_domain(self, user: Principal, name: str) -> DeletedAnswer:
        """Remove a domain. Queued mail from it is still delivered."""
        await self.store.domains.remove(user.account_id, _spelled(user, name))
        self.services.auth.forget()
        return DeletedAnswer(True)


def _spelled(principal: Principal, name: str) -> str:
    """The stored domain, if the principal may access it. Raises not_found for an invalid name."""
    try:
        domain = domain_name(name)
    except Refused as refused:
        raise Refused(Code.NOT_FOUND, "This account has no such domain.") from refused
    check_reach(principal, domain)
    return domain


def _unchecked(records: list[DnsRecord], note: str) -> list[CheckedRecord]:
    return [CheckedRecord(record, RecordStatus.UNKNOWN, note=note) for record in records]


def _listed(domain: Domain) -> DomainObject:
    return object_from(DomainObject, domain, **_derived(domain))


def _answer(domain: Domain, checked: list[CheckedRecord], zone: DnsZone | None) -> DomainAnswer:
    records = [record_object(one, zone) for one in checked]
    host = zone.host if zone else None
    zone_object = zone and ZoneObject(zone.name, zone.name_servers, host and host.name, host and host.console)
    summed = VerdictObject(*verdict(checked))
    return object_from(DomainAnswer, domain, **_derived(domain), records=records, verdict=summed, zone=zone_object)


def record_object(checked: CheckedRecord, zone: DnsZone | None) -> RecordObject:
    seen: dict[str, object] = {"status": checked.status, "found": list(checked.found), "note": checked.note}
    seen |= {"value": value_to_publish(checked), "problem": is_problem(checked)}
    return object_from(RecordObject, checked.record, **seen, relative_name=zone and zone.relative(checked.record.name))


def _derived(domain: Domain) -> dict[str, object]:
    proven = DomainStatus.ALLOWED if domain.verified_at is None else DomainStatus.VERIFIED
    dns = None if domain.dns is None else object_from(DomainDnsObject, domain.dns)
    return {"status": proven if domain.usable else DomainStatus.PENDING, "dns": dns}
