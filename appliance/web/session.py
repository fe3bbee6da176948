"""In charge of logging in and out: /v1/auth."""

from typing import Annotated, Literal

import msgspec
import trio
from msgspec import Meta
from quart import Blueprint, Response

from appliance.errors import Code, Refused, invalid
from appliance.events import rfc3339
from appliance.guesses import FAILURE_DELAY, Guesses
from appliance.model import Role, User
from appliance.passwords import MAX_BYTES, hash_password, password_matches
from appliance.web.answer import Time
from appliance.web.app import Services, answer, client_address, json_request, request_id
from appliance.web.tokens import Tokens

PASSWORD_CHARACTERS = 8  # at least, for a password chosen in the dashboard (NIST SP 800-63B 5.1.1.1)
HASHING_THREADS = 2  # Argon2id takes a core and 19 MiB each

WRONG_LOGIN = "The email address or the password is wrong."


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a login."""

    email: Annotated[str, Meta(min_length=1, max_length=254, examples=["owner@example.com"])]
    password: Annotated[str, Meta(min_length=1, max_length=MAX_BYTES)]


class PasswordRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a password change."""

    current_password: Annotated[str, Meta(min_length=1, max_length=MAX_BYTES)]
    new_password: Annotated[str, Meta(min_length=PASSWORD_CHARACTERS, max_length=MAX_BYTES)]


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


def blueprint(services: Services, tokens: Tokens, guesses: Guesses) -> Blueprint:
    """The routes."""
    routes = Blueprint("session", __name__)
    hashing = trio.CapacityLimiter(HASHING_THREADS)
    # Somebody unknown is checked against this, so that the answer takes as long as for somebody known.
    nobody = hash_password("nobody")

    def token_answer(user: User) -> Response:
        token, expires_at = tokens.issue(user)
        account = AccountObject(user.account_id, user.account_name, user.email, user.role)
        return answer(TokenObject(token, "Bearer", rfc3339(expires_at), account, request_id()))

    async def matches(password: str, stored: str) -> bool:
        return await trio.to_thread.run_sync(password_matches, password, stored, limiter=hashing)

    @routes.post("/v1/auth/login")
    async def login() -> Response:
        wanted, address = await json_request(LOGIN), client_address()
        email = wanted.email.strip().lower()
        guesses.check_address(address)
        guesses.check_account(email, address)
        user = services.store.accounts.user_by_email(email) if "\0" not in email else None
        right = await matches(wanted.password, user.password_hash if user else nobody)
        if user is None or not right:
            guesses.failed(address, email)
            await trio.sleep(FAILURE_DELAY)
            raise Refused(Code.UNAUTHORIZED, WRONG_LOGIN)
        guesses.succeeded(address, email)
        return token_answer(user)

    @routes.post("/v1/auth/refresh")
    async def refresh() -> Response:
        user, _ = await services.user()
        return token_answer(user)

    @routes.post("/v1/auth/logout")
    async def logout() -> Response:
        _, claims = await services.user()
        await services.store.accounts.revoke_token(claims.token_id, claims.expires_at)
        services.auth.forget()
        return answer(LoggedOutObject(True, request_id()))

    @routes.post("/v1/auth/password")
    async def password() -> Response:
        user, _ = await services.user()
        wanted, address = await json_request(PASSWORD), client_address()
        if len(wanted.new_password.encode()) > MAX_BYTES:
            raise invalid("new_password", f"must have at most {MAX_BYTES} bytes")
        guesses.check_account(user.email, address)
        if not await matches(wanted.current_password, user.password_hash):
            guesses.failed(address, user.email)
            await trio.sleep(FAILURE_DELAY)
            raise Refused(Code.FORBIDDEN, "current_password: this is not the current password")
        new_hash = await trio.to_thread.run_sync(hash_password, wanted.new_password, limiter=hashing)
        await services.store.accounts.set_password(user.id, new_hash)
        services.auth.forget()
        return answer(ChangedObject(True, request_id()))

    return routes
