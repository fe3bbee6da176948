"""Mailgun's events feed, and its lists of bounces, complaints and unsubscribes, which are the account's suppressions.

A page of events is named by a token with the query of the first page, so a client may follow the URLs or repeat its
query. Events have the shape of Mailgun's webhooks.
"""

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

import msgspec
from msgspec import Struct

from appliance.environment import identifier_from
from appliance.errors import Code, Refused, invalid
from appliance.message.addresses import parse
from appliance.message.schedule import microseconds
from appliance.model.mail import SuppressionOrigin
from appliance.model.webhooks import WebhookFormat
from appliance.store.event_feed import EventRange, StoredEvent
from appliance.times import SECOND
from appliance.web.doors.forms import check_form_type, read_form
from appliance.web.doors.frame import Api, Call, DoorReply, DoorRoute, Json, Needs, decoded, number_of
from appliance.web.doors.suppressed import remove_suppression, suppression_of, suppressions_after
from appliance.web.exchange import check_content_type
from appliance.webhook.formats import shaped

_EVENTS = 300  # in one page, at most
_PAGE_EVENTS = 100  # unless the client asks for another number
_TOKEN_LENGTH = 2_000  # characters
_NO_EVENT_AFTER = "evt_g"  # sorts behind every id

# ---- events

_KINDS = ("accepted", "delivered", "failed", "rejected", "opened", "clicked", "unsubscribed", "complained", "stored")
_OR, _AND = re.compile(r"\s+OR\s+"), re.compile(r"\s+AND\s+")


class _Query(Struct, forbid_unknown_fields=True):
    """What a page is to have; the names are those of Mailgun's parameters."""

    domain: str
    after: str  # ids of events
    before: str
    descending: bool = False
    limit: int = _PAGE_EVENTS
    event: list[str] = []
    tags: list[list[str]] = []  # one of these groups, with all of its tags
    recipient: str = ""
    message_id: str = ""
    severity: str = ""


def domain_of(call: Call) -> str:
    """The domain in the path, as messages write it: in lower case, with A-labels."""
    return parse(f"id@{call.params['domain']}", "domain").domain


async def _events(call: Call, api: Api) -> DoorReply:
    return await _page(call, api, _first_query(call))


async def _next_events(call: Call, api: Api) -> DoorReply:
    token = call.params["page"]
    try:
        query = msgspec.json.decode(base64.urlsafe_b64decode(token[:_TOKEN_LENGTH].encode()), type=_Query)
    except (ValueError, msgspec.DecodeError) as cause:
        raise invalid("page", "this is no page of this feed. Begin without it") from cause
    if query.domain != domain_of(call) or not 1 <= query.limit <= _EVENTS:
        raise invalid("page", "this is no page of this feed. Begin without it")
    return await _page(call, api, query)


async def _page(call: Call, api: Api, query: _Query) -> DoorReply:
    select = _selection(query)
    span = EventRange(query.after, query.before, query.descending, query.limit)
    items, position = await api.events(select, span)
    if position is None and items:
        position = items[-1][0]
    if position is not None:
        span = span.behind(position)
    following = msgspec.structs.replace(query, after=span.after, before=span.before)
    base = f"{call.base_url}/mailgun/v3/{query.domain}/events"
    tokens = (base64.urlsafe_b64encode(msgspec.json.encode(one)).decode() for one in (query, following))
    paging = dict(zip(("first", "next"), (f"{base}/{token}" for token in tokens), strict=True))
    return DoorReply({"items": [msgspec.Raw(item) for _, item in items], "paging": paging})


