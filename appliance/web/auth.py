"""Authenticates HTTP requests and logins.

- A request: HTTP Basic with an SMTP credential, or Bearer with an API key or a user's token.
- A login: password, and the two-factor or recovery code if two-factor authentication is on. Every check counts as a
  failed login on arrival, before anything is compared; success removes the count (see `login_throttle`). A wrong code
  costs as much as a wrong password, and also counts for its user.
- A session: tokens are JWT, HS256 only, with every claim required, valid for twelve hours. The session cookie works
  only for `POST /v1/auth/refresh`, and only once: each use sets the next cookie. The previous cookie stays valid for a
  few seconds, for windows that renew at the same time (see `store.sessions`). Another site that makes a browser send it
  gains nothing and is refused.
"""

import binascii
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import jwt
import msgspec
import pybase64
import trio
from jwt.types import Options
from msgspec import Struct
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.settings import TotpDemand
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused
from appliance.intake.limits import CACHED, CACHED_FOR, Credentials
from appliance.intake.login_throttle import FAILURE_DELAY, LoginThrottle
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import PasswordHasher, TotpSecrets, is_totp_code, plain_code, unmatched_hash
from appliance.message.addresses import parse
from appliance.model.accounts import KEY_PREFIX, Caller, KeyPrincipal, Permission, Principal, Role, User
from appliance.model.dashboard import LoginSession
from appliance.model.mail import Message
from appliance.net.address_policy import site_of
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store
from appliance.store.access import sha256
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

log = get_logger("web")

# ---- sessions

ALGORITHM = "HS256"
ISSUER = "mail-appliance"
TOKEN_LIFETIME = 12 * 3600  # seconds
CLAIMS = ("iss", "sub", "acct", "role", "iat", "exp", "jti", "epoch", "sid")
# Times are checked below with `Environment`'s clock. By default PyJWT accepts a token without `exp`.
_OPTIONS: Options = {"require": list(CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}

COOKIE_NAME = "appliance_session"
COOKIE_PATH = "/v1/auth"

_VALUE = re.compile(r"(ses_[0-9a-f]{32})\.([0-9]{1,18})\.([0-9a-f]{64})")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Claims(Struct, frozen=True):
    """The claims of a valid token. `epoch` ties it to a password, `session_id` to a login."""

    user_id: str
    account_id: str
    epoch: int
    session_id: str


class Tokens(Struct, frozen=True):
    key: bytes
    env: Environment

    def issue(self, user: User, session_id: str) -> tuple[str, int]:
        now = self.env.now() // SECOND
        claims = {
            "iss": ISSUER,
            "sub": user.id,
            "acct": user.account_id,
            "role": user.role.value,
            "iat": now,
            "exp": now + TOKEN_LIFETIME,
            "jti": self.env.identifier("tok"),
            "epoch": user.token_epoch,
            "sid": session_id,
        }
        return jwt.encode(claims, self.key, algorithm=ALGORITHM), (now + TOKEN_LIFETIME) * SECOND

    def read(self, token: str) -> Claims | None:
        try:
            claims = jwt.decode(token, self.key, algorithms=[ALGORITHM], issuer=ISSUER, options=_OPTIONS)
            if int(claims["exp"]) * SECOND <= self.env.now():
                return None
            Role(claims["role"])  # raises ValueError for an unknown role
            return Claims(str(claims["sub"]), str(claims["acct"]), int(claims["epoch"]), str(claims["sid"]))
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError):
            return None


class SessionCookies(Struct, frozen=True):
    """Writes and reads cookies. Nothing is stored: the session's generation decides which cookie is valid."""

    key: bytes
    base_url: str

    def give(self, session: LoginSession, scheme: str) -> str:
        lifetime = (session.expires_at - session.renewed_at) // SECOND
        value = f"{session.id}.{session.generation}"
        return self._header(f"{value}.{self._signature(value)}", lifetime, scheme)

    def clear(self, scheme: str) -> str:
        return self._header("", 0, scheme)

    def read(self, value: str) -> tuple[str, int] | None:
        """Session id and generation of a cookie with a valid signature, however old; otherwise None."""
        match = _VALUE.fullmatch(value)
        if match is None or not hmac.compare_digest(self._signature(f"{match[1]}.{match[2]}"), match[3]):
            return None
        return match[1], int(match[2])

    def is_own_page(self, site: str | None, origin: str | None, host: str) -> bool:
        """Whether a page of this service made the request. Browsers set these headers; pages cannot."""
        if site is not None:  # Sec-Fetch-Site
            return site == "same-origin"
        # Over plain HTTP, browsers send only Origin.
        made_by = _host(origin or "")
        return made_by is not None and made_by in (_host(f"//{host}", made_by[0]), _host(self.base_url))

    def _signature(self, value: str) -> str:
        return hmac.new(self.key, value.encode("ascii"), hashlib.sha256).hexdigest()

    def _header(self, value: str, lifetime: int, scheme: str) -> str:
        # Behind a TLS proxy, the request arrives over plain HTTP but the browser uses HTTPS.
        secure = "; Secure" if scheme == "https" or self.base_url.startswith("https:") else ""
        return f"{COOKIE_NAME}={value}; Path={COOKIE_PATH}; Max-Age={lifetime}; HttpOnly; SameSite=Strict{secure}"


