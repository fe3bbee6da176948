"""The domains an account sends from: /v1/domains.

A domain that a customer adds may be used once DNS shows one of the DKIM records made for it. Only the owner of the
domain can publish that key, and no other account has it.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
import trio
from msgspec import Meta
from quart import request

from appliance.deliver.domain_watch import is_proven
from appliance.deliver.return_paths import use_if_shown
from appliance.dns import records as dns_records
from appliance.dns.check import CheckedRecord, check, summary
from appliance.dns.records import DnsRecord
from appliance.dns.resolver import DnsResolver
from appliance.errors import Code, PublicError, Refused
from appliance.intake.account_rules import domain_name, return_path
from appliance.model.accounts import Domain, DomainDns, KeyPrincipal, Principal, RecordStatus
from appliance.store.audit import about, unnoted
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.app import ApiServices, Routes, page_limit, request_id
from appliance.web.auth import check_reach
from appliance.web.operations import PAGING, Json, Limited, for_customers, parameter

DNS_TIMEOUT = 12.0  # seconds for all records together
DNS_CHECKS = 10  # domains checked at once, of all accounts
ACCOUNT_DNS_CHECKS = 3  # of one account: a domain whose DNS never answers must not take all of them


class DomainStatus(StrEnum):
    """Whether a domain may be sent from: not yet, because DNS has proven it, or because the operator said so."""

    PENDING = "pending"
    VERIFIED = "verified"
    ALLOWED = "allowed"


class DomainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    domain: Annotated[str, Meta(min_length=1, max_length=253, examples=["example.com"])]
    return_path: Annotated[str, Meta(min_length=1, max_length=253, examples=["bounces.example.com"])] | None = None


class DomainDnsObject(msgspec.Struct):
    """What DNS showed of a domain's records when it was last asked: of several records of a kind, the worst."""

    checked_at: Time
    spf: RecordStatus
    dkim: RecordStatus
    dmarc: RecordStatus
    return_path: RecordStatus | None


class DomainObject(msgspec.Struct):
    """One domain in a list."""

    name: str
    status: DomainStatus
    created_at: Time
    verified_at: Time | None
    return_path: str
    return_path_at: Time | None
    dns: DomainDnsObject | None


class RecordObject(msgspec.Struct):
    """A record to publish, and what DNS shows in its place."""

    name: str
    type: str
    value: str
    purpose: str
    needed: bool
    pending: bool
    proves: bool
    status: RecordStatus
    found: list[str]
    note: str


class DomainAnswer(DomainObject):
    """One domain with its records."""

    records: list[RecordObject]
    request_id: str


class DomainsAnswer(msgspec.Struct):
    """A page of domains by name; `next` goes into `after` for the page that follows."""

    domains: list[DomainObject]
    next: str | None
    request_id: str


@dataclass(frozen=True, slots=True)
class DomainLookups:
    """The records of a domain, and what DNS shows of them now. Nothing is cached: the client has just changed DNS."""

    services: ApiServices
    _making: trio.Lock = field(default_factory=trio.Lock)
    _limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(DNS_CHECKS))
    _own_limiters: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)

    async def records(self, account_id: str, domain: Domain) -> list[DnsRecord]:
        """The records to publish; DKIM keys are made if the domain has none."""
        async with self._making:  # two requests at once must not make keys twice
            keys = await self.services.signing_keys.known(account_id, domain.name)
        config, now = self.services.config, self.services.env.now()
        return dns_records.records_for(config, domain, keys, now, self.services.store.engine.others().names)

    async def look(self, account_id: str, domain: Domain) -> list[CheckedRecord]:
        """What DNS shows now, which is kept; no change that the audit log would tell of."""
        with unnoted():
            checked = await self.check(account_id, await self.records(account_id, domain))
            found = summary(checked, self.services.env.now())
            with suppress(PublicError):  # the answer does not depend on it
                await self.services.store.domains.record_dns(account_id, domain, found)
        return checked

    async def check(self, account_id: str, wanted: list[DnsRecord]) -> list[CheckedRecord]:
        own = self._own_limiters.setdefault(account_id, trio.CapacityLimiter(ACCOUNT_DNS_CHECKS))
        with trio.move_on_after(DNS_TIMEOUT):
            async with own, self._limiter:
                config = self.services.config
                return await check(DnsResolver(config.dns.resolvers), dns_records.sending_host(config), wanted)
        return [CheckedRecord(record, RecordStatus.UNKNOWN, note="DNS did not answer in time") for record in wanted]


_NAME: Json = parameter("domain", "path", "The domain.", {"type": "string", "examples": ["example.com"]})


