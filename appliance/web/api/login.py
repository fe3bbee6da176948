"""Login, logout and the user's sessions: /v1/auth.

A wrong password and an unknown address get the same response after the same time.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.errors import Code, Refused
from appliance.keys.secrets import MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARACTERS, check_new
from appliance.model.accounts import AccountRole, Role, User
from appliance.model.dashboard import LoginSession
from appliance.net.address_policy import site_of
from appliance.store.audit import about
from appliance.telemetry.log import get_logger
from appliance.times import rfc3339
from appliance.web.answer import CreatedAt, RequestId, SinglePage, Time, object_from
from appliance.web.app import Routes, actor_of, answer, choice, client_address, refusal, refused_to, request_id
from appliance.web.login_check import SECOND_FACTOR_HEADER, SecondFactorNeeded
from appliance.web.operations import ALWAYS, CUSTOMER, WITH_BODY, Operation, Tag, for_people, identifier, parameter
from appliance.web.session_proofs import COOKIE_NAME

USER_AGENT_LENGTH = 200  # stored characters

LOGIN_REFUSED = "Wrong email address or password."
NOTHING_TO_RENEW = "No session to renew. Send a token, or log in."
NOT_OUR_PAGE = (
    "The session cookie works only for pages of this service: send Sec-Fetch-Site: same-origin, or the "
    "service's own Origin. Other programs renew with their token."
)
SESSION_ENDED = "This session has ended. Log in again."

log = get_logger("web")


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The credentials of a login."""

    email: Annotated[
        str,
        Meta(
            min_length=1, max_length=254, examples=["owner@example.com"], description="Login address. Case-insensitive."
        ),
    ]
    password: Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES, description="Password.")]
    code: Annotated[str, Meta(max_length=64, examples=["123456"], description="Two-factor or recovery code.")] = ""


class PasswordRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The current and the new password."""

    current_password: Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES, description="Current password.")]
    new_password: Annotated[
        str, Meta(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_BYTES, description="New password.")
    ]


class AccountObject(msgspec.Struct):
    """The account and user of a token."""

    id: Annotated[str, Meta(description="Account id, `acc_…`.")]
    name: Annotated[str, Meta(description="Account name.")]
    email: Annotated[str, Meta(description="Login address. Case-insensitive.")]
    role: Annotated[Role, Meta(description="`customer`, or `admin` to manage all accounts.")]
    account_role: Annotated[AccountRole, Meta(description="Role in the account: `owner`, `developer` or `viewer`.")]
    totp_required: Annotated[bool, Meta(description="Whether the user must turn on two-factor authentication first.")]
    may_not: Annotated[list[str], Meta(description="Operations (`operationId`) that this user may not call.")]


class TokenObject(msgspec.Struct):
    """A token and its account."""

    token: Annotated[str, Meta(description="Token for `Authorization: Bearer <token>`.")]
    token_type: Annotated[Literal["Bearer"], Meta(description="Always `Bearer`.")]
    expires_at: Annotated[Time, Meta(description="Expiry time.")]
    account: Annotated[AccountObject, Meta(description="The account of the token.")]
    request_id: RequestId


class LoggedOutObject(msgspec.Struct):
    """The session has ended."""

    logged_out: Annotated[bool, Meta(description="Always true. The session has ended.")]
    request_id: RequestId


class ChangedObject(msgspec.Struct):
    """The password was changed."""

    changed: Annotated[bool, Meta(description="Always true. All sessions of the user have ended.")]
    request_id: RequestId


def user_agent() -> str:
    return request.headers.get("User-Agent", "")[:USER_AGENT_LENGTH]


class LoginRoutes(Routes):
    tag = Tag.SESSIONS

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
    async def log_in(self, body: LoginRequest) -> Response:
        """Get a token that is valid for 12 hours, and a cookie to renew it.

        Send the token as `Authorization: Bearer …` with all other requests under `/v1`. A wrong address and a wrong
        password get the same refusal, after a second. If two-factor authentication is on, a right password without a
        valid `code` is refused with the header `Second-Factor: required`.
        """
        address, email = client_address(), body.email.strip().lower()
        user = await self.store.accounts.user_by_email(email) if "\0" not in email else None
        logins = self.services.logins
        try:
            right = await logins.is_right_with_code(email, body.password, body.code.strip(), user, address)
        except SecondFactorNeeded as needed:
            refused = await refusal(needed)
            refused.headers[SECOND_FACTOR_HEADER] = "required"
            return refused
        if not right or user is None:
            raise Refused(Code.UNAUTHORIZED, LOGIN_REFUSED)
        async with self.store.audit.noting(actor_of(user), "user.logged_in", address, (user.account_id,)):
            session = await self.store.sessions.begin(user, address, user_agent())
            if session is None:  # the password may have changed while the hash was computed
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
        """Get a new token for the current one, or for the session cookie."""
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
        session = self.services.cookies.read(cookie)
        if session is None:  # a wrong signature counts as a guess
            refused = await self.services.auth.credentials.wrong_guess(client_address())
            ended = Refused(refused.code, SESSION_ENDED, retry_after=refused.retry_after)
            return self._with_cookie(await refusal(ended), None)
        renewal = await self.store.sessions.renew(*session, client_address(), user_agent())
        if renewal.reused:
            self.services.auth.forget()
            log.warning("session cookie replayed; session revoked", address=client_address())
        user = await self.store.accounts.user_of_session(renewal.session.id) if renewal.session else None
        if renewal.session is None or user is None:
            return self._with_cookie(await refusal(Refused(Code.UNAUTHORIZED, SESSION_ENDED)), None)
        return self._with_cookie(self._token_answer(user, renewal.session.id), renewal.session)

    @for_people("POST /v1/auth/logout", LoggedOutObject, action="user.logged_out")
    async def log_out(self, user: User) -> Response:
        """End the current session and all its tokens."""
        _, claims = await self.current_user()
        await self.store.sessions.end(claims.session_id, user.id)
        self.services.auth.forget()
        return self._with_cookie(answer(LoggedOutObject(True, request_id())), None)

    @for_people(
        "POST /v1/auth/password", ChangedObject, Code.FORBIDDEN, body=PasswordRequest, action="user.password_changed"
    )
    async def change_password(self, user: User, body: PasswordRequest) -> Response:
        """Change the password, and end every session of the user."""
        new = check_new(body.new_password, "new_password")
        if not await self.services.logins.is_right(user.email, body.current_password, user, client_address()):
            raise Refused(Code.FORBIDDEN, "current_password: wrong password. Enter your current password.")
        new_hash = await self.services.hashing.hashed(new, site_of(client_address()))
        if not await self.store.accounts.set_password(user.id, new_hash, user.token_epoch):
            raise Refused(Code.UNAUTHORIZED, SESSION_ENDED)  # another change came first and ended this session
        self.services.auth.forget()
        return self._with_cookie(answer(ChangedObject(True, request_id())), None)


class SessionObject(msgspec.Struct):
    """An active login."""

    id: Annotated[str, Meta(description="Session id, `ses_…`.")]
    current: Annotated[bool, Meta(description="Whether this is the session of the current request.")]
    address: Annotated[str, Meta(description="Client IP address of the login or the last renewal by cookie.")]
    user_agent: Annotated[str, Meta(description="`User-Agent` of the client.")]
    created_at: CreatedAt
    renewed_at: Annotated[Time, Meta(description="Time of the last renewal.")]
    expires_at: Annotated[Time, Meta(description="Expiry time.")]


class SessionsAnswer(msgspec.Struct):
    """The user's sessions, most recently renewed first. There are at most 100, so the list has one page."""

    sessions: Annotated[list[SessionObject], Meta(description="Sessions, most recently renewed first.")]
    next: SinglePage
    request_id: RequestId


class EndedAnswer(msgspec.Struct):
    """The number of ended sessions."""

    ended: Annotated[int, Meta(description="Number of ended sessions.")]
    request_id: RequestId


class KeptSession(StrEnum):
    """The session to keep when all others end."""

    CURRENT = "current"


_KEEP = parameter(
    "keep",
    "query",
    "`current` keeps the current session. Default: end it too.",
    {"type": "string", "enum": list(KeptSession)},
)


class SessionRoutes(Routes):
    tag = Tag.SESSIONS

    @for_people("GET /v1/auth/sessions", SessionsAnswer)
    async def list_sessions(self, user: User) -> SessionsAnswer:
        """List the user's active sessions."""
        _, claims = await self.current_user()
        sessions = await self.store.sessions.of(user.id)
        shown = [object_from(SessionObject, session, current=session.id == claims.session_id) for session in sessions]
        return SessionsAnswer(shown, None, request_id())

    @for_people("DELETE /v1/auth/sessions", EndedAnswer, parameters=(_KEEP,), action="session.ended_all")
    async def end_all_sessions(self, user: User) -> EndedAnswer:
        """Log out everywhere, or everywhere else with `keep=current`."""
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
        EndedAnswer,
        Code.NOT_FOUND,
        parameters=(identifier("Session id.", "^ses_[0-9a-f]{32}$"),),
        action="session.ended",
    )
    async def end_session(self, user: User, session_id: str) -> EndedAnswer:
        """End one session."""
        if not await self.store.sessions.end(session_id, user.id):
            raise Refused(Code.NOT_FOUND, "No session has this id.")
        self.services.auth.forget()
        return EndedAnswer(1, request_id())
