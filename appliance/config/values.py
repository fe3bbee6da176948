"""Kinds of values: each converts one TOML value into the program's type, or raises ValueError with the reason. No I/O.

`settings.py` declares each setting as a dataclass field: its kind of value, default and meaning.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from enum import StrEnum
from keyword import iskeyword
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

KIB = 1024
MIB = 1024 * KIB
MAX_DURATION = 365 * 86400.0  # seconds; a longer one is probably a typing error
MAX_SIZE = 2**63 - 1  # bytes; the limit of SQLite and the kernel
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
# RFC 8555 7.3: a single address, without characters that have a meaning in a mailto URL.
_MAILBOX = re.compile(r"[A-Za-z0-9._+=-]{1,64}@([A-Za-z0-9.-]+)")
_URL_PATH = re.compile(r"/[A-Za-z0-9/._~%+:@-]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_POOL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62})")


class ConfigError(Exception):
    """The settings cannot be used; the text is one line: file, key, reason."""

    def __init__(self, *parts: str) -> None:
        line = ": ".join(parts)
        # TOML can escape any character; a key or value must not break the line or control the terminal.
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


class ValueKind(Struct, Generic[T_co], frozen=True):
    """A kind of value: its name in the documentation, and its reader, which raises ValueError with the reason."""

    name: str
    read: Callable[[object], T_co]


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _wrong(expected: str, value: object) -> ValueError:
    shown = json.dumps(value, default=str, ensure_ascii=False)
    return ValueError(f"must be {expected}, not {shown if len(shown) <= 60 else shown[:59] + '…'}")


def _kind(name: str, expected: str, read: Callable[[Any], T | None], *types: type) -> ValueKind[T]:
    """A kind that applies `read` to text, or to `types`; None or ValueError means that the value is not valid."""

    def reading(value: object) -> T:
        try:
            result = read(value) if type(value) in (types or (str,)) else None
        except ValueError:
            result = None
        if result is None:
            raise _wrong(expected, value)
        return result

    return ValueKind(name, reading)


def is_host_name(text: str) -> bool:
    """Whether this is a host name in lower-case ASCII, with one label or more."""
    return len(text) <= 253 and _HOST_NAME.fullmatch(text) is not None


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_host(text: str) -> bool:
    return is_host_name(text) or is_address(text)


def _read_secret(value: object) -> str:
    """A password, or text sent with one. The error does not quote it."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text without control characters")
    return value


def _read_database_url(value: object) -> str:
    """A PostgreSQL URL, often with a password. The error does not quote it."""
    text = _read_secret(value)
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise ValueError('must be empty, or a URL such as "postgresql://appliance:PASSWORD@db.example.com/appliance"')
    return text


def _read_mailbox(text: str) -> str | None:
    match = _MAILBOX.fullmatch(text)
    return text if match and is_host_name(match[1].lower()) else None


def _read_https_url(text: str) -> str | None:
    scheme, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    base = _read_base_url(f"https://{host}")
    return base + slash + path if base and scheme == "https" and _URL_PATH.fullmatch(slash + path) else None


def _read_base_url(text: str) -> str | None:
    text = text.rstrip("/")
    parts = urlsplit(text)  # ValueError for half an IPv6 address, or below for an invalid port
    port, host = parts.port, parts.hostname or ""
    # Rebuilt and compared, because urlsplit silently drops some parts (newlines, userinfo, an empty query).
    shown = f"[{host}]" if ":" in host else host
    rebuilt = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    return rebuilt if parts.scheme in ("http", "https") and _is_host(host) and rebuilt == text.lower() else None


def _read_network(value: object) -> Network:
    try:
        network = ipaddress.ip_network(value if isinstance(value, str) else "", strict=False)
    except ValueError:
        raise _wrong('a network such as "10.0.0.0/8" or an IP address', value) from None
    if ipaddress.ip_address(str(value).partition("/")[0]) != network.network_address:
        raise ValueError(f"{value} has bits set beyond its prefix length")
    return network


