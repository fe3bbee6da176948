"""The cookie that renews a dashboard session. No I/O.

It works only for `POST /v1/auth/refresh`, and only once: each use sets the next cookie. The previous cookie stays valid
for a few seconds, for windows that renew at the same time (see `store.sessions`). Another site that makes a browser
send it gains nothing and is refused.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from appliance.model.dashboard import LoginSession
from appliance.times import SECOND

COOKIE_NAME = "appliance_session"
COOKIE_PATH = "/v1/auth"

_VALUE = re.compile(r"(ses_[0-9a-f]{32})\.([0-9]{1,18})\.([0-9a-f]{64})")
_DEFAULT_PORTS = {"http": 80, "https": 443}


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
