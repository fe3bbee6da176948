"""/openapi.json: the API in OpenAPI 3.1, made from the operations and the types that validate their bodies."""

import msgspec
from quart import Blueprint, Response

from appliance import __version__
from appliance.message import schema as request_schema
from appliance.web import message_json, session_cookie
from appliance.web.answer import ErrorObject
from appliance.web.api.account import AccountRoutes
from appliance.web.api.admin_accounts import AdminAccountRoutes
from appliance.web.api.admin_nodes import AdminNodeRoutes
from appliance.web.api.admin_queue import AdminQueueRoutes
from appliance.web.api.credentials import ApiKeyRoutes, SmtpCredentialRoutes
from appliance.web.api.domains import DomainRoutes
from appliance.web.api.emails import EmailRoutes
from appliance.web.api.login import LoginRoutes, SessionRoutes
from appliance.web.api.send_test import SendTestRoutes
from appliance.web.api.stats import StatsRoutes
from appliance.web.api.suppressions import SuppressionRoutes
from appliance.web.api.templates import TemplateRoutes
from appliance.web.api.webhook import WebhookRoutes
from appliance.web.api.webhook_deliveries import WebhookDeliveryRoutes
from appliance.web.app import HealthRoutes, Routes
from appliance.web.field_descriptions import describe_fields
from appliance.web.operations import Json, Operation, operations_of

REFERENCE = "#/components/schemas/{name}"

ROUTES: tuple[type[Routes], ...] = (
    LoginRoutes,
    SessionRoutes,
    AccountRoutes,
    DomainRoutes,
    SmtpCredentialRoutes,
    ApiKeyRoutes,
    EmailRoutes,
    SendTestRoutes,
    StatsRoutes,
    TemplateRoutes,
    SuppressionRoutes,
    WebhookRoutes,
    WebhookDeliveryRoutes,
    AdminAccountRoutes,
    AdminQueueRoutes,
    AdminNodeRoutes,
    HealthRoutes,
)
OPERATIONS: tuple[Operation, ...] = (
    *message_json.EMAIL_OPERATIONS,
    *(operation for routes in ROUTES for _, operation in operations_of(routes)),
)


def document(base_url: str) -> Json:
    types = [operation.success[1] for operation in OPERATIONS]
    types += [operation.body for operation in OPERATIONS if operation.body is not None]
    schemas, components = msgspec.json.schema_components([*types, ErrorObject], ref_template=REFERENCE)
    # Rules between fields, which types cannot express.
    components |= request_schema.components(REFERENCE)
    components["TemplateRequest"]["anyOf"] = [{"required": ["text"]}, {"required": ["html"]}]
    components["CreditsRequest"]["oneOf"] = [{"required": ["change"]}, {"required": ["balance"]}]
    describe_fields(components)
    references = dict(zip([*types, ErrorObject], schemas, strict=True))
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, references)
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
    "session": {"type": "apiKey", "in": "cookie", "name": session_cookie.COOKIE_NAME, "description": "Set by a login."},
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


_ID_CHARACTERS = str.maketrans({"/": "_", "{": None, "}": None})


def _operation(operation: Operation, references: dict[type, Json]) -> Json:
    status, success, description = operation.success
    headers = {name: _HEADERS[name] for name in ("X-Request-ID", *operation.headers)}
    responses = {str(status): _response(description, references[success], headers)}
    for code in operation.errors:
        responses.setdefault(str(code.status), _error_response(operation, code.status, references[ErrorObject]))
    described: Json = {
        "summary": operation.summary,
        "operationId": operation.method.lower() + operation.path.translate(_ID_CHARACTERS),
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


def _error_response(operation: Operation, status: int, reference: Json) -> Json:
    codes = [code.value for code in operation.errors if code.status == status]
    schema = {"allOf": [reference, {"properties": {"code": {"enum": codes}}}]}
    headers = {"X-Request-ID": _HEADERS["X-Request-ID"]}
    if status == 401:
        headers["WWW-Authenticate"] = _HEADERS["WWW-Authenticate"]
    if status in _ALWAYS_RETRY_AFTER:
        headers["Retry-After"] = {**_HEADERS["Retry-After"], "required": True}
    elif status in _MAY_RETRY_AFTER:
        headers["Retry-After"] = _HEADERS["Retry-After"]
    return _response(" or ".join(f"`{each}`" for each in codes), schema, headers)


def _response(description: str, schema: Json, headers: Json) -> Json:
    return {"description": description, "headers": headers, "content": {"application/json": {"schema": schema}}}


def blueprint(base_url: str) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    described = msgspec.json.encode(document(base_url))

    @routes.get("/openapi.json")
    async def show() -> Response:
        return Response(described, 200, content_type="application/json")

    return routes
