"""The addresses an account no longer sends to, with search and import: /v1/suppressions.

A list that is imported is read on a worker, and written in small transactions: others write in between.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused, invalid
from appliance.message import cost
from appliance.message.addresses import parse
from appliance.message.characters import LINE_PATTERN
from appliance.message.limits import MAILBOX_LENGTH
from appliance.message.schema import Mailbox
from appliance.message.suppression_file import ListedAddress, SkippedLine, read_suppressions
from appliance.model.accounts import User
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import Suppression, SuppressionOrigin, lists_of
from appliance.store.audit import about
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.app import Routes, check_line, page_limit, request_id
from appliance.web.operations import PAGING, for_customers, parameter

BY_HAND = "added by hand"
IMPORT_LINES = 1_000  # of one request
LINE_COST = 40  # microseconds to read a line
AT_A_TIME = 50  # entries of a transaction: some milliseconds


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


class ImportRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST: a list as text."""

    csv: Annotated[str, Meta(min_length=1, examples=["email,reason\nada@example.net,hard bounce"])]


class SkippedObject(msgspec.Struct):
    """A line that was not imported."""

    line: int
    error: str


class ImportedAnswer(msgspec.Struct):
    """What became of a list."""

    imported: int
    listed_already: int
    skipped: list[SkippedObject]
    request_id: str


_FILTERS = (
    parameter(
        "q",
        "query",
        "Only those with this in their address or reason; upper and lower case are the same.",
        {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH},
    ),
    parameter("origin", "query", "Only of this origin.", {"type": "string", "enum": list(SuppressionOrigin)}),
)
_ADDRESS = parameter("address", "path", "The suppressed address.", {"type": "string", "format": "email"})
_TAG = parameter("tag", "query", "Remove only its unsubscription from this tag.", {"type": "string"})
_TEMPLATE = parameter("template", "query", "Remove only its unsubscription from this template.", {"type": "string"})


class SuppressionRoutes(Routes):
    @for_customers(
        "GET /v1/suppressions", (200, SuppressionsAnswer, "A page of addresses."), parameters=(*_FILTERS, *PAGING)
    )
    async def list_suppressions(self, user: User) -> SuppressionsAnswer:
        """List the addresses the account no longer sends to.

        With `q` or `origin` a page may hold fewer entries than asked for while the search is not over; `next` is null
        only at its end.
        """
        limit, (after, after_list) = page_limit(), _read_cursor(request.args.get("after", ""))
        wanted = _filter()
        if wanted != SuppressionFilter():
            searched, end = await self.store.suppressions.search(user.account_id, wanted, after, limit, after_list)
            shown = [object_from(SuppressionObject, entry) for entry in searched]
            return SuppressionsAnswer(shown, None if end is None else _cursor(end), request_id())
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
        "POST /v1/suppressions/import",
        (200, ImportedAnswer, "What was listed, and what was not."),
        body=ImportRequest,
        action="suppression.imported",
    )
    async def import_suppressions(self, user: User, body: ImportRequest) -> ImportedAnswer:
        """Suppress every address of a list: one a line, or CSV as hosted services export it.

        What cannot be read is skipped and told. An address that is listed already stays as it is. A longer list is sent
        in parts, each with the heading.
        """
        lines = body.csv.splitlines()
        if len(lines) > IMPORT_LINES:
            raise invalid("csv", f"must have at most {IMPORT_LINES} lines; send the rest in another request")
        intake, account_id = self.services.intake, user.account_id
        estimate = LINE_COST * len(lines) + sum(map(cost.of_address, lines))
        found = await intake.workers.run(account_id, estimate, _read_lines, lines)
        entries = {each.address: each.reason for each in found if isinstance(each, ListedAddress)}
        about(details={"addresses": len(entries)})
        added = 0
        listed, may_store = list(entries.items()), intake.quota.bytes()
        for at in range(0, len(listed), AT_A_TIME):
            part = listed[at : at + AT_A_TIME]
            origin = SuppressionOrigin.IMPORT
            added += await self.store.suppressions.add_all(account_id, part, origin, may_store=may_store)
        skipped = [SkippedObject(each.line, each.error) for each in found if isinstance(each, SkippedLine)]
        return ImportedAnswer(added, len(entries) - added, skipped, request_id())

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


def _filter() -> SuppressionFilter:
    text, origin = request.args.get("q"), request.args.get("origin")
    if text is not None and not 1 <= len(text) <= MAILBOX_LENGTH:
        raise invalid("q", f"must have 1 to {MAILBOX_LENGTH} characters")
    if origin is not None and origin not in list(SuppressionOrigin):
        raise invalid("origin", f"must be one of {', '.join(SuppressionOrigin)}")
    return SuppressionFilter((text or "").strip().lower(), None if origin is None else SuppressionOrigin(origin))


def _read_lines(lines: list[str]) -> list[ListedAddress | SkippedLine]:
    return list(read_suppressions(lines))


def _cursor(entry: Suppression) -> str:
    """Of an unsubscription `tag:NAME,ADDRESS`: no tag has a comma, and no address begins so."""
    return f"{entry.mail_list},{entry.address}" if entry.mail_list else entry.address


def _read_cursor(after: str) -> tuple[str, str]:
    if not after.startswith(("tag:", "template:")):
        return after, ""
    mail_list, _, address = after.partition(",")
    return address, mail_list
