"""Logging in and out, and the user's sessions: /v1/auth.

A wrong password and an unknown address are answered alike, after the same time.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.errors import Code, Refused
from appliance.keys.passwords import MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARACTERS, check_new
from appliance.model.accounts import AccountRole, Role, User
from appliance.model.dashboard import LoginSession
from appliance.net.address_policy import site_of
from appliance.store.audit import about
from appliance.telemetry.log import get_logger
from appliance.times import rfc3339
from appliance.web.answer import Time, object_from
from appliance.web.app import Routes, actor_of, answer, choice, client_address, refusal, refused_to, request_id
from appliance.web.login_check import SECOND_FACTOR_HEADER, SecondFactorNeeded
from appliance.web.operations import ALWAYS, CUSTOMER, WITH_BODY, Operation, for_people, identifier, parameter
from appliance.web.session_cookie import COOKIE_NAME

USER_AGENT_LENGTH = 200  # characters that are stored

LOGIN_REFUSED = "The email address or the password is wrong."
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
    code: Annotated[str, Meta(max_length=64, examples=["123456"])] = ""


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
    account_role: AccountRole
    totp_required: bool
    may_not: list[str]


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


def user_agent() -> str:
    return request.headers.get("User-Agent", "")[:USER_AGENT_LENGTH]


class LoginRoutes(Routes):
    def _token_answer(self, user: User, session_id: str) -> Response:
        token, expires_at = self.services.auth.tokens.issue(user, session_id)
        must_enrol = self.services.auth.must_enrol(user)
        shown = (user.account_id, user.account_name, user.email, user.role, user.account_role)
        account = AccountObject(*shown, must_enrol, refused_to(self.services.operations, user))
        return answer(TokenObject(token, "Bearer", rfc3339(expires_at), account, request_id()))

    def _with_cookie(self, response: Response, session: LoginSession | None) -> Response:
        cookies, scheme = self.services.cookies, request.scheme
        response.headers["Set-Cookie"] = cookies.clear(scheme) if session is None else cookies.give(session, scheme)
        return response

    @Operation(
        "POST /v1/auth/login",
        (200, TokenObject, "Logged in."),
        (*WITH_BODY, Code.UNAUTHORIZED, *ALWAYS),
        LoginRequest,
        headers=("Set-Cookie",),
    )
    async def log_in(self, wanted: LoginRequest) -> Response:
        """Get a customer token, good for 12 hours, and a cookie to renew it by.

        The token goes into `Authorization: Bearer …` of all other requests under `/v1`. A wrong address and a wrong
        password are refused alike, after a second. Where a second factor is on, a login with the right password and no
        `code`, or a wrong one, is refused with the header `Second-Factor: required`.
        """
        address, email = client_address(), wanted.email.strip().lower()
        user = await self.store.accounts.user_by_email(email) if "\0" not in email else None
        logins = self.services.logins
        try:
            right = await logins.is_right_with_code(email, wanted.password, wanted.code.strip(), user, address)
        except SecondFactorNeeded as needed:
            refused = await refusal(needed)
            refused.headers[SECOND_FACTOR_HEADER] = "required"
            return refused
        if not right or user is None:
            raise Refused(Code.UNAUTHORIZED, LOGIN_REFUSED)
        async with self.store.audit.noting(actor_of(user), "user.logged_in", address, (user.account_id,)):
            session = await self.store.sessions.begin(user, address, user_agent())
            if session is None:  # hashing takes its time, and meanwhile the password was changed
                raise Refused(Code.UNAUTHORIZED, LOGIN_REFUSED)
        return self._with_cookie(self._token_answer(user, session.id), session)

    @Operation(
        "POST /v1/auth/refresh",
        (200, TokenObject, "A new token."),
        (Code.UNAUTHORIZED, Code.FORBIDDEN, *ALWAYS),
        security=(*CUSTOMER, {"session": []}),
        headers=("Set-Cookie",),
    )
    async def refresh_token(self) -> Response:
        """Get a new token for the one at hand, or for the session's cookie."""
        if "Authorization" in request.headers:
            user, claims = await self.current_user()
            await self.store.sessions.extend(claims.session_id)
            return self._token_answer(user, claims.session_id)
        if (cookie := request.cookies.get(COOKIE_NAME)) is None:
            raise Refused(Code.UNAUTHORIZED, NOTHING_TO_RENEW)
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if not self.services.cookies.is_own_page(site, origin, request.headers.get("Host", "")):
            raise Refused(Code.FORBIDDEN, NOT_OUR_PAGE)
        return await self._renew(cookie)

    async def _renew(self, cookie: str) -> Response:
        given = self.services.cookies.read(cookie)
        if given is None:  # the signature is wrong: a guess like any other
            refused = await self.services.auth.credentials.wrong_guess(client_address())
            ended = Refused(refused.code, SESSION_ENDED, retry_after=refused.retry_after)
            return self._with_cookie(await refusal(ended), None)
        renewal = await self.store.sessions.renew(*given, client_address(), user_agent())
        if renewal.reused:
            self.services.auth.forget()
            log.warning("a session's cookie came twice: the session has ended", address=client_address())
        user = await self.store.accounts.user_of_session(renewal.session.id) if renewal.session else None
        if renewal.session is None or user is None:
            return self._with_cookie(await refusal(Refused(Code.UNAUTHORIZED, SESSION_ENDED)), None)
        return self._with_cookie(self._token_answer(user, renewal.session.id), renewal.session)

    @for_people("POST /v1/auth/logout", (200, LoggedOutObject, "Logged out."), action="user.logged_out")
    async def log_out(self, user: User) -> Response:
        """End the session of the token at hand, with every token of it."""
        _, claims = await self.current_user()
        await self.store.sessions.end(claims.session_id, user.id)
        self.services.auth.forget()
        return self._with_cookie(answer(LoggedOutObject(True, request_id())), None)

    @for_people(
        "POST /v1/auth/password",
        (200, ChangedObject, "Changed; log in again."),
        Code.FORBIDDEN,
        body=PasswordRequest,
        action="user.password_changed",
    )
    async def change_password(self, user: User, wanted: PasswordRequest) -> Response:
        """Change the password, and with it end every session of the user."""
        new = check_new(wanted.new_password, "new_password")
        if not await self.services.logins.is_right(user.email, wanted.current_password, user, client_address()):
            raise Refused(Code.FORBIDDEN, "current_password: this is not the current password")
        new_hash = await self.services.hashing.hashed(new, site_of(client_address()))
        if not await self.store.accounts.set_password(user.id, new_hash, user.token_epoch):
            raise Refused(Code.UNAUTHORIZED, SESSION_ENDED)  # another change came first, and ended this session
        self.services.auth.forget()
        return self._with_cookie(answer(ChangedObject(True, request_id())), None)


