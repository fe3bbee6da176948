"""In charge of /openapi.json: the interface in OpenAPI 3.1, assembled from the very types that validate."""

from typing import Any

import msgspec
from quart import Blueprint, Response

from appliance import __version__
from appliance.accept import Receipt
from appliance.errors import ANSWERS, Code
from appliance.message import schema as request_schema
from appliance.message.limits import KEY_LENGTH
from appliance.message.request import SendRequest
from appliance.message.template import ALIAS
from appliance.web import webhook, webhook_deliveries
from appliance.web.answer import ErrorObject
from appliance.web.app import PAGE
from appliance.web.described import Operation
from appliance.web.emails import MessageObject
from appliance.web.health import HealthAnswer
from appliance.web.session import ChangedObject, LoggedOutObject, LoginRequest, PasswordRequest, TokenObject
from appliance.web.suppressions import SuppressionAnswer, SuppressionRequest, SuppressionsAnswer
from appliance.web.templates import DeletedAnswer, TemplateAnswer, TemplateRequest, TemplatesAnswer

Json = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"

SEND: list[Json] = [{"basic": []}, {"apiKey": []}, {"customer": []}]
CUSTOMER: list[Json] = [{"customer": []}]


def _parameter(name: str, place: str, description: str, schema: Json, *, required: bool = False) -> Json:
    return {
        "name": name,
        "in": place,
        "required": required or place == "path",
        "description": description,
        "schema": schema,
    }


