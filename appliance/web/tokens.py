"""The dashboard's tokens: JWT, HS256 only, every claim required, valid for twelve hours."""

from dataclasses import dataclass

import jwt
from jwt.types import Options

from appliance.environment import Environment
from appliance.model.accounts import Role, User
from appliance.times import SECOND

ALGORITHM = "HS256"
ISSUER = "mail-appliance"
TOKEN_LIFETIME = 12 * 3600  # seconds
CLAIMS = ("iss", "sub", "acct", "role", "iat", "exp", "jti", "epoch", "sid")
# Times are checked below with `Environment`'s clock. By default PyJWT accepts a token without `exp`.
_OPTIONS: Options = {"require": list(CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}


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
