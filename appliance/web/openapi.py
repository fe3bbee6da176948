"""In charge of /openapi.json: the interface in OpenAPI 3.1, assembled from the very types that validate."""

from typing import Any

import msgspec
from quart import Blueprint, Response

from appliance import __version__
from appliance.errors import ERROR_ANSWERS, Code
from appliance.message import schema as request_schema
from appliance.web import health, message_json, session_cookie
from appliance.web.answer import ErrorObject
from appliance.web.api import (
    account,
    admin_accounts,
    admin_queue,
    api_keys,
    domains,
    login,
    send_test,
    sessions,
    smtp_credentials,
    stats,
    suppressions,
    template_versions,
    templates,
    webhook,
    webhook_deliveries,
)
from appliance.web.api import emails as mail_log
from appliance.web.operations import Operation

Json = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"

OPERATIONS: tuple[Operation, ...] = (
    *message_json.OPERATIONS,
    *login.OPERATIONS,
    *sessions.OPERATIONS,
    *account.OPERATIONS,
    *domains.OPERATIONS,
    *smtp_credentials.OPERATIONS,
    *api_keys.OPERATIONS,
    *mail_log.OPERATIONS,
    *send_test.OPERATIONS,
    *stats.OPERATIONS,
    *templates.OPERATIONS,
    *template_versions.OPERATIONS,
    *suppressions.OPERATIONS,
    *webhook.OPERATIONS,
    *webhook_deliveries.OPERATIONS,
    *admin_accounts.OPERATIONS,
    *admin_queue.OPERATIONS,
    *health.OPERATIONS,
)


def document(base_url: str) -> Json:
    """The whole description."""
    types = [operation.success[1] for operation in OPERATIONS]
    types += [operation.body for operation in OPERATIONS if operation.body is not None]
    schemas, components = msgspec.json.schema_components([*types, ErrorObject], ref_template=REFERENCE)
    # With the rules between fields, which no type can say.
    components |= request_schema.components(REFERENCE)
    components["TemplateRequest"]["anyOf"] = [{"required": ["text"]}, {"required": ["html"]}]
    components["CreditsRequest"]["oneOf"] = [{"required": ["change"]}, {"required": ["balance"]}]
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
    "session": {"type": "apiKey", "in": "cookie", "name": session_cookie.NAME, "description": "Set by a login."},
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
    "Set-Cookie": {"description": "The cookie that renews the session next.", "schema": {"type": "string"}},
}
_ALWAYS_RETRY_AFTER = (429, 503)
_MAY_RETRY_AFTER = (401, 409)  # to an address that goes on guessing; `idempotency_in_progress`


def _operation(operation: Operation, references: dict[type, Json]) -> Json:
    status, success, description = operation.success
    headers = {name: _HEADERS[name] for name in ("X-Request-ID", *operation.headers)}
    responses = {str(status): _response(description, references[success], headers)}
    for code in operation.errors:
        responses.setdefault(str(ERROR_ANSWERS[code].status), _error_response(operation, code, references[ErrorObject]))
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
    status = ERROR_ANSWERS[code].status
    codes = [other.value for other in operation.errors if ERROR_ANSWERS[other].status == status]
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
