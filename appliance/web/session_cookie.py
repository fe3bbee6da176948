"""In charge of the cookie that renews a session: what stands in it, and from where it may be used. PURE.

It is good for one thing, `POST /v1/auth/refresh`, and once: its path keeps it from every other request, and each use
gives out the next one. So a page of another site that makes a browser send it gains nothing, and is refused besides.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from appliance.model.dashboard import LoginSession

NAME = "appliance_session"
PATH = "/v1/auth"

_VALUE = re.compile(r"(ses_[0-9a-f]{32})\.([0-9]{1,18})\.([0-9a-f]{64})")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class SessionCookies:
    """Writes and reads cookies. Nothing of them is stored: the session's generation says which one is good."""

    key: bytes
    base_url: str

    def give(self, session: LoginSession, scheme: str) -> str:
        """A Set-Cookie header for the session's current generation."""
        lifetime = (session.expires_at - session.renewed_at) // 1_000_000
        value = f"{session.id}.{session.generation}"
        return self._header(f"{value}.{self._seal(value)}", lifetime, scheme)

    def clear(self, scheme: str) -> str:
        """A Set-Cookie header that takes the cookie away."""
        return self._header("", 0, scheme)

    def read(self, value: str) -> tuple[str, int] | None:
        """The session and the generation of a cookie that was given by us, however long ago."""
        match = _VALUE.fullmatch(value)
        if match is None or not hmac.compare_digest(self._seal(f"{match[1]}.{match[2]}"), match[3]):
            return None
        return match[1], int(match[2])

    def is_own_page(self, site: str | None, origin: str | None, host: str) -> bool:
        """Whether a page of this service made a request with these headers; a browser lets no page lie about that."""
        if site is not None:  # Sec-Fetch-Site
            return site == "same-origin"
        # Over plain HTTP browsers tell only the origin.
        made_by = _host(origin or "")
        return made_by is not None and made_by in (_host(f"//{host}", made_by[0]), _host(self.base_url))

    def _seal(self, value: str) -> str:
        return hmac.new(self.key, value.encode("ascii"), hashlib.sha256).hexdigest()

    def _header(self, value: str, lifetime: int, scheme: str) -> str:
        # Behind a proxy that ends TLS we are spoken to over plain HTTP, but the browser is not.
        secure = "; Secure" if scheme == "https" or self.base_url.startswith("https:") else ""
        return f"{NAME}={value}; Path={PATH}; Max-Age={lifetime}; HttpOnly; SameSite=Strict{secure}"


def _host(url: str, scheme: str = "") -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None when it is none."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme or scheme
        port = parts.port or _DEFAULT_PORTS.get(scheme)
    except ValueError:
        return None
    return None if not parts.hostname or port is None else (scheme, parts.hostname, port)