def _host(url: str, scheme: str = "") -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        scheme = parts.scheme or scheme
        port = parts.port or _DEFAULT_PORTS.get(scheme)
    except ValueError:
        return None
    return None if not parts.hostname or port is None else (scheme, parts.hostname, port)


# ---- requests

MISSING = "Authorization: missing or malformed. Send Basic with an SMTP credential, or Bearer with an API key or token."
ONLY_TOKENS = (
    "This endpoint requires a token from POST /v1/auth/login or an API key with the scope manage. Other "
    "keys and SMTP credentials are not accepted."
)
ENROL_FIRST = "This installation requires two-factor authentication. Turn it on under Account, then retry."


@dataclass(slots=True)
class Authenticator:
    store: Store
    env: Environment
    tokens: Tokens
    credentials: Credentials
    known: KnownNetworks
    totp_demand: TotpDemand = TotpDemand.NONE
    # The key is a keyed digest of the header, so the cache holds no secret.
    _salt: bytes = field(default_factory=lambda: os.urandom(32))
    _callers: TtlCache[bytes, Caller] = field(init=False)
    changes: int = 0  # changes to credentials and accounts by this process

    def __post_init__(self) -> None:
        self._callers = TtlCache(CACHED, CACHED_FOR, self.env.now)

    async def caller(self, authorization: bytes | None, address: str) -> Caller:
        """The account behind this header, which may send or read messages."""
        if authorization is None:
            raise Refused(Code.UNAUTHORIZED, MISSING)
        digest = hashlib.blake2b(authorization, digest_size=16, key=self._salt).digest()
        if (cached := self._callers.get(digest)) is not None:
            return cached
        caller = await self._look_up(authorization)
        if caller is None:
            raise await self.credentials.wrong_guess(address)
        kept = self.credentials.kept_for(caller.key)
        if caller.key is not None:
            self.credentials.note_use(caller, address)
        self.known.note(address)
        self._callers.put(digest, caller, kept)
        return caller

    def forget(self) -> None:
        self.changes += 1
        self._callers.clear()
        self.credentials.forget()

    async def principal(self, authorization: bytes | None, address: str) -> Principal:
        """The user or API key behind a request under /v1."""
        if authorization is not None and _split(authorization)[1].startswith(KEY_PREFIX):
            key = (await self.caller(authorization, address)).key
            if key is None or Permission.VIEW not in key.permissions:
                raise Refused(Code.UNAUTHORIZED, ONLY_TOKENS)
            return key
        user, _ = await self.user(authorization, address)
        return user

    async def is_still_valid(self, authorization: bytes | None) -> bool:
        """Whether a header that `principal` accepted is still valid. A failure does not count as a guess."""
        if authorization is None:
            return False
        _, secret = _split(authorization)
        if not secret.startswith(KEY_PREFIX):
            return await self._user(secret) is not None
        caller = await self.store.access.caller_by_key(secret)
        if caller is None or caller.key is None or Permission.VIEW not in caller.key.permissions:
            return False
        return caller.key.expires_at is None or caller.key.expires_at > self.env.now()

    async def user(self, authorization: bytes | None, address: str) -> tuple[User, Claims]:
        """The user behind this header, which must hold a token."""
        if authorization is None:
            raise Refused(Code.UNAUTHORIZED, ONLY_TOKENS)
        scheme, secret = _split(authorization)
        if scheme != "bearer" or secret.startswith(KEY_PREFIX):
            raise Refused(Code.UNAUTHORIZED, ONLY_TOKENS)
        login = await self._user(secret)
        if login is None:
            raise await self.credentials.wrong_guess(address)
        self.known.note(address)
        return login

    def demands_totp(self, user: User) -> bool:
        return self.totp_demand is TotpDemand.ALL or (self.totp_demand is TotpDemand.ADMINS and user.role is Role.ADMIN)

    def must_enrol(self, user: User) -> bool:
        return not user.has_totp and self.demands_totp(user)

    async def _look_up(self, authorization: bytes) -> Caller | None:
        scheme, secret = _split(authorization)
        if scheme == "basic":
            try:
                username, _, password = pybase64.b64decode(secret, validate=True).decode("utf-8").partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return None
            return await self.credentials.look_up(username, sha256(password))
        if secret.startswith(KEY_PREFIX):
            return await self.store.access.caller_by_key(secret)
        login = await self._user(secret)
        if login is None:
            return None
        if login[0].must_enrol:
            raise Refused(Code.FORBIDDEN, ENROL_FIRST)
        caller = await self.store.access.caller_by_account(login[0].account_id)
        may_send = Permission.DEVELOP in login[0].permissions
        return None if caller is None else msgspec.structs.replace(caller, may_send=may_send)

    async def _user(self, token: str) -> tuple[User, Claims] | None:
        claims = self.tokens.read(token)
        user = None if claims is None else await self.store.accounts.user_of_session(claims.session_id)
        if claims is None or user is None:
            return None
        if (user.id, user.token_epoch, user.account_id) != (claims.user_id, claims.epoch, claims.account_id):
            return None
        return replace(user, must_enrol=self.must_enrol(user)), claims