def _first_query(call: Call) -> _Query:
    filters = call.query
    begin, end = (_moment(name, filters.get(name)) for name in ("begin", "end"))
    ascending = filters.get("ascending")
    if ascending not in (None, "yes", "no", "true", "false"):
        raise invalid("ascending", "expected yes or no")
    is_ascending = ascending in ("yes", "true") if ascending else begin is not None and (end is None or begin < end)
    low, high = (
        (begin, end) if is_ascending or (begin is not None and end is not None and begin < end) else (end, begin)
    )
    kinds = _OR.split(filters["event"].strip()) if filters.get("event") else []
    if unknown := set(kinds).difference(_KINDS):
        raise invalid("event", f"{min(unknown)[:64]} is no kind of event")
    tags = filters.get("tags", "").strip()
    if filters.get("severity", "") not in ("", "permanent", "temporary"):
        raise invalid("severity", "expected permanent or temporary")
    return _Query(
        domain_of(call),
        after=identifier_from("evt", low or 0),
        before=_NO_EVENT_AFTER if high is None else identifier_from("evt", high + 1),
        descending=not is_ascending,
        limit=number_of(call, "limit", _PAGE_EVENTS, _EVENTS, 1),
        event=kinds,
        tags=[_AND.split(group) for group in _OR.split(tags)] if tags else [],
        recipient=filters.get("recipient", "").lower(),
        message_id=filters.get("message-id", "").removeprefix("<").removesuffix(">"),
        severity=filters.get("severity", ""),
    )


def _moment(name: str, text: str | None) -> int | None:
    """A time in seconds since 1970, or as in mail."""
    if not text:
        return None
    try:
        seconds = float(text) if re.fullmatch(r"\d{1,11}(?:\.\d{0,9})?", text) else None
        moment = round((parsedate_to_datetime(text[:64]).timestamp() if seconds is None else seconds) * SECOND)
    except (ValueError, OverflowError, TypeError) as cause:
        raise invalid(name, "expected seconds since 1970, or a date as in mail") from cause
    return min(max(moment, 0), 2**52)


class _Headers(Struct):
    message_id: str = msgspec.field(name="message-id", default="")


class _Message(Struct):
    headers: _Headers


class _Event(Struct):
    """What queries select by."""

    event: str
    recipient: str
    message: _Message
    id: str
    tags: list[str] = []
    severity: str = ""


class _Envelope(Struct):
    data: msgspec.Raw = msgspec.field(name="event-data")


_DATA = msgspec.json.Decoder(_Envelope)
_SELECTED = msgspec.json.Decoder(_Event)


def _selection(query: _Query) -> Callable[[StoredEvent], tuple[str, bytes] | None]:
    kinds, groups = set(query.event), [set(group) for group in query.tags]

    def select(stored: StoredEvent) -> tuple[str, bytes] | None:
        data = bytes(_DATA.decode(shaped(WebhookFormat.MAILGUN, bytes(stored.body))).data)
        event = _SELECTED.decode(data)
        header_id = event.message.headers.message_id
        matches = (
            query.domain in (header_id.rpartition("@")[2], stored.envelope_from.rpartition("@")[2])
            and (not kinds or event.event in kinds)
            and (not groups or any(group <= set(event.tags) for group in groups))
            and query.recipient in ("", event.recipient.lower())
            and query.message_id in ("", header_id)
            and query.severity in ("", event.severity)
        )
        return (stored.id, data) if matches else None

    return select


# ---- suppressions


class _Entry(Struct, forbid_unknown_fields=True):
    address: str
    code: str | int = "550"
    error: str = ""
    tag: str = "*"
    tags: list[str] = []


