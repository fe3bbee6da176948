"""In charge of the Quart application: everything under HTTP that is not POST or GET /emails."""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import trio
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
from appliance.web.api.json_body import check_content_type, decode_body
from appliance.web.auth import Authenticator
from appliance.web.tokens import Claims

T = TypeVar("T")

PAGE = 100  # entries in a list when the caller does not say; also the most

log = get_logger("web")


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes work with."""

    store: Store
    outside: Outside
    auth: Authenticator
    stopping: trio.Event

    async def user(self) -> tuple[User, Claims]:
        """Who sent the current request; refused unless it is a logged-in customer."""
        _, address, authorization = request.scope["appliance"]  # type: ignore[typeddict-item]  # the edge's own entry
        return await self.auth.user(authorization, address)

    async def customer(self) -> User:
        """The same, for routes that need nothing of the token."""
        user, _ = await self.user()
        return user

    async def admin(self) -> User:
        """Who sent the current request; refused unless it is somebody who may manage other accounts."""
        user = await self.customer()
        if user.role is not Role.ADMIN:
            raise Refused(Code.FORBIDDEN, "Only an administrator may do this.")
        return user


class Rest(BaseConverter):
    """All that is left of a path, slashes too: an address may hold them, even as its first character."""

    part_isolating = False
    regex = ".+"


class NotTest(BaseConverter):
    """An id, whatever it is, but not the word that is a path of its own: /v1/emails/test is no message."""

    regex = "(?!test$)[^/]+"


def create_app(blueprints: list[Blueprint]) -> QuartTrio:
    """The application with its routes; its errors are the error object, whatever raised them."""
    app = QuartTrio("appliance", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.config["RESPONSE_TIMEOUT"] = None  # writing has its own deadline, in the connection
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    app.url_map.converters["rest"] = Rest
    app.url_map.converters["not_test"] = NotTest
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    app.register_error_handler(Refused, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _failed)
    return app


# ---- for the routes


def request_id() -> str:
    """The id of the current request, given by the edge."""
    return str(request.scope["appliance"][0])  # type: ignore[typeddict-item]  # the edge's own entry


def client_address() -> str:
    """Where the current request comes from."""
    return str(request.scope["appliance"][1])  # type: ignore[typeddict-item]  # the edge's own entry


async def json_request(decoder: msgspec.json.Decoder[T]) -> T:
    """The current request's body, checked."""
    check_content_type(request.headers.get("Content-Type", "").encode("latin-1", "replace"))
    body = await request.get_data()
    assert isinstance(body, bytes)  # noqa: S101 - as it is unless text is asked for
    return decode_body(body, decoder)


def page_limit(usual: int = PAGE) -> int:
    """How many entries a list is asked for."""
    given = request.args.get("limit", str(usual))
    if not (given.isascii() and given.isdecimal() and len(given) <= 3 and 1 <= int(given) <= PAGE):
        raise Refused(Code.INVALID_REQUEST, f"limit: must be a whole number from 1 to {PAGE}")
    return int(given)


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), status, content_type="application/json")


# ---- errors


def refusal(refused: Refused) -> Response:
    """The answer to a request that is refused, for a route that has something to add to it."""
    return _error(*refusal_answer(refused, request_id()))


def _error(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
    # The edge adds the headers every answer has; only what is special to this error is added here.
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
