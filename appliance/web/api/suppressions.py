"""Addresses that an account no longer sends to, with search and import: /v1/suppressions.

A worker reads an imported list. It is written in small transactions, so that other writes proceed.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused, invalid
from appliance.message.addresses import cost_of_address, parse
from appliance.message.characters import LINE_PATTERN
from appliance.message.limits import MAILBOX_LENGTH, STREAM_LENGTH
from appliance.message.schema import Mailbox, StreamName
from appliance.message.suppression_file import ListedAddress, SkippedLine, read_suppressions
from appliance.model.accounts import User
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import Suppression, SuppressionOrigin, lists_of
from appliance.store.audit import about
from appliance.web.app import Routes, check_line, choice, page_limit, text_filter
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, NextPage, RequestId, object_from
from appliance.web.operations import PAGING, STREAM_FILTER, Tag, choice_parameter, for_customers, parameter

BY_HAND = "added by hand"
IMPORT_LINES = 1_000  # per request
LINE_COST = 40  # microseconds to parse a line
AT_A_TIME = 50  # entries per transaction, a few milliseconds

REASON = Meta(min_length=1, max_length=200, extra_json_schema={"pattern": LINE_PATTERN})
_CSV = Meta(min_length=1, examples=["email,reason\nada@example.net,hard bounce"])


_STREAM = "Suppress only mail of this stream; cannot be combined with `reason` and `origin`. Default: all mail."


class SuppressionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An address to suppress."""

    address: Annotated[Mailbox, Meta(examples=["ada@example.net"], description="Address to suppress.")]
    reason: Annotated[str, Meta(description="Reason, one line."), REASON] = BY_HAND
    origin: Annotated[SuppressionOrigin, Meta(description="Cause of the suppression (default: `manual`).")] = (
        SuppressionOrigin.MANUAL
    )
    stream: Annotated[StreamName | None, Meta(description=_STREAM)] = None


class SuppressionObject(msgspec.Struct):
    """A suppressed address."""

    address: Annotated[str, Meta(description="Suppressed address: lower case, its domain in A-labels.")]
    reason: Annotated[str, Meta(description="Reason, one line.")]
    origin: Annotated[SuppressionOrigin, Meta(description="Cause of the first entry for this address.")]
    tag: Annotated[str | None, Meta(description="Tag that the recipient unsubscribed from; null if none.")]
    template: Annotated[str | None, Meta(description="Template that the recipient unsubscribed from; null if none.")]
    stream: Annotated[str | None, Meta(description="Stream that the recipient unsubscribed from; null if none.")]
    created_at: CreatedAt


class SuppressionAnswer(SuppressionObject):
    """One suppressed address."""

    request_id: RequestId


class SuppressionsAnswer(ApiAnswer):
    """A page of suppressions. Pass `next` as `after` to get the next page."""

    suppressions: Annotated[list[SuppressionObject], Meta(description="Suppressions, by address.")]
    next: NextPage


class ImportRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A list of addresses as text."""

    csv: Annotated[str, Meta(description="One address per line, or CSV with a header row."), _CSV]


class SkippedObject(msgspec.Struct):
    """A line that was not imported."""

    line: Annotated[int, Meta(description="Line number, starting at 1.")]
    error: Annotated[str, Meta(description="Why the line was skipped.")]


class ImportedAnswer(ApiAnswer):
    """The result of an import."""

    imported: Annotated[int, Meta(description="Number of addresses added.")]
    listed_already: Annotated[int, Meta(description="Number of addresses already listed.")]
    repeated: Annotated[int, Meta(description="Number of lines whose address is also on another line.")]
    skipped: Annotated[list[SkippedObject], Meta(description="Lines that could not be read.")]


_TEXT = {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH}
_FILTERS = (
    parameter("q", "query", "Search in address and reason. Case-insensitive.", _TEXT),
    choice_parameter("origin", "Filter by origin.", SuppressionOrigin),
    parameter("stream", "query", "Only unsubscriptions from this stream.", STREAM_FILTER["schema"]),
)
_REMOVED = (
    parameter("address", "path", "Suppressed address.", {"type": "string", "format": "email"}),
    parameter("tag", "query", "Remove only the unsubscription from this tag.", {"type": "string"}),
    parameter("template", "query", "Remove only the unsubscription from this template.", {"type": "string"}),
    parameter("stream", "query", "Remove only the unsubscription from this stream.", {"type": "string"}),
)
_SUPPRESSED = (201, SuppressionAnswer, "The suppression, new or existing.")


class SuppressionRoutes(Routes):
    tag = Tag.SUPPRESSIONS

    @for_customers("GET /v1/suppressions", SuppressionsAnswer, *_FILTERS, *PAGING)
    async def list_suppressions(self, user: User) -> SuppressionsAnswer:
        """List suppressed addresses.

        With a filter, a page may be incomplete while the search continues; `next` is null only at the end.
        """
        limit, (after, after_list) = page_limit(), _read_cursor(request.args.get("after", ""))
        filters, store = _filter(), self.store.suppressions
        if filters != SuppressionFilter():
            entries, end = await store.search(user.account_id, filters, after, limit, after_list)
        else:
            entries = await store.page(user.account_id, after, limit + 1, after_list)
            end = entries[limit - 1] if len(entries) > limit else None
        shown = [object_from(SuppressionObject, entry) for entry in entries[:limit]]
        return SuppressionsAnswer(shown, None if end is None else _cursor(end))

    @for_customers("POST /v1/suppressions", _SUPPRESSED, action="suppression.added")
    async def add_suppression(self, user: User, body: SuppressionRequest) -> SuppressionAnswer:
        """Suppress an address."""
        check_line("reason", body.reason)
        key = parse(body.address, "address").key
        about(key, {"reason": body.reason})
        may_store = self.services.intake.quota.bytes()
        if body.stream is not None:
            if (body.reason, body.origin) != (BY_HAND, SuppressionOrigin.MANUAL):
                raise invalid("stream", "cannot be combined with reason and origin. Leave those out.")
            (mail_list,) = lists_of((), None, self.services.intake.streams.get(body.stream).name)
            added = await self.store.unsubscriptions.add_by_hand(user.account_id, mail_list, key, may_store=may_store)
            return object_from(SuppressionAnswer, added)
        entry = await self.store.suppressions.add(
            user.account_id, key, body.reason, origin=body.origin, may_store=may_store
        )
        return object_from(SuppressionAnswer, entry)

    @for_customers("POST /v1/suppressions/import", ImportedAnswer, action="suppression.imported")
    async def import_suppressions(self, user: User, body: ImportRequest) -> ImportedAnswer:
        """Suppress every address of a list: one per line, or CSV as email services export it.

        Unreadable lines are skipped and reported. Listed addresses stay unchanged. Send a longer list in parts, each
        with the header row.
        """
        lines = body.csv.splitlines()
        if len(lines) > IMPORT_LINES:
            raise invalid("csv", f"has too many lines (limit {IMPORT_LINES}). Send the rest in another request")
        intake, account_id = self.services.intake, user.account_id
        estimate = LINE_COST * len(lines) + sum(map(cost_of_address, lines))
        parsed = await intake.workers.run(account_id, estimate, lambda: list(read_suppressions(lines)))
        addresses = [line for line in parsed if isinstance(line, ListedAddress)]
        entries = {line.address: line.reason for line in addresses}
        about(details={"addresses": len(entries)})
        added = 0
        listed, may_store = list(entries.items()), intake.quota.bytes()
        for at in range(0, len(listed), AT_A_TIME):
            part = listed[at : at + AT_A_TIME]
            origin = SuppressionOrigin.IMPORT
            added += await self.store.suppressions.add_all(account_id, part, origin, may_store=may_store)
        skipped = [SkippedObject(line.line, line.error) for line in parsed if isinstance(line, SkippedLine)]
        return ImportedAnswer(added, len(entries) - added, len(addresses) - len(entries), skipped)

    @for_customers("DELETE /v1/suppressions/{address:rest}", DeletedAnswer, *_REMOVED, action="suppression.removed")
    async def remove_suppression(self, user: User, address: str) -> DeletedAnswer:
        """Remove an address from the suppression list.

        With `tag`, `template` or `stream`, only that unsubscription is removed. Without any, only the suppression of
        all messages is removed.
        """
        tag, template, stream = map(request.args.get, ("tag", "template", "stream"))
        lists = lists_of(() if tag is None else (tag,), template, stream)
        if len(lists) > 1:
            raise Refused(Code.NOT_FOUND, "Send only one of tag, template and stream.")
        try:
            key = parse(address, "address").key
        except Refused as refused:
            raise Refused(Code.NOT_FOUND, "This address is not suppressed.") from refused
        if lists:
            await self.store.unsubscriptions.remove(user.account_id, lists[0], key)
        else:
            await self.store.suppressions.remove(user.account_id, key)
        return DeletedAnswer(True)


def _filter() -> SuppressionFilter:
    text = request.args.get("q")
    if text is not None and not 1 <= len(text) <= MAILBOX_LENGTH:
        raise invalid("q", f"must have 1 to {MAILBOX_LENGTH} characters")
    stream = text_filter("stream", STREAM_LENGTH)
    mail_list = None if stream is None else f"stream:{stream}"
    return SuppressionFilter((text or "").strip().lower(), choice("origin", SuppressionOrigin), mail_list)


def _cursor(entry: Suppression) -> str:
    """The key of an unsubscription, `tag:NAME,ADDRESS`. No tag has a comma, and no address starts like this."""
    return f"{entry.mail_list},{entry.address}" if entry.mail_list else entry.address


def _read_cursor(after: str) -> tuple[str, str]:
    if not after.startswith(("tag:", "template:", "stream:")):
        return after, ""
    mail_list, _, address = after.partition(",")
    return address, mail_list
