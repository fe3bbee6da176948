"""The settings: their keys, kinds, defaults and meanings, one class for each section of the file.

These classes are the table that loading, checking, config.example.toml and docs/configuration.md come from. A new
setting is one line here, and the tests then ask for its documentation. A section may also hold any number of named
tables of one kind, such as `[delivery.relays."example.com"]`.
"""
# ruff: noqa: RUF009 - _key makes a dataclass field, as field() itself does

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from appliance.config.values import (
    ADDRESS,
    BASE_URL,
    BIND,
    BOOLEAN,
    DATABASE_URL,
    DIRECTORY,
    DOMAIN_PATTERN,
    FILE,
    HOST,
    HOST_NAME,
    HTTPS_URL,
    KIB,
    MAILBOX,
    MIB,
    NETWORK,
    POOL_NAME,
    PORT,
    RESOLVER,
    SECRET,
    SIZE_OR_PERCENT,
    Address,
    Endpoint,
    Network,
    Share,
    ValueKind,
    choice,
    duration,
    integer,
    many,
    number,
    optional,
    size,
)

T = TypeVar("T")

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
DEFAULT_POOL = "default"  # the pool of all organisations that no other pool names

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TIMEOUT = duration(positive=True)
_DELAYS = many(duration(positive=False), at_least=1)
_KEPT = duration(positive=True, at_least="24h")
_CONNECTIONS = integer(1, 1_000_000)
_SESSIONS = integer(1, 10_000)
_BODY_SIZE = size(KIB, 16 * MIB, within='from "1KiB" to "16MiB"')


class ConfigError(Exception):
    """The program cannot start like this; the text is one line: file, key, reason."""

    def __init__(self, *parts: str) -> None:
        line = ": ".join(parts)
        # A key or value may hold anything TOML can escape; it must not break the line or drive the terminal.
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


class DeliveryMode(StrEnum):
    DIRECT = "direct"
    RELAY = "relay"
    SANDBOX = "sandbox"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class RelayTls(StrEnum):
    """What a relay must offer before it gets mail or a password."""

    REQUIRED = "required"  # STARTTLS with a verified certificate
    OPPORTUNISTIC = "opportunistic"  # STARTTLS where offered, unverified; a password only under TLS
    IMPLICIT = "implicit"  # TLS from the first byte (RFC 8314 3.3), verified
    OFF = "off"


class TotpDemand(StrEnum):
    """Who must have a second factor."""

    NONE = "none"
    ADMINS = "admins"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a key, what a file that omits it gets, what it may hold and what it is for."""

    section: str
    key: str
    default: object
    kind: ValueKind[Any]
    meaning: str


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The tables `[section.key.NAME]` of a section: what a name may be, and the class of each table."""

    section: str
    key: str
    name: ValueKind[str]
    example: str
    record: type[Any]

    @property
    def place(self) -> str:
        return f"{self.section}.{self.key}"

    def settings(self, name: str) -> Iterator[Setting]:
        return _rows(place_of(self.place, name), self.record)


def place_of(before: str, name: str) -> str:
    """Where a key or table is, as TOML writes it: a name that is not of letters, digits, `_` and `-` in quotes."""
    return f"{before}.{name}" if _BARE_KEY.fullmatch(name) else f'{before}."{name}"'


def _key(kind: ValueKind[T], default: object, meaning: str) -> T:
    """A field whose default is written as in the file; typed as its value, so mypy holds kind and field together."""
    row = {"kind": kind, "default": default, "meaning": meaning}
    # Passwords stay out of the repr.
    return field(default_factory=lambda: kind.read(default), metadata=row, repr=kind not in (SECRET, DATABASE_URL))


