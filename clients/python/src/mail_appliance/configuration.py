"""Where and how a client sends: its arguments, checked and completed from the environment. Pure: no I/O."""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from mail_appliance.errors import ConfigurationError
from mail_appliance.proxies import Proxy, proxy_for

RETRIES: Final = 3
CONNECT_TIMEOUT: Final = 5.0  # seconds
TIMEOUT: Final = 30.0  # seconds for one attempt, until its answer is read whole

_VISIBLE = re.compile(r"[!-~]+")
_UNRESERVED_PATH = "/%:@!$&'()*+,;=~"  # RFC 3986 3.3, in addition to letters and digits


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where and how to send; every value is valid."""

    tls: bool
    host: str  # ASCII; an IPv6 address without brackets
    port: int
    path: str  # of the base URL, without a slash at its end
    authorization: str = field(repr=False)
    retries: int
    connect_timeout: float
    timeout: float
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme and authority."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def first_hop(self) -> tuple[str, int]:
        """Host and port that a transport connects to: the proxy's, if there is one."""
        return (self.proxy.host, self.proxy.port) if self.proxy else (self.host, self.port)


def configure(
    url: str | None,
    *,
    username: str | None,
    password: str | None,
    token: str | None,
    retries: int,
    connect_timeout: float,
    timeout: float,
    environment: Mapping[str, str],
) -> Configuration:
    """Check the arguments, and complete them from the environment. Explicit credentials win over all of its own."""
    url = url or environment.get("MAIL_APPLIANCE_URL")
    if not url:
        raise ConfigurationError("no URL: give url or set MAIL_APPLIANCE_URL")
    tls, host, port, path = _read_url(url)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigurationError(f"retries must be 0 or a positive integer, not {retries!r}")
    for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigurationError(f"{name} must be a positive number of seconds, not {seconds!r}")
    return Configuration(
        tls=tls,
        host=host,
        port=port,
        path=path,
        authorization=_authorization(username, password, token, environment),
        retries=retries,
        connect_timeout=float(connect_timeout),
        timeout=float(timeout),
        proxy=proxy_for(host, port, tls=tls, environment=environment),
    )


def _read_url(url: str) -> tuple[bool, str, int, str]:
    """Whether by TLS, host, port and path."""
    shown = "the URL" if "@" in url else f"the URL {url!r}"  # it may have a password in it
    wrong = f"{shown} (url or MAIL_APPLIANCE_URL)"
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigurationError(f"{wrong} has a space or a control character")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("ascii" if ":" in (parts.hostname or "") else "idna").decode("ascii")
        given_port = parts.port
    except ValueError as cause:
        raise ConfigurationError(f"{wrong} cannot be read: {cause}") from cause
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"{wrong} must begin with http:// or https://")
    if not host:
        raise ConfigurationError(f"{wrong} has no host")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigurationError(f"{wrong} may not have a user, a query or a fragment")
    tls = parts.scheme == "https"
    port = given_port if given_port is not None else 443 if tls else 80
    return tls, host, port, quote(parts.path.rstrip("/"), safe=_UNRESERVED_PATH)


def _authorization(
    username: str | None, password: str | None, token: str | None, environment: Mapping[str, str]
) -> str:
    if token and (username or password):
        pair = "a username or a password"
        raise ConfigurationError(f"both token and {pair} are given: credentials are either a token or a pair")
    if not (token or username or password):
        token = environment.get("MAIL_APPLIANCE_TOKEN")
    if token:
        if not _VISIBLE.fullmatch(token):
            raise ConfigurationError(
                "the token (token or MAIL_APPLIANCE_TOKEN) has characters other than visible ASCII"
            )
        return f"Bearer {token}"
    username = username or environment.get("MAIL_APPLIANCE_USERNAME")
    password = password or environment.get("MAIL_APPLIANCE_PASSWORD")
    if not username and not password:
        raise ConfigurationError(
            "no credentials: give username and password, or token, or set MAIL_APPLIANCE_USERNAME and "
            "MAIL_APPLIANCE_PASSWORD, or MAIL_APPLIANCE_TOKEN"
        )
    if not username:
        raise ConfigurationError("a password without a username: give username or set MAIL_APPLIANCE_USERNAME")
    if not password:
        raise ConfigurationError("a username without a password: give password or set MAIL_APPLIANCE_PASSWORD")
    if ":" in username:
        raise ConfigurationError("the username (username or MAIL_APPLIANCE_USERNAME) has a colon")  # RFC 7617 2
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
