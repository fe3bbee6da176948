"""In charge of logging in and out: /v1/auth."""

from typing import Annotated, Literal

import msgspec
import trio
from msgspec import Meta
from quart import Blueprint, Response, request

from appliance.errors import Code, Refused
from appliance.intake.login_throttle import FAILURE_DELAY, Attempt, Guesses
from appliance.keys.passwords import (
    MAX_PASSWORD_BYTES,
    MIN_PASSWORD_CHARACTERS,
    PasswordHasher,
    check_new,
    hash_password,
)
from appliance.model.dashboard import LoginSession
from appliance.model.mail import Role, User
from appliance.net.address_policy import site_of
from appliance.telemetry.log import get_logger
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.app import Services, answer, client_address, json_request, refusal, request_id
from appliance.web.operations import ALWAYS, CUSTOMER, WITH_BODY, Operation, for_customers
from appliance.web.session_cookie import NAME, SessionCookies
from appliance.web.tokens import Tokens

AGENT_CHARACTERS = 200  # kept of what a browser calls itself

WRONG_LOGIN = "The email address or the password is wrong."
NOTHING_TO_RENEW = "There is no session to renew: send a token, or log in."
NOT_OUR_PAGE = (
    "The session's cookie is good only for pages of this service: the request needs Sec-Fetch-Site: same-origin,"
    " or its own Origin. Other programs renew with their token."
)
SESSION_ENDED = "This session has ended. Log in again."

log = get_logger("web")


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a login."""

    email: Annotated[str, Meta(min_length=1, max_length=254, examples=["owner@example.com"])]
    password: Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES)]


class PasswordRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a password change."""

    current_password: Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES)]
    new_password: Annotated[str, Meta(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_BYTES)]


class AccountObject(msgspec.Struct):
    """Whose token it is."""

    id: str
    name: str
    email: str
    role: Role


class TokenObject(msgspec.Struct):
    """The answer to a login or a refresh."""

    token: str
    token_type: Literal["Bearer"]
    expires_at: Time
    account: AccountObject
    request_id: str


class LoggedOutObject(msgspec.Struct):
    """The answer to a logout."""

    logged_out: bool
    request_id: str


class ChangedObject(msgspec.Struct):
    """The answer to a password change."""

    changed: bool
    request_id: str


LOGIN = msgspec.json.Decoder(LoginRequest)
PASSWORD = msgspec.json.Decoder(PasswordRequest)


def user_agent() -> str:
    """What the current request's program calls itself."""
    return request.headers.get("User-Agent", "")[:AGENT_CHARACTERS]


