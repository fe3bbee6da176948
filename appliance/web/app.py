"""The Quart application: every path except `/emails`, which the edge answers. Exceptions become the error object."""

import gzip
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import msgspec
import trio
from msgspec import Struct
from quart import Blueprint, Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WrongMethod
from werkzeug.routing import BaseConverter

from appliance.attention.mail import Mailer
from appliance.attention.problems import Problems
from appliance.config.settings import Config
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.intake.accept import MessageIntake
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.received_links import ReceivedLinks
from appliance.keys.secrets import PasswordHasher, WebhookSecrets
from appliance.message.characters import fault_in_line
from appliance.model.accounts import Caller, KeyPrincipal, Permission, Principal, User
from appliance.model.dashboard import Actor
from appliance.store import Store, translated
from appliance.telemetry.log import get_logger
from appliance.times import microseconds
from appliance.web import api
from appliance.web.api.message_body import MessageBodies
from appliance.web.auth import ENROL_FIRST, Authenticator, Claims, LoginCheck, SessionCookies, check_reach
from appliance.web.exchange import (
    OUR_FAULT,
    Answer,
    MethodNotAllowed,
    check_content_type,
    decode_body,
    error_answer,
    refusal_answer,
    request_id,
)
from appliance.web.operations import HOLDERS, PAGE_LIMIT, Limited, Operation, Tag, operations_of

COMPRESSED_FROM = 1_000  # smallest JSON response to compress, in bytes
ECONOMICAL_TO = 8_000_000  # largest JSON response with an ETag, and to compress, in bytes
ON_LOOP_BYTES = 64_000  # compressed within a millisecond on the event loop; larger responses on a thread
_COMPRESSING = trio.CapacityLimiter(1)
View = Callable[..., Awaitable[Response]]
Choice = TypeVar("Choice", bound=StrEnum)

log = get_logger("web")


class ApiServices(Struct, frozen=True, kw_only=True):
    config: Config
    store: Store
    env: Environment
    auth: Authenticator
    intake: MessageIntake
    logins: LoginCheck
    hashing: PasswordHasher
    cookies: SessionCookies
    signing_keys: SigningKeys
    webhook_secrets: WebhookSecrets
    bodies: MessageBodies  # shared, because its limits apply to all routes
    operations: Sequence[Operation]  # all operations of the API
    check_webhook_url: Callable[[str], Awaitable[str | None]]  # returns the reason why a URL is not allowed
    problems: Problems
    mailer: Mailer
    received_links: ReceivedLinks
    stopping: trio.Event


class Routes:
    """Base of the classes that answer operations. `create_app` serves every subclass in `appliance.web.api`."""

    tag: ClassVar[Tag]

    def __init__(self, services: ApiServices) -> None:
        self.services = services
        self.store = services.store

    async def current_user(self) -> tuple[User, Claims]:
        _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own entry
        return await self.services.auth.user(authorization, address)

    async def caller_of(self, principal: Principal) -> Caller:
        caller = await self.store.access.caller_by_account(principal.account_id)
        assert caller is not None  # noqa: S101 - the principal has just been let in
        if isinstance(principal, KeyPrincipal):
            scope = f"key:{principal.id}"
            caller = msgspec.structs.replace(caller, key=principal, test=principal.test, idempotency_scope=scope)
        return caller


def route_classes() -> list[type[Routes]]:
    """Every class of routes in `appliance.web.api`, in the order of their tags."""
    modules = [import_module(f"{api.__name__}.{module.name}") for module in iter_modules(api.__path__)]
    classes: list[type[Routes]] = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and any(operations_of(value))
    ]
    return sorted(classes, key=lambda routes: list(Tag).index(routes.tag))


class Rest(BaseConverter):
    """The rest of the path with its slashes, because addresses may contain them. Excludes `…/import`."""

    part_isolating = False
    regex = "(?!import$).+"


class NotTest(BaseConverter):
    """Any id except `test`, because /v1/emails/test is another route."""

    regex = "(?!test$)[^/]+"


