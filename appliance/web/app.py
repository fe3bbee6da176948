"""The Quart application: every path but `/emails`, whose two operations the edge answers itself.

Whatever a route raises is answered with the error object.
"""

import gzip
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import trio
from quart import Blueprint, Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WrongMethod
from werkzeug.routing import BaseConverter

from appliance.config.settings import Config
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.intake.accept import MessageIntake
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.passwords import PasswordHasher
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.message.characters import fault_in_line
from appliance.model.accounts import Caller, KeyPrincipal, Permission, Principal, User
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.store.sqlite.faults import translated
from appliance.telemetry.log import get_logger
from appliance.web.answer import OUR_FAULT, Answer, MethodNotAllowed, error_answer, refusal_answer
from appliance.web.api.message_body import MessageBodies
from appliance.web.auth import ENROL_FIRST, Authenticator, check_reach
from appliance.web.body import check_content_type, decode_body
from appliance.web.login_check import LoginCheck
from appliance.web.operations import HOLDERS, PAGE_LIMIT, Limited, Operation, operations_of
from appliance.web.session_cookie import SessionCookies
from appliance.web.tokens import Claims

COMPRESSED_FROM = 1_000  # bytes of a JSON answer that is compressed
ECONOMICAL_TO = 64_000  # bytes of a JSON answer that has an ETag and may be compressed
View = Callable[..., Awaitable[Response]]
Choice = TypeVar("Choice", bound=StrEnum)

log = get_logger("web")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """What the routes use."""

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
    bodies: MessageBodies  # one, for its limits hold over all routes
    operations: Sequence[Operation]  # all that routes answer
    check_webhook_url: Callable[[str], Awaitable[str | None]]  # why a URL may not be saved, in words
    stopping: trio.Event


class Routes:
    """The base of the classes that answer operations."""

    def __init__(self, services: ApiServices) -> None:
        self.services = services
        self.store = services.store

    async def current_user(self) -> tuple[User, Claims]:
        return await current_user(self.services.auth)

    async def caller_of(self, principal: Principal) -> Caller:
        """The sender that a user or an API key stands for; a key's limits hold here, too."""
        caller = await self.store.access.caller_by_account(principal.account_id)
        assert caller is not None  # noqa: S101 - the principal has just been let in
        if isinstance(principal, KeyPrincipal):
            scope = f"key:{principal.id}"
            caller = msgspec.structs.replace(caller, key=principal, test=principal.test, idempotency_scope=scope)
        return caller


class Rest(BaseConverter):
    """The rest of the path, slashes included: an address may contain them. `…/import` is a path of its own."""

    part_isolating = False
    regex = "(?!import$).+"


class NotTest(BaseConverter):
    """Any id but `test`: /v1/emails/test is a path of its own."""

    regex = "(?!test$)[^/]+"


def create_app(auth: Authenticator, routes: Iterable[object], blueprints: Iterable[Blueprint] = ()) -> QuartTrio:
    """The application with these routes (see `operations`), and with blueprints that are no part of the API."""
    app = QuartTrio("appliance", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.config["RESPONSE_TIMEOUT"] = None  # writing has its own deadline, in the connection
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    app.url_map.converters |= {"rest": Rest, "not_test": NotTest}
    for each in routes:
        for name, operation in operations_of(type(each)):
            endpoint, view = f"{type(each).__name__}.{name}", _view(auth, operation, getattr(each, name))
            app.add_url_rule(operation.rule, endpoint, view, methods=[operation.method])
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    app.register_error_handler(Refused, refusal)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _failed)
    return app


def _view(auth: Authenticator, operation: Operation, handler: Callable[..., Awaitable[Any]]) -> View:
    """Call the handler by position: with the principal if it needs one, the parameter of the path, the body."""

    async def view(**parameters: str) -> Response:
        given: list[object] = list(parameters.values())
        if operation.permission is not None:
            # The edge has authenticated a request without a body. A body takes time, so its sender is checked after it.
            principal: Principal | None = request.scope.get("principal")  # type: ignore[assignment]
            if principal is None:
                _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own
                principal = await auth.principal(authorization, address)
            check_permission(operation, principal)
            given.insert(0, principal)
        if operation.body is not None:
            body = await request.get_data()
            assert isinstance(body, bytes)  # noqa: S101 - as it is unless text is asked for
            if body or operation.needs_body:
                check_content_type(request.headers.get("Content-Type", "").encode("latin-1", "replace"))
            given.append(decode_body(body if body or operation.needs_body else b"{}", operation.body))
        async with _noted(auth, operation, given, next(iter(parameters.values()), "")):
            shown = await handler(*given)
        if isinstance(shown, Response):
            return shown
        made = answer(shown, operation.success[0])
        return await _economical(made) if operation.method == "GET" else made

    return view


@asynccontextmanager
async def _noted(auth: Authenticator, operation: Operation, given: Sequence[Any], named: str) -> AsyncIterator[None]:
    """Have what the operation changes written to the audit log, in the account's own and in an administrator's."""
    if not operation.action:
        yield
        return
    principal: Principal = given[0]
    accounts = [principal.account_id]
    if operation.permission is Permission.ADMINISTER and named.startswith("acc_"):
        accounts.append(named)
    async with auth.store.audit.noting(actor_of(principal), operation.action, client_address(), accounts, named):
        yield


def actor_of(principal: Principal) -> Actor:
    """How the audit log names a principal."""
    if isinstance(principal, User):
        return Actor("user", principal.email)
    return Actor("key", principal.id, principal.name if isinstance(principal, KeyPrincipal) else "")