_KEY = _parameter(
    "Idempotency-Key",
    "header",
    "Chosen by the client, valid for 24 hours; a retry with the same key and body is safe.",
    {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    required=True,
)
_MESSAGE_ID = _parameter("id", "path", "The `id` of the send response.", {"type": "string"})
_ALIAS = _parameter("alias", "path", "The template's alias.", {"type": "string", "pattern": f"^{ALIAS.pattern}$"})
_ADDRESS = _parameter("address", "path", "The suppressed address.", {"type": "string", "format": "email"})
_PAGING = (
    _parameter(
        "limit", "query", "Entries on the page.", {"type": "integer", "minimum": 1, "maximum": PAGE, "default": PAGE}
    ),
    _parameter("after", "query", "`next` of the page before.", {"type": "string"}),
)

# Whatever the request, these may come: they are what a gateway of our own would answer.
_ALWAYS = (Code.INTERNAL_ERROR, Code.TEMPORARY_FAILURE)
_WITH_BODY = (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.RATE_LIMITED)

OPERATIONS = (
    Operation(
        "post",
        "/emails",
        "Accept a message for delivery.",
        (202, Receipt, "Accepted and on disk. A retry also has `Idempotent-Replayed` and `Original-Request-ID`."),
        (
            Code.INVALID_REQUEST,
            Code.UNAUTHORIZED,
            Code.INSUFFICIENT_CREDITS,
            Code.FORBIDDEN,
            Code.ACCOUNT_SUSPENDED,
            Code.IDEMPOTENCY_CONFLICT,
            Code.IDEMPOTENCY_IN_PROGRESS,
            Code.PAYLOAD_TOO_LARGE,
            Code.RATE_LIMITED,
            Code.WARMUP_LIMITED,
            Code.INTERNAL_ERROR,
            Code.SERVICE_UNAVAILABLE,
            Code.TEMPORARY_FAILURE,
        ),
        SendRequest,
        tuple(SEND),
        (_KEY,),
        ("Idempotent-Replayed", "Original-Request-ID"),
    ),
    Operation(
        "get",
        "/emails/{id}",
        "Read a message and what became of each recipient.",
        (200, MessageObject, "The message."),
        (Code.UNAUTHORIZED, Code.NOT_FOUND),
        security=tuple(SEND),
        parameters=(_MESSAGE_ID,),
    ),
    Operation(
        "post",
        "/v1/auth/login",
        "Get a customer token, good for 12 hours.",
        (200, TokenObject, "Logged in."),
        (*_WITH_BODY, Code.UNAUTHORIZED, *_ALWAYS),
        LoginRequest,
    ),
    Operation(
        "post",
        "/v1/auth/refresh",
        "Get a new token for the one at hand.",
        (200, TokenObject, "A new token."),
        (Code.UNAUTHORIZED, *_ALWAYS),
        security=tuple(CUSTOMER),
    ),
    Operation(
        "post",
        "/v1/auth/logout",
        "Revoke the token at hand.",
        (200, LoggedOutObject, "Logged out."),
        (Code.UNAUTHORIZED, *_ALWAYS),
        security=tuple(CUSTOMER),
    ),
    Operation(
        "post",
        "/v1/auth/password",
        "Change the password, and with it revoke every token of the user.",
        (200, ChangedObject, "Changed; log in again."),
        (*_WITH_BODY, Code.UNAUTHORIZED, Code.FORBIDDEN, *_ALWAYS),
        PasswordRequest,
        tuple(CUSTOMER),
    ),
    Operation(
        "get",
        "/v1/templates",
        "List the account's templates by alias.",
        (200, TemplatesAnswer, "A page of templates."),
        (Code.INVALID_REQUEST, Code.UNAUTHORIZED, *_ALWAYS),
        security=tuple(CUSTOMER),
        parameters=_PAGING,
    ),
    Operation(
        "get",
        "/v1/templates/{alias}",
        "Read the current version of a template.",
        (200, TemplateAnswer, "The template."),
        (Code.UNAUTHORIZED, Code.NOT_FOUND, *_ALWAYS),
        security=tuple(CUSTOMER),
        parameters=(_ALIAS,),
    ),
    Operation(
        "put",
        "/v1/templates/{alias}",
        "Store a template as a new version.",
        (200, TemplateAnswer, "The template as stored."),
        (*_WITH_BODY, Code.UNAUTHORIZED, Code.CONFLICT, *_ALWAYS),
        TemplateRequest,
        tuple(CUSTOMER),
        (_ALIAS,),
    ),
    Operation(
        "delete",
        "/v1/templates/{alias}",
        "Remove a template from use.",
        (200, DeletedAnswer, "Deleted."),
        (Code.UNAUTHORIZED, Code.NOT_FOUND, *_ALWAYS),
        security=tuple(CUSTOMER),
        parameters=(_ALIAS,),
    ),
    Operation(
        "get",
        "/v1/suppressions",
        "List the addresses the account no longer sends to.",
        (200, SuppressionsAnswer, "A page of addresses."),
        (Code.INVALID_REQUEST, Code.UNAUTHORIZED, *_ALWAYS),
        security=tuple(CUSTOMER),
        parameters=_PAGING,
    ),
    Operation(
        "post",
        "/v1/suppressions",
        "Suppress an address.",
        (201, SuppressionAnswer, "The entry, new or as it was."),
        (*_WITH_BODY, Code.UNAUTHORIZED, *_ALWAYS),
        SuppressionRequest,
        tuple(CUSTOMER),
    ),
    Operation(
        "delete",
        "/v1/suppressions/{address}",
        "Let an address be sent to again.",
        (200, DeletedAnswer, "Removed."),
        (Code.UNAUTHORIZED, Code.NOT_FOUND, *_ALWAYS),
        security=tuple(CUSTOMER),
        parameters=(_ADDRESS,),
    ),
    *webhook.OPERATIONS,
    *webhook_deliveries.OPERATIONS,
    Operation("get", "/healthz", "Tell whether the process is alive.", (200, HealthAnswer, "Alive.")),
    Operation(
        "get",
        "/readyz",
        "Tell whether the service takes mail: storage writable, not shutting down.",
        (200, HealthAnswer, "Ready."),
        (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE),
    ),
)


def document(base_url: str) -> Json:
    """The whole description."""
    types = [operation.success[1] for operation in OPERATIONS]
    types += [operation.body for operation in OPERATIONS if operation.body is not None]
    schemas, components = msgspec.json.schema_components([*types, ErrorObject], ref_template=REFERENCE)
    # With the rules between fields, which no type can say.
    components |= request_schema.components(REFERENCE)
    components["TemplateRequest"]["anyOf"] = [{"required": ["text"]}, {"required": ["html"]}]
    references = dict(zip([*types, ErrorObject], schemas, strict=True))
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mail appliance",
            "version": "1.0.0",
            "description": f"Transactional email over HTTP, served by mail appliance {__version__}.",
        },
        "servers": [{"url": base_url}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


_SECURITY_SCHEMES: Json = {
    "basic": {"type": "http", "scheme": "basic", "description": "SMTP username and password."},
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ma_live_…` or `ma_test_…`."},
    "customer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "From /v1/auth/login."},
}
# Every header an answer may tell something by; those that are always there when they are listed are required.
_HEADERS: Json = {
    "X-Request-ID": {
        "description": "Equals `request_id` in the body.",
        "required": True,
        "schema": {"type": "string"},
    },
    "WWW-Authenticate": {
        "description": "The schemes that are understood.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
    "Idempotent-Replayed": {"description": "On a retry only.", "schema": {"type": "string", "const": "true"}},
    "Original-Request-ID": {
        "description": "On a retry only: the `request_id` of the first request.",
        "schema": {"type": "string"},
    },
}
_ALWAYS_RETRY_AFTER = (429, 503)
_MAY_RETRY_AFTER = (401, 409)  # to an address that goes on guessing; `idempotency_in_progress`


def _operation(operation: Operation, references: dict[type, Json]) -> Json:
    status, success, description = operation.success
    headers = {name: _HEADERS[name] for name in ("X-Request-ID", *operation.headers)}
    responses = {str(status): _response(description, references[success], headers)}
    for code in operation.errors:
        responses.setdefault(str(ANSWERS[code].status), _error_response(operation, code, references[ErrorObject]))
    described: Json = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "responses": dict(sorted(responses.items())),
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.security:
        described["security"] = list(operation.security)
    if operation.body is not None:
        content = {"application/json": {"schema": references[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _error_response(operation: Operation, code: Code, reference: Json) -> Json:
    status = ANSWERS[code].status
    codes = [other.value for other in operation.errors if ANSWERS[other].status == status]
    schema = {"allOf": [reference, {"properties": {"code": {"enum": codes}}}]}
    return _response(" or ".join(f"`{each}`" for each in codes), schema, _error_headers(status))


def _error_headers(status: int) -> Json:
    headers = {"X-Request-ID": _HEADERS["X-Request-ID"]}
    if status == 401:
        headers["WWW-Authenticate"] = _HEADERS["WWW-Authenticate"]
    if status in _ALWAYS_RETRY_AFTER:
        headers["Retry-After"] = {**_HEADERS["Retry-After"], "required": True}
    elif status in _MAY_RETRY_AFTER:
        headers["Retry-After"] = _HEADERS["Retry-After"]
    return headers


def _response(description: str, schema: Json, headers: Json) -> Json:
    return {"description": description, "headers": headers, "content": {"application/json": {"schema": schema}}}


def blueprint(base_url: str) -> Blueprint:
    """The route."""
    routes = Blueprint("openapi", __name__)
    described = msgspec.json.encode(document(base_url))

    @routes.get("/openapi.json")
    async def show() -> Response:
        return Response(described, 200, content_type="application/json")

    return routes
