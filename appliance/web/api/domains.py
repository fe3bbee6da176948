"""In charge of From domains in their owner's hands: /v1/domains.

A domain that a customer adds may be sent from once DNS shows one of the DKIM records made for it: nobody but its owner
can publish that key, which no other account has.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
import trio
from msgspec import Meta
from quart import Blueprint, Response, request

from appliance.config.load import Config
from appliance.dns import records as dns_records
from appliance.dns.check import CheckedRecord, RecordStatus, check
from appliance.dns.records import DnsRecord, RecordKind
from appliance.dns.resolver import DnsResolver
from appliance.errors import Code, Refused
from appliance.intake.account_rules import domain_name
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.mail import Domain
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.lists import time_or_none
from appliance.web.api.templates import DeletedAnswer
from appliance.web.app import Services, answer, json_request, page_limit, request_id
from appliance.web.operations import PAGING, Json, for_customers, parameter

DNS_TIME = 12.0  # seconds for all records together
CHECKS = 10  # domains looked up at once, for everybody
OWN_CHECKS = 3  # of them for one account: a domain whose DNS never answers must not take all of them


class DomainStatus(StrEnum):
    """Whether a domain may be sent from: not yet, because DNS has proven it, or because the operator said so."""

    PENDING = "pending"
    VERIFIED = "verified"
    ALLOWED = "allowed"


class DomainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    domain: Annotated[str, Meta(min_length=1, max_length=253, examples=["example.com"])]


class DomainObject(msgspec.Struct):
    """One domain in a list."""

    name: str
    status: DomainStatus
    created_at: Time
    verified_at: Time | None


class RecordObject(msgspec.Struct):
    """A record to publish, and what DNS shows in its place."""

    name: str
    type: str
    value: str
    purpose: str
    needed: bool
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


BODY = msgspec.json.Decoder(DomainRequest)


@dataclass(frozen=True, slots=True)
class Lookups:
    """Finds a domain's records, and asks DNS for them, afresh each time: whoever looks has just changed something."""

    services: Services
    config: Config
    keys: SigningKeys
    _making: trio.Lock = field(default_factory=trio.Lock)
    _limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(CHECKS))
    _own_limiters: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)

    async def records(self, account_id: str, domain: str) -> list[DnsRecord]:
        """What to publish for a domain; its keys are made if it has none."""
        async with self._making:  # so that two who ask at once do not make keys twice
            keys = await self.keys.known(account_id, domain)
        host = dns_records.sending_host(self.config)
        return dns_records.records(domain, host, keys, self.services.outside.now())

    async def check(self, account_id: str, wanted: list[DnsRecord]) -> list[CheckedRecord]:
        """The same as DNS shows it now."""
        own = self._own_limiters.setdefault(account_id, trio.CapacityLimiter(OWN_CHECKS))
        with trio.move_on_after(DNS_TIME):
            async with own, self._limiter:
                resolver, host = DnsResolver(self.config.dns.resolvers), dns_records.sending_host(self.config)
                return await check(resolver, host, wanted)
        return [CheckedRecord(record, RecordStatus.UNKNOWN, note="DNS did not answer in time") for record in wanted]


def blueprint(services: Services, config: Config, keys: SigningKeys) -> Blueprint:
    """The routes."""
    routes = Blueprint("domains", __name__)
    domains, lookups = services.store.domains, Lookups(services, config, keys)

    @routes.get("/v1/domains")
    async def page() -> Response:
        user, limit = await services.customer(), page_limit()
        found = domains.page(user.account_id, request.args.get("after", ""), limit + 1)
        following = found[limit - 1].name if len(found) > limit else None
        shown = [DomainObject(*_fields(each)) for each in found[:limit]]
        return answer(DomainsAnswer(shown, following, request_id()))

    @routes.post("/v1/domains")
    async def add() -> Response:
        user, body = await services.customer(), await json_request(BODY)
        added = await domains.register(user.account_id, domain_name(body.domain))
        wanted = await lookups.records(user.account_id, added.name)
        return _answer(
            added, [CheckedRecord(record, RecordStatus.UNKNOWN, note="not asked yet") for record in wanted], 201
        )

    @routes.get("/v1/domains/<name>")
    async def show(name: str) -> Response:
        user = await services.customer()
        found = domains.find(user.account_id, _spelled(name))
        wanted = await lookups.records(user.account_id, found.name)
        return _answer(found, await lookups.check(user.account_id, wanted))

    @routes.post("/v1/domains/<name>/verify")
    async def verify(name: str) -> Response:
        user = await services.customer()
        found = domains.find(user.account_id, _spelled(name))
        checked = await lookups.check(user.account_id, await lookups.records(user.account_id, found.name))
        if any(_proves(each.record) and each.status is RecordStatus.OK for each in checked):
            found = await domains.prove(user.account_id, found.name)
            services.auth.forget()
        return _answer(found, checked)

    @routes.delete("/v1/domains/<name>")
    async def remove(name: str) -> Response:
        user = await services.customer()
        await domains.remove(user.account_id, _spelled(name))
        services.auth.forget()
        return answer(DeletedAnswer(True, request_id()))

    return routes


def _spelled(name: str) -> str:
    """A domain of the path as it is stored; what is no domain is none of the account's."""
    try:
        return domain_name(name)
    except Refused as refused:
        raise Refused(Code.NOT_FOUND, "There is no such domain in this account.") from refused


def _proves(record: DnsRecord) -> bool:
    """Whether publishing this record shows that the domain is the account's: a key of its own that is in use."""
    return record.kind is RecordKind.DKIM and record.needed


def _fields(domain: Domain) -> tuple[str, DomainStatus, str, str | None]:
    proven = DomainStatus.ALLOWED if domain.verified_at is None else DomainStatus.VERIFIED
    status = proven if domain.usable else DomainStatus.PENDING
    return domain.name, status, rfc3339(domain.created_at), time_or_none(domain.verified_at)


def _answer(domain: Domain, checked: list[CheckedRecord], status: int = 200) -> Response:
    return answer(DomainAnswer(*_fields(domain), [_record(each) for each in checked], request_id()), status)


def _record(each: CheckedRecord) -> RecordObject:
    record = each.record
    described = record.name, record.type, record.value, record.purpose, record.needed, _proves(record)
    return RecordObject(*described, each.status, list(each.found), each.note)


_NAME: Json = parameter("domain", "path", "The domain.", {"type": "string", "examples": ["example.com"]})

OPERATIONS = (
    for_customers(
        "get",
        "/v1/domains",
        "List the account's domains by name.",
        (200, DomainsAnswer, "A page of domains."),
        Code.INVALID_REQUEST,
        parameters=PAGING,
    ),
    for_customers(
        "post",
        "/v1/domains",
        "Add a domain; it may be sent from once it is verified.",
        (201, DomainAnswer, "The domain, with the DNS records to publish."),
        Code.CONFLICT,
        body=DomainRequest,
    ),
    for_customers(
        "get",
        "/v1/domains/{domain}",
        "Read a domain with the DNS records to publish, and what DNS shows now.",
        (200, DomainAnswer, "The domain."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
    ),
    for_customers(
        "post",
        "/v1/domains/{domain}/verify",
        "Look at DNS, and let the domain be used if one of its DKIM records is published.",
        (200, DomainAnswer, "The domain as it is now; still `pending` when nothing proves it."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
    ),
    for_customers(
        "delete",
        "/v1/domains/{domain}",
        "Remove a domain; what is queued from it still goes out.",
        (200, DeletedAnswer, "Removed."),
        Code.NOT_FOUND,
        parameters=(_NAME,),
    ),
)
