"""In charge of the suppression list over HTTP: /v1/suppressions."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Blueprint, Response, request

from appliance.errors import Code, Refused, invalid
from appliance.intake.quota import Quota
from appliance.message.addresses import parse
from appliance.message.characters import LINE_PATTERN, fault_in_line
from appliance.message.fields import Mailbox
from appliance.model.mail import Suppression
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.templates import DeletedAnswer
from appliance.web.app import Services, answer, json_request, page_limit, request_id
from appliance.web.operations import PAGING, for_customers, parameter

BY_HAND = "added by hand"


class SuppressionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    address: Annotated[Mailbox, Meta(examples=["ada@example.net"])]
    reason: Annotated[str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": LINE_PATTERN})] = BY_HAND


class SuppressionObject(msgspec.Struct):
    """One entry in a list."""

    address: str
    reason: str
    created_at: Time


class SuppressionAnswer(SuppressionObject):
    """One entry on its own."""

    request_id: str


class SuppressionsAnswer(msgspec.Struct):
    """A page of the list; `next` goes into `after` for the page that follows."""

    suppressions: list[SuppressionObject]
    next: str | None
    request_id: str


BODY = msgspec.json.Decoder(SuppressionRequest)


def blueprint(services: Services, quota: Quota) -> Blueprint:
    """The routes."""
    routes = Blueprint("suppressions", __name__)

    @routes.get("/v1/suppressions")
    async def page() -> Response:
        user, _ = await services.user()
        limit = page_limit()
        found = services.store.suppressions.page(user.account_id, request.args.get("after", ""), limit + 1)
        following = found[limit - 1].address if len(found) > limit else None
        shown = [SuppressionObject(*_fields(entry)) for entry in found[:limit]]
        return answer(SuppressionsAnswer(shown, following, request_id()))

    @routes.post("/v1/suppressions")
    async def add() -> Response:
        user, _ = await services.user()
        body = await json_request(BODY)
        if fault := fault_in_line(body.reason):
            raise invalid("reason", f"must not contain {fault}")
        key = parse(body.address, "address").key
        may_store = quota.bytes()
        entry = await services.store.suppressions.add(user.account_id, key, body.reason, may_store=may_store)
        return answer(SuppressionAnswer(*_fields(entry), request_id()), 201)

    @routes.delete("/v1/suppressions/<rest:address>")
    async def remove(address: str) -> Response:
        user, _ = await services.user()
        try:
            key = parse(address, "address").key
        except Refused as refused:
            raise Refused(Code.NOT_FOUND, "This address is not on the suppression list.") from refused
        await services.store.suppressions.remove(user.account_id, key)
        return answer(DeletedAnswer(True, request_id()))

    return routes


def _fields(entry: Suppression) -> tuple[str, str, str]:
    return entry.address, entry.reason, rfc3339(entry.created_at)


_ADDRESS = parameter("address", "path", "The suppressed address.", {"type": "string", "format": "email"})

OPERATIONS = (
    for_customers(
        "get",
        "/v1/suppressions",
        "List the addresses the account no longer sends to.",
        (200, SuppressionsAnswer, "A page of addresses."),
        Code.INVALID_REQUEST,
        parameters=PAGING,
    ),
    for_customers(
        "post",
        "/v1/suppressions",
        "Suppress an address.",
        (201, SuppressionAnswer, "The entry, new or as it was."),
        body=SuppressionRequest,
    ),
    for_customers(
        "delete",
        "/v1/suppressions/{address}",
        "Let an address be sent to again.",
        (200, DeletedAnswer, "Removed."),
        Code.NOT_FOUND,
        parameters=(_ADDRESS,),
    ),
)
