"""The Quart application: every path but `/emails`, whose two operations the edge answers itself.

Whatever a route raises is answered with the error object.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from quart import Blueprint, Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WrongMethod
from werkzeug.routing import BaseConverter

from appliance.errors import Code, Refused
from appliance.model.mail import Role, User
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.faults import translated
from appliance.telemetry.log import get_logger
from appliance.web.answer import MethodNotAllowed, error_answer, refusal_answer
from appliance.web.auth import Authenticator
from appliance.web.body import check_content_type, decode_body
from appliance.web.operations import PAGE_LIMIT, Operation, operations_of
from appliance.web.tokens import Claims

T = TypeVar("T")
View = Callable[..., Awaitable[Response]]

log = get_logger("web")


@dataclass(frozen=True, slots=True)
class ApiServices:
    """What all routes use."""

    store: Store
    outside: Outside
    auth: Authenticator

    async def user(self) -> tuple[User, Claims]:
        """The user of the token in the current request; refused without a valid one."""
        _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own entry
        return await self.auth.user(authorization, address)

    async def user_with(self, role: Role) -> User:
        """The same, without the claims; an administrator may do what a customer may."""
        user, _ = await self.user()
        if role is Role.ADMIN and user.role is not Role.ADMIN:
            raise Refused(Code.FORBIDDEN, "Only an administrator may do this.")
        return user


class Rest(BaseConverter):
    """The rest of the path, slashes included: an address may contain them."""

    part_isolating = False
    regex = ".+"


class NotTest(BaseConverter):
    """Any id but `test`: /v1/emails/test is a path of its own."""

    regex = "(?!test$)[^/]+"


def create_app(services: ApiServices, routes: Iterable[object], blueprints: Iterable[Blueprint] = ()) -> QuartTrio:
    """The application with these routes (see `operations`), and with blueprints that are no part of the API."""
    app = QuartTrio("appliance", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.config["RESPONSE_TIMEOUT"] = None  # writing has its own deadline, in the connection
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    app.url_map.converters["rest"] = Rest
    app.url_map.converters["not_test"] = NotTest
    for each in routes:
        for name, operation in operations_of(type(each)):
            endpoint = f"{type(each).__name__}.{name}"
            view = _view(services, operation, getattr(each, name))
            app.add_url_rule(operation.rule, endpoint, view, methods=[operation.method])
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    app.register_error_handler(Refused, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _failed)
    return app


def _view(services: ApiServices, operation: Operation, handler: View) -> View:
    """Call the handler by position: with the user, if the operation needs one, and with the parameter of the path."""

    async def view(**parameters: str) -> Response:
        user = () if operation.role is None else (await services.user_with(operation.role),)
        return await handler(*user, *parameters.values())

    return view


# ---- for the routes


def request_id() -> str:
    return str(request.scope["appliance"][0])  # type: ignore[typeddict-item]  # the edge's own entry


def client_address() -> str:
    return str(request.scope["appliance"][1])  # type: ignore[typeddict-item]  # the edge's own entry


async def json_request(kind: type[T]) -> T:
    """The body of the current request, validated as this type."""
    check_content_type(request.headers.get("Content-Type", "").encode("latin-1", "replace"))
    body = await request.get_data()
    assert isinstance(body, bytes)  # noqa: S101 - as it is unless text is asked for
    return decode_body(body, kind)


def page_limit(usual: int = PAGE_LIMIT) -> int:
    given = request.args.get("limit", str(usual))
    if not (given.isascii() and given.isdecimal() and len(given) <= 3 and 1 <= int(given) <= PAGE_LIMIT):
        raise Refused(Code.INVALID_REQUEST, f"limit: must be a whole number from 1 to {PAGE_LIMIT}")
    return int(given)


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json")


# ---- errors


def refusal(refused: Refused) -> Response:
    """The error as a response, for a route that adds a header to it."""
    return _error(*refusal_answer(refused, request_id()))


def _error(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
    # The edge adds the headers that every answer has.
    response = Response(body, status, content_type="application/json")
    for name, value in headers:
        if name in (b"retry-after", b"www-authenticate", b"allow"):
            response.headers[name.decode()] = value.decode()
    return response


async def _refused(refused: Refused) -> Response:
    return refusal(refused)


async def _http_error(error: HTTPException) -> Response:
    if isinstance(error, WrongMethod):
        return _error(*refusal_answer(MethodNotAllowed(error.valid_methods or ()), request_id()))
    if error.code == 404 or error.code is None or error.code >= 500:
        return _error(*error_answer(Code.NOT_FOUND, "There is nothing at this address.", request_id()))
    return _error(*error_answer(Code.INVALID_REQUEST, "This request cannot be read.", request_id()))


async def _failed(error: Exception) -> Response:
    refused = translated(error)
    if isinstance(refused, Refused):
        log.error("request refused", request_id=request_id(), cause=repr(error))
        return refusal(refused)
    log.exception("request failed", request_id=request_id(), method=request.method, path=request.path[:200])
    text = "Something went wrong on our side. The log has the details."
    return _error(*error_answer(Code.INTERNAL_ERROR, text, request_id()))
