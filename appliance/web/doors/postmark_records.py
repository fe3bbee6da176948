"""What Postmark's clients read and change after sending: message details, bounces and suppressions."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from appliance.errors import Code, Refused, invalid
from appliance.message.addresses import parse
from appliance.model.mail import RecipientOutcome, SuppressionOrigin
from appliance.model.streams import TRANSACTIONAL
from appliance.times import DAY, microseconds
from appliance.web.api.stats import MAX_PROBLEMS
from appliance.web.doors.frame import Api, Call, DoorReply, DoorRoute, Json, Needs, decoded, message_id, number_of
from appliance.web.doors.stored import StoredEmail, stored_email
from appliance.web.operations import PAGE_LIMIT
from appliance.webhook.formats import HARD_BOUNCE, POSTMARK_ID_BITS, SOFT_BOUNCE, TRANSIENT_BOUNCE, Data

POSTMARK_STREAM, STREAM_FIELD, MESSAGE_FIELD = "outbound", "MessageStream", "MessageID"
_FIRST_DAY, _LAST_DAY = "1970-01-01", "9999-12-31"  # of a list without dates
SUPPRESSED_AT_ONCE = 50  # addresses in one call
DUMPED_PAGES = 1_000  # of PAGE_LIMIT addresses


def own_stream(name: str) -> str:
    """Our name of a stream."""
    return TRANSACTIONAL.name if name == POSTMARK_STREAM else name


def _shown_stream(name: str) -> str:
    return POSTMARK_STREAM if name == TRANSACTIONAL.name else name


def _stream(call: Call, name: str) -> str:
    return call.streams.get(own_stream(name), STREAM_FIELD).name


# ---- messages


async def _details(call: Call, api: Api) -> DoorReply:
    try:
        message_id(call)
        email = await stored_email(call, api)
    except Refused as refused:
        if refused.code is not Code.NOT_FOUND:
            raise
        raise Refused(refused.code, refused.reason, field=MESSAGE_FIELD) from refused
    message, tags = email.message, email.message["tags"]
    recipients = message["recipients"]
    return DoorReply(
        {
            "MessageID": message["id"],
            "MessageStream": _shown_stream(message["stream"]),
            "Tag": tags[0] if tags else "",
            "To": _mailboxes(email.to),
            "Cc": _mailboxes(email.listed("cc")),
            "Bcc": _mailboxes(email.bcc),
            "Recipients": email.recipients,
            "ReceivedAt": message["created_at"],
            "From": message["from"],
            "Subject": message["subject"],
            "Attachments": email.files,
            "Status": "Queued" if message["status"] == "queued" else "Sent",
            "TrackOpens": False,
            "TrackLinks": "None",
            "Metadata": message.get("metadata", {}),
            "Sandboxed": any(recipient["simulated"] for recipient in recipients),
            "TextBody": email.text or "",
            "HtmlBody": email.html or "",
            "MessageEvents": [event for recipient in recipients for event in _events(email, recipient)],
        }
    )


def _mailboxes(texts: list[str]) -> list[Json]:
    addresses = []
    for text in texts:
        name, _, bare = text.rpartition("<")
        addresses.append({"Email": bare.rstrip("> "), "Name": name.strip(' "') or None})
    return addresses


_EVENTS = {"delivered": "Delivered", "bounced": "Bounced", "failed": "Bounced"}  # of the last attempt


def _events(email: StoredEmail, recipient: Json) -> list[Json]:
    events = []
    last, attempts = _EVENTS.get(recipient["status"], "Transient"), recipient["attempts"]
    for attempt in attempts:
        kind = last if attempt is attempts[-1] else "Transient"
        details = {"DestinationServer": attempt["mx_host"], "DestinationIP": attempt["mx_address"]}
        name = "Summary" if kind == "Bounced" else "DeliveryMessage"
        shown = {name: attempt["smtp_response"], **{key: value for key, value in details.items() if value}}
        events.append(_event(recipient, kind, attempt["started_at"], shown))
    if not attempts and last == "Bounced":  # suppressed or cancelled
        at = recipient["bounced_at"] or email.message["created_at"]
        events.append(_event(recipient, last, at, {"Summary": recipient["last_smtp_response"]}))
    return events


def _event(recipient: Json, kind: str, at: str, details: Json) -> Json:
    return {"Recipient": recipient["email"], "Type": kind, "ReceivedAt": at, "Details": details}


# ---- bounces


async def _bounces(call: Call, api: Api) -> DoorReply:
    if "tag" in call.query:
        raise invalid("tag", "this door filters no bounces by tag. Leave the parameter out.")
    if call.query.get("messagestream"):
        call.query["messagestream"] = _shown_stream(_stream(call, call.query["messagestream"]))
    count, offset = (number_of(call, name, None, MAX_PROBLEMS) for name in ("count", "offset"))
    if call.query.get("inactive", "").lower() not in ("", "true", "false"):
        raise invalid("inactive", "expected true or false")
    span = _span(call)
    problems = (await api("GET", "/v1/problems", limit=MAX_PROBLEMS))["problems"]
    bounces = [bounce for bounce in map(_bounce, problems) if _is_wanted(call, span, bounce)]
    return DoorReply({"TotalCount": len(bounces), "Bounces": bounces[offset : offset + count]})


def _bounce(problem: Json) -> Json:
    data = Data(bounce_class=problem["bounce_class"] or "")
    bounce = HARD_BOUNCE if problem["outcome"] == RecipientOutcome.BOUNCED and data.is_hard else SOFT_BOUNCE
    if problem["outcome"] == RecipientOutcome.DEFERRED:
        bounce = TRANSIENT_BOUNCE
    is_inactive = data.is_unknown and bounce is HARD_BOUNCE
    return {
        "RecordType": "Bounce",
        "ID": int(problem["recipient_id"].rpartition("_")[2], 16) % 2**POSTMARK_ID_BITS,
        **bounce.shown,
        "MessageID": problem["message_id"],
        "MessageStream": _shown_stream(problem["stream"]),
        "ServerID": 0,
        "Details": problem["last_smtp_response"] or "",
        "Email": problem["email"],
        "BouncedAt": problem["happened_at"],
        "DumpAvailable": False,
        "Inactive": is_inactive,
        "CanActivate": is_inactive,
        "Subject": problem["subject"],
    }


def _is_wanted(call: Call, span: range, bounce: Json) -> bool:
    query = call.query
    return (
        query.get("type", bounce["Type"]) == bounce["Type"]
        and query.get("messageid", bounce["MessageID"]) == bounce["MessageID"]
        and query.get("messagestream") in (None, "", bounce["MessageStream"])
        and query.get("emailfilter", "").lower() in bounce["Email"].lower()
        and query.get("inactive", "").lower() in ("", str(bounce["Inactive"]).lower())
        and microseconds(bounce["BouncedAt"]) in span
    )


def _span(call: Call) -> range:
    """The moments that a request asks for, by days or times; the last day is included."""
    last = call.query.get("todate", _LAST_DAY)
    end = _moment("todate", last) + (DAY if len(last) == len(_LAST_DAY) else 1)
    return range(_moment("fromdate", call.query.get("fromdate", _FIRST_DAY)), end)


def _moment(name: str, text: str) -> int:
    try:
        return microseconds(text)
    except ValueError as fault:
        raise invalid(name, "expected a date such as 2026-11-19, or a time") from fault


# ---- suppressions


class _Suppression(Struct, forbid_unknown_fields=True):
    EmailAddress: str


class _Suppressions(Struct, forbid_unknown_fields=True):
    Suppressions: list[_Suppression]


_REASONS: dict[str, tuple[str, str]] = {
    SuppressionOrigin.BOUNCE: ("HardBounce", "Recipient"),
    SuppressionOrigin.LATE_BOUNCE: ("HardBounce", "Recipient"),
    SuppressionOrigin.COMPLAINT: ("SpamComplaint", "Recipient"),
    SuppressionOrigin.UNSUBSCRIBE: ("ManualSuppression", "Recipient"),
    SuppressionOrigin.MANUAL: ("ManualSuppression", "Customer"),
    SuppressionOrigin.IMPORT: ("ManualSuppression", "Customer"),
}


async def _dump(call: Call, api: Api) -> DoorReply:
    """All of them: Postmark has no pages here, and its clients send a count that it ignores."""
    stream, span = _own_list(call), _span(call)
    address, after = call.query.get("emailaddress"), None
    entries = list[Json]()
    for _ in range(DUMPED_PAGES):
        page = await api("GET", "/v1/suppressions", limit=PAGE_LIMIT, after=after, q=address)
        entries += [
            shown for entry in page["suppressions"] if (shown := _listed(call, span, entry, stream)) is not None
        ]
        if (after := page["next"]) is None:
            return DoorReply({"Suppressions": entries})
    text = f"This account suppresses more than {DUMPED_PAGES * PAGE_LIMIT:,} addresses."
    raise Refused(Code.INVALID_REQUEST, f"{text} Export them with `appliance suppression export`.")


def _own_list(call: Call) -> str | None:
    """The stream whose own list the path names; None: the addresses that get no mail at all, Postmark's `outbound`."""
    stream = _stream(call, call.params["stream"])
    return None if stream == TRANSACTIONAL.name else stream


