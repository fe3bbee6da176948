"""/openapi.json: the API in OpenAPI 3.1, made from the operations and the types that validate their bodies.

Clients are generated from it. So its patterns compile in ECMA-262's Unicode mode as in Python, an object is only its
properties, with no `anyOf` or `allOf` beside them, and errors share one schema and one response for each status.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from quart import Blueprint, Response

from appliance import __version__
from appliance.errors import Code
from appliance.message import schema as request_schema
from appliance.model.accounts import Permission
from appliance.model.webhooks import PING_TYPE, EventType, WebhookEvent
from appliance.web import message_json, session_cookie
from appliance.web.answer import Error
from appliance.web.api.account import AccountRoutes
from appliance.web.api.admin_accounts import AdminAccountRoutes
from appliance.web.api.admin_emails import AdminEmailRoutes
from appliance.web.api.admin_nodes import AdminNodeRoutes
from appliance.web.api.admin_queue import AdminQueueRoutes
from appliance.web.api.audit import AuditRoutes
from appliance.web.api.credentials import ApiKeyRoutes, SmtpCredentialRoutes
from appliance.web.api.domains import DomainRoutes
from appliance.web.api.emails import EmailRoutes
from appliance.web.api.feedback import FeedbackRoutes
from appliance.web.api.feedback_inbox import FeedbackInboxRoutes
from appliance.web.api.login import LoginRoutes, SessionRoutes
from appliance.web.api.send_test import SendTestRoutes
from appliance.web.api.stats import StatsRoutes
from appliance.web.api.suppressions import SuppressionRoutes
from appliance.web.api.templates import TemplateRoutes
from appliance.web.api.totp import TotpRoutes
from appliance.web.api.unsubscribe_tags import UnsubscribeTagRoutes
from appliance.web.api.users import AdminUserRoutes, UserRoutes
from appliance.web.api.webhook import WebhookRoutes
from appliance.web.api.webhook_deliveries import WebhookDeliveryRoutes
from appliance.web.app import HealthRoutes, Routes
from appliance.web.examples import SCHEMA_EXAMPLES, error_example, event_example
from appliance.web.field_descriptions import describe_fields
from appliance.web.operations import HOLDERS, Json, Operation, camel_case, operations_of, parameter
from appliance.webhook.post import USER_AGENT_HEADER

_FILE: Json = {"type": "string", "format": "binary"}
_TO_SCHEMAS, _TO_RESPONSES, _TO_HEADERS = (f"#/components/{kind}/" for kind in ("schemas", "responses", "headers"))


@dataclass(frozen=True, slots=True)
class _Tag:
    """A group of operations, as documents and generated clients show it."""

    name: str
    description: str
    routes: tuple[type[Routes], ...] = ()
    more: tuple[Operation, ...] = ()  # which no class of routes answers

    def operations(self) -> Iterator[Operation]:
        yield from self.more
        yield from (operation for routes in self.routes for _, operation in operations_of(routes))


_TAGS = (
    _Tag("Sending", "Send a message, and read what became of it.", more=message_json.EMAIL_OPERATIONS),
    _Tag("Sessions", "Log in to use the rest of the API, and log out.", (LoginRoutes, SessionRoutes)),
    _Tag("People", "The users of the account, their roles and second factors.", (UserRoutes, TotpRoutes)),
    _Tag(
        "Account",
        "The account, its credits and its statistics.",
        (AccountRoutes, StatsRoutes, FeedbackRoutes, FeedbackInboxRoutes),
    ),
    _Tag("Audit", "Who changed what in the account, when and from where.", (AuditRoutes,)),
    _Tag("Domains", "The domains that the account sends from.", (DomainRoutes,)),
    _Tag("Credentials", "SMTP credentials and API keys, for programs that send.", (SmtpCredentialRoutes, ApiKeyRoutes)),
    _Tag("Messages", "All messages of the account, with every attempt to deliver them.", (EmailRoutes, SendTestRoutes)),
    _Tag("Templates", "Subjects and bodies with placeholders, stored under an alias.", (TemplateRoutes,)),
    _Tag("Suppressions", "Addresses that the account no longer sends to.", (SuppressionRoutes,)),
    _Tag("Unsubscribe", "Tags whose messages get a link to unsubscribe by one click.", (UnsubscribeTagRoutes,)),
    _Tag("Webhook", "Where results are posted, and the history of posts.", (WebhookRoutes, WebhookDeliveryRoutes)),
    _Tag(
        "Administration",
        "All accounts, the queue and the nodes; for administrators.",
        (AdminAccountRoutes, AdminUserRoutes, AdminEmailRoutes, AdminQueueRoutes, AdminNodeRoutes),
    ),
    _Tag("Health", "For monitoring and load balancers.", (HealthRoutes,)),
)
_EVENTS_TAG = _Tag("Events", "What the service posts to the account's webhook.")
ROUTES: tuple[type[Routes], ...] = tuple(routes for tag in _TAGS for routes in tag.routes)

_DESCRIPTION = """\
Transactional email over HTTP, served by mail appliance {version}.

