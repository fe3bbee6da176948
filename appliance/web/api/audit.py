"""The account's audit log, a page at a time or as CSV: /v1/audit."""

import csv
import io
from collections.abc import Sequence
from datetime import datetime

import msgspec
from quart import Response, request

from appliance.errors import invalid
from appliance.message.characters import guard_cell
from appliance.message.cost import of_size
from appliance.model.accounts import Principal
from appliance.model.dashboard import AuditEntry
from appliance.times import SECOND, rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, answer, page_limit, request_id
from appliance.web.operations import PAGING_BACK, Json, for_customers, parameter

CSV_ROWS = 10_000  # the newest, in one answer
CSV_COLUMNS = ("time", "actor_kind", "actor", "actor_name", "action", "object", "details", "address")
_ROW_BYTES = 500  # about what making one costs

_TIME: Json = {"type": "string", "format": "date-time"}
ACTION_LENGTH = 64
_FILTERS = (
    parameter(
        "action", "query", "An action, or the word before its dot.", {"type": "string", "maxLength": ACTION_LENGTH}
    ),
    parameter("since", "query", "From this time on.", _TIME),
    parameter("until", "query", "Before this time.", _TIME),
)


class AuditEntryObject(msgspec.Struct):
    """One change: who made it, what it was, and from where."""

    id: str
    created_at: Time
    actor_kind: str
    actor: str
    actor_name: str
    action: str
    object: str
    details: dict[str, str]
    address: str


class AuditAnswer(msgspec.Struct):
    """A page of changes, newest first; `next` goes into `before` for the page that follows."""

    audit: list[AuditEntryObject]
    next: str | None
    request_id: str


class AuditRoutes(Routes):
    @for_customers("GET /v1/audit", (200, AuditAnswer, "A page of changes."), parameters=(*_FILTERS, *PAGING_BACK))
    async def list_audit(self, user: Principal) -> Response:
        """List the changes of the account in the last year, newest first; of each account the newest 100,000 are kept.

        A page may hold fewer changes than asked for while the search is not over; `next` is null only at its end. With
        `Accept: text/csv`, or with `format=csv` in the query, the newest 10,000 that the filters leave come as CSV.
        """
        since, until = _time("since", 0), _time("until", 2**53)
        action, before = request.args.get("action", ""), request.args.get("before")
        if len(action) > ACTION_LENGTH:
            raise invalid("action", f"must have at most {ACTION_LENGTH} characters")
        if request.headers.get("Accept", "").startswith("text/csv") or request.args.get("format") == "csv":
            found: list[AuditEntry] = []
            following = before
            while True:
                part, following = await self.store.audit.search(
                    user.account_id, before=following, action=action, since=since, until=until, most=CSV_ROWS
                )
                found = (found + part)[:CSV_ROWS]
                if following is None or len(found) == CSV_ROWS:
                    break
            work = of_size(_ROW_BYTES * len(found))
            body = await self.services.intake.workers.run(user.account_id, work, audit_csv, found)
            disposition = {"Content-Disposition": 'attachment; filename="audit.csv"'}
            return Response(body, 200, disposition, content_type="text/csv; charset=utf-8")
        limit = page_limit()
        found, following = await self.store.audit.search(
            user.account_id, before=before, action=action, since=since, until=until, most=limit
        )
        shown = [object_from(AuditEntryObject, each) for each in found]
        return answer(AuditAnswer(shown, following, request_id()))


def audit_csv(entries: Sequence[AuditEntry]) -> str:
    """As CSV (RFC 4180), with no cell that a spreadsheet would take for a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for each in entries:
        details = "; ".join(f"{name}: {value}" for name, value in each.details.items())
        row = (each.actor_kind, each.actor, each.actor_name, each.action, each.object, details, each.address)
        writer.writerow((rfc3339(each.created_at), *map(guard_cell, row)))
    return text.getvalue()


def _time(name: str, usual: int) -> int:
    given = request.args.get(name)
    if given is None:
        return usual
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))  # which a client has not escaped
        if moment.tzinfo is not None:
            return min(max(0, round(moment.timestamp() * SECOND)), 2**53)
    except (ValueError, OverflowError):
        pass
    raise invalid(name, "must be a time such as 2026-11-15T00:00:00Z")
