"""/openapi.json: the API in OpenAPI 3.1, generated from the operations and the types that validate their bodies.

Clients are generated from it. Therefore patterns compile in ECMA-262's Unicode mode and in Python, objects have plain
properties without `anyOf` or `allOf`, and errors share one schema and one response per status.
"""

import gzip
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec
import trio
from quart import Blueprint, Response

from appliance import __version__
from appliance.errors import Code
from appliance.message import schema as request_schema
from appliance.model.accounts import Permission
from appliance.model.received_event import ReceivedEvent
from appliance.model.webhooks import PING_TYPE, EventType, WebhookEvent
from appliance.web.app import may_compress, route_classes
from appliance.web.auth import COOKIE_NAME
from appliance.web.edge import Edge
from appliance.web.exchange import Error
from appliance.web.operations import HOLDERS, Json, Operation, Tag, camel_case, operations_of, parameter
from appliance.web.sent import SentMessages
from appliance.webhook.post import USER_AGENT_HEADER as _AGENT

_EXAMPLES: Json = msgspec.json.decode((files("appliance.web") / "examples.json").read_bytes())
_FILE: Json = {"type": "string", "format": "binary"}
_TO_SCHEMAS, _TO_RESPONSES, _TO_HEADERS = (f"#/components/{kind}/" for kind in ("schemas", "responses", "headers"))

_DESCRIPTION = """\
Transactional email over HTTP, served by mail appliance {version}.

Programs send with an SMTP credential (HTTP Basic) or an API key (Bearer); everything under `/v1` needs the token of a
login, or an API key with the scope `manage`. Every answer has the header `X-Request-ID`, equal to `request_id` in its
body. Every error has the same body, `Error`: act on its `code`. Lists answer with `next`, which goes into `after` or
`before` for the following page."""


