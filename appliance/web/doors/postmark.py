"""The door for Postmark's clients: messages, alone and in batches. `postmark_records.py` serves what they read later.

A batch accepts its good messages and answers 200, with an error code for each bad one, as Postmark does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from appliance.config.settings import DoorName
from appliance.errors import Code, invalid
from appliance.message.limits import BATCH_JSON_VALUES, BATCH_MESSAGES
from appliance.message.request import Body
from appliance.message.schema import DoorRequest
from appliance.times import rfc3339
from appliance.web.doors import frame
from appliance.web.doors.postmark_records import MESSAGE_FIELD, RECORD_ROUTES, STREAM_FIELD, own_stream

POSTMARK_BATCH = 500  # messages in one call
BATCH_FIELD = "Messages"
TOKEN_HEADER = b"x-postmark-server-token"
_MOST_VALUES = BATCH_JSON_VALUES * POSTMARK_BATCH // BATCH_MESSAGES

_OPENS = "This server tracks no opens and clicks."
_REFUSED = {
    **dict.fromkeys(("/messages/outbound/opens", "/messages/outbound/clicks"), _OPENS),
    **dict.fromkeys(("/messages/inbound", "/triggers"), "This door does not read received mail."),
    **dict.fromkeys(
        ("/templates", "/server", "/stats", "/webhooks", "/email/bulk", "/deliver", "/domains"), frame.NO_ROUTE
    ),
    **dict.fromkeys(("/senders",), "This server has no sender signatures. Add the domain of the senders."),
}


# ---- requests


# Postmark's names of a message's fields.
_NAMES = {
    "from": "From",
    "to": "To",
    "cc": "Cc",
    "bcc": "Bcc",
    "reply_to": "ReplyTo",
    "subject": "Subject",
    "text": "TextBody",
    "html": "HtmlBody",
    "tags": "Tag",
    "metadata": "Metadata",
    "headers": "Headers",
    "attachments": "Attachments",
    "filename": "Name",
    "content": "Content",
    "content_type": "ContentType",
    "content_id": "ContentID",
    "template": "TemplateAlias",
    "variables": "TemplateModel",
    "stream": STREAM_FIELD,
}


class _Header(Struct, forbid_unknown_fields=True):
    Name: str
    Value: str


class _File(Struct, forbid_unknown_fields=True, rename=_NAMES):
    filename: str
    content: str
    content_type: str | None = None
    content_id: str | None = None
    ContentLength: int | None = None


class _Message(Struct, forbid_unknown_fields=True, rename=_NAMES | {"sender": "From"}):
    sender: str
    to: str | None = None
    cc: str | None = None
    bcc: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    text: str | None = None
    html: str | None = None
    tags: str | None = None
    metadata: dict[str, str] | None = None
    headers: list[_Header] | None = None
    attachments: list[_File] | None = None
    stream: str | None = None
    template: str | None = None
    variables: dict[str, Any] | None = None
    TrackOpens: bool | None = None
    TrackLinks: str | None = None
    TemplateId: int | None = None
    InlineCss: bool | None = None


class _Messages(Struct, forbid_unknown_fields=True):
    Messages: list[dict[str, Any]]


_Check = Callable[[_Message], None]


def _one(check: _Check, call: frame.Call, body: Body) -> DoorRequest:
    message = frame.decoded(body, _Message)
    call.kept = [_addressed(message.to, message.cc, message.bcc)]
    return _request(check, message)


def _many(check: _Check, kind: type[_Messages | list[dict[str, Any]]], call: frame.Call, body: Body) -> frame.Sends:
    batch = frame.decoded(body, kind, _MOST_VALUES)
    messages = batch.Messages if isinstance(batch, _Messages) else batch
    if not 1 <= len(messages) <= POSTMARK_BATCH:
        raise invalid(BATCH_FIELD, f"expected 1 to {POSTMARK_BATCH} messages, got {len(messages)}")
    call.kept = [_addressed(one.get("To"), one.get("Cc"), one.get("Bcc")) for one in messages]
    return frame.Sends(
        frame.attempted(messages, lambda item: _request(check, frame.converted(item, _Message))), skip=True
    )


def _has_no_template(message: _Message) -> None:
    for name in ("template", "TemplateId", "variables"):
        if getattr(message, name) is not None:
            raise invalid(_NAMES.get(name, name), "send templates to /email/withTemplate or /email/batchWithTemplates")


def _has_template(message: _Message) -> None:
    if message.TemplateId is not None:
        raise invalid("TemplateId", "the templates of this server have no numbers. Send TemplateAlias.")
    if message.template is None:
        raise invalid("TemplateAlias", "this field is required")


def _request(check: _Check, message: _Message) -> DoorRequest:
    check(message)
    if message.TrackOpens:
        raise invalid("TrackOpens", "this server tracks no opens. Send false, or leave the field out.")
    if message.TrackLinks not in (None, "", "None"):
        raise invalid("TrackLinks", "this server tracks no links. Send None, or leave the field out.")
    headers = {header.Name: header.Value for header in message.headers or ()}
    if len(headers) < len(message.headers or ()):
        raise invalid("Headers", "two headers have the same name")
    has_alias = message.template is not None
    fields = {
        "from": message.sender,
        "to": frame.split_addresses(message.to or ""),
        "subject": (message.subject or None) if has_alias else message.subject,
        "headers": headers or None,
        "attachments": [_file(file) for file in message.attachments or ()] or None,
        "template": message.template,
        "variables": message.variables if has_alias else None,
        "stream": own_stream(message.stream or "") or None,
    }
    fields |= {name: frame.split_addresses(getattr(message, name) or "") or None for name in ("cc", "bcc", "reply_to")}
    return frame.send_request(
        fields | {name: getattr(message, name) or None for name in ("text", "html", "tags", "metadata")}
    )


def _file(file: _File) -> frame.Json:
    shown = {"filename": file.filename, "content": file.content}
    if file.content_type:
        shown["content_type"] = file.content_type
    if file.content_id:
        shown["content_id"] = file.content_id.removeprefix("cid:")
    return shown


# ---- answers


def _addressed(to: object, cc: object, bcc: object) -> frame.Json:
    named = {"To": to, "Cc": cc, "Bcc": bcc}
    return {name: value for name, value in named.items() if isinstance(value, str) and value}


def _answer(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    return frame.DoorReply(_results(call, results)[0])


def _answer_batch(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    return frame.DoorReply(_results(call, results))


def _results(call: frame.Call, results: list[frame.Result]) -> list[frame.Json]:
    accepted = {"SubmittedAt": rfc3339(call.now), "ErrorCode": 0, "Message": "OK"}
    return [
        {**addressed, "MessageID": result.id, **accepted}
        if isinstance(result, frame.Sent)
        else _refuse(frame.Refusal(result.code, result.text, result.field, has_credential=True))[1]
        for result, addressed in zip(results, call.kept, strict=True)
    ]


# ---- errors

# Status and ErrorCode.
_CODES = {
    Code.UNAUTHORIZED: (401, 10),
    Code.ACCOUNT_SUSPENDED: (422, 413),
    Code.INSUFFICIENT_CREDITS: (422, 405),
    Code.NOT_FOUND: (404, 404),
    Code.CONFLICT: (422, 300),
    Code.RATE_LIMITED: (429, 429),
    Code.WARMUP_LIMITED: (429, 429),
    Code.PAYLOAD_TOO_LARGE: (413, 300),
    Code.INTERNAL_ERROR: (500, 500),
}
_FIELD_CODES = {
    "": 402,
    "body": 402,
    "Content-Type": 409,
    BATCH_FIELD: 410,
    MESSAGE_FIELD: 701,
    STREAM_FIELD: 1235,
    "TemplateAlias": 1101,
    "TemplateId": 1101,
}


def _refuse(refusal: frame.Refusal) -> tuple[int, frame.Json]:
    status, code = _CODES.get(refusal.code, (503, 100))
    if refusal.code is Code.INVALID_REQUEST:
        status, code = 422, _FIELD_CODES.get(refusal.field, 300)
    elif refusal.code is Code.FORBIDDEN:  # the From domain, or else the key's right
        status, code = (422, 400) if refusal.field else (401, 10)
    elif refusal.field == MESSAGE_FIELD:
        code = _FIELD_CODES[MESSAGE_FIELD]
    return status, {"ErrorCode": code, "Message": refusal.text}


POSTMARK = frame.Door(
    name=DoorName.POSTMARK,
    credential=lambda headers: b"Bearer " + headers[TOKEN_HEADER] if headers.get(TOKEN_HEADER) else None,
    credential_header=TOKEN_HEADER,
    login="Send an API key of this server: X-Postmark-Server-Token: ma_live_…",
    routes=(
        frame.DoorRoute("POST", "/email", frame.Send(partial(_one, _has_no_template), _answer)),
        frame.DoorRoute("POST", "/email/withTemplate", frame.Send(partial(_one, _has_template), _answer)),
        frame.DoorRoute(
            "POST",
            "/email/batch",
            frame.Send(partial(_many, _has_no_template, list[dict[str, Any]]), _answer_batch, POSTMARK_BATCH),
        ),
        frame.DoorRoute(
            "POST",
            "/email/batchWithTemplates",
            frame.Send(partial(_many, _has_template, _Messages), _answer_batch, POSTMARK_BATCH),
        ),
        *RECORD_ROUTES,
    ),
    refuse=_refuse,
    refused=_REFUSED,
    names=_NAMES,
    parameter=str.lower,
    is_root=lambda path, headers: TOKEN_HEADER in headers,  # postmarker keeps only the origin of its URL
)