Programs send with an SMTP credential (HTTP Basic) or an API key (Bearer); everything under `/v1` needs the token of a
login, or an API key with the scope `manage`. Every answer has the header `X-Request-ID`, equal to `request_id` in its
body. Every error has the same body, `Error`: act on its `code`. Lists answer with `next`, which goes into `after` or
`before` for the following page."""


def document(base_url: str) -> Json:
    operations = [operation for tag in _TAGS for operation in tag.operations()]
    schemas, references = _schemas(operations)
    paths: dict[str, Json] = {}
    for tag in _TAGS:
        for operation in tag.operations():
            described = {"tags": [tag.name], **_operation(operation, references)}
            paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mail appliance",
            "version": "1.0.0",
            "license": {"name": "MIT License", "identifier": "MIT"},
            "description": _DESCRIPTION.format(version=__version__),
        },
        "servers": [{"url": base_url}],
        "tags": [{"name": tag.name, "description": tag.description} for tag in (*_TAGS, _EVENTS_TAG)],
        "paths": paths,
        "webhooks": {name: {"post": _event(name, references[WebhookEvent])} for name in _EVENTS},
        "components": {
            "schemas": schemas,
            "responses": {name: _error_response(status, references[Error]) for status, name in _ERROR_NAMES.items()},
            "headers": _HEADERS,
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


# ---- schemas


def _schemas(operations: list[Operation]) -> tuple[Json, dict[type, Json]]:
    """The schemas by name, and a reference to each type's."""
    types = [operation.success[1] for operation in operations if operation.success[1] is not bytes]
    types += [operation.body for operation in operations if operation.body is not None]
    types += [Error, WebhookEvent]
    found, schemas = msgspec.json.schema_components(types, ref_template=_TO_SCHEMAS + "{name}")
    schemas |= request_schema.components(_TO_SCHEMAS + "{name}")
    describe_fields(schemas)
    _type_enums(schemas)
    return schemas, dict(zip(types, found, strict=True))


def _type_enums(node: Any) -> None:
    """Say of every enum that its values are strings: without a type generators take it for anything."""
    if isinstance(node, dict) and isinstance(node.get("enum"), list):
        node.setdefault("type", "string")
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _type_enums(inner)


# ---- operations


def _operation(operation: Operation, references: dict[type, Json]) -> Json:
    status, success, description = operation.success
    headers = {name: {"$ref": _TO_HEADERS + name} for name in ("X-Request-ID", *operation.headers)}
    content = {operation.media: {"schema": _FILE}} if success is bytes else _content(references[success])
    answer = {"description": description, "headers": headers, "content": content}
    if operation.links:
        answer["links"] = operation.links
    responses = {str(status): answer} | {str(code.status): _error(operation, code.status) for code in operation.errors}
    described: Json = {
        "summary": operation.summary,
        "operationId": operation.id,
        "responses": dict(sorted(responses.items())),
        "security": list(operation.security),
    }
    if description := "\n\n".join(filter(None, (operation.description, _who_may(operation)))):
        described["description"] = description
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = _content(references[operation.body])
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    return described


def _who_may(operation: Operation) -> str:
    if operation.permission is None:
        return ""
    if operation.people_only and operation.permission is Permission.VIEW:
        return f"Permission: `{operation.permission}`. Every user may do this, and no API key."
    return f"Permission: `{operation.permission}`. {HOLDERS[operation.permission]} may do this."


def _content(reference: Json, examples: dict[str, Any] | None = None) -> Json:
    shown = SCHEMA_EXAMPLES.get(reference["$ref"].removeprefix(_TO_SCHEMAS)) if examples is None else examples
    named = {"examples": {name: {"value": value} for name, value in shown.items()}} if shown else {}
    return {"application/json": {"schema": reference, **named}}


def _error(operation: Operation, status: int) -> Json:
    """The response that all operations share, with the codes that this one may answer."""
    codes = [code.value for code in operation.errors if code.status == status]
    return {"$ref": _TO_RESPONSES + _ERROR_NAMES[status], "description": _either(codes)}


def _either(codes: list[str]) -> str:
    return " or ".join(f"`{each}`" for each in codes)


# ---- responses and headers that operations share

