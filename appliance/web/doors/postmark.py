"""The door for Postmark's clients: messages, alone and in batches. `postmark_records.py` serves what they read later.

A batch accepts its good messages and answers 200, with an error code for each bad one, as Postmark does.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from appliance.config.settings import DoorName
from appliance.errors import Code, invalid
from appliance.message.limits import BATCH_JSON_VALUES, BATCH_MESSAGES
from appliance.message.request import Body
from appliance.message.schema import DoorRequest
from appliance.times import rfc3339
from appliance.web.doors.frame import (
    NO_ROUTE,
    Call,
    Door,
    DoorReply,
    DoorRoute,
    Json,
    Refusal,
    Result,
    Send,
    Sends,
    Sent,
    attempted,
    converted,
    decoded,
    send_request,
    split_addresses,
)
from appliance.web.doors.postmark_records import MESSAGE_FIELD, RECORD_ROUTES, STREAM_FIELD, own_stream

POSTMARK_BATCH = 500  # messages in one call
TOKEN_HEADER = b"x-postmark-server-token"

_OPENS = "This server tracks no opens and clicks."
_REFUSED = {
    **dict.fromkeys(("/messages/outbound/opens", "/messages/outbound/clicks"), _OPENS),
    **dict.fromkeys(("/messages/inbound", "/triggers"), "This door does not read received mail."),
    **dict.fromkeys(("/templates", "/server", "/stats", "/webhooks", "/email/bulk", "/deliver", "/domains"), NO_ROUTE),
    **dict.fromkeys(("/senders",), "This server has no sender signatures. Add the domain of the senders."),
}


# ---- requests


class _Header(Struct, forbid_unknown_fields=True):
    Name: str
    Value: str


class _File(Struct, forbid_unknown_fields=True):
    Name: str
    Content: str
    ContentType: str | None = None
    ContentID: str | None = None
    ContentLength: int | None = None


class _Message(Struct, forbid_unknown_fields=True):
    From: str
    To: str | None = None
    Cc: str | None = None
    Bcc: str | None = None
    ReplyTo: str | None = None
    Subject: str | None = None
    TextBody: str | None = None
    HtmlBody: str | None = None
    Tag: str | None = None
    Metadata: dict[str, str] | None = None
    Headers: list[_Header] | None = None
    Attachments: list[_File] | None = None
    MessageStream: str | None = None
    TrackOpens: bool | None = None
    TrackLinks: str | None = None
    TemplateAlias: str | None = None
    TemplateId: int | None = None
    TemplateModel: dict[str, Any] | None = None
    InlineCss: bool | None = None


class _Messages(Struct, forbid_unknown_fields=True):
    Messages: list[dict[str, Any]]


def _one(call: Call, body: Body, request: Callable[[_Message], DoorRequest]) -> DoorRequest:
    message = decoded(body, _Message)
    call.kept = [_addressed(message.To, message.Cc, message.Bcc)]
    return request(message)


def _many(call: Call, messages: list[dict[str, Any]], request: Callable[[_Message], DoorRequest]) -> Sends:
    if not 1 <= len(messages) <= POSTMARK_BATCH:
        raise invalid(BATCH_FIELD, f"expected 1 to {POSTMARK_BATCH} messages, got {len(messages)}")
    call.kept = [_addressed(one.get("To"), one.get("Cc"), one.get("Bcc")) for one in messages]
    return Sends(attempted(messages, lambda item: request(converted(item, _Message))), skip=True)


BATCH_FIELD = "Messages"
_MOST_VALUES = BATCH_JSON_VALUES * POSTMARK_BATCH // BATCH_MESSAGES


def _parse(call: Call, body: Body) -> DoorRequest:
    return _one(call, body, _with_bodies)


def _parse_templated(call: Call, body: Body) -> DoorRequest:
    return _one(call, body, _with_template)


def _parse_batch(call: Call, body: Body) -> Sends:
    return _many(call, decoded(body, list[dict[str, Any]], _MOST_VALUES), _with_bodies)


def _parse_templated_batch(call: Call, body: Body) -> Sends:
    return _many(call, decoded(body, _Messages, _MOST_VALUES).Messages, _with_template)


def _with_bodies(message: _Message) -> DoorRequest:
    for name in ("TemplateAlias", "TemplateId", "TemplateModel"):
        if getattr(message, name) is not None:
            raise invalid(name, "send templates to /email/withTemplate or /email/batchWithTemplates")
    return _request(message)


def _with_template(message: _Message) -> DoorRequest:
    if message.TemplateId is not None:
        raise invalid("TemplateId", "the templates of this server have no numbers. Send TemplateAlias.")
    if message.TemplateAlias is None:
        raise invalid("TemplateAlias", "this field is required")
    return _request(message)


def _request(message: _Message) -> DoorRequest:
    if message.TrackOpens:
        raise invalid("TrackOpens", "this server tracks no opens. Send false, or leave the field out.")
    if message.TrackLinks not in (None, "", "None"):
        raise invalid("TrackLinks", "this server tracks no links. Send None, or leave the field out.")
    headers = {header.Name: header.Value for header in message.Headers or ()}
    if len(headers) < len(message.Headers or ()):
        raise invalid("Headers", "two headers have the same name")
    reply_to = split_addresses(message.ReplyTo or "")
    has_alias = message.TemplateAlias is not None
    return send_request(
        {
            "from": message.From,
            "to": split_addresses(message.To or ""),
            "cc": split_addresses(message.Cc or "") or None,
            "bcc": split_addresses(message.Bcc or "") or None,
            "reply_to": reply_to or None,
            "subject": (message.Subject or None) if has_alias else message.Subject,
            "text": message.TextBody or None,
            "html": message.HtmlBody or None,
            "tags": message.Tag or None,
            "metadata": message.Metadata or None,
            "headers": headers or None,
            "attachments": [_file(file) for file in message.Attachments or ()] or None,
            "template": message.TemplateAlias,
            "variables": message.TemplateModel if has_alias else None,
            "stream": own_stream(message.MessageStream or "") or None,
        }
    )


def _file(file: _File) -> Json:
    shown = {"filename": file.Name, "content": file.Content}
    if file.ContentType:
        shown["content_type"] = file.ContentType
    if file.ContentID:
        shown["content_id"] = file.ContentID.removeprefix("cid:")
    return shown


# ---- answers


def _addressed(to: object, cc: object, bcc: object) -> Json:
    named = {"To": to, "Cc": cc, "Bcc": bcc}
    return {name: value for name, value in named.items() if isinstance(value, str) and value}


def _answer(call: Call, results: list[Result]) -> DoorReply:
    return DoorReply(_results(call, results)[0])


def _answer_batch(call: Call, results: list[Result]) -> DoorReply:
    return DoorReply(_results(call, results))


def _results(call: Call, results: list[Result]) -> list[Json]:
    accepted = {"SubmittedAt": rfc3339(call.now), "ErrorCode": 0, "Message": "OK"}
    return [
        {**addressed, "MessageID": result.id, **accepted}
        if isinstance(result, Sent)
        else _refuse(Refusal(result.code, result.text, result.field, has_credential=True))[1]
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


def _refuse(refusal: Refusal) -> tuple[int, Json]:
    status, code = _CODES.get(refusal.code, (503, 100))
    if refusal.code is Code.INVALID_REQUEST:
        status, code = 422, _FIELD_CODES.get(refusal.field, 300)
    elif refusal.code is Code.FORBIDDEN:  # the From domain, or else the key's right
        status, code = (422, 400) if refusal.field else (401, 10)
    elif refusal.field == MESSAGE_FIELD:
        code = _FIELD_CODES[MESSAGE_FIELD]
    return status, {"ErrorCode": code, "Message": refusal.text}


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


def _batch(parse: Callable[[Call, Body], Sends]) -> Send:
    return Send(parse, _answer_batch, POSTMARK_BATCH)


POSTMARK = Door(
    name=DoorName.POSTMARK,
    credential=lambda headers: b"Bearer " + headers[TOKEN_HEADER] if headers.get(TOKEN_HEADER) else None,
    credential_header=TOKEN_HEADER,
    login="Send an API key of this server: X-Postmark-Server-Token: ma_live_…",
    routes=(
        DoorRoute("POST", "/email", Send(_parse, _answer)),
        DoorRoute("POST", "/email/batch", _batch(_parse_batch)),
        DoorRoute("POST", "/email/withTemplate", Send(_parse_templated, _answer)),
        DoorRoute("POST", "/email/batchWithTemplates", _batch(_parse_templated_batch)),
        *RECORD_ROUTES,
    ),
    refuse=_refuse,
    refused=_REFUSED,
    names=_NAMES,
    parameter=str.lower,
    is_root=lambda path, headers: TOKEN_HEADER in headers,  # postmarker keeps only the origin of its URL
)