class SessionObject(msgspec.Struct):
    """One login that goes on."""

    id: str
    current: bool
    address: str
    user_agent: str
    created_at: Time
    renewed_at: Time
    expires_at: Time


class SessionsAnswer(msgspec.Struct):
    """All sessions of the user, the one renewed last first; `next` is always null, for there are at most 100."""

    sessions: list[SessionObject]
    next: str | None
    request_id: str


class EndedAnswer(msgspec.Struct):
    """How many sessions were ended."""

    ended: int
    request_id: str


class KeptSession(StrEnum):
    """Which session goes on when all others are ended."""

    CURRENT = "current"


_KEEP = parameter(
    "keep",
    "query",
    "`current`: the session of the token goes on. Without it that ends, too.",
    {"type": "string", "enum": list(KeptSession)},
)


class SessionRoutes(Routes):
    @for_people("GET /v1/auth/sessions", (200, SessionsAnswer, "The sessions."))
    async def list_sessions(self, user: User) -> SessionsAnswer:
        """List where the user is logged in."""
        _, claims = await self.current_user()
        found = await self.store.sessions.of(user.id)
        shown = [object_from(SessionObject, each, current=each.id == claims.session_id) for each in found]
        return SessionsAnswer(shown, None, request_id())

    @for_people(
        "DELETE /v1/auth/sessions", (200, EndedAnswer, "Ended."), parameters=(_KEEP,), action="session.ended_all"
    )
    async def end_all_sessions(self, user: User) -> EndedAnswer:
        """Log out everywhere; with `keep=current` everywhere else."""
        kept = ""
        if choice("keep", KeptSession) is KeptSession.CURRENT:
            _, claims = await self.current_user()
            kept = claims.session_id
            about(details={"keep": "current"})
        ended = await self.store.sessions.end_all(user.id, but=kept)
        self.services.auth.forget()
        return EndedAnswer(ended, request_id())

    @for_people(
        "DELETE /v1/auth/sessions/{id}",
        (200, EndedAnswer, "Ended."),
        Code.NOT_FOUND,
        parameters=(identifier("The session's id.", "^ses_[0-9a-f]{32}$"),),
        action="session.ended",
    )
    async def end_session(self, user: User, session_id: str) -> EndedAnswer:
        """End one session."""
        if not await self.store.sessions.end(session_id, user.id):
            raise Refused(Code.NOT_FOUND, "There is no such session.")
        self.services.auth.forget()
        return EndedAnswer(1, request_id())
