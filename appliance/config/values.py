"""Reads one TOML value into the type the program works with; what it cannot be raises ValueError with the reason.

No I/O. The kinds of values below are what `settings` builds its tables of.
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

KIB = 1024
MIB = 1024 * KIB
MAX_DURATION = 365 * 86400.0  # seconds; a longer one is taken for a typing error
MAX_SIZE = 2**63 - 1  # bytes; what SQLite and the kernel can count
DNS_PORT = 53

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_BYTES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB, "TiB": 1024**2 * MIB}
_BYTES |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9]{1,19})\s?([A-Za-z]*)")
_PORT = re.compile(r"[0-9]{1,5}")
# RFC 1123 2.1; the last label may not be a number, so that no IP address passes for a name.
_HOST_NAME = re.compile(r"(?!.*(?:^|\.)[0-9]+$)(?:(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!$)|$))+")
# RFC 8555 7.3: one address and nothing else, so none of what would have a meaning of its own in a mailto URL.
_MAILBOX = re.compile(r"[A-Za-z0-9._+=-]{1,64}@([A-Za-z0-9.-]+)")
_URL_PATH = re.compile(r"/[A-Za-z0-9/._~%+:@-]*")
_POOL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62})")


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T_co]):
    """One kind of value: what the documentation calls it, and its reader, which raises ValueError with the reason."""

    name: str
    read: Callable[[object], T_co]


class Endpoint(NamedTuple):
    """An address and port to listen on, or of a resolver."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _wrong(wanted: str, value: object) -> ValueError:
    shown = json.dumps(value, default=str, ensure_ascii=False)
    return ValueError(f"must be {wanted}, not {shown if len(shown) <= 60 else shown[:59] + '…'}")


