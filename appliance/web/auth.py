"""Authenticates HTTP requests: Basic with an SMTP credential, or Bearer with an API key or a user's token."""

import binascii
import hashlib
import os
from dataclasses import dataclass, field, replace

import msgspec
import pybase64

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.settings import TotpDemand
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake.limits import CACHED, CACHED_FOR, Credentials
from appliance.message.addresses import parse
from appliance.model.accounts import Caller, KeyPrincipal, Permission, Principal, Role, User
from appliance.model.mail import Message
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store
from appliance.store.access import sha256
from appliance.times import rfc3339
from appliance.web.session_proofs import Claims, Tokens

MISSING = "Authorization: missing or malformed. Send Basic with an SMTP credential, or Bearer with an API key or token."
ONLY_TOKENS = (
    "This endpoint requires a token from POST /v1/auth/login or an API key with the scope manage. Other "
    "keys and SMTP credentials are not accepted."
)
KEY_PREFIX = "ma_"
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
        kept = self._cached_for(caller.key)
        if caller.key is not None:
            self.credentials.note_use(caller, address)
        self.known.note(address)
        self._callers.put(digest, caller, kept)
        return caller

    def _cached_for(self, key: KeyPrincipal | None) -> int:
        """How long to cache a caller, in microseconds. Refuses an expired key."""
        if key is None or key.expires_at is None:
            return CACHED_FOR
        if (left := key.expires_at - self.env.now()) > 0:
            return min(CACHED_FOR, left)
        ended, instead = rfc3339(key.expires_at), "Create a new key."
        if key.replaced:
            ended, instead = f"{ended} because it was rolled", "Use the new key."
        raise Refused(Code.UNAUTHORIZED, f"This API key expired at {ended}. {instead}")

    def forget(self) -> None:
        """Drop cached callers after a change to credentials or accounts."""
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
        """Whether the installation requires two-factor authentication of this user."""
        return self.totp_demand is TotpDemand.ALL or (self.totp_demand is TotpDemand.ADMINS and user.role is Role.ADMIN)

    def must_enrol(self, user: User) -> bool:
        """Whether the user must turn on two-factor authentication first."""
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


def check_reach(principal: Principal, domain: str | None = None) -> None:
    """Refuse a key that is limited to another domain. `None` stands for the whole account."""
    if isinstance(principal, KeyPrincipal) and not principal.reaches(domain):
        raise Refused(
            Code.FORBIDDEN,
            f"This API key is limited to the domain {principal.domain} and may not call this endpoint.",
        )


def _split(authorization: bytes) -> tuple[str, str]:
    """Scheme and credential. A scheme other than Basic or Bearer is refused like a missing header."""
    try:
        scheme, _, secret = authorization.decode("ascii").strip().partition(" ")
    except UnicodeDecodeError:
        raise Refused(Code.UNAUTHORIZED, MISSING) from None
    if scheme.lower() not in ("basic", "bearer") or not secret.strip():
        raise Refused(Code.UNAUTHORIZED, MISSING)
    return scheme.lower(), secret.strip()
