"""The addresses an account no longer sends to: /v1/suppressions."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused
from appliance.message.addresses import parse
from appliance.message.characters import LINE_PATTERN
from appliance.message.schema import Mailbox
from appliance.model.mail import Suppression, SuppressionOrigin, User, lists_of
from appliance.store.audit import about
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.app import Routes, check_line, page_limit, request_id
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
    origin: SuppressionOrigin
    tag: str | None
    template: str | None
    created_at: Time


class SuppressionAnswer(SuppressionObject):
    """One entry on its own."""

    request_id: str


class SuppressionsAnswer(msgspec.Struct):
    """A page of the list; `next` goes into `after` for the page that follows."""

    suppressions: list[SuppressionObject]
    next: str | None
    request_id: str


_ADDRESS = parameter("address", "path", "The suppressed address.", {"type": "string", "format": "email"})
_TAG = parameter("tag", "query", "Remove only its unsubscription from this tag.", {"type": "string"})
_TEMPLATE = parameter("template", "query", "Remove only its unsubscription from this template.", {"type": "string"})


class SuppressionRoutes(Routes):
    @for_customers("GET /v1/suppressions", (200, SuppressionsAnswer, "A page of addresses."), parameters=PAGING)
    async def list_suppressions(self, user: User) -> SuppressionsAnswer:
        """List the addresses the account no longer sends to."""
        limit, (after, after_list) = page_limit(), _read_cursor(request.args.get("after", ""))
        found = await self.store.suppressions.page(user.account_id, after, limit + 1, after_list)
        following = _cursor(found[limit - 1]) if len(found) > limit else None
        shown = [object_from(SuppressionObject, entry) for entry in found[:limit]]
        return SuppressionsAnswer(shown, following, request_id())

    @for_customers(
        "POST /v1/suppressions",
        (201, SuppressionAnswer, "The entry, new or as it was."),
        body=SuppressionRequest,
        action="suppression.added",
    )
    async def add_suppression(self, user: User, body: SuppressionRequest) -> SuppressionAnswer:
        """Suppress an address."""
        check_line("reason", body.reason)
        key = parse(body.address, "address").key
        about(key, {"reason": body.reason})
        may_store = self.services.intake.quota.bytes()
        entry = await self.store.suppressions.add(user.account_id, key, body.reason, may_store=may_store)
        return object_from(SuppressionAnswer, entry, request_id=request_id())

    @for_customers(
        "DELETE /v1/suppressions/{address:rest}",
        (200, DeletedAnswer, "Removed."),
        Code.NOT_FOUND,
        parameters=(_ADDRESS, _TAG, _TEMPLATE),
        action="suppression.removed",
    )
    async def remove_suppression(self, user: User, address: str) -> DeletedAnswer:
        """Let an address be sent to again.

        With `tag` or `template` only the address's unsubscription from that is removed, and without either only the
        suppression of all messages to it.
        """
        tag, template = request.args.get("tag"), request.args.get("template")
        if tag is not None and template is not None:
            raise Refused(Code.NOT_FOUND, "An unsubscription is from a tag or from a template. Name one of them.")
        try:
            key = parse(address, "address").key
        except Refused as refused:
            raise Refused(Code.NOT_FOUND, "This address is not on the suppression list.") from refused
        if lists := lists_of(() if tag is None else (tag,), template):
            await self.store.unsubscriptions.remove(user.account_id, lists[0], key)
        else:
            await self.store.suppressions.remove(user.account_id, key)
        return DeletedAnswer(True, request_id())


def _cursor(entry: Suppression) -> str:
    """Of an unsubscription `tag:NAME,ADDRESS`: no tag has a comma, and no address begins so."""
    return f"{entry.mail_list},{entry.address}" if entry.mail_list else entry.address


def _read_cursor(after: str) -> tuple[str, str]:
    if not after.startswith(("tag:", "template:")):
        return after, ""
    mail_list, _, address = after.partition(",")
    return address, mail_list