def _listed(call: Call, span: range, entry: Json, stream: str | None) -> Json | None:
    """The entry, if the request asks for it. One for a tag, a template or another stream does not count."""
    reason, origin = _REASONS[entry["origin"]]
    query = call.query
    is_other = entry["tag"] or entry["template"] or entry["stream"] != stream
    if is_other or query.get("emailaddress", entry["address"]).lower() != entry["address"]:
        return None
    if (query.get("suppressionreason", reason), query.get("origin", origin)) != (reason, origin):
        return None
    if microseconds(entry["created_at"]) not in span:
        return None
    shown = {"EmailAddress": entry["address"], "SuppressionReason": reason, "Origin": origin}
    return {**shown, "CreatedAt": entry["created_at"]}


async def _changed(call: Call, status: str, change: Callable[[str], Awaitable[object]]) -> DoorReply:
    addresses = [entry.EmailAddress for entry in decoded(call.body, _Suppressions).Suppressions]
    if len(addresses) > SUPPRESSED_AT_ONCE:
        raise invalid("Suppressions", f"expected at most {SUPPRESSED_AT_ONCE} addresses, got {len(addresses)}")
    results = []
    for address in addresses:
        result: Json = {"EmailAddress": address, "Status": status, "Message": None}
        try:
            await change(parse(address, "EmailAddress").key)
        except Refused as refused:
            if refused.code is not Code.INVALID_REQUEST:
                raise
            result |= {"Status": "Failed", "Message": refused.text}
        results.append(result)
    return DoorReply({"Suppressions": results})