class DomainRoutes(Routes):
    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.lookups = DomainLookups(services)

    @for_customers(
        "GET /v1/domains", (200, DomainsAnswer, "A page of domains."), parameters=PAGING, limited=Limited.NARROWED
    )
    async def list_domains(self, user: Principal) -> DomainsAnswer:
        """List the account's domains by name. An API key that is limited to a domain sees that one only."""
        limit = page_limit()
        if isinstance(user, KeyPrincipal) and user.domain is not None:
            try:
                own = [_listed(await self.store.domains.find(user.account_id, user.domain))]
            except Refused as refused:
                if refused.code is not Code.NOT_FOUND:
                    raise
                own = []
            return DomainsAnswer(own, None, request_id())
        found = await self.store.domains.page(user.account_id, request.args.get("after", ""), limit + 1)
        following = found[limit - 1].name if len(found) > limit else None
        return DomainsAnswer([_listed(domain) for domain in found[:limit]], following, request_id())

    @for_customers(
        "POST /v1/domains",
        (201, DomainAnswer, "The domain, with the DNS records to publish."),
        Code.CONFLICT,
        body=DomainRequest,
        action="domain.added",
        limited=Limited.NARROWED,
    )
    async def add_domain(self, user: Principal, body: DomainRequest) -> DomainAnswer:
        """Add a domain; it may be sent from once it is verified.

        Publish the `records` of the answer in DNS, then call `verifyDomain`. A subdomain is a domain of its own.
        """
        name = domain_name(body.domain)
        check_reach(user, name)
        about(name, {"return_path": body.return_path})
        path = None if body.return_path is None else return_path(body.return_path, name)
        added = await self.store.domains.register(user.account_id, name, path)
        wanted = await self.lookups.records(user.account_id, added)
        return _answer(added, [CheckedRecord(record, RecordStatus.UNKNOWN, note="not asked yet") for record in wanted])

    @for_customers(
        "GET /v1/domains/{domain}",
        (200, DomainAnswer, "The domain."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
        limited=Limited.NARROWED,
    )
    async def get_domain(self, user: Principal, name: str) -> DomainAnswer:
        """Read a domain with the DNS records to publish, and what DNS shows now."""
        found = await self.store.domains.find(user.account_id, _spelled(user, name))
        checked = await self.lookups.look(user.account_id, found)
        return _answer(await self.store.domains.find(user.account_id, found.name), checked)

    @for_customers(
        "POST /v1/domains/{domain}/verify",
        (200, DomainAnswer, "The domain as it is now; still `pending` when nothing proves it."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
        action="domain.checked",
        limited=Limited.NARROWED,
    )
    async def verify_domain(self, user: Principal, name: str) -> DomainAnswer:
        """Look at DNS; let the domain be used if one of its DKIM records is published, and new keys sign if all are.

        If both records of its return path are published, mail leaves with it from now on.
        """
        found = await self.store.domains.find(user.account_id, _spelled(user, name))
        checked = await self.lookups.look(user.account_id, found)
        if await self.services.signing_keys.switch(user.account_id, found.name, checked):
            checked = await self.lookups.look(user.account_id, found)
        if is_proven(checked):
            found = await self.store.domains.prove(user.account_id, found.name)
            self.services.auth.forget()
        if found.usable:
            await use_if_shown(self.store, user.account_id, found, checked)
        return _answer(await self.store.domains.find(user.account_id, found.name), checked)

    @for_customers(
        "DELETE /v1/domains/{domain}",
        (200, DeletedAnswer, "Removed."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
        action="domain.removed",
        limited=Limited.NARROWED,
    )
    async def remove_domain(self, user: Principal, name: str) -> DeletedAnswer:
        """Remove a domain; what is queued from it still goes out."""
        await self.store.domains.remove(user.account_id, _spelled(user, name))
        self.services.auth.forget()
        return DeletedAnswer(True, request_id())


def _spelled(principal: Principal, name: str) -> str:
    """The domain as it is stored, if the principal may reach it; 404 if it is not a domain name."""
    try:
        domain = domain_name(name)
    except Refused as refused:
        raise Refused(Code.NOT_FOUND, "There is no such domain in this account.") from refused
    check_reach(principal, domain)
    return domain


def _listed(domain: Domain) -> DomainObject:
    return object_from(DomainObject, domain, status=_status(domain), dns=_dns(domain.dns))


def _status(domain: Domain) -> DomainStatus:
    proven = DomainStatus.ALLOWED if domain.verified_at is None else DomainStatus.VERIFIED
    return proven if domain.usable else DomainStatus.PENDING


def _answer(domain: Domain, checked: list[CheckedRecord]) -> DomainAnswer:
    records = []
    for each in checked:
        seen = {"status": each.status, "found": list(each.found), "note": each.note}
        records.append(object_from(RecordObject, each.record, **seen))
    given = {"status": _status(domain), "dns": _dns(domain.dns), "records": records}
    return object_from(DomainAnswer, domain, **given, request_id=request_id())


def _dns(shown: DomainDns | None) -> DomainDnsObject | None:
    return None if shown is None else object_from(DomainDnsObject, shown)
