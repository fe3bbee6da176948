"""Which URLs may be posted to: https, a public host, an allowed port, in one plain spelling. Pure: no I/O, no state.

The owner of a webhook chooses what this machine connects to. A check can be bypassed where two programs read one URL
differently, so a URL with more than one possible reading is refused. The addresses of a name are checked at every
attempt (`connect.AddressLookup`).

Names of the service itself are refused, each exactly; a pattern such as `*.example.com` stands for all names below.
"""

import re
from collections.abc import Container, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from appliance.config.values import is_host_name
from appliance.net.address_policy import Address, Network, refusal

URL_LENGTH = 2048  # characters; longer ones are cut somewhere on the way
HTTPS_PORT = 443

# RFC 3986 3.3 and 3.4: nothing that would have to be percent-encoded first.
_PLAIN = r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]*"
_PATH = re.compile(rf"{_PLAIN}(?:%[0-9A-Fa-f]{{2}}{_PLAIN})*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# A last label that is a number, hexadecimal ones too, makes many URL parsers take the whole for an IPv4 address.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LOCAL = ("localhost", "localdomain")  # RFC 6761 6.3, and what many hosts files add


class Target(NamedTuple):
    """What an allowed URL names: where to connect, and what to request there."""

    host: str  # lower case; an IP address without brackets
    port: int
    path: str  # with its query
    address: Address | None = None  # when the host is one

    @property
    def authority(self) -> str:
        """For the Host header (RFC 9110 7.2): the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTPS_PORT else f"{host}:{self.port}"


class UrlRefused(Exception):
    """A URL that may not be posted to; the text says why."""


def read_url(url: str, ports: Container[int], own_names: Container[str], allowed: Iterable[Network] = ()) -> Target:
    """Parse and check a URL; raises `UrlRefused`. `allowed` admits addresses that would be refused otherwise."""
    _check_characters(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "https":
        raise UrlRefused("the URL must begin with https://")
    end = next((at for at, character in enumerate(rest) if character in "/?"), len(rest))
    authority, path = rest[:end], rest[end:]
    if not _PATH.fullmatch(path):
        raise UrlRefused("the URL's path or query has a character that must be percent-encoded")
    host, port = _split(authority)
    address = _address(host)
    host = _host_name(host) if address is None else str(address)
    if port not in ports:
        raise UrlRefused(f"port {port} is not allowed for webhooks here")
    labels = host.split(".")
    if host in own_names or any("*." + ".".join(labels[at:]) in own_names for at in range(1, len(labels))):
        raise UrlRefused(f"{host} is this service itself")
    if address is not None and (reason := refusal(address, allowed)):
        raise UrlRefused(f"the URL's host must be public: {reason}")
    return Target(host, port, path if path.startswith("/") else f"/{path}", address)


def _check_characters(url: str) -> None:
    if len(url) > URL_LENGTH:
        raise UrlRefused(f"the URL is over {URL_LENGTH} characters long")
    if not url.isascii():
        raise UrlRefused("the URL must be ASCII: write the host as xn--… and percent-encode the rest")
    if not url.isprintable() or " " in url:
        raise UrlRefused("the URL has a space or a control character in it")
    if "\\" in url:
        raise UrlRefused("the URL has a backslash in it")
    if "#" in url:
        raise UrlRefused("the URL has a fragment (#…), which is never sent")


def _split(authority: str) -> tuple[str, int]:
    """The host (an IPv6 address in its brackets) and the port."""
    if "@" in authority:
        raise UrlRefused("the URL must not carry a user name or password")
    if authority.startswith("["):
        host, bracket, after = authority.partition("]")
        host += bracket
        if after and not after.startswith(":"):
            raise UrlRefused("the URL's host is not written as a host name or an IP address")
        colon, port = after[:1], after[1:]
    else:
        host, colon, port = authority.partition(":")
    if not host:
        raise UrlRefused("the URL has no host")
    if not colon:
        return host.lower(), HTTPS_PORT
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise UrlRefused("the URL's port is not a number from 1 to 65535")
    return host.lower(), int(port)


def _address(host: str) -> Address | None:
    """The IP address that a host is, or None for a name."""
    if host.startswith("["):
        if "%" in host:
            raise UrlRefused("the URL's IPv6 address must not name a network interface (%…)")
        try:
            return IPv6Address(host[1:-1])
        except ValueError:
            raise UrlRefused("the URL's host is not an IPv6 address, though it stands in brackets") from None
    if not _ENDS_IN_NUMBER.fullmatch(host):
        return None
    try:
        return IPv4Address(host)
    except ValueError:
        raise UrlRefused("the URL's host looks like an IP address but is not written as 192.0.2.1 is") from None


def _host_name(host: str) -> str:
    if host.endswith("."):
        raise UrlRefused("the URL's host must not end in a dot")
    if host in _LOCAL or host.endswith(tuple(f".{name}" for name in _LOCAL)):
        raise UrlRefused(f"the URL's host must be public: {host} is this machine")
    if not is_host_name(host):
        raise UrlRefused("the URL's host is not a host name such as hooks.example.com")
    if "." not in host:
        raise UrlRefused(f"the URL's host must be public: {host} is a name without a domain")
    return host