def _named(record: type[T], name: ValueKind[str], example: str) -> Mapping[str, T]:
    """A field for tables of one kind, by their names; none unless the file has some."""
    return field(default_factory=dict, metadata={"record": record, "name": name, "example": example})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The name of this machine, and where it keeps its state."""

    hostname: str = _key(
        optional(HOST_NAME, ""),
        "",
        'Name in HELO and in Message-IDs of last resort, e.g. "mail.example.com"; empty: the machine\'s name',
    )
    node: str = _key(
        optional(POOL_NAME, ""), "", "Name of this node among those on one PostgreSQL; empty: the machine's name"
    )
    data_dir: Path = _key(DIRECTORY, "/var/lib/appliance", "Where the database and its key file live")
    own_domains: tuple[str, ...] = _key(
        many(HOST_NAME), [], "Further names of this service; webhook URLs to them are refused"
    )
    shutdown_timeout: float = _key(_TIMEOUT, "60s", "How long a stop may take: three quarters for work in flight")
    log_level: LogLevel = _key(
        choice(LogLevel), "info", "debug, info (plain course of things), warning (handled trouble) or error"
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where messages, accounts and everything else are kept."""

    url: str = _key(
        DATABASE_URL,
        "",
        "A PostgreSQL database that several nodes may share; empty: a file in server.data_dir",
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The API and the dashboard."""

    bind: tuple[Endpoint, ...] = _key(many(BIND, at_least=1), ["127.0.0.1:8080"], "Addresses to listen on")
    base_url: str = _key(
        optional(BASE_URL, ""), "", 'What users reach it by, e.g. "https://mail.example.com"; empty: the first bind'
    )
    tls_cert: Path | None = _key(
        FILE, "", "Certificate chain (PEM): with tls_key HTTPS; empty: by [acme], or plain HTTP, for a proxy in front"
    )
    tls_key: Path | None = _key(FILE, "", "Private key (PEM) of tls_cert")
    trusted_proxies: tuple[Network, ...] = _key(many(NETWORK), [], "Proxies whose X-Forwarded-For is believed")
    max_connections: int = _key(_CONNECTIONS, 1000, "Open connections in all")
    max_connections_per_address: int = _key(
        _CONNECTIONS, 100, "Open connections from one address, or one IPv6 /64; more are answered 503"
    )
    header_timeout: float = _key(_TIMEOUT, "5s", "How long a client may take to send the headers of a request")
    body_timeout: float = _key(_TIMEOUT, "60s", "How long a client may take to send a body")
    write_timeout: float = _key(_TIMEOUT, "30s", "How long a client may take to read what is written to it")
    keep_alive_timeout: float = _key(_TIMEOUT, "75s", "How long an idle connection is kept open")
    max_body: int = _key(_BODY_SIZE, "16MiB", "Largest request body, from 1KiB to 16MiB; more is answered 413")
    body_memory: int = _key(
        size(), "256MiB", "Bytes of bodies in flight, at least max_body, less on a small machine; more is answered 503"
    )
    text_from_html: bool = _key(BOOLEAN, True, "A message sent with html alone gets a text part made from it")


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """People who log in."""

    require_totp: TotpDemand = _key(
        choice(TotpDemand), "none", "Who can do nothing without a second factor but turn it on: none, admins or all"
    )


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """Mail from programs that speak SMTP (submission)."""

    bind: tuple[Endpoint, ...] = _key(many(BIND), ["0.0.0.0:587"], "Addresses that offer STARTTLS; [] for none")
    bind_tls: tuple[Endpoint, ...] = _key(
        many(BIND), ["0.0.0.0:465"], "Addresses that speak TLS from the first byte; [] for none"
    )
    tls_cert: Path | None = _key(FILE, "", "Certificate chain (PEM); empty: by [acme], or a generated, self-signed one")
    tls_key: Path | None = _key(FILE, "", "Private key (PEM) of tls_cert")
    allow_plaintext_auth: bool = _key(BOOLEAN, False, "true: AUTH without TLS, for loopback clients only")
    max_connections: int = _key(_CONNECTIONS, 1000, "Open connections in all")
    max_connections_per_address: int = _key(
        _CONNECTIONS, 30, "Open connections from one address, or one IPv6 /64, that have not logged in"
    )
    max_connections_per_credential: int = _key(
        _CONNECTIONS, 100, "Open connections that have logged in with one credential"
    )
    command_timeout: float = _key(_TIMEOUT, "60s", "How long a client may take to send its next command")
    data_timeout: float = _key(
        _TIMEOUT, "5m", "How long a client may take to send a message, at 500 bytes a second or more"
    )
    session_timeout: float = _key(_TIMEOUT, "15m", "How long a connection may last; a message on its way is finished")
    message_memory: int = _key(
        size(), "256MiB", "Bytes of messages on their way in, less on a small machine; more is answered 451"
    )


@dataclass(frozen=True, slots=True)
class InboundSettings:
    """What comes back by mail to the return paths of domains: bounces, complaints and reports, nothing else."""

    bind: tuple[Endpoint, ...] = _key(
        many(BIND), [], 'Addresses that take it, with STARTTLS, e.g. ["0.0.0.0:25"]; [] for none'
    )
    tls_cert: Path | None = _key(FILE, "", "Certificate chain (PEM); empty: that of [smtp]")
    tls_key: Path | None = _key(FILE, "", "Private key (PEM) of tls_cert")
    forward_to: str = _key(
        optional(MAILBOX, ""),
        "",
        "Address that gets copies of mail to postmaster@ and abuse@ of return paths; empty: none",
    )


@dataclass(frozen=True, slots=True)
class AcmeSettings:
    """Certificates by themselves, from an authority such as Let's Encrypt."""

    enabled: bool = _key(BOOLEAN, False, "true: get and renew a certificate, and agree to the terms of the authority")
    email: str = _key(
        optional(MAILBOX, ""), "", "Contact address of the ACME account, given when it is made; empty: none"
    )
    names: tuple[str, ...] = _key(
        many(HOST_NAME),
        [],
        "Names in the certificate; empty: server.hostname and the host of http.base_url; on several nodes, of all",
    )
    bind: tuple[Endpoint, ...] = _key(
        many(BIND, at_least=1), ["0.0.0.0:80"], "Where the authority's questions come in: port 80 of every name"
    )
    http: bool = _key(BOOLEAN, True, "false: HTTP stays plain, for a proxy in front; the certificate is for SMTP alone")
    directory: str = _key(HTTPS_URL, LETS_ENCRYPT, "The authority: the URL of its ACME directory")
    ca_file: Path | None = _key(
        FILE, "", "Certificates (PEM) to trust besides the system's, for an authority of your own"
    )
    renew_before: float | None = _key(
        optional(_TIMEOUT, None), "", 'How long before the end to renew, e.g. "30d"; empty: a third of the lifetime'
    )


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """Name resolution."""

    resolvers: tuple[Endpoint, ...] = _key(
        many(RESOLVER), [], 'For MX, webhooks and checks alike, e.g. ["127.0.0.1:5353"]; empty: the system\'s'
    )
    blocklists: tuple[str, ...] = _key(
        many(HOST_NAME),
        ["zen.spamhaus.org", "bl.spamcop.net"],
        "Asked by `appliance doctor --blocklists` about this machine's addresses",
    )


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """A relay for the mail to one recipient domain, or with `*.` to all domains below it; in every mode but sandbox."""

    host: str = _key(optional(HOST, ""), "", "The relay's name or address; it must be given")
    port: int = _key(PORT, 587, "The relay's port")
    username: str = _key(SECRET, "", "For AUTH; empty: none")
    password: str = _key(SECRET, "", "For AUTH; sent only under TLS")
    tls: RelayTls = _key(choice(RelayTls), "required", "As delivery.relay_tls")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of a provider pool, built in or new; `default` is all others. Empty: as built in, or as in `default`."""

    suffixes: tuple[str, ...] = _key(
        many(HOST_NAME), [], "Ends of the MX hosts' names that belong to it; a new pool needs at least one"
    )
    concurrency: int | None = _key(optional(_SESSIONS, None), "", "SMTP sessions at once")
    messages_per_connection: int | None = _key(
        optional(_CONNECTIONS, None), "", "Messages after which a connection is closed and a new one made"
    )
    per_minute: int | None = _key(
        optional(integer(0, 1_000_000), None), "", "Transactions begun in a minute; 0 = as fast as it goes"
    )


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Outgoing mail."""

    mode: DeliveryMode = _key(
        choice(DeliveryMode), "direct", "direct (to the MX), relay (smarthost) or sandbox (nothing leaves)"
    )
    mx_port: int = _key(PORT, 25, "Port of the mail servers that are dialled")
    allow_networks: tuple[Network, ...] = _key(
        many(NETWORK), [], 'Otherwise-refused networks that may be dialled, e.g. ["127.0.0.0/8"]'
    )
    retry_delays: tuple[float, ...] = _key(
        _DELAYS,
        ["5m", "10m", "15m", "30m", "1h", "2h", "4h", "8h", "8h", "12h", "12h"],
        "Wait before each further attempt, up to 20 % longer; after the last one the recipient has failed",
    )
    ca_file: Path | None = _key(FILE, "", "Certificates (PEM) to trust besides the system's, for relay and checked TLS")
    relay_host: str = _key(
        optional(HOST, ""), "", "Smarthost that takes all mail in mode relay; its own name or address, no MX is asked"
    )
    relay_port: int = _key(PORT, 587, "Port of relay_host: 587 with STARTTLS, 465 with relay_tls implicit")
    relay_username: str = _key(SECRET, "", "For AUTH at relay_host; empty: none")
    relay_password: str = _key(SECRET, "", "For AUTH at relay_host; sent only under TLS")
    relay_tls: RelayTls = _key(
        choice(RelayTls),
        "required",
        "required (STARTTLS, verified), implicit (TLS at once, verified), opportunistic (if offered) or off",
    )
    own_addresses: tuple[Address, ...] = _key(
        many(ADDRESS), [], "Public addresses of this machine behind a NAT; mail is never sent to one's own"
    )
    sessions: int = _key(_SESSIONS, 500, "SMTP transactions at once, in all pools together")
    relays: Mapping[str, RelaySettings] = _named(RelaySettings, DOMAIN_PATTERN, "example.com")
    pools: Mapping[str, PoolSettings] = _named(PoolSettings, POOL_NAME, "google")


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """Less mail from a new sending address at first, for each pool and address of this machine; see delivery.md."""

    enabled: bool = _key(BOOLEAN, False, "true: mail beyond what an hour of the day allows waits, without an attempt")
    first_hour: int = _key(integer(1, 1_000_000), 20, "Recipients an hour at one pool on the first day")
    growth: float = _key(number(1, 3), 1.4, "How many times as many on each further day on which mail went; 1 to 3")
    days: int = _key(integer(1, 365), 30, "Days after which it is over, for this pool and this address")
    addresses: tuple[Address, ...] = _key(
        many(ADDRESS), [], "Those of this machine that are new, as the system knows them; empty: all of them"
    )


@dataclass(frozen=True, slots=True)
class WebhookSettings:
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
class LimitSettings:
    """Protection from overload."""

    requests_per_second: int = _key(integer(0, 1_000_000), 200, "Per credential; a burst may be twice that; 0 = off")
    min_free_disk: int = _key(size(), "1GiB", 'With less free space new mail is refused for now; "0": no check at all')
    min_free_disk_percent: int = _key(
        integer(0, 99), 10, "The same as a share of the disk: the larger of the two counts; 0 = off"
    )
    stored_bytes_per_account: Share = _key(
        SIZE_OR_PERCENT,
        "25%",
        'What one account may keep: a size, or a share of all that mail may fill; "0": any amount',
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long things are kept; what is not delivered is never deleted."""

    # At least an hour: a delivery may be reading the bytes when its message is cancelled.
    bodies: float = _key(
        duration(positive=True, at_least="1h"),
        "24h",
        "What a message says, from when its last recipient is final; from 1h to metadata",
    )
    metadata: float = _key(
        _KEPT, "30d", "Messages with recipients and attempts, likewise; 24h or more, at least webhook_logs"
    )
    webhook_logs: float = _key(_KEPT, "7d", "Deliveries to webhooks, from when their event was; 24h or more")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What Prometheus asks for."""

    bind: tuple[Endpoint, ...] = _key(
        many(BIND), [], 'Addresses that serve /metrics, e.g. ["127.0.0.1:9180"], without authentication; [] for none'
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is written to stderr."""

    messages: bool = _key(BOOLEAN, True, "A line for each message accepted and each attempt at a recipient")


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting; `source` is the file it came from, None and `embedded` when there was none.

    `local_webhooks` if the operator asked for them by `serve --sandbox`: plain http to this machine.
    """

    server: ServerSettings
    store: StoreSettings
    http: HttpSettings
    dashboard: DashboardSettings
    smtp: SmtpSettings
    inbound: InboundSettings
    acme: AcmeSettings
    dns: DnsSettings
    delivery: DeliverySettings
    warmup: WarmupSettings
    webhooks: WebhookSettings
    limits: LimitSettings
    retention: RetentionSettings
    metrics: MetricsSettings
    log: LogSettings
    source: Path | None = None
    embedded: bool = False
    local_webhooks: bool = False


SECTIONS: dict[str, type[Any]] = {
    entry.name: entry.type for entry in fields(Config) if isinstance(entry.type, type) and is_dataclass(entry.type)
}


def settings(section: str) -> Iterator[Setting]:
    """The rows of one section, in the order in which they are documented."""
    return _rows(section, SECTIONS[section])


def named_tables(section: str) -> Iterator[NamedTables]:
    for entry in fields(SECTIONS[section]):
        if "record" in entry.metadata:
            yield NamedTables(section, entry.name, **entry.metadata)


def _rows(heading: str, record: type[Any]) -> Iterator[Setting]:
    for entry in fields(record):
        if "kind" in entry.metadata:
            yield Setting(heading, entry.name, **entry.metadata)
