"""Login, logout, the user's sessions and two-factor authentication: /v1/auth and /v1/account/totp.

A wrong password and an unknown address get the same response after the same time. Two-factor setup has two steps: get a
secret, then prove with a code that an app has it.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.errors import Code, Refused, invalid
from appliance.keys.secrets import MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARACTERS, check_new, key_uri, plain_code
from appliance.model.accounts import AccountRole, Role, User
from appliance.model.dashboard import LoginSession
from appliance.net.address_policy import site_of
from appliance.store.audit import about
from appliance.telemetry.log import get_logger
from appliance.times import rfc3339
from appliance.web.app import Routes, actor_of, answer, choice, client_address, refusal, refused_to
from appliance.web.auth import CODE_REFUSED, COOKIE_NAME, SECOND_FACTOR_HEADER, SecondFactorNeeded
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, SinglePage, Time, object_from, time_or_none
from appliance.web.operations import (
    ALWAYS,
    CUSTOMER,
    WITH_BODY,
    Operation,
    Tag,
    choice_parameter,
    for_people,
    identifier,
)

USER_AGENT_LENGTH = 200  # stored characters

LOGIN_REFUSED = "Wrong email address or password."
NOTHING_TO_RENEW = "No session to renew. Send a token, or log in."
NOT_OUR_PAGE = (
    "The session cookie works only for pages of this service: send Sec-Fetch-Site: same-origin, or the "
    "service's own Origin. Other programs renew with their token."
)
SESSION_ENDED = "This session has ended. Log in again."

LoginEmail = Annotated[str, Meta(description="Login address. Case-insensitive.")]
CurrentPassword = Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES)]
NewPassword = Annotated[str, Meta(min_length=MIN_PASSWORD_CHARACTERS, max_length=MAX_PASSWORD_BYTES)]

log = get_logger("web")


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The credentials of a login."""

    email: Annotated[LoginEmail, Meta(min_length=1, max_length=254, examples=["owner@example.com"])]
    password: Annotated[CurrentPassword, Meta(description="Password.")]
    code: Annotated[str, Meta(max_length=64, examples=["123456"], description="Two-factor or recovery code.")] = ""


class PasswordRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The current and the new password."""

    current_password: Annotated[CurrentPassword, Meta(description="Current password.")]
    new_password: Annotated[NewPassword, Meta(description="New password.")]


class AccountObject(msgspec.Struct):
    """The account and user of a token."""

    id: Annotated[str, Meta(description="Account id, `acc_…`.")]
    name: Annotated[str, Meta(description="Account name.")]
    email: LoginEmail
    role: Annotated[Role, Meta(description="`customer`, or `admin` to manage all accounts.")]
    account_role: Annotated[AccountRole, Meta(description="Role in the account: `owner`, `developer` or `viewer`.")]
    totp_required: Annotated[bool, Meta(description="Whether the user must turn on two-factor authentication first.")]
    may_not: Annotated[list[str], Meta(description="Operations (`operationId`) that this user may not call.")]


class TokenObject(ApiAnswer):
    """A token and its account."""

    token: Annotated[str, Meta(description="Token for `Authorization: Bearer <token>`.")]
    token_type: Annotated[Literal["Bearer"], Meta(description="Always `Bearer`.")]
    expires_at: Annotated[Time, Meta(description="Expiry time.")]
    account: Annotated[AccountObject, Meta(description="The account of the token.")]


class LoggedOutObject(ApiAnswer):
    """The session has ended."""

    logged_out: Annotated[bool, Meta(description="Always true. The session has ended.")]


class ChangedObject(ApiAnswer):
    """The password was changed."""

    changed: Annotated[bool, Meta(description="Always true. All sessions of the user have ended.")]


class SessionObject(msgspec.Struct):
    """An active login."""

    id: Annotated[str, Meta(description="Session id, `ses_…`.")]
    current: Annotated[bool, Meta(description="Whether this is the session of the current request.")]
    address: Annotated[str, Meta(description="Client IP address of the login or the last renewal by cookie.")]
    user_agent: Annotated[str, Meta(description="`User-Agent` of the client.")]
    created_at: CreatedAt
    renewed_at: Annotated[Time, Meta(description="Time of the last renewal.")]
    expires_at: Annotated[Time, Meta(description="Expiry time.")]


class SessionsAnswer(ApiAnswer):
    """The user's sessions, most recently renewed first. There are at most 100, so the list has one page."""

    sessions: Annotated[list[SessionObject], Meta(description="Sessions, most recently renewed first.")]
    next: SinglePage


class EndedAnswer(ApiAnswer):
    """The number of ended sessions."""

    ended: Annotated[int, Meta(description="Number of ended sessions.")]