async def _suppress(call: Call, api: Api) -> DoorReply:
    stream = _own_list(call)
    shared = {} if stream is None else {"stream": stream}
    add = lambda address: api("POST", "/v1/suppressions", {"address": address, **shared})  # noqa: E731 - one expression
    return await _changed(call, "Suppressed", add)


async def _unsuppress(call: Call, api: Api) -> DoorReply:
    stream = _own_list(call)

    async def remove(address: str) -> None:
        try:
            await api("DELETE", f"/v1/suppressions/{address}", stream=stream)
        except Refused as refused:
            if refused.code is not Code.NOT_FOUND:  # it is not suppressed, as the client wishes
                raise

    return await _changed(call, "Deleted", remove)


_BOUNCE_FILTERS = (
    *("count", "offset", "type", "inactive", "emailfilter", "tag", "messageid"),
    *("fromdate", "todate", "messagestream"),
)
_DUMP_FILTERS = ("suppressionreason", "origin", "emailaddress", "fromdate", "todate", "count", "offset")
_LIST = "/message-streams/{stream}/suppressions"
RECORD_ROUTES = (
    DoorRoute("GET", "/messages/outbound/{id}/details", _details, Needs.READ),
    DoorRoute("GET", "/bounces", _bounces, Needs.READ, _BOUNCE_FILTERS),
    DoorRoute("GET", f"{_LIST}/dump", _dump, Needs.MANAGE, _DUMP_FILTERS),
    DoorRoute("POST", _LIST, _suppress, Needs.MANAGE),
    DoorRoute("POST", f"{_LIST}/delete", _unsuppress, Needs.MANAGE),
    DoorRoute("DELETE", _LIST, _unsuppress, Needs.MANAGE),
)
