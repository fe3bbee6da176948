"""What proves a dashboard session: a token for requests, and a cookie that renews it. No I/O.

Tokens are JWT, HS256 only, with every claim required, valid for twelve hours. The cookie works only for
`POST /v1/auth/refresh`, and only once: each use sets the next cookie. The previous cookie stays valid for a few
seconds, for windows that renew at the same time (see `store.sessions`). Another site that makes a browser send it gains
nothing and is refused.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import jwt
from jwt.types import Options

from appliance.environment import Environment
from appliance.model.dashboard import LoginSession
from appliance.model.mail import Role, User
from appliance.times import SECOND

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


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a valid token. `epoch` ties it to a password, `session_id` to a login."""

    user_id: str
    account_id: str
    epoch: int
    session_id: str


@dataclass(frozen=True, slots=True)
class Tokens:
    key: bytes
    env: Environment

    def issue(self, user: User, session_id: str) -> tuple[str, int]:
        """A new token and its expiry in microseconds."""
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
        """The claims of a valid, unexpired token, or None. Its session may have ended."""
        try:
            claims = jwt.decode(token, self.key, algorithms=[ALGORITHM], issuer=ISSUER, options=_OPTIONS)
            if int(claims["exp"]) * SECOND <= self.env.now():
                return None
            Role(claims["role"])  # raises ValueError for an unknown role
            return Claims(str(claims["sub"]), str(claims["acct"]), int(claims["epoch"]), str(claims["sid"]))
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class SessionCookies:
    """Writes and reads cookies. Nothing is stored: the session's generation decides which cookie is valid."""

    key: bytes
    base_url: str

    def give(self, session: LoginSession, scheme: str) -> str:
        """The Set-Cookie header for the session's current generation."""
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
    """Scheme, host and port of an origin; None if it is invalid."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme or scheme
        port = parts.port or _DEFAULT_PORTS.get(scheme)
    except ValueError:
        return None
    return None if not parts.hostname or port is None else (scheme, parts.hostname, port)
