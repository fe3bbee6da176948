"""The account's audit log, in pages or as CSV: /v1/audit."""

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.errors import invalid
from appliance.message.characters import cost_of_size, guard_cell
from appliance.model.accounts import Principal
from appliance.model.dashboard import AuditEntry
from appliance.times import SECOND, rfc3339
from appliance.web.answer import NextPage, RequestId, Time, object_from
from appliance.web.app import Routes, answer, page_limit, request_id
from appliance.web.operations import PAGING_BACK, Json, Tag, for_customers, parameter

CSV_ROWS = 10_000  # newest entries in one response
CSV_COLUMNS = ("time", "actor_kind", "actor", "actor_name", "action", "object", "details", "address")
_ROW_BYTES = 500  # the cost of encoding one entry

_TIME: Json = {"type": "string", "format": "date-time"}
ACTION_LENGTH = 64
_FILTERS = (
    parameter(
        "action", "query", "An action, or the part before its dot.", {"type": "string", "maxLength": ACTION_LENGTH}
    ),
    parameter("since", "query", "Only entries at or after this time.", _TIME),
    parameter("until", "query", "Only entries before this time.", _TIME),
)


class AuditEntryObject(msgspec.Struct):
    """One change."""

    id: Annotated[str, Meta(description="Entry id, `aud_…`.")]
    created_at: Annotated[Time, Meta(description="Time of the change.")]
    actor_kind: Annotated[str, Meta(description="`user`, `key`, `operator` (command line) or `service`.")]
    actor: Annotated[str, Meta(description="User address, API key id, system user or part of the service.")]
    actor_name: Annotated[str, Meta(description="Name of the API key; empty for other actors.")]
    action: Annotated[str, Meta(description="What happened, for example `api_key.created`.")]
    object: Annotated[str, Meta(description="Affected id, name or address.")]
    details: Annotated[dict[str, str], Meta(description="Further details; never a secret.")]
    address: Annotated[str, Meta(description="Client address, `cli` or `server`.")]


class AuditAnswer(msgspec.Struct):
    """A page of entries, newest first. Pass `next` as `before` to get the next page."""

    audit: Annotated[list[AuditEntryObject], Meta(description="Entries, newest first.")]
    next: NextPage
    request_id: RequestId


class AuditRoutes(Routes):
    tag = Tag.AUDIT

    @for_customers("GET /v1/audit", AuditAnswer, parameters=(*_FILTERS, *PAGING_BACK))
    async def list_audit(self, user: Principal) -> Response:
        """List the account's changes of the last year, newest first. The newest 100,000 per account are kept.

        A page may be incomplete while the search continues; `next` is null only at the end. With `Accept: text/csv` or
        `format=csv`, the response is the newest 10,000 matching entries as CSV.
        """
        since, until = _time("since", 0), _time("until", 2**53)
        action, before = request.args.get("action", ""), request.args.get("before")
        if len(action) > ACTION_LENGTH:
            raise invalid("action", f"must have at most {ACTION_LENGTH} characters")
        if request.headers.get("Accept", "").startswith("text/csv") or request.args.get("format") == "csv":
            entries: list[AuditEntry] = []
            following = before
            while True:
                part, following = await self.store.audit.search(
                    user.account_id, before=following, action=action, since=since, until=until, most=CSV_ROWS
                )
                entries = (entries + part)[:CSV_ROWS]
                if following is None or len(entries) == CSV_ROWS:
                    break
            work = cost_of_size(_ROW_BYTES * len(entries))
            body = await self.services.intake.workers.run(user.account_id, work, audit_csv, entries)
            disposition = {"Content-Disposition": 'attachment; filename="audit.csv"'}
            return Response(body, 200, disposition, content_type="text/csv; charset=utf-8")
        limit = page_limit()
        entries, following = await self.store.audit.search(
            user.account_id, before=before, action=action, since=since, until=until, most=limit
        )
        shown = [object_from(AuditEntryObject, entry) for entry in entries]
        return answer(AuditAnswer(shown, following, request_id()))


def audit_csv(entries: Sequence[AuditEntry]) -> str:
    """As CSV (RFC 4180). No cell looks like a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for entry in entries:
        details = "; ".join(f"{name}: {value}" for name, value in entry.details.items())
        row = (entry.actor_kind, entry.actor, entry.actor_name, entry.action, entry.object, details, entry.address)
        writer.writerow((rfc3339(entry.created_at), *map(guard_cell, row)))
    return text.getvalue()


def _time(name: str, usual: int) -> int:
    text = request.args.get(name)
    if text is None:
        return usual
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # from clients that do not escape it
        if moment.tzinfo is not None:
            return min(max(0, round(moment.timestamp() * SECOND)), 2**53)
    except (ValueError, OverflowError):
        pass
    raise invalid(name, "must be a time such as 2026-11-15T00:00:00Z")
