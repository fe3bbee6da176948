"""The door for Resend's clients: emails and batches. `resend_domains.py` has its domains.

A named tag becomes metadata and a tag, so that events in Resend's format have the tags of the request.
"""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from appliance.config.settings import DoorName
from appliance.environment import identifier_time
from appliance.errors import Code, Refused, invalid
from appliance.message.limits import BATCH_JSON_VALUES, BATCH_MESSAGES, JSON_VALUES
from appliance.message.request import REQUIRED, Body, mask_escapes
from appliance.message.schema import DoorRequest
from appliance.model.mail import RecipientOutcome
from appliance.times import rfc3339
from appliance.web.doors import frame
from appliance.web.doors.resend_domains import DOMAIN_ROUTES
from appliance.web.doors.stored import stored_email
from appliance.web.exchange import KEY_HEADER

_PAGE_MESSAGES = 20  # of a list, unless the client asks for another number

_LIST = "This server keeps no lists of contacts and sends no campaigns. Send with POST /emails/batch."
_RECEIVED = "This door does not read received mail."
_REFUSED = {
    **dict.fromkeys(("/audiences", "/segments", "/contact", "/broadcasts", "/topics"), _LIST),
    **dict.fromkeys(("/automations", "/events"), _LIST),
    **dict.fromkeys(("/emails/receiving", "/inboxes"), _RECEIVED),
    **dict.fromkeys(
        ("/api-keys", "/templates", "/webhooks", "/suppressions", "/logs", "/emails/metrics"), frame.NO_ROUTE
    ),
}


# ---- requests

_Byte = Annotated[int, Meta(ge=0, le=255)]
_Mailboxes = str | list[str]


class _Tag(Struct, forbid_unknown_fields=True):
    name: str
    value: str | None = None


class _Template(Struct, forbid_unknown_fields=True):
    id: str
    variables: dict[str, Any] | None = None


class _Buffer(Struct, forbid_unknown_fields=True):
    """Bytes as Node writes them in JSON."""

    type: Literal["Buffer"]
    data: "str | list[_Byte] | _Buffer"


class _Attachment(Struct, forbid_unknown_fields=True):
    filename: str | None = None
    content: str | list[_Byte] | _Buffer | None = None
    content_type: str | None = None
    content_id: str | None = None
    inline_content_id: str | None = None
    path: str | None = None