def document(base_url: str) -> Json:
    tagged = [(Tag.SENDING, operation) for kind in (Edge, SentMessages) for _, operation in operations_of(kind)]
    tagged += [(routes.tag, operation) for routes in route_classes() for _, operation in operations_of(routes)]
    schemas, references = _schemas([operation for _, operation in tagged])
    paths: dict[str, Json] = {}
    for tag, operation in tagged:
        described = {"tags": [tag.title], **_operation(operation, references)}
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
        "tags": [{"name": tag.title, "description": tag.description} for tag in Tag],
        "paths": paths,
        "webhooks": {
            name: {"post": _event(name, references[ReceivedEvent if name == EventType.RECEIVED else WebhookEvent])}
            for name in _EVENTS
        },
        "components": {
            "schemas": schemas,
            "responses": {name: _error_response(status, references[Error]) for status, name in _ERROR_NAMES.items()},
            "headers": _HEADERS,
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


# ---- schemas
def _schemas(operations: list[Operation]) -> tuple[Json, dict[type, Json]]:
    types = [operation.success[1] for operation in operations if not isinstance(operation.success[1], str)]
    types += [operation.body for operation in operations if operation.body is not None]
    types += [Error, WebhookEvent, ReceivedEvent]
    references, schemas = msgspec.json.schema_components(types, ref_template=_TO_SCHEMAS + "{name}")
    schemas |= request_schema.components(_TO_SCHEMAS + "{name}")
    for schema in schemas.values():
        _complete(schema)
    _type_enums(schemas)
    return schemas, dict(zip(types, references, strict=True))


def _complete(schema: Json) -> None:
    """Copy the description of a nullable property from `anyOf`, where generators ignore it; require `request_id`."""
    for field in schema.get("properties", {}).values():
        nested = [choice["description"] for choice in field.get("anyOf", ()) if "description" in choice]
        if nested:
            field.setdefault("description", nested[0])
    if "request_id" in schema.get("properties", {}) and "request_id" not in schema["required"]:
        schema["required"].append("request_id")


def _type_enums(node: Any) -> None:
    """Give every enum the type string. Generators treat an untyped enum as any value."""
    if isinstance(node, dict) and isinstance(node.get("enum"), list):
        node.setdefault("type", "string")
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _type_enums(inner)


# ---- operations
def _operation(operation: Operation, references: dict[type, Json]) -> Json:
    status, success, description = operation.success
    headers = {name: {"$ref": _TO_HEADERS + name} for name in ("X-Request-ID", *operation.headers)}
    content = {success: {"schema": _FILE}} if isinstance(success, str) else _content(references[success])
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
        return f"Permission: `{operation.permission}`. Every user may do this; API keys may not."
    return f"Permission: `{operation.permission}`. {HOLDERS[operation.permission]} may do this."


def _content(reference: Json, examples: Json | None = None) -> Json:
    shown = examples or _EXAMPLES["schemas"].get(reference["$ref"].removeprefix(_TO_SCHEMAS))
    named = {"examples": {name: {"value": value} for name, value in shown.items()}} if shown else {}
    return {"application/json": {"schema": reference, **named}}


def _error(operation: Operation, status: int) -> Json:
    """The shared response of a status, with the codes that this operation may return."""
    codes = [code.value for code in operation.errors if code.status == status]
    return {"$ref": _TO_RESPONSES + _ERROR_NAMES[status], "description": _either(codes)}


def _either(codes: list[str]) -> str:
    return " or ".join(f"`{code}`" for code in codes)


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
    """A header; `required` if every response that lists it has it."""
    return {"description": description, **({"required": True} if required else {}), "schema": schema}


_STRING: Json = {"type": "string"}
_HEADERS: Json = {
    "X-Request-ID": _header("Equals `request_id` in the body.", _STRING, required=True),
    "WWW-Authenticate": _header("Supported schemes.", _STRING, required=True),
    "Retry-After": _header("Seconds to wait before a retry.", {"type": "integer", "minimum": 1}),
    "Idempotent-Replayed": _header("Only on a retry.", {"type": "string", "const": "true"}),
    "Original-Request-ID": _header("Only on a retry: `request_id` of the first request.", _STRING),
    "Set-Cookie": _header("Cookie for the next renewal of the session.", _STRING),
}
_ALWAYS_RETRY_AFTER = (429, 503)
_MAY_RETRY_AFTER = (401, 409)  # too many wrong credentials; `idempotency_in_progress`


def _error_response(status: int, reference: Json) -> Json:
    codes = [code for code in Code if code.status == status]
    headers: Json = {"X-Request-ID": {"$ref": _TO_HEADERS + "X-Request-ID"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"$ref": _TO_HEADERS + "WWW-Authenticate"}
    if status in _ALWAYS_RETRY_AFTER:
        headers["Retry-After"] = {**_HEADERS["Retry-After"], "required": True}
    elif status in _MAY_RETRY_AFTER:
        headers["Retry-After"] = {"$ref": _TO_HEADERS + "Retry-After"}
    content = _content(reference, {code.value: _EXAMPLES["errors"][code.value] for code in codes})
    return {"description": _either([code.value for code in codes]), "headers": headers, "content": content}


_SECURITY_SCHEMES: Json = {
    "basic": {"type": "http", "scheme": "basic", "description": "SMTP username and password."},
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ma_live_…` or `ma_test_…`."},
    "customer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "From /v1/auth/login."},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE_NAME, "description": "Set by the login."},
}


# ---- webhook events

_EVENTS = {
    EventType.DELIVERED.value: "The recipient's mail server accepted the message.",
    EventType.BOUNCED.value: "The recipient was permanently rejected. Its credit is returned.",
    EventType.FAILED.value: "Delivery to the recipient failed: attempts used up, or cancelled.",
    EventType.DELAYED.value: "The recipient was deferred for the first time, at least an hour after acceptance.",
    EventType.LATE_BOUNCED.value: "A bounce arrived by mail after the recipient's server had accepted the message.",
    EventType.COMPLAINED.value: "A mailbox provider reported that the recipient marked the message as spam.",
    EventType.RECEIVED.value: "A message arrived at a receiving address of the account.",
    PING_TYPE: "Test event, requested by a ping.",
}
_EVENT_DESCRIPTION = (
    "Posted once per recipient or received message, and retried until you respond with a 2xx, up to 7 times in total. "
    "Retries and replays keep `id`: use it to ignore duplicates. Verify `Service-Signature` before you trust the body."
)
_EVENT_HEADERS = (
    parameter(
        "Service-Signature",
        "header",
        "`t=<unix seconds>,v1=<hex>`: HMAC-SHA256 of `<t>.<raw body>`, keyed with the whole secret "
        "(`whsec_…`). Reject a `t` more than 300 seconds from now.",
        {"type": "string", "pattern": "^t=[0-9]+,v1=[0-9a-f]{64}$"},
        required=True,
    ),
    *(
        parameter(name, "header", meaning, {"type": "string", "pattern": pattern}, required=False)
        for name, meaning, pattern in (
            ("webhook-id", "Id of the event, for libraries of Standard Webhooks.", "^evt_[0-9a-f]+$"),
            ("webhook-timestamp", "Unix time of the attempt, in seconds.", "^[0-9]+$"),
            (
                "webhook-signature",
                "`v1,<base64>`: HMAC-SHA256 of `<id>.<timestamp>.<raw body>`, keyed with the base64-decoded part of "
                "the secret behind `whsec_`. Missing for an older secret, which is not standard base64: rotate it.",
                "^v1,[A-Za-z0-9+/]{43}=$",
            ),
        )
    ),
    parameter(_AGENT[0], "header", "The same in every request.", {"type": "string", "const": _AGENT[1]}, required=True),
)


def _event(name: str, reference: Json) -> Json:
    return {
        "tags": [Tag.EVENTS.title],
        "summary": _EVENTS[name],
        "description": _EVENT_DESCRIPTION,
        "operationId": camel_case(name),
        "security": [],
        # No client calls it. openapi-generator skips internal operations; its Python for these has a syntax error.
        "x-internal": True,
        "parameters": list(_EVENT_HEADERS),
        "requestBody": {"required": True, "content": _content(reference, {name: _EXAMPLES["events"][name]})},
        "responses": {
            "2XX": {"description": "Received. The response body is ignored."},
            "default": {"description": "Not received, as is no complete response within 5 seconds. Retried."},
        },
    }


_WRITING = trio.CapacityLimiter(1)
_TURN = trio.Lock()
ANSWER_PAUSE = 0.01  # seconds between two answers: anyone may ask, and a burst of large answers would delay mail


@lru_cache(maxsize=1)
def _encoded(base_url: str) -> tuple[bytes, bytes]:
    """The document as JSON, plain and compressed. Made for the first request: it takes a tenth of a second."""
    described = msgspec.json.encode(document(base_url))
    return described, gzip.compress(described, 6, mtime=0)


def blueprint(base_url: str) -> Blueprint:
    routes = Blueprint("openapi", __name__)

    @routes.get("/openapi.json")
    async def show() -> Response:
        headers = {"Vary": "Accept-Encoding"}
        async with _TURN:
            await trio.sleep(ANSWER_PAUSE)
        described, compressed = await trio.to_thread.run_sync(_encoded, base_url, limiter=_WRITING)
        if not may_compress():
            return Response(described, 200, headers, content_type="application/json")
        return Response(compressed, 200, {**headers, "Content-Encoding": "gzip"}, content_type="application/json")

    return routes