def create_app(auth: Authenticator, routes: Iterable[object], blueprints: Iterable[Blueprint] = ()) -> QuartTrio:
    """Serve the operations of `routes`; a later group replaces operations of the same name."""
    app = QuartTrio("appliance", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.config["RESPONSE_TIMEOUT"] = None  # the connection enforces the write timeout
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    app.url_map.converters |= {"rest": Rest, "not_test": NotTest}
    handlers = {
        operation.name: (operation, getattr(group, name), f"{type(group).__name__}.{name}")
        for group in routes
        for name, operation in operations_of(type(group))
    }
    for operation, handler, endpoint in handlers.values():
        view = _view(auth, operation, handler)
        app.add_url_rule(operation.rule, endpoint, view, methods=[operation.method])
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    app.register_error_handler(PublicError, refusal)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _failed)
    return app


def _view(auth: Authenticator, operation: Operation, handler: Callable[..., Awaitable[Any]]) -> View:
    """Call the handler with the principal (if required), the path parameters and the body, by position."""

    async def view(**parameters: str) -> Response:
        arguments: list[object] = list(parameters.values())
        if operation.permission is not None:
            # The edge has authenticated requests without a body. A body takes time to arrive, so authenticate again.
            principal: Principal | None = request.scope.get("principal")  # type: ignore[assignment]
            if principal is None:
                _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own
                principal = await auth.principal(authorization, address)
            check_permission(operation, principal)
            arguments.insert(0, principal)
        if operation.body is not None:
            body = await request.get_data()
            assert isinstance(body, bytes)  # noqa: S101 - as it is unless text is asked for
            if body or operation.needs_body:
                check_content_type(request.headers.get("Content-Type", "").encode("latin-1", "replace"))
            arguments.append(decode_body(body if body or operation.needs_body else b"{}", operation.body))
        async with _noted(auth, operation, arguments, next(iter(parameters.values()), "")):
            result = await handler(*arguments)
        if isinstance(result, Response):
            return result
        response = answer(result, operation.success[0])
        return await _economical(response) if operation.method == "GET" else response

    return view


def _noted(
    auth: Authenticator, operation: Operation, arguments: Sequence[Any], named: str
) -> AbstractAsyncContextManager[None]:
    """Record the operation in the audit log of the principal's account, and of the account it administers."""
    if not operation.action:
        return nullcontext()
    principal: Principal = arguments[0]
    accounts = [principal.account_id]
    if operation.permission is Permission.ADMINISTER and named.startswith("acc_"):
        accounts.append(named)
    return auth.store.audit.noting(actor_of(principal), operation.action, client_address(), accounts, named)


def actor_of(principal: Principal) -> Actor:
    if isinstance(principal, User):
        return Actor("user", principal.email)
    return Actor("key", principal.id, principal.name if isinstance(principal, KeyPrincipal) else "")


def check_permission(operation: Operation, principal: Principal) -> None:
    """Refuse an operation to a principal without its permission. No other code decides this."""
    needed = operation.permission
    if needed is not None and needed not in principal.permissions:
        raise Refused(Code.FORBIDDEN, f"{HOLDERS[needed]} may do this.")
    if not isinstance(principal, User):
        if operation.people_only:
            raise Refused(Code.FORBIDDEN, "API keys may not call this endpoint. Log in as a user instead.")
        if operation.limited is Limited.REFUSED:
            check_reach(principal)
    elif principal.must_enrol and not operation.of_login:
        raise Refused(Code.FORBIDDEN, ENROL_FIRST)


def refused_to(operations: Iterable[Operation], principal: Principal) -> list[str]:
    refused = []
    for operation in operations:
        try:
            check_permission(operation, principal)
        except Refused:
            refused.append(operation.id)
    return refused


async def _economical(response: Response) -> Response:
    """Add an ETag, and answer 304 or compress.

    The ETag covers everything but the request id. Only responses to GET come here: none has a secret, whose length and
    neighbours compression would reveal (BREACH). Message bodies are returned as responses of their own.
    """
    body = await response.get_data(as_text=False)
    if len(body) > ECONOMICAL_TO:
        return response
    compresses = len(body) >= COMPRESSED_FROM and may_compress()
    work = body, request_id().encode("ascii"), compresses
    if len(body) <= ON_LOOP_BYTES:
        etag, compressed = _etag_and_gzip(*work)
    else:
        etag, compressed = await trio.to_thread.run_sync(_etag_and_gzip, *work, limiter=_COMPRESSING)
    response.set_etag(etag, weak=True)
    if request.if_none_match.contains_weak(etag):
        not_modified(response)
    elif compresses:
        response.set_data(compressed)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
    return response