_ERROR_NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    402: "PaymentRequired",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}


def _header(description: str, schema: Json, *, required: bool = False) -> Json:
    """A header; `required` if it is there in every answer that lists it."""
    return {"description": description, **({"required": True} if required else {}), "schema": schema}


_STRING: Json = {"type": "string"}
_HEADERS: Json = {
    "X-Request-ID": _header("Equals `request_id` in the body.", _STRING, required=True),
    "WWW-Authenticate": _header("The schemes that are understood.", _STRING, required=True),
    "Retry-After": _header("Seconds to wait.", {"type": "integer", "minimum": 1}),
    "Idempotent-Replayed": _header("On a retry only.", {"type": "string", "const": "true"}),
    "Original-Request-ID": _header("On a retry only: the `request_id` of the first request.", _STRING),
    "Set-Cookie": _header("The cookie that renews the session next.", _STRING),
}
_ALWAYS_RETRY_AFTER = (429, 503)
_MAY_RETRY_AFTER = (401, 409)  # after too many wrong credentials; `idempotency_in_progress`


def _error_response(status: int, reference: Json) -> Json:
    codes = [code for code in Code if code.status == status]
    headers: Json = {"X-Request-ID": {"$ref": _TO_HEADERS + "X-Request-ID"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"$ref": _TO_HEADERS + "WWW-Authenticate"}
    if status in _ALWAYS_RETRY_AFTER:
        headers["Retry-After"] = {**_HEADERS["Retry-After"], "required": True}
    elif status in _MAY_RETRY_AFTER:
        headers["Retry-After"] = {"$ref": _TO_HEADERS + "Retry-After"}
    content = _content(reference, {code.value: error_example(code) for code in codes})
    return {"description": _either([code.value for code in codes]), "headers": headers, "content": content}


_SECURITY_SCHEMES: Json = {
    "basic": {"type": "http", "scheme": "basic", "description": "SMTP username and password."},
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ma_live_…` or `ma_test_…`."},
    "customer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "From /v1/auth/login."},
    "session": {"type": "apiKey", "in": "cookie", "name": session_cookie.COOKIE_NAME, "description": "Set by a login."},
}


# ---- events, which the service posts to webhooks

_EVENTS = {
    EventType.DELIVERED.value: "The recipient's mail server accepted the message.",
    EventType.BOUNCED.value: "The recipient was refused permanently; its credit is returned.",
    EventType.FAILED.value: "Delivery to the recipient was given up: all attempts are used up, or it was cancelled.",
    EventType.DELAYED.value: "The recipient was deferred for the first time an hour or more after it was accepted.",
    EventType.LATE_BOUNCED.value: "A bounce came by mail after the recipient's server had accepted the message.",
    EventType.COMPLAINED.value: "A mailbox provider reported that the recipient has marked the message as spam.",
    PING_TYPE: "A ping asked for a test event.",
}
_EVENT_DESCRIPTION = (
    "Posted once for each recipient, and again until it is answered with a 2xx, at most 7 times in all. `id` stays the "
    "same in retries and replays: by it, ignore repeated events. Verify `Service-Signature` before trusting the body."
)
_EVENT_HEADERS = (
    parameter(
        "Service-Signature",
        "header",
        "`t=<unix seconds>,v1=<hex>`: the HMAC-SHA256, with the whole secret (`whsec_…`) as key, of `<t>.<raw body>`. "
        "Refuse a `t` that is more than 300 seconds from now.",
        {"type": "string", "pattern": "^t=[0-9]+,v1=[0-9a-f]{64}$"},
        required=True,
    ),
    parameter(
        USER_AGENT_HEADER[0],
        "header",
        "The same in every post.",
        {"type": "string", "const": USER_AGENT_HEADER[1]},
        required=True,
    ),
)


def _event(name: str, reference: Json) -> Json:
    return {
        "tags": [_EVENTS_TAG.name],
        "summary": _EVENTS[name],
        "description": _EVENT_DESCRIPTION,
        "operationId": camel_case(name),
        "security": [],
        # No client calls it: openapi-generator leaves such operations out, whose Python would be a syntax error here.
        "x-internal": True,
        "parameters": list(_EVENT_HEADERS),
        "requestBody": {"required": True, "content": _content(reference, {name: event_example(name)})},
        "responses": {
            "2XX": {"description": "Received. The body is not read."},
            "default": {"description": "Not received; so is no complete answer within 5 seconds. It is posted again."},
        },
    }


def blueprint(base_url: str) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    described = msgspec.json.encode(document(base_url))

    @routes.get("/openapi.json")
    async def show() -> Response:
        return Response(described, 200, content_type="application/json")

    return routes