def check_permission(operation: Operation, principal: Principal) -> None:
    """Refuse an operation to a principal who lacks its permission: the only place where this is decided."""
    needed = operation.permission
    if needed is not None and needed not in principal.permissions:
        raise Refused(Code.FORBIDDEN, f"{HOLDERS[needed]} may do this.")
    if not isinstance(principal, User):
        if operation.people_only:
            raise Refused(Code.FORBIDDEN, "API keys may not do this: log in.")
        if operation.limited is Limited.REFUSED:
            check_reach(principal)
    elif principal.must_enrol and not (operation.people_only and needed is Permission.VIEW):
        raise Refused(Code.FORBIDDEN, ENROL_FIRST)  # all but what is about the person itself


def refused_to(operations: Iterable[Operation], principal: Principal) -> list[str]:
    """The ids of those that the principal may not use."""

    def may(operation: Operation) -> bool:
        try:
            check_permission(operation, principal)
        except Refused:
            return False
        return True

    return [operation.id for operation in operations if not may(operation)]


async def _economical(response: Response) -> Response:
    """The same, smaller on the wire, if that pays and holds the event loop for less than a millisecond.

    The ETag is that of all but the request id: a client that has an answer with the same one gets 304 and no body.
    """
    body = await response.get_data(as_text=False)
    if len(body) > ECONOMICAL_TO:
        return response
    etag = hashlib.sha256(body.replace(request_id().encode("ascii"), b"")).hexdigest()[:32]
    response.set_etag(etag, weak=True)
    if request.if_none_match.contains_weak(etag):
        not_modified(response)
    elif len(body) >= COMPRESSED_FROM and may_compress():
        response.set_data(gzip.compress(body, 1, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
    return response


# ---- for the routes


def not_modified(response: Response) -> None:
    """Make it a 304, which has no body and says nothing about one."""
    response.status_code = 304
    response.set_data(b"")
    del response.headers["Content-Length"], response.headers["Content-Type"]


def may_compress() -> bool:
    """Whether the client of the current request takes gzip."""
    return request.accept_encodings["gzip"] > 0


def request_id() -> str:
    return str(request.scope["appliance"][0])  # type: ignore[typeddict-item]  # the edge's own entry


def client_address() -> str:
    return str(request.scope["appliance"][1])  # type: ignore[typeddict-item]  # the edge's own entry


async def current_user(auth: Authenticator) -> tuple[User, Claims]:
    """The user of the token in the current request; refused without a valid one."""
    _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own entry
    return await auth.user(authorization, address)


def whole_number(name: str, usual: int, most: int) -> int:
    """A number in the query of the current request, `usual` if there is none."""
    given = request.args.get(name, str(usual))
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(most)) and 1 <= int(given) <= most):
        raise invalid(name, f"must be a whole number from 1 to {most}")
    return int(given)


def page_limit(usual: int = PAGE_LIMIT) -> int:
    return whole_number("limit", usual, PAGE_LIMIT)


def choice(name: str, choices: type[Choice]) -> Choice | None:
    """The value of a parameter of the query, or None."""
    given = request.args.get(name)
    if given is None:
        return None
    try:
        return choices(given)
    except ValueError:
        raise invalid(name, f"must be one of {', '.join(choices)}") from None


def check_line(name: str, text: str) -> None:
    """Refuse a text that would not stay on one line."""
    if fault := fault_in_line(text):
        raise invalid(name, f"must not contain {fault}")


def answer(value: Any, status: int = 200) -> Response:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, content_type="application/json")


# ---- errors


def _error(error: Answer) -> Response:
    # The edge adds the headers that every answer has.
    status, headers, body = error
    response = answer(body, status)
    for name, value in headers:
        if name in (b"retry-after", b"www-authenticate", b"allow"):
            response.headers[name.decode()] = value.decode()
    return response


async def refusal(refused: PublicError) -> Response:
    """The error as a response; a route calls it to add a header."""
    return _error(refusal_answer(refused, request_id()))


async def _http_error(error: HTTPException) -> Response:
    if isinstance(error, WrongMethod):
        return _error(refusal_answer(MethodNotAllowed(error.valid_methods or ()), request_id()))
    if error.code == 404 or error.code is None or error.code >= 500:
        return _error(error_answer(Code.NOT_FOUND, "There is nothing at this address.", request_id()))
    return _error(error_answer(Code.INVALID_REQUEST, "This request cannot be read.", request_id()))


async def _failed(error: Exception) -> Response:
    refused = translated(error)
    if isinstance(refused, PublicError):
        log.error("request refused", request_id=request_id(), cause=repr(error))
        return await refusal(refused)
    log.exception("request failed", request_id=request_id(), method=request.method, path=request.path[:200])
    return _error(error_answer(Code.INTERNAL_ERROR, OUR_FAULT, request_id()))


# ---- health checks for monitoring


class HealthAnswer(msgspec.Struct):
    """All is well."""

    status: str
    request_id: str


class HealthRoutes(Routes):
    @Operation("GET /healthz", (200, HealthAnswer, "Alive."))
    async def get_health(self) -> HealthAnswer:
        """Tell whether the process is alive."""
        return HealthAnswer("ok", request_id())

    @Operation("GET /readyz", (200, HealthAnswer, "Ready."), (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE))
    async def get_readiness(self) -> HealthAnswer:
        """Tell whether the service takes mail: storage writable, not shutting down."""
        if self.services.stopping.is_set():
            raise Refused(Code.SERVICE_UNAVAILABLE, "The server is shutting down.", retry_after=5)
        self.services.intake.check_disk()
        await self.store.check_writable()
        self.services.intake.check_clock()
        if not self.store.engine.holds_lease():
            text = "This node may deliver nothing: its lease has expired."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        return HealthAnswer("ready", request_id())