class KeptSession(StrEnum):
    """The session to keep when all others end."""

    CURRENT = "current"


_SESSION_ID = identifier("Session id.", "^ses_[0-9a-f]{32}$")
_KEEP = choice_parameter("keep", "`current` keeps the current session. Default: end it too.", KeptSession)


def user_agent() -> str:
    return request.headers.get("User-Agent", "")[:USER_AGENT_LENGTH]


class LoginRoutes(Routes):
    tag = Tag.SESSIONS

    def token_answer(self, user: User, session_id: str) -> Response:
        token, expires_at = self.services.auth.tokens.issue(user, session_id)
        must_enrol = self.services.auth.must_enrol(user)
        shown = (user.account_id, user.account_name, user.email, user.role, user.account_role)
        account = AccountObject(*shown, must_enrol, refused_to(self.services.operations, user))
        return answer(TokenObject(token, "Bearer", rfc3339(expires_at), account))

    def _with_cookie(self, response: Response, session: LoginSession | None) -> Response:
        cookies, scheme = self.services.cookies, request.scheme
        response.headers["Set-Cookie"] = cookies.clear(scheme) if session is None else cookies.give(session, scheme)
        return response

    @Operation(
        "POST /v1/auth/login",
        (200, TokenObject, "Logged in."),
        (*WITH_BODY, Code.UNAUTHORIZED, *ALWAYS),
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
            right = await logins.is_right(email, body.password, user, address, body.code.strip())
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
        return self._with_cookie(self.token_answer(user, session.id), session)

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
            return self.token_answer(user, claims.session_id)
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
        return self._with_cookie(self.token_answer(user, renewal.session.id), renewal.session)

    @for_people("POST /v1/auth/logout", LoggedOutObject, action="user.logged_out")
    async def log_out(self, user: User) -> Response:
        """End the current session and all its tokens."""
        _, claims = await self.current_user()
        await self.store.sessions.end(claims.session_id, user.id)
        self.services.auth.forget()
        return self._with_cookie(answer(LoggedOutObject(True)), None)

    @for_people("POST /v1/auth/password", ChangedObject, Code.FORBIDDEN, action="user.password_changed")
    async def change_password(self, user: User, body: PasswordRequest) -> Response:
        """Change the password, and end every session of the user."""
        new = check_new(body.new_password, "new_password")
        if not await self.services.logins.is_right(user.email, body.current_password, user, client_address()):
            raise Refused(Code.FORBIDDEN, "current_password: wrong password. Enter your current password.")
        new_hash = await self.services.hashing.hashed(new, site_of(client_address()))
        if not await self.store.accounts.set_password(user.id, new_hash, user.token_epoch):
            raise Refused(Code.UNAUTHORIZED, SESSION_ENDED)  # another change came first and ended this session
        self.services.auth.forget()
        return self._with_cookie(answer(ChangedObject(True)), None)

    @for_people("GET /v1/auth/sessions", SessionsAnswer)
    async def list_sessions(self, user: User) -> SessionsAnswer:
        """List the user's active sessions."""
        _, claims = await self.current_user()
        sessions = await self.store.sessions.of(user.id)
        shown = [object_from(SessionObject, session, current=session.id == claims.session_id) for session in sessions]
        return SessionsAnswer(shown, None)

    @for_people("DELETE /v1/auth/sessions", EndedAnswer, _KEEP, action="session.ended_all")
    async def end_all_sessions(self, user: User) -> EndedAnswer:
        """Log out everywhere, or everywhere else with `keep=current`."""
        kept = ""
        if choice("keep", KeptSession) is KeptSession.CURRENT:
            _, claims = await self.current_user()
            kept = claims.session_id
            about(details={"keep": "current"})
        ended = await self.store.sessions.end_all(user.id, but=kept)
        self.services.auth.forget()
        return EndedAnswer(ended)

    @for_people("DELETE /v1/auth/sessions/{id}", EndedAnswer, _SESSION_ID, action="session.ended")
    async def end_session(self, user: User, session_id: str) -> EndedAnswer:
        """End one session."""
        if not await self.store.sessions.end(session_id, user.id):
            raise Refused(Code.NOT_FOUND, "No session has this id.")
        self.services.auth.forget()
        return EndedAnswer(1)


SecondFactorCode = Annotated[str, Meta(min_length=6, max_length=64, examples=["123456"])]

NOT_BEGUN = "Setup has not started. Get a secret first with POST /v1/account/totp."
NOT_CURRENT = "password: wrong password. Enter your current password."
NOT_ON = "Two-factor authentication is already off."


class TotpAnswer(ApiAnswer):
    """The state of two-factor authentication."""

    enabled: Annotated[bool, Meta(description="Whether two-factor authentication is on.")]
    required: Annotated[bool, Meta(description="Whether the installation requires it for this user.")]
    enabled_at: Annotated[Time | None, Meta(description="Time it was turned on; null if it is off.")]
    recovery_codes_left: Annotated[int, Meta(description="Number of unused recovery codes.")]


class TotpSecretAnswer(ApiAnswer):
    """A secret for an authenticator app, shown only once. It is inactive until confirmed."""

    secret: Annotated[str, Meta(description="Secret in Base32, to type into an app.")]
    uri: Annotated[str, Meta(description="`otpauth:` URI for the QR code.")]


class TotpConfirmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The password and a code of the new secret."""

    password: Annotated[CurrentPassword, Meta(description="Current password.")]
    code: Annotated[SecondFactorCode, Meta(description="Current code from the app.")]


class RecoveryCodesAnswer(ApiAnswer):
    """Recovery codes for a login without the app. They are only in this response."""

    recovery_codes: Annotated[list[str], Meta(description="Ten codes. Each works once instead of the app.")]


class TotpRemovalRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The password and a code."""

    password: Annotated[CurrentPassword, Meta(description="Current password.")]
    code: Annotated[SecondFactorCode, Meta(description="Current code from the app, or a recovery code.")]


class TotpRoutes(Routes):
    tag = Tag.PEOPLE

    @for_people("GET /v1/account/totp", TotpAnswer)
    async def get_totp(self, user: User) -> TotpAnswer:
        """Read whether two-factor authentication is on."""
        factor = await self.store.second_factors.of(user.id)
        since = None if factor is None else factor.confirmed_at
        left = await self.store.second_factors.recovery_codes_left(user.id)
        required = self.services.auth.demands_totp(user)
        return TotpAnswer(since is not None, required, time_or_none(since), left)

    @for_people("POST /v1/account/totp", (201, TotpSecretAnswer, "The secret."), Code.CONFLICT)
    async def begin_totp(self, user: User) -> TotpSecretAnswer:
        """Start two-factor setup: get a secret for an authenticator app (RFC 6238).

        Nothing changes until you send a code to `POST /v1/account/totp/confirm`.
        """
        secret, sealed = self.services.logins.totp.fresh(user.id)
        await self.store.second_factors.begin(user.id, sealed)
        uri = key_uri(secret, self.services.config.server.hostname, user.email)
        return TotpSecretAnswer(secret, uri)

    @for_people("POST /v1/account/totp/confirm", RecoveryCodesAnswer, Code.CONFLICT, action="totp.enabled")
    async def confirm_totp(self, user: User, body: TotpConfirmRequest) -> RecoveryCodesAnswer:
        """Turn on two-factor authentication with the password and a code from the app.

        From now on, a login requires a code, and the user's other sessions end. The ten recovery codes are only in this
        response. A wrong password is 403 and counts as a failed login.
        """
        factor = await self.store.second_factors.of(user.id)
        if factor is None or factor.confirmed_at is not None:
            raise Refused(Code.CONFLICT, NOT_BEGUN)
        if not await self.services.logins.is_right(user.email, body.password, user, client_address()):
            raise Refused(Code.FORBIDDEN, NOT_CURRENT)
        step = await self.services.logins.step_of(user.id, plain_code(body.code))
        if step is None:
            raise invalid("code", "wrong code. Check that the clock of the app's device is right.")
        codes = self.services.logins.totp.recovery_codes()
        about(user.email)
        await self.store.second_factors.confirm(user.id, factor.secret, step, [plain_code(code) for code in codes])
        _, claims = await self.current_user()
        await self.store.sessions.end_all(user.id, but=claims.session_id)
        self.services.auth.forget()
        return RecoveryCodesAnswer(codes)

    @for_people("DELETE /v1/account/totp", DeletedAnswer, Code.NOT_FOUND)
    async def remove_totp(self, user: User, body: TotpRemovalRequest) -> DeletedAnswer:
        """Turn off two-factor authentication with the password and a code or recovery code.

        A wrong password or code is 403 and counts as a failed login.
        """
        if not user.has_totp:
            raise Refused(Code.NOT_FOUND, NOT_ON)
        logins, address = self.services.logins, client_address()
        try:
            right = await logins.is_right(user.email, body.password, user, address, body.code)
        except SecondFactorNeeded as error:
            raise Refused(Code.FORBIDDEN, f"code: {CODE_REFUSED}") from error
        if not right:
            raise Refused(Code.FORBIDDEN, NOT_CURRENT)
        # Recorded here, not as the operation's action: a rejected code is stored as used, which is not a change.
        async with self.store.audit.noting(actor_of(user), "totp.disabled", address, (user.account_id,), user.email):
            await self.store.second_factors.remove(user.id)
        return DeletedAnswer(True)