def _read_bind(value: object) -> Endpoint:
    expected = 'an IP address and a port, such as "127.0.0.1:8080" or "[::1]:8080"'
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return _endpoint("127.0.0.1" if host == "localhost" else host, port, expected, value)


def _read_resolver(value: object) -> Endpoint:
    text = value if isinstance(value, str) else ""
    expected = 'an IP address with or without a port, such as "127.0.0.1:5353" or "::1"'
    if is_address(text):
        return Endpoint(text, DNS_PORT)
    host, _, port = text.rpartition(":")
    endpoint = _endpoint(host, port, expected, value)
    if endpoint.port == 0:
        raise _wrong(expected, value)
    return endpoint


def _endpoint(host: str, port: str, expected: str, value: object) -> Endpoint:
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    # IPv6 needs brackets, and only IPv6 has them: "::1:80" would be ambiguous.
    if not is_address(bare) or bracketed != (":" in bare) or not _PORT.fullmatch(port):
        raise _wrong(expected, value)
    if int(port) > 65535:
        raise ValueError(f"port {port} is over 65535")
    return Endpoint(bare, int(port))


def _read_file(value: object) -> Path | None:
    if not isinstance(value, str):
        raise _wrong('a file, or "" for none', value)
    return Path(value) if value else None


def _lower(test: Callable[[str], bool]) -> Callable[[str], str | None]:
    return lambda text: text.lower() if test(text.lower()) else None


def integer(minimum: int, maximum: int, name: str = "integer") -> ValueKind[int]:
    expected = f"a whole number from {minimum} to {maximum}"
    return _kind(name, expected, lambda value: value if minimum <= value <= maximum else None, int)


BOOLEAN: ValueKind[bool] = _kind("boolean", "true or false", lambda value: value, bool)
HOST_NAME = _kind("host name", 'a host name such as "mail.example.com"', _lower(is_host_name))
HOST = _kind("host name or IP", 'a host name or an IP address, such as "smtp.example.com"', _lower(_is_host))
DOMAIN_PATTERN = _kind(
    "domain",
    'a domain such as "example.com", or "*.example.com" for all below it',
    _lower(lambda name: is_host_name(name.removeprefix("*."))),
)
POOL_NAME = _kind(
    "name",
    "a name of lower-case letters, digits, dots, underscores and hyphens",
    lambda text: text if _POOL_NAME.fullmatch(text) else None,
)
SECRET = ValueKind("text", _read_secret)
DATABASE_URL = ValueKind("URL", _read_database_url)
MAILBOX = _kind("mail address", 'a mail address such as "postmaster@example.com"', _read_mailbox)
BASE_URL = _kind("URL", 'an http or https URL without a path, such as "https://mail.example.com"', _read_base_url)
HTTPS_URL = _kind("URL", 'an https URL such as "https://ca.example.com/acme/directory"', _read_https_url)
ADDRESS: ValueKind[Address] = _kind("IP address", 'an IP address such as "192.0.2.7"', ipaddress.ip_address)
NETWORK = ValueKind("network", _read_network)
PORT = integer(1, 65535, "port")
BIND = ValueKind("IP:port", _read_bind)
RESOLVER = ValueKind("IP[:port]", _read_resolver)
DIRECTORY = _kind("directory", "a directory", lambda text: Path(text) if text and "\0" not in text else None)
FILE = ValueKind("file", _read_file)


def number(minimum: float, maximum: float) -> ValueKind[float]:
    expected = f"a number from {minimum:g} to {maximum:g}"
    return _kind("number", expected, lambda value: float(value) if minimum <= value <= maximum else None, int, float)


def duration(*, positive: bool, at_least: str = "") -> ValueKind[float]:
    """Seconds, written with units: "500ms", "30s", "1h30m"; `at_least` is the minimum in the same form."""

    def read(value: object) -> float:
        if not isinstance(value, str) or not _DURATION.fullmatch(value):
            raise _wrong('a duration such as "30s" or "1h30m"', value)
        seconds = sum(int(count) * _SECONDS[unit] for count, unit in _DURATION_PART.findall(value))
        if seconds > MAX_DURATION or (positive and not seconds):
            raise _wrong("over zero and at most 365d" if positive else "at most 365d", value)
        if at_least and seconds < duration(positive=True).read(at_least):
            raise _wrong(f"at least {at_least}", value)
        return seconds

    return ValueKind("duration", read)