class _Email(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    sender: str
    to: _Mailboxes
    subject: str | None = None
    html: str | None = None
    text: str | None = None
    cc: _Mailboxes | None = None
    bcc: _Mailboxes | None = None
    reply_to: _Mailboxes | None = None
    headers: dict[str, str] | None = None
    tags: list[_Tag] | None = None
    attachments: list[_Attachment] | None = None
    scheduled_at: str | None = None
    template: _Template | None = None
    topic_id: str | None = None


class _Schedule(Struct, forbid_unknown_fields=True):
    scheduled_at: str
    id: str | UnsetType = UNSET  # Resend's client for Python repeats that of the path


def _parse(call: frame.Call, body: Body) -> DoorRequest:
    return _request(frame.decoded(_with_short_bytes(body), _Email))


def _parse_batch(call: frame.Call, body: Body) -> frame.Sends:
    mode = call.headers.get(b"x-batch-validation", b"strict")
    if mode not in (b"strict", b"permissive"):
        raise invalid("x-batch-validation", "expected strict or permissive")
    items = frame.decoded(_with_short_bytes(body), list[frame.Json], BATCH_JSON_VALUES)
    if not 1 <= len(items) <= BATCH_MESSAGES:
        raise invalid("body", f"expected 1 to {BATCH_MESSAGES} emails, got {len(items)}")
    return frame.Sends(
        frame.attempted(items, lambda item: _request(frame.converted(item, _Email))), mode == b"permissive"
    )


def _request(email: _Email) -> DoorRequest:
    if email.topic_id is not None:
        raise invalid("topic_id", "this server has no topics. Leave the field out.")
    fields: dict[str, frame.Json] = {"from": email.sender}
    for name in ("to", "cc", "bcc", "subject", "html", "text", "headers", "scheduled_at"):
        fields[name] = getattr(email, name)
    fields["reply_to"] = email.reply_to or None
    if email.template is not None:
        fields |= {"template": email.template.id, "variables": email.template.variables}
    if email.tags:
        names = [tag.name for tag in email.tags]
        if len(set(names)) < len(names):
            raise invalid("tags", "two tags have the same name")
        fields |= {"tags": names, "metadata": {tag.name: tag.value for tag in email.tags if tag.value}}
    if email.attachments:
        fields["attachments"] = [_file(f"attachments[{at}]", one) for at, one in enumerate(email.attachments)]
    return frame.send_request(fields)


def _file(field: str, attachment: _Attachment) -> Mapping[str, str]:
    if attachment.path is not None:
        raise invalid(f"{field}.path", "this server fetches no files. Send the file as content.")
    if attachment.content is None:
        raise invalid(f"{field}.content", REQUIRED)
    if attachment.filename is None:
        raise invalid(f"{field}.filename", REQUIRED)
    if attachment.content_id is not None and attachment.inline_content_id is not None:
        raise invalid(f"{field}.inline_content_id", "cannot be combined with content_id")
    content = attachment.content
    while isinstance(content, _Buffer):
        content = content.data
    file = {"filename": attachment.filename, "content": content if isinstance(content, str) else _base64(content)}
    if attachment.content_type is not None:
        file["content_type"] = attachment.content_type
    if (content_id := attachment.content_id or attachment.inline_content_id) is not None:
        file["content_id"] = content_id
    return file


# A list of bytes has one number per byte, far more values than any other request: a long list is rewritten in base64
# before it is decoded.
_BYTES = re.compile(rb'"[^"]*"?|\[[0-9,\s]{256,}\]')


def _with_short_bytes(body: Body) -> Body:
    if len(body) <= JSON_VALUES or body.count(b",") <= JSON_VALUES // 2:
        return body
    pieces, end = list[bytes](), 0
    for match in _BYTES.finditer(mask_escapes(body)):
        if body[match.start()] == ord("["):
            numbers = bytes(body[match.start() : match.end()])
            text = _base64(frame.decoded(numbers, list[_Byte], len(numbers)))
            pieces += [bytes(body[end : match.start()]), b'{"type":"Buffer","data":"', text.encode(), b'"}']
            end = match.end()
    return b"".join([*pieces, body[end:]])


def _base64(content: list[int]) -> str:
    return base64.b64encode(bytes(content)).decode("ascii")


# ---- answers


def _sent(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    return frame.DoorReply({"id": results[0].id} if isinstance(results[0], frame.Sent) else None)


def _sent_batch(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    sent = [{"id": result.id} for result in results if isinstance(result, frame.Sent)]
    errors = [{"index": at, "message": one.text} for at, one in enumerate(results) if isinstance(one, Refused)]
    permissive = call.headers.get(b"x-batch-validation") == b"permissive"
    return frame.DoorReply({"data": sent, "errors": errors} if permissive else {"data": sent})


# The last event of a message is that of the recipient which stands first here.
_LAST_EVENTS: dict[str, str] = {
    RecipientOutcome.COMPLAINED: "complained",
    RecipientOutcome.BOUNCED: "bounced",
    RecipientOutcome.LATE_BOUNCED: "bounced",
    RecipientOutcome.SUPPRESSED: "suppressed",
    RecipientOutcome.FAILED: "failed",
    RecipientOutcome.DEFERRED: "delivery_delayed",
    RecipientOutcome.CANCELLED: "canceled",
    RecipientOutcome.SCHEDULED: "scheduled",
    RecipientOutcome.QUEUED: "queued",
    RecipientOutcome.DELIVERED: "delivered",
}


def _last_event(outcomes: list[str]) -> str:
    return next(event for outcome, event in _LAST_EVENTS.items() if outcome in outcomes)


async def _get(call: frame.Call, api: frame.Api) -> frame.DoorReply:
    email = await stored_email(call, api)
    message, metadata = email.message, email.message.get("metadata", {})
    shown = _shown(message, email.to) | {
        "cc": email.listed("cc") or None,
        "bcc": email.bcc or None,
        "reply_to": email.listed("reply-to") or None,
        "html": email.html,
        "text": email.text,
        "tags": [{"name": tag, "value": metadata.get(tag, "")} for tag in dict.fromkeys([*message["tags"], *metadata])],
        "last_event": _last_event([recipient["outcome"] for recipient in message["recipients"]]),
        "message_id": email.header_id,
        "topic_id": None,
    }
    return frame.DoorReply({"object": "email", **shown})


def _shown(message: frame.Json, recipients: list[str]) -> frame.Json:
    return {
        "id": message["id"],
        "from": message["from"],
        "to": recipients,
        "cc": None,
        "bcc": None,
        "reply_to": None,
        "subject": message["subject"],
        "created_at": rfc3339(identifier_time(message["id"])),
        "scheduled_at": message["scheduled_at"],
    }


async def _list(call: frame.Call, api: frame.Api) -> frame.DoorReply:
    """Newest first: behind the message `after`, or directly before the message `before`."""
    limit, older, newer = call.query.get("limit", _PAGE_MESSAGES), call.query.get("after"), call.query.get("before")
    if newer is not None and (older is not None or not frame.is_message_id(newer)):
        raise invalid("before", "expected the id of a message, without after")
    page = await api("GET", "/v1/emails", limit=limit, before=older, after=newer)
    data = []
    for message in page["emails"]:
        shown = _shown(message, [recipient["email"] for recipient in message["recipients"]])
        data.append(shown | {"last_event": _last_event(list(message["outcomes"]))})
    return frame.DoorReply({"object": "list", "has_more": page["next"] is not None, "data": data})


async def _update(call: frame.Call, api: frame.Api) -> frame.DoorReply:
    schedule = frame.decoded(call.body, _Schedule)
    if schedule.id not in (UNSET, frame.message_id(call)):
        raise invalid("id", "differs from the id in the path")
    await api("PATCH", f"/emails/{frame.message_id(call)}", {"scheduled_at": schedule.scheduled_at})
    return frame.DoorReply({"object": "email", "id": frame.message_id(call)})


async def _cancel(call: frame.Call, api: frame.Api) -> frame.DoorReply:
    await api("POST", f"/emails/{frame.message_id(call)}/cancel")
    return frame.DoorReply({"object": "email", "id": frame.message_id(call)})


# ---- errors

_NAMES = {
    Code.NOT_FOUND: (404, "not_found"),
    Code.CONFLICT: (422, "validation_error"),
    Code.FORBIDDEN: (403, "validation_error"),
    Code.ACCOUNT_SUSPENDED: (403, "invalid_access"),
    Code.INSUFFICIENT_CREDITS: (429, "monthly_quota_exceeded"),
    Code.WARMUP_LIMITED: (429, "daily_quota_exceeded"),
    Code.RATE_LIMITED: (429, "rate_limit_exceeded"),
    Code.PAYLOAD_TOO_LARGE: (413, "validation_error"),
    Code.IDEMPOTENCY_CONFLICT: (409, "invalid_idempotent_request"),
    Code.IDEMPOTENCY_IN_PROGRESS: (409, "concurrent_idempotent_requests"),
}


def _refuse(refusal: frame.Refusal) -> tuple[int, frame.Json]:
    status, name = _NAMES.get(refusal.code, (refusal.code.status, "application_error"))
    if refusal.code is Code.UNAUTHORIZED:
        status, name = (403, "invalid_api_key") if refusal.has_credential else (401, "missing_api_key")
    elif refusal.code is Code.FORBIDDEN and not refusal.field:  # the key's right, not the From domain
        status, name = 401, "restricted_api_key"
    elif refusal.code is Code.INVALID_REQUEST:
        status, name = _invalid(refusal)
    return status, {"statusCode": status, "name": name, "message": refusal.text}


def _invalid(refusal: frame.Refusal) -> tuple[int, str]:
    if refusal.field == KEY_HEADER:
        return 400, "invalid_idempotency_key"
    if refusal.text.endswith(REQUIRED):
        return 422, "missing_required_field"
    if refusal.field.endswith("from"):
        return 422, "invalid_from_address"
    if "attachments" in refusal.field:
        return 422, "invalid_attachment"
    return (422 if refusal.field not in ("", "body") else 400), "validation_error"


_READ_ONE = "/emails/{id}"
RESEND = frame.Door(
    name=DoorName.RESEND,
    routes=(
        frame.DoorRoute("POST", "/emails", frame.Send(_parse, _sent)),
        frame.DoorRoute("POST", "/emails/batch", frame.Send(_parse_batch, _sent_batch, BATCH_MESSAGES)),
        frame.DoorRoute("GET", "/emails", _list, frame.Needs.READ, ("limit", "after", "before")),
        frame.DoorRoute("GET", _READ_ONE, _get, frame.Needs.READ),
        frame.DoorRoute("PATCH", _READ_ONE, _update),
        frame.DoorRoute("POST", "/emails/{id}/cancel", _cancel),
        *DOMAIN_ROUTES,
    ),
    refuse=_refuse,
    refused=_REFUSED,
    names={
        "metadata": "tags",
        "template": "template.id",
        "variables": "template.variables",
        "stream": f"headers.{frame.STREAM_HEADER}",
    },
    has_keys=True,
)