class _List:
    """One of Mailgun's lists."""

    def __init__(self, name: str, origin: SuppressionOrigin) -> None:
        self._name, self._origin = name, origin

    def routes(self) -> tuple[DoorRoute, ...]:
        path = f"/v3/{{domain}}/{self._name}"
        return (
            DoorRoute("GET", path, self._all, Needs.MANAGE, ("limit", "page", "address", "term")),
            DoorRoute("POST", path, self._add, Needs.MANAGE, (), _check_type),
            DoorRoute("GET", f"{path}/{{address}}", self._one, Needs.MANAGE),
            DoorRoute("DELETE", f"{path}/{{address}}", self._remove, Needs.MANAGE),
        )

    def _shown(self, entry: Json) -> Json:
        created = format_datetime(datetime.fromtimestamp(microseconds(entry["created_at"], "created_at") / SECOND, UTC))
        shown = {"address": entry["address"], "created_at": created}
        if self._origin is SuppressionOrigin.BOUNCE:
            shown |= {"code": "550", "error": entry["reason"]}
        elif self._origin is SuppressionOrigin.UNSUBSCRIBE:
            shown["tags"] = [entry["tag"] or "*"]
        return shown

    async def _all(self, call: Call, api: Api) -> DoorReply:
        limit = number_of(call, "limit", 100, 1_000, 1)
        if call.query.get("page", "first") not in ("first", "next"):
            raise invalid("page", "this server has only the pages first and next")
        if "term" in call.query:
            raise invalid("term", "this server does not search here. Ask for one address")
        after = call.query.get("address") if call.query.get("page") == "next" else None
        entries, position = await suppressions_after(api, self._origin, after, limit)
        base = f"{call.base_url}/mailgun/v3/{call.params['domain']}/{self._name}?limit={limit}"
        end = position or (entries[-1]["address"] if entries else after or "")
        paging = {"first": f"{base}&page=first", "next": f"{base}&page=next&address={end}"}
        return DoorReply({"items": [self._shown(entry) for entry in entries], "paging": paging})

    async def _one(self, call: Call, api: Api) -> DoorReply:
        entry = await suppression_of(api, call.params["address"], self._origin)
        if entry is None:
            raise Refused(Code.NOT_FOUND, f"Address not found in {self._name} table")
        return DoorReply(self._shown(entry))

    async def _add(self, call: Call, api: Api) -> DoorReply:
        entries = _entries(call)
        for at, entry in enumerate(entries):
            if entry.tag != "*" or set(entry.tags) - {"*"}:
                raise invalid(
                    f"[{at}].{'tags' if entry.tag == '*' else 'tag'}", "this server adds no unsubscribes of single tags"
                )
            reason = {"reason": " ".join(f"{entry.code} {entry.error}".split())[:200]} if entry.error else {}
            body = {"address": entry.address, "origin": self._origin.value, **reason}
            await api("POST", "/v1/suppressions", body)
        count = f"{len(entries)} addresses have" if len(entries) > 1 else "Address has"
        return DoorReply({"message": f"{count} been added to the {self._name} table", "address": entries[0].address})

    async def _remove(self, call: Call, api: Api) -> DoorReply:
        address = call.params["address"]
        await remove_suppression(api, address, self._origin)
        return DoorReply({"message": f"The address has been removed from the {self._name} table", "address": address})


def _is_json(content_type: bytes) -> bool:
    return content_type.lstrip().lower().startswith(b"application/json")


def _check_type(content_type: bytes) -> None:
    (check_content_type if _is_json(content_type) else check_form_type)(content_type)


def _entries(call: Call) -> Sequence[_Entry]:
    content_type = call.headers.get(b"content-type", b"")
    if _is_json(content_type):
        entries = decoded(call.body, list[_Entry])
    else:
        form = read_form(content_type, call.body)
        if form.files or any(len(values) > 1 for values in form.fields.values()):
            raise invalid("address", "expected each field once, and no files")
        entries = [decoded(msgspec.json.encode({name: one for name, (one,) in form.fields.items()}), _Entry)]
    if not 1 <= len(entries) <= 1_000:
        raise invalid("body", "expected 1 to 1000 addresses")
    return entries


_LISTS = (
    _List("bounces", SuppressionOrigin.BOUNCE),
    _List("complaints", SuppressionOrigin.COMPLAINT),
    _List("unsubscribes", SuppressionOrigin.UNSUBSCRIBE),
)
_FILTERS = ("begin", "end", "ascending", "limit", "event", "tags", "recipient", "message-id", "severity")
LIST_ROUTES = (
    DoorRoute("GET", "/v3/{domain}/events", _events, Needs.READ, _FILTERS),
    DoorRoute("GET", "/v3/{domain}/events/{page}", _next_events, Needs.READ, _FILTERS),
    *(route for one in _LISTS for route in one.routes()),
)