def size(minimum: int = 0, maximum: int = MAX_SIZE, *, within: str = "under 8EiB") -> ValueKind[int]:
    """Bytes: a number, or text with a unit; `within` names the bounds for the error."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            count = value
        else:
            match = _SIZE.fullmatch(value) if isinstance(value, str) else None
            if match is None or match[2] not in _BYTES:
                raise _wrong('a size such as "64KiB", "1GiB" or a number of bytes', value)
            count = int(match[1]) * _BYTES[match[2]]
        if not minimum <= count <= maximum:
            raise _wrong(within, value)
        return count

    return ValueKind("size", read)


class Share(NamedTuple):
    """A number of bytes, or a percentage; zeros mean no limit."""

    bytes: int = 0
    percent: int = 0


def _read_share(value: object) -> Share:
    expected = 'a share such as "25%", a size such as "10GiB", or "0"'
    text = value if isinstance(value, str) else ""
    percent = text.removesuffix("%") if text.endswith("%") else ""
    if percent.isascii() and percent.isdecimal() and len(percent) <= 3 and 1 <= int(percent) <= 100:
        return Share(percent=int(percent))
    try:
        return Share(size().read(value))
    except ValueError:
        raise _wrong(expected, value) from None


SIZE_OR_PERCENT = ValueKind("size or percent", _read_share)


def choice(options: type[E]) -> ValueKind[E]:
    expected = "one of " + ", ".join(f'"{option.value}"' for option in options)
    return _kind(" or ".join(options), expected, options)


def many(kind: ValueKind[T], *, at_least: int = 0) -> ValueKind[tuple[T, ...]]:
    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        if len(value) < at_least:
            raise ValueError("must not be empty")
        return tuple(kind.read(item) for item in value)

    return ValueKind(f"{kind.name} list", read)


def optional(kind: ValueKind[T], nothing: T) -> ValueKind[T]:
    """A value that may be empty (""), which becomes `nothing`."""
    return ValueKind(kind.name, lambda value: nothing if value == "" else kind.read(value))


# ---- declarations


class Setting(Struct, frozen=True):
    section: str
    key: str
    default: object
    kind: ValueKind[Any]
    meaning: str


class NamedTables(Struct, frozen=True):
    """The tables `[section.key.NAME]` of a section: the kind of NAME, and the class of a table."""

    section: str
    key: str
    name: ValueKind[str]
    example: str
    record: type[Any]

    @property
    def place(self) -> str:
        return f"{self.section}.{self.key}"

    def settings(self, name: str) -> Iterator[Setting]:
        return rows(place_of(self.place, name), self.record)


def place_of(before: str, name: str) -> str:
    """Return the TOML path of a key or table; a name is quoted unless it has only letters, digits, `_` and `-`."""
    return f"{before}.{name}" if _BARE_KEY.fullmatch(name) else f'{before}."{name}"'


def key(kind: ValueKind[T], default: object, meaning: str) -> T:
    """A field with its default as written in the file; typed as its value, so that mypy compares kind and field."""
    row = {"kind": kind, "default": default, "meaning": meaning}
    # Passwords stay out of the repr.
    return field(default_factory=lambda: kind.read(default), metadata=row, repr=kind not in (SECRET, DATABASE_URL))


def named(record: type[T], name: ValueKind[str], example: str) -> Mapping[str, T]:
    return field(default_factory=dict, metadata={"record": record, "name": name, "example": example})


def rows(heading: str, record: type[Any]) -> Iterator[Setting]:
    for entry in fields(record):
        if "kind" in entry.metadata:
            yield Setting(heading, entry.name.rstrip("_"), **entry.metadata)


def field_name(key: str) -> str:
    """Return the field of a key, which may be a Python keyword such as `from`."""
    return f"{key}_" if iskeyword(key) else key
