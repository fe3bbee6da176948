"""In charge of which settings there are: their keys, kinds, defaults and meanings, one class a section.

These classes are the table that reading, checking, config.example.toml and docs/configuration.md come from. A new
setting is one line here, and the tests then ask for its documentation.
"""
# ruff: noqa: RUF009 - _key makes a dataclass field, as field() itself does

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from appliance.config_values import (
    BASE_URL,
    BIND,
    BOOLEAN,
    DIRECTORY,
    FILE,
    HOST_NAME,
    KIB,
    MIB,
    NETWORK,
    PORT,
    RESOLVER,
    Endpoint,
    Kind,
    Network,
    choice,
    duration,
    integer,
    many,
    optional,
    size,
)

T = TypeVar("T")

_TIMEOUT = duration(positive=True)
_DELAYS = many(duration(positive=False), at_least=1)
_CONNECTIONS = integer(1, 1_000_000)
_BODY_SIZE = size(KIB, 16 * MIB, within='from "1KiB" to "16MiB"')


class Mode(StrEnum):
    """How mail leaves."""

    DIRECT = "direct"
    RELAY = "relay"
    SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a key, what a file that omits it gets, what it may hold and what it is for."""

    section: str
    key: str
    default: object
    kind: Kind[Any]
    meaning: str


def _key(kind: Kind[T], default: object, meaning: str) -> T:
    """A field whose default is written as in the file; typed as its value, so mypy holds kind and field together."""
    row = {"kind": kind, "default": default, "meaning": meaning}
    return field(default_factory=lambda: kind.read(default), metadata=row)


@dataclass(frozen=True, slots=True)
class Server:
    """Who this machine is and where it keeps its state."""

    hostname: str = _key(
        optional(HOST_NAME, ""),
        "",
        'Name in HELO and in Message-IDs of last resort, e.g. "mail.example.com"; empty: the machine\'s name',
    )
    data_dir: Path = _key(DIRECTORY, "/var/lib/appliance", "Where the database and its key file live")
    own_domains: tuple[str, ...] = _key(
        many(HOST_NAME), [], "Further names of this service; webhook URLs to them are refused"
    )
    shutdown_timeout: float = _key(_TIMEOUT, "60s", "How long a stop waits for work in flight")


@dataclass(frozen=True, slots=True)
class Http:
    """The API and the dashboard."""

    bind: tuple[Endpoint, ...] = _key(many(BIND, at_least=1), ["127.0.0.1:8080"], "Addresses to listen on")
    base_url: str = _key(
        optional(BASE_URL, ""), "", 'What users reach it by, e.g. "https://mail.example.com"; empty: the first bind'
    )
    tls_cert: Path | None = _key(
        FILE, "", "Certificate chain (PEM): with tls_key HTTPS; empty: plain HTTP, for a proxy in front"
    )
    tls_key: Path | None = _key(FILE, "", "Private key (PEM) of tls_cert")
    trusted_proxies: tuple[Network, ...] = _key(many(NETWORK), [], "Proxies whose X-Forwarded-For is believed")
    max_connections: int = _key(_CONNECTIONS, 1000, "Open connections in all")
    max_connections_per_address: int = _key(_CONNECTIONS, 100, "Open connections from one address")
    header_timeout: float = _key(_TIMEOUT, "5s", "How long a client may take to send the headers of a request")
    body_timeout: float = _key(_TIMEOUT, "60s", "How long a client may take to send a body")
    write_timeout: float = _key(_TIMEOUT, "30s", "How long a client may take to read what is written to it")
    keep_alive_timeout: float = _key(_TIMEOUT, "75s", "How long an idle connection is kept open")
    max_body: int = _key(_BODY_SIZE, "16MiB", "Largest request body, from 1KiB to 16MiB; more is answered 413")
    body_memory: int = _key(size(), "256MiB", "Bytes of bodies in flight, at least max_body; more is answered 503")


@dataclass(frozen=True, slots=True)
class Smtp:
    """Mail from programs that speak SMTP (submission)."""

    bind: tuple[Endpoint, ...] = _key(many(BIND), ["0.0.0.0:587"], "Addresses that offer STARTTLS; [] for none")
    bind_tls: tuple[Endpoint, ...] = _key(
        many(BIND), ["0.0.0.0:465"], "Addresses that speak TLS from the first byte; [] for none"
    )
    tls_cert: Path | None = _key(FILE, "", "Certificate chain (PEM); empty: a generated certificate that nobody trusts")
    tls_key: Path | None = _key(FILE, "", "Private key (PEM) of tls_cert")
    allow_plaintext_auth: bool = _key(BOOLEAN, False, "true: AUTH without TLS, for loopback clients only")


@dataclass(frozen=True, slots=True)
class Dns:
    """Name resolution."""

    resolvers: tuple[Endpoint, ...] = _key(
        many(RESOLVER), [], 'For MX, webhooks and checks alike, e.g. ["127.0.0.1:5353"]; empty: the system\'s'
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Outgoing mail."""

    mode: Mode = _key(choice(Mode), "direct", "direct (to the MX), relay (smarthost) or sandbox (nothing leaves)")
    mx_port: int = _key(PORT, 25, "Port of the mail servers that are dialled")
    allow_networks: tuple[Network, ...] = _key(
        many(NETWORK), [], 'Otherwise-refused networks that may be dialled, e.g. ["127.0.0.0/8"]'
    )
    retry_delays: tuple[float, ...] = _key(
        _DELAYS,
        ["5m", "10m", "15m", "30m", "1h", "2h", "4h", "8h", "8h", "12h", "12h"],
        "Wait before each further attempt, ±10 %; after the last one the recipient has failed",
    )
    ca_file: Path | None = _key(FILE, "", "Certificates (PEM) to trust besides the system's, for relay and checked TLS")


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Events to customers' servers."""

    allow_networks: tuple[Network, ...] = _key(
        many(NETWORK), [], 'Otherwise-refused networks that receivers may be in, e.g. ["10.0.0.0/8"]'
    )
    ports: tuple[int, ...] = _key(many(PORT, at_least=1), [443, 8443], "Ports a webhook URL may name")
    ca_file: Path | None = _key(FILE, "", "Certificates (PEM) to trust besides the system's")
    retry_delays: tuple[float, ...] = _key(
        _DELAYS,
        ["5s", "5m", "30m", "2h", "5h", "10h"],
        "Wait before each further attempt; after the last one it is given up",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Protection from overload."""

    requests_per_second: int = _key(integer(0, 1_000_000), 200, "Per credential; a burst may be twice that; 0 = off")
    min_free_disk: int = _key(size(), "1GiB", 'With less free space new mail is refused for now; "0": no check at all')
    min_free_disk_percent: int = _key(
        integer(0, 99), 10, "The same as a share of the disk: the larger of the two counts; 0 = off"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting; `source` is the file it came from, None and `embedded` when there was none."""

    server: Server
    http: Http
    smtp: Smtp
    dns: Dns
    delivery: Delivery
    webhooks: Webhooks
    limits: Limits
    source: Path | None = None
    embedded: bool = False


SECTIONS: dict[str, type[Any]] = {
    "server": Server,
    "http": Http,
    "smtp": Smtp,
    "dns": Dns,
    "delivery": Delivery,
    "webhooks": Webhooks,
    "limits": Limits,
}


def settings(section: str) -> Iterator[Setting]:
    """The rows of one section, in the order in which they are documented."""
    for entry in fields(SECTIONS[section]):
        yield Setting(section, entry.name, **entry.metadata)