def sees(key: KeyPrincipal | None, message: Message) -> bool:
    """Whether the key's domain covers the message. Logins and unlimited keys see every message."""
    if key is None or key.domain is None:
        return True
    try:
        return key.reaches(parse(message.sender, "from").domain)
    except Refused:
        return False


def check_may_send(caller: Caller) -> None:
    if not caller.may_send:
        what = "login" if caller.key is None else "API key (scope `read`)"
        raise Refused(Code.FORBIDDEN, f"This {what} may only read messages, not send them.")


def check_reach(principal: Principal, domain: str | None = None) -> None:
    """Refuse a key that is limited to another domain. `None` stands for the whole account."""
    if isinstance(principal, KeyPrincipal) and not principal.reaches(domain):
        text = f"This API key is limited to the domain {principal.domain} and may not call this endpoint."
        raise Refused(Code.FORBIDDEN, text)


def _split(authorization: bytes) -> tuple[str, str]:
    """Scheme and credential. A scheme other than Basic or Bearer is refused like a missing header."""
    try:
        scheme, _, secret = authorization.decode("ascii").strip().partition(" ")
    except UnicodeDecodeError:
        raise Refused(Code.UNAUTHORIZED, MISSING) from None
    if scheme.lower() not in ("basic", "bearer") or not secret.strip():
        raise Refused(Code.UNAUTHORIZED, MISSING)
    return scheme.lower(), secret.strip()


# ---- logins

CODE_NEEDED = "Two-factor code required. Send the current code from your app, or a recovery code."
CODE_REFUSED = "This code is wrong or was already used. Wait for the next code, or use a recovery code."
SECOND_FACTOR_HEADER = "Second-Factor"  # `required` if a code is missing or wrong


class SecondFactorNeeded(Refused):
    """The password was right, but the code is missing or wrong."""


@dataclass(slots=True)
class LoginCheck:
    store: Store
    guesses: LoginThrottle
    hashing: PasswordHasher
    totp: TotpSecrets
    # Unknown users are checked against this hash, so that the response takes as long.
    _unknown_user_hash: str = field(default_factory=unmatched_hash, repr=False)

    async def is_right(
        self, email: str, password: str, user: User | None, address: str, code: str | None = None
    ) -> bool:
        """Whether the password is right, in the same time for unknown users. With `code`, raises SecondFactorNeeded."""
        # Count it as a failed login, or refuse it, before the password is hashed.
        known = await self.store.sessions.addresses(user.id if user else "")
        refused_at = trio.current_time() + FAILURE_DELAY
        try:
            attempt = self.guesses.attempt(email, address, known)
        except Refused:
            await trio.sleep_until(refused_at)
            raise
        await trio.sleep(attempt.wait)
        try:
            stored = user.password_hash if user else self._unknown_user_hash
            right = await self.hashing.matches(password, stored, site_of(address))
        except PublicError:
            attempt.withdrawn()
            raise
        if user is None or not right:
            if (refusal := attempt.failed()) is not None:
                await trio.sleep_until(refused_at)  # same delay as an unchecked password, unless hashing takes longer
                raise refusal
            await trio.sleep(FAILURE_DELAY)
            return False
        if code is not None and user.has_totp:
            if not code:
                attempt.withdrawn()  # no guess was made
                raise SecondFactorNeeded(Code.UNAUTHORIZED, CODE_NEEDED)
            try:
                guess = self.guesses.code(email, address, known)
            except Refused:
                attempt.withdrawn()  # the password was right and no code was compared
                raise
            if not await self._spend(user, plain_code(code)):
                attempt.failed()
                await trio.sleep(FAILURE_DELAY)
                raise SecondFactorNeeded(Code.UNAUTHORIZED, CODE_REFUSED)
            guess.was_right()
        attempt.succeeded()
        return True

    async def _spend(self, user: User, code: str) -> bool:
        if not is_totp_code(code):
            return await self.store.second_factors.use_recovery_code(user.id, code)
        step = await self.step_of(user.id, code)
        return step is not None and await self.store.second_factors.use_step(user.id, step)

    async def step_of(self, user_id: str, code: str) -> int | None:
        """The time step that a code belongs to, for an active or pending second factor."""
        factor = await self.store.second_factors.of(user_id)
        if factor is None:
            return None
        try:
            return self.totp.step_of(user_id, factor.secret, code)
        except UnsealError as error:  # recovery codes still work
            log.error("two-factor secret unreadable", user=user_id, cause=str(error))
            return None