def blueprint(
    services: Services, tokens: Tokens, cookies: SessionCookies, guesses: Guesses, hashing: PasswordHasher
) -> Blueprint:
    """The routes."""
    routes = Blueprint("session", __name__)
    sessions = services.store.sessions
    # Somebody unknown is checked against this, so that the answer takes as long as for somebody known.
    nobody = hash_password("nobody")

    def token_answer(user: User, session_id: str) -> Response:
        token, expires_at = tokens.issue(user, session_id)
        account = AccountObject(user.account_id, user.account_name, user.email, user.role)
        return answer(TokenObject(token, "Bearer", rfc3339(expires_at), account, request_id()))

    def with_cookie(response: Response, session: LoginSession | None) -> Response:
        given = cookies.clear(request.scheme) if session is None else cookies.give(session, request.scheme)
        response.headers["Set-Cookie"] = given
        return response

    def attempted(email: str, user: User | None) -> Attempt:
        """Count the request as a wrong login, or refuse it, before any work is done for it."""
        known = sessions.addresses(user.id if user else "")
        return guesses.attempt(email, client_address(), known)

    async def is_right(attempt: Attempt, password: str, user: User | None) -> bool:
        """Whether that is the user's password; it takes as long when there is no such user."""
        await trio.sleep(attempt.wait)
        try:
            stored = user.password_hash if user else nobody
            right = await hashing.matches(password, stored, site_of(client_address()))
        except Refused:
            attempt.withdrawn()
            raise
        if user is None or not right:
            await trio.sleep(FAILURE_DELAY)
            return False
        attempt.succeeded()
        return True

    @routes.post("/v1/auth/login")
    async def login() -> Response:
        wanted, address = await json_request(LOGIN), client_address()
        email = wanted.email.strip().lower()
        user = services.store.accounts.user_by_email(email) if "\0" not in email else None
        attempt = attempted(email, user)
        if not await is_right(attempt, wanted.password, user) or user is None:
            raise Refused(Code.UNAUTHORIZED, WRONG_LOGIN)
        session = await sessions.begin(user, address, user_agent())
        if session is None:  # hashing takes its time, and meanwhile the password was changed
            raise Refused(Code.UNAUTHORIZED, WRONG_LOGIN)
        return with_cookie(token_answer(user, session.id), session)

    @routes.post("/v1/auth/refresh")
    async def refresh() -> Response:
        if "Authorization" in request.headers:
            user, claims = await services.user()
            await sessions.extend(claims.session_id)
            return token_answer(user, claims.session_id)
        if (cookie := request.cookies.get(NAME)) is None:
            raise Refused(Code.UNAUTHORIZED, NOTHING_TO_RENEW)
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if not cookies.is_own_page(site, origin, request.headers.get("Host", "")):
            raise Refused(Code.FORBIDDEN, NOT_OUR_PAGE)
        return await renew(cookie)

    async def renew(cookie: str) -> Response:
        given = cookies.read(cookie)
        if given is None:  # not sealed by us: a guess like any other
            refused = await services.auth.wrong_guess(client_address())
            return with_cookie(refusal(Refused(refused.code, SESSION_ENDED, retry_after=refused.retry_after)), None)
        renewal = await sessions.renew(*given, client_address(), user_agent())
        if renewal.reused:
            services.auth.forget()
            log.warning("a session's cookie came twice: the session has ended", address=client_address())
        user = services.store.accounts.user_of_session(renewal.session.id) if renewal.session else None
        if renewal.session is None or user is None:
            return with_cookie(refusal(Refused(Code.UNAUTHORIZED, SESSION_ENDED)), None)
        return with_cookie(token_answer(user, renewal.session.id), renewal.session)

    @routes.post("/v1/auth/logout")
    async def logout() -> Response:
        user, claims = await services.user()
        await sessions.end(claims.session_id, user.id)
        services.auth.forget()
        return with_cookie(answer(LoggedOutObject(True, request_id())), None)

    @routes.post("/v1/auth/password")
    async def password() -> Response:
        user, _ = await services.user()
        wanted = await json_request(PASSWORD)
        new = check_new(wanted.new_password, "new_password")
        if not await is_right(attempted(user.email, user), wanted.current_password, user):
            raise Refused(Code.FORBIDDEN, "current_password: this is not the current password")
        new_hash = await hashing.hashed(new, site_of(client_address()))
        if not await services.store.accounts.set_password(user.id, new_hash, user.token_epoch):
            raise Refused(Code.UNAUTHORIZED, SESSION_ENDED)  # another change came first, and ended this session
        services.auth.forget()
        return with_cookie(answer(ChangedObject(True, request_id())), None)

    return routes


OPERATIONS = (
    Operation(
        "post",
        "/v1/auth/login",
        "Get a customer token, good for 12 hours, and a cookie to renew it by.",
        (200, TokenObject, "Logged in."),
        (*WITH_BODY, Code.UNAUTHORIZED, *ALWAYS),
        LoginRequest,
        headers=("Set-Cookie",),
    ),
    Operation(
        "post",
        "/v1/auth/refresh",
        "Get a new token for the one at hand, or for the session's cookie.",
        (200, TokenObject, "A new token."),
        (Code.UNAUTHORIZED, Code.FORBIDDEN, *ALWAYS),
        security=(*CUSTOMER, {"session": []}),
        headers=("Set-Cookie",),
    ),
    for_customers(
        "post",
        "/v1/auth/logout",
        "End the session of the token at hand, with every token of it.",
        (200, LoggedOutObject, "Logged out."),
    ),
    for_customers(
        "post",
        "/v1/auth/password",
        "Change the password, and with it end every session of the user.",
        (200, ChangedObject, "Changed; log in again."),
        Code.FORBIDDEN,
        body=PasswordRequest,
    ),
)