def _etag_and_gzip(body: bytes, without: bytes, compresses: bool) -> tuple[str, bytes]:
    etag = hashlib.sha256(body.replace(without, b"")).hexdigest()[:32]
    return etag, gzip.compress(body, 1, mtime=0) if compresses else b""


# ---- for the routes
def not_modified(response: Response) -> None:
    response.status_code = 304
    response.set_data(b"")
    del response.headers["Content-Length"], response.headers["Content-Type"]


def may_compress() -> bool:
    return request.accept_encodings["gzip"] > 0


def client_address() -> str:
    return str(request.scope["appliance"][1])  # type: ignore[typeddict-item]  # the edge's own entry


def whole_number(name: str, default: int, maximum: int) -> int:
    text = request.args.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) and 1 <= int(text) <= maximum):
        raise invalid(name, f"must be a whole number from 1 to {maximum}")
    return int(text)


def page_limit(default: int = PAGE_LIMIT) -> int:
    return whole_number("limit", default, PAGE_LIMIT)


def choice(name: str, choices: type[Choice]) -> Choice | None:
    text = request.args.get(name)
    if text is None:
        return None
    try:
        return choices(text)
    except ValueError:
        raise invalid(name, f"must be one of {', '.join(choices)}") from None


class Flag(StrEnum):
    """A yes or no in a query."""

    TRUE = "true"
    FALSE = "false"


def flag(name: str) -> bool:
    return choice(name, Flag) is Flag.TRUE


def moment(name: str) -> int | None:
    text = request.args.get(name)
    if text is None:
        return None
    try:
        return microseconds(text.replace(" ", "+") if "T" in text else text)  # from clients that do not escape the plus
    except ValueError:
        raise invalid(name, "must be a time such as 2026-11-15T13:00:00Z, or a date such as 2026-11-15") from None


def text_filter(name: str, most: int, spelled: Callable[[str], str] = str) -> str | None:
    text = request.args.get(name)
    if text is None:
        return None
    if not 1 <= len(text.strip()) <= most:
        raise invalid(name, f"must have 1 to {most} characters")
    return spelled(text.strip())


def check_line(name: str, text: str) -> None:
    if fault := fault_in_line(text):
        raise invalid(name, f"must not contain {fault}")


def answer(value: Any, status: int = 200) -> Response:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, content_type="application/json")


# ---- errors
def _error(error: Answer) -> Response:
    # The edge adds the headers of every response.
    status, headers, body = error
    response = answer(body, status)
    for name, value in headers:
        if name in (b"retry-after", b"www-authenticate", b"allow"):
            response.headers[name.decode()] = value.decode()
    return response


async def refusal(refused: PublicError) -> Response:
    """The error as a response. A route calls it to add a header."""
    return _error(refusal_answer(refused, request_id()))


async def _http_error(error: HTTPException) -> Response:
    if isinstance(error, WrongMethod):
        return _error(refusal_answer(MethodNotAllowed(error.valid_methods or ()), request_id()))
    if error.code == 404 or error.code is None or error.code >= 500:
        text = "Nothing exists at this path. See /openapi.json for all paths."
        return _error(error_answer(Code.NOT_FOUND, text, request_id()))
    return _error(error_answer(Code.INVALID_REQUEST, "The request could not be parsed.", request_id()))


async def _failed(error: Exception) -> Response:
    refused = translated(error)
    if isinstance(refused, PublicError):
        log.error("request refused", request_id=request_id(), cause=repr(error))
        return await refusal(refused)
    log.exception("request failed", request_id=request_id(), method=request.method, path=request.path[:200])
    return _error(error_answer(Code.INTERNAL_ERROR, OUR_FAULT, request_id()))