def _text(wanted: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(wanted, value)
    return value


def is_host_name(text: str) -> bool:
    """Whether this is a host name in lower-case ASCII, of one label or more."""
    return len(text) <= 253 and _HOST_NAME.fullmatch(text) is not None


def _read_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def _read_host_name(value: object) -> str:
    name = _text("a host name", value).lower()
    if not is_host_name(name):
        raise _wrong('a host name such as "mail.example.com"', value)
    return name


def _read_host(value: object) -> str:
    wanted = 'a host name or an IP address, such as "smtp.example.com"'
    name = _text(wanted, value).lower()
    if not _is_host(name):
        raise _wrong(wanted, value)
    return name


def _read_domain_pattern(value: object) -> str:
    wanted = 'a domain such as "example.com", or "*.example.com" for all below it'
    name = _text(wanted, value).lower()
    if not is_host_name(name.removeprefix("*.")):
        raise _wrong(wanted, value)
    return name


def _read_pool_name(value: object) -> str:
    wanted = "a name of lower-case letters, digits, dots, underscores and hyphens"
    if not _POOL_NAME.fullmatch(_text(wanted, value)):
        raise _wrong(wanted, value)
    return str(value)


def _read_secret(value: object) -> str:
    """A password, or text sent with one. The reason does not quote it."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text without control characters")
    return value


def _read_mailbox(value: object) -> str:
    wanted = 'a mail address such as "postmaster@example.com"'
    text = _text(wanted, value)
    found = _MAILBOX.fullmatch(text)
    if found is None or not is_host_name(found[1].lower()):
        raise _wrong(wanted, value)
    return text


def _read_https_url(value: object) -> str:
    wanted = 'an https URL such as "https://ca.example.com/acme/directory"'
    text = _text(wanted, value)
    scheme, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    if scheme != "https" or not _URL_PATH.fullmatch(slash + path):
        raise _wrong(wanted, value)
    try:
        return _read_base_url(f"https://{host}") + slash + path
    except ValueError:
        raise _wrong(wanted, value) from None


def _read_base_url(value: object) -> str:
    wanted = 'an http or https URL without a path, such as "https://mail.example.com"'
    text = _text(wanted, value).rstrip("/")
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
    except ValueError:  # a port that is none, half an IPv6 address
        raise _wrong(wanted, value) from None
    # Rebuilt and compared, because urlsplit quietly drops what it does not like (newlines, userinfo, an empty query).
    shown = f"[{host}]" if ":" in host else host
    rebuilt = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    if parts.scheme not in ("http", "https") or not _is_host(host) or rebuilt != text.lower():
        raise _wrong(wanted, value)
    return rebuilt


def _is_host(text: str) -> bool:
    return is_host_name(text) or is_address(text)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _read_address(value: object) -> Address:
    wanted = 'an IP address such as "192.0.2.7"'
    try:
        return ipaddress.ip_address(_text(wanted, value))
    except ValueError:
        raise _wrong(wanted, value) from None


def _read_network(value: object) -> Network:
    wanted = 'a network such as "10.0.0.0/8" or an IP address'
    try:
        return ipaddress.ip_network(_text(wanted, value))
    except ValueError as reason:
        if "has host bits set" in str(reason):
            raise ValueError(f"{value} has bits set beyond its prefix length") from None
        raise _wrong(wanted, value) from None


def _read_port(value: object) -> int:
    return integer(1, 65535).read(value)


def _read_bind(value: object) -> Endpoint:
    wanted = 'an IP address and a port, such as "127.0.0.1:8080" or "[::1]:8080"'
    host, _, port = _text(wanted, value).rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host
    return _endpoint(host, port, wanted, value)


def _read_resolver(value: object) -> Endpoint:
    wanted = 'an IP address with or without a port, such as "127.0.0.1:5353" or "::1"'
    text = _text(wanted, value)
    if is_address(text):
        return Endpoint(text, DNS_PORT)
    host, _, port = text.rpartition(":")
    endpoint = _endpoint(host, port, wanted, value)
    if endpoint.port == 0:
        raise _wrong(wanted, value)
    return endpoint


def _endpoint(host: str, port: str, wanted: str, value: object) -> Endpoint:
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    # Brackets are for IPv6 and IPv6 is for brackets: "::1:80" could be read in two ways.
    if not is_address(bare) or bracketed != (":" in bare) or not _PORT.fullmatch(port):
        raise _wrong(wanted, value)
    if int(port) > 65535:
        raise ValueError(f"port {port} is over 65535")
    return Endpoint(bare, int(port))


def _read_directory(value: object) -> Path:
    text = _text("a directory", value)
    if not text or "\0" in text:
        raise _wrong("a directory", value)
    return Path(text)


def _read_file(value: object) -> Path | None:
    text = _text('a file, or "" for none', value)
    return Path(text) if text else None


BOOLEAN = ValueKind("boolean", _read_boolean)
HOST_NAME = ValueKind("host name", _read_host_name)
HOST = ValueKind("host name or IP", _read_host)
DOMAIN_PATTERN = ValueKind("domain", _read_domain_pattern)
POOL_NAME = ValueKind("name", _read_pool_name)
SECRET = ValueKind("text", _read_secret)
MAILBOX = ValueKind("mail address", _read_mailbox)
BASE_URL = ValueKind("URL", _read_base_url)
HTTPS_URL = ValueKind("URL", _read_https_url)
ADDRESS = ValueKind("IP address", _read_address)
NETWORK = ValueKind("network", _read_network)
PORT = ValueKind("port", _read_port)
BIND = ValueKind("IP:port", _read_bind)
RESOLVER = ValueKind("IP[:port]", _read_resolver)
DIRECTORY = ValueKind("directory", _read_directory)
FILE = ValueKind("file", _read_file)


def integer(minimum: int, maximum: int) -> ValueKind[int]:
    """A whole number between the two, both included."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise _wrong(f"a whole number from {minimum} to {maximum}", value)
        return value

    return ValueKind("integer", read)


def number(minimum: float, maximum: float) -> ValueKind[float]:

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise _wrong(f"a number from {minimum:g} to {maximum:g}", value)
        return float(value)

    return ValueKind("number", read)


def duration(*, positive: bool, at_least: str = "") -> ValueKind[float]:
    """Seconds, written with their unit: "500ms", "30s", "1h30m"; `at_least` is the shortest, written so."""

    def read(value: object) -> float:
        wanted = 'a duration such as "30s" or "1h30m"'
        text = _text(wanted, value)
        if not _DURATION.fullmatch(text):
            raise _wrong(wanted, value)
        seconds = sum(int(count) * _SECONDS[unit] for count, unit in _DURATION_PART.findall(text))
        if seconds > MAX_DURATION or (positive and not seconds):
            raise _wrong("over zero and at most 365d" if positive else "at most 365d", value)
        if at_least and seconds < duration(positive=True).read(at_least):
            raise _wrong(f"at least {at_least}", value)
        return seconds

    return ValueKind("duration", read)


def size(minimum: int = 0, maximum: int = MAX_SIZE, *, within: str = "under 8EiB") -> ValueKind[int]:
    """Bytes: a plain number, or text with a unit; `within` says the bounds in words."""

    def read(value: object) -> int:
        count = _bytes(value)
        if not minimum <= count <= maximum:
            raise _wrong(within, value)
        return count

    return ValueKind("size", read)


class Share(NamedTuple):
    """A number of bytes, or a share of what there is; neither: no limit."""

    bytes: int = 0
    percent: int = 0


def _read_share(value: object) -> Share:
    wanted = 'a share such as "25%", a size such as "10GiB", or "0"'
    text = value if isinstance(value, str) else ""
    if text.endswith("%"):
        percent = text.removesuffix("%")
        if not (percent.isascii() and percent.isdecimal() and len(percent) <= 3 and 1 <= int(percent) <= 100):
            raise _wrong(wanted, value)
        return Share(percent=int(percent))
    try:
        return Share(size().read(value))
    except ValueError:
        raise _wrong(wanted, value) from None


SIZE_OR_PERCENT = ValueKind("size or percent", _read_share)


def _bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    wanted = 'a size such as "64KiB", "1GiB" or a number of bytes'
    match = _SIZE.fullmatch(_text(wanted, value))
    if match is None or match[2] not in _BYTES:
        raise _wrong(wanted, value)
    return int(match[1]) * _BYTES[match[2]]


def choice(options: type[E]) -> ValueKind[E]:

    def read(value: object) -> E:
        for option in options:
            if option.value == value:
                return option
        raise _wrong("one of " + ", ".join(f'"{option.value}"' for option in options), value)

    return ValueKind(" or ".join(option.value for option in options), read)


def many(kind: ValueKind[T], *, at_least: int = 0) -> ValueKind[tuple[T, ...]]:

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        if len(value) < at_least:
            raise ValueError("must not be empty")
        return tuple(kind.read(item) for item in value)

    return ValueKind(f"{kind.name} list", read)


def optional(kind: ValueKind[T], nothing: T) -> ValueKind[T]:
    """A value that may be left empty (""), which reads as `nothing`."""
    return ValueKind(kind.name, lambda value: nothing if value == "" else kind.read(value))
