"""The HTTP proxy that the environment names. Pure: the transports do the I/O.

A plain `http` URL is requested from the proxy in absolute form (RFC 9112 3.2.2). For `https` the proxy opens a tunnel
with CONNECT (RFC 9110 9.3.6), and TLS runs through it from end to end, so the proxy sees neither credentials nor mail.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from mail_appliance.errors import ConfigurationError

HEAD_LIMIT: Final = 64 * 1024  # bytes of the proxy's answer to CONNECT


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    host: str  # an IPv6 address without brackets
    port: int
    authorization: str | None = field(default=None, repr=False)


def proxy_for(host: str, port: int, *, tls: bool, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy to a host by `HTTPS_PROXY` or `HTTP_PROXY`, else `ALL_PROXY`; None if `NO_PROXY` names the host.

    The lower-case names win, as in curl. A CGI program ignores `HTTP_PROXY`, which its client can set by a header.
    """
    names = ["https_proxy" if tls else "http_proxy", "all_proxy"]
    if "REQUEST_METHOD" in environment:
        environment = {name: value for name, value in environment.items() if name != "HTTP_PROXY"}
    spellings = [spelling for name in names for spelling in (name, name.upper())]
    name = next((spelling for spelling in spellings if environment.get(spelling)), None)
    excepted = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if name is None or _is_excepted(host, port, excepted):
        return None
    return _read(name, environment[name])


def _is_excepted(host: str, port: int, excepted: str) -> bool:
    """Whether a list with commas names the host, one of its parent domains, or either with this port, or is `*`."""
    names = [name.strip().lower().lstrip(".") for name in excepted.split(",")]
    spellings = (host.lower(), f"{host.lower()}:{port}")
    return "*" in names or any(f".{spelling}".endswith(f".{name}") for name in names if name for spelling in spellings)


def _read(name: str, value: str) -> Proxy:
    """The proxy in a variable. The value may hold a password, so errors do not show it."""
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port
    except ValueError as cause:
        raise ConfigurationError(f"{name}: the proxy's URL is not valid. Use http://host:port.") from cause
    if parts.scheme != "http" or not host:
        raise ConfigurationError(
            f"{name}: only proxies with an http:// URL are supported. "
            "Use http://host:port, or add the appliance's host to NO_PROXY."
        )
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    authorization = None if pair == ":" else "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    return Proxy(host, 80 if port is None else port, authorization)


class Tunnel:
    """The CONNECT request to a proxy, and its answer as it arrives."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        """To this host and port."""
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        self.request: Final = "\r\n".join([*lines, "\r\n"]).encode("ascii")
        self._head = b""

    def status(self, data: bytes) -> int | None:
        """The answer's status once its head is complete; ConnectionError if it cannot become a whole one."""
        self._head += data
        if b"\r\n\r\n" in self._head:
            words = self._head.split(b" ", 2)
            if words[0].startswith(b"HTTP/1.") and words[1][:3].isdigit():
                return int(words[1][:3])
        elif data and len(self._head) < HEAD_LIMIT:
            return None
        raise ConnectionError("the proxy did not answer CONNECT with HTTP")
