"""Defines every setting with its key, kind, default and meaning: one class per section of the file.

Loading, validation, config.example.toml and docs/configuration.md derive from these classes. To add a setting, add one
line here and regenerate both documents (tests/docs/test_configuration.py). A section can also contain named tables of
one kind, such as `[delivery.relays."example.com"]`.
"""
# ruff: noqa: RUF009 - key() makes a dataclass field, as field() itself does

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from appliance.config import values as v
from appliance.config.values import ConfigError as ConfigError
from appliance.config.values import NamedTables, Setting, key, named, rows

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
DEFAULT_POOL = "default"  # the pool of all organisations that no other pool names

_TIMEOUT = v.duration(positive=True)
_DELAYS = v.many(v.duration(positive=False), at_least=1)
_KEPT = v.duration(positive=True, at_least="24h")
_CONNECTIONS = v.integer(1, 1_000_000)
_SESSIONS = v.integer(1, 10_000)
_BINDS, _SOME_BINDS, _NETWORKS = v.many(v.BIND), v.many(v.BIND, at_least=1), v.many(v.NETWORK)
_NAMES, _ADDRESSES, _MAILBOX = v.many(v.HOST_NAME), v.many(v.ADDRESS), v.optional(v.MAILBOX, "")
_BODY_SIZE = v.size(v.KIB, 16 * v.MIB, within='from "1KiB" to "16MiB"')

Endpoints = tuple[v.Endpoint, ...]
Networks = tuple[v.Network, ...]


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
    """The TLS that a relay must offer before it gets mail or a password."""

    REQUIRED = "required"  # STARTTLS with a verified certificate
    OPPORTUNISTIC = "opportunistic"  # STARTTLS where offered, unverified; a password only under TLS
    IMPLICIT = "implicit"  # TLS from the first byte (RFC 8314 3.3), verified
    OFF = "off"


class StreamPriority(StrEnum):
    HIGH = "high"
    LOW = "low"


class TotpDemand(StrEnum):
    """Who must use two-factor authentication."""

    NONE = "none"
    ADMINS = "admins"
    ALL = "all"


class DoorName(StrEnum):
    """The providers whose clients can send through a door."""

    RESEND = "resend"
    POSTMARK = "postmark"
    MAILGUN = "mailgun"
    SENDGRID = "sendgrid"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Host name, data directory, shutdown and log level."""

    hostname: str = key(
        v.optional(v.HOST_NAME, ""), "", "Host name for HELO, and fallback for Message-IDs; empty: the machine's name"
    )
    node: str = key(v.optional(v.POOL_NAME, ""), "", "Unique name of this node in a cluster; empty: the machine's name")
    data_dir: Path = key(v.DIRECTORY, "/var/lib/appliance", "Directory of the database and its key file")
    own_domains: tuple[str, ...] = key(_NAMES, [], "Other own domains; webhook URLs in or below them are rejected")
    shutdown_timeout: float = key(_TIMEOUT, "60s", "Maximum time for a shutdown; three quarters for work in flight")
    log_level: LogLevel = key(v.choice(LogLevel), "info", "Lowest level to log: debug, info, warning or error")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The database: SQLite by default, PostgreSQL for a cluster."""

    url: str = key(
        v.DATABASE_URL, "", "PostgreSQL database that several nodes can share; empty: an SQLite file in server.data_dir"
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The listener of the API and the dashboard."""

    bind: Endpoints = key(_SOME_BINDS, ["127.0.0.1:8080"], "Addresses to listen on")
    base_url: str = key(
        v.optional(v.BASE_URL, ""), "", 'Public URL, e.g. "https://mail.example.com"; empty: the first address in bind'
    )
    tls_cert: Path | None = key(
        v.FILE, "", "Certificate chain (PEM) for HTTPS; empty: the [acme] certificate, or plain HTTP for a proxy"
    )
    tls_key: Path | None = key(v.FILE, "", "Private key (PEM) of tls_cert")
    trusted_proxies: Networks = key(_NETWORKS, [], "Proxies whose X-Forwarded-For header is trusted")
    max_connections: int = key(_CONNECTIONS, 1000, "Maximum open connections in total")
    max_connections_per_address: int = key(
        _CONNECTIONS, 100, "Maximum open connections per address or IPv6 /64; further ones get 503"
    )
    header_timeout: float = key(_TIMEOUT, "5s", "Maximum time for a client to send the request headers")
    body_timeout: float = key(_TIMEOUT, "60s", "Maximum time for a client to send the request body")
    write_timeout: float = key(_TIMEOUT, "30s", "Maximum time for a client to read the response")
    keep_alive_timeout: float = key(_TIMEOUT, "75s", "Time after which an idle connection is closed")
    max_body: int = key(_BODY_SIZE, "16MiB", "Maximum request body, 1KiB to 16MiB; larger ones get 413")
    body_memory: int = key(
        v.size(),
        "256MiB",
        "Memory for request bodies, at least max_body; lower on small machines; further ones get 503",
    )
    doors: tuple[DoorName, ...] = key(
        v.many(v.choice(DoorName)),
        ["resend", "postmark", "mailgun", "sendgrid"],
        "Providers whose clients can send here: resend, postmark, mailgun, sendgrid; [] for none",
    )
    text_from_html: bool = key(v.BOOLEAN, True, "Add a text part, generated from the HTML, to messages with html only")


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Rules for people who log in."""

    require_totp: TotpDemand = key(
        v.choice(TotpDemand), "none", "Users who must set up two-factor authentication first: none, admins or all"
    )


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Mail from the server itself: problems, invitations and forgotten passwords."""

    from_: str = key(
        _MAILBOX, "", 'Sender, e.g. "alerts@example.com", at a domain that an account may send from; empty: no mail'
    )


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """SMTP submission: mail from your applications."""

    bind: Endpoints = key(_BINDS, ["0.0.0.0:587"], "Listen addresses with STARTTLS; [] for none")
    bind_tls: Endpoints = key(_BINDS, ["0.0.0.0:465"], "Listen addresses with implicit TLS; [] for none")
    tls_cert: Path | None = key(
        v.FILE, "", "Certificate chain (PEM); empty: the [acme] certificate, or a generated self-signed one"
    )
    tls_key: Path | None = key(v.FILE, "", "Private key (PEM) of tls_cert")
    allow_plaintext_auth: bool = key(v.BOOLEAN, False, "Allow AUTH without TLS, for loopback clients only")
    max_connections: int = key(_CONNECTIONS, 1000, "Maximum open connections in total")
    max_connections_per_address: int = key(
        _CONNECTIONS, 30, "Maximum open connections per address or IPv6 /64 before login"
    )
    max_connections_per_credential: int = key(_CONNECTIONS, 100, "Maximum open connections per credential after login")
    command_timeout: float = key(_TIMEOUT, "60s", "Maximum time for a client to send the next command")
    data_timeout: float = key(
        _TIMEOUT, "5m", "Maximum time for a client to send one message; the minimum rate is 500 bytes a second"
    )
    session_timeout: float = key(_TIMEOUT, "15m", "Maximum duration of a connection; a message in transfer is finished")
    message_memory: int = key(
        v.size(), "256MiB", "Memory for incoming messages; lower on small machines; further messages get 451"
    )


@dataclass(frozen=True, slots=True)
class InboundSettings:
    """Inbound SMTP for return paths: bounces, complaints and reports only."""

    bind: Endpoints = key(_BINDS, [], 'Listen addresses with STARTTLS, e.g. ["0.0.0.0:25"]; [] for none')
    tls_cert: Path | None = key(v.FILE, "", "Certificate chain (PEM); empty: the [smtp] certificate")
    tls_key: Path | None = key(v.FILE, "", "Private key (PEM) of tls_cert")
    forward_to: str = key(
        _MAILBOX, "", "Address for copies of mail to postmaster@ and abuse@ of return-path domains; empty: none"
    )


@dataclass(frozen=True, slots=True)
class AcmeSettings:
    """Automatic certificates from an ACME authority such as Let's Encrypt."""

    enabled: bool = key(v.BOOLEAN, False, "Get and renew a certificate; true accepts the authority's terms of service")
    email: str = key(_MAILBOX, "", "Contact address, sent once when the ACME account is created; empty: none")
    names: tuple[str, ...] = key(
        _NAMES, [], "Names in the certificate; empty: server.hostname and the host of http.base_url, of all nodes"
    )
    bind: Endpoints = key(
        _SOME_BINDS, ["0.0.0.0:80"], "Listen addresses for http-01 challenges; port 80 of every name must reach them"
    )
    http: bool = key(
        v.BOOLEAN, True, "Use the certificate for HTTP; false: plain HTTP for a proxy, the certificate for SMTP only"
    )
    directory: str = key(v.HTTPS_URL, LETS_ENCRYPT, "URL of the authority's ACME directory")
    ca_file: Path | None = key(v.FILE, "", "Certificates (PEM) to trust besides the system's, for your own authority")
    renew_before: float | None = key(
        v.optional(_TIMEOUT, None), "", 'Time before expiry to renew, e.g. "30d"; empty: a third of the lifetime'
    )


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """DNS resolvers and blocklists."""

    resolvers: Endpoints = key(
        v.many(v.RESOLVER), [], 'Resolvers for all lookups, e.g. ["127.0.0.1:5353"]; empty: the system\'s resolvers'
    )
    blocklists: tuple[str, ...] = key(
        _NAMES, ["zen.spamhaus.org", "bl.spamcop.net"], "Blocklists that `appliance doctor --blocklists` checks"
    )


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """A relay for mail to one recipient domain, or to all its subdomains with `*.`. Ignored in mode sandbox."""

    host: str = key(v.optional(v.HOST, ""), "", "Host name or address of the relay; required")
    port: int = key(v.PORT, 587, "Port of the relay")
    username: str = key(v.SECRET, "", "User name for AUTH; empty: no AUTH")
    password: str = key(v.SECRET, "", "Password for AUTH; sent only over TLS")
    tls: RelayTls = key(v.choice(RelayTls), "required", "Same values as delivery.relay_tls")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of a pool, built-in or new; `default` covers all other providers. Empty: built-in, or as in `default`."""

    suffixes: tuple[str, ...] = key(_NAMES, [], "Suffixes of MX host names in this pool; a new pool needs at least one")
    concurrency: int | None = key(v.optional(_SESSIONS, None), "", "Maximum concurrent SMTP sessions")
    messages_per_connection: int | None = key(
        v.optional(_CONNECTIONS, None), "", "Maximum messages per connection before the server opens a new one"
    )
    per_minute: int | None = key(
        v.optional(v.integer(0, 1_000_000), None), "", "Maximum transactions started per minute; 0: no limit"
    )


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A stream of mail, built-in (`transactional`, `broadcast`) or new. Empty: built-in, or high and false."""

    sources: tuple[str, ...] = key(
        v.many(v.POOL_NAME), [], "Names of delivery.sources that its mail leaves from; empty: the system chooses"
    )
    priority: StreamPriority | None = key(
        v.optional(v.choice(StreamPriority), None), "", "high, or low: mail of streams with high priority goes first"
    )
    unsubscribe: bool | None = key(
        v.optional(v.BOOLEAN, None), "", "Add an unsubscribe link to each message, which then has only one recipient"
    )


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Outgoing addresses of this machine that streams and accounts can send from; see sources.md."""

    ipv4: v.Address | None = key(v.optional(v.ADDRESS, None), "", "Local IPv4 address; a source has one or both")
    ipv6: v.Address | None = key(v.optional(v.ADDRESS, None), "", "Local IPv6 address")
    hostname: str = key(v.optional(v.HOST_NAME, ""), "", "Host name for EHLO from here; empty: server.hostname")
    node: str = key(
        v.optional(v.POOL_NAME, ""), "", "Node that has the addresses; empty: every node that can bind them"
    )


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Outgoing mail: MX servers or a relay, retries and concurrency."""

    mode: DeliveryMode = key(
        v.choice(DeliveryMode), "direct", "direct (to MX servers), relay (to relay_host) or sandbox (no mail leaves)"
    )
    mx_port: int = key(v.PORT, 25, "Port of recipients' mail servers")
    allow_networks: Networks = key(
        _NETWORKS, [], 'Private networks that delivery may connect to (normally refused), e.g. ["127.0.0.0/8"]'
    )
    retry_delays: tuple[float, ...] = key(
        _DELAYS,
        ["5m", "10m", "15m", "30m", "1h", "2h", "4h", "8h", "8h", "12h", "12h"],
        "Delay before each retry, plus up to 20 %; after the last retry the recipient fails",
    )
    ca_file: Path | None = key(
        v.FILE, "", "Certificates (PEM) to trust besides the system's, for relays and verified TLS"
    )
    relay_host: str = key(
        v.optional(v.HOST, ""), "", "Relay for all mail in mode relay: its host name or address, without an MX lookup"
    )
    relay_port: int = key(v.PORT, 587, "Port of relay_host: 587 for STARTTLS, 465 for relay_tls implicit")
    relay_username: str = key(v.SECRET, "", "User name for AUTH at relay_host; empty: no AUTH")
    relay_password: str = key(v.SECRET, "", "Password for AUTH at relay_host; sent only over TLS")
    relay_tls: RelayTls = key(
        v.choice(RelayTls),
        "required",
        "required (verified STARTTLS), implicit (verified TLS), opportunistic (STARTTLS if offered) or off",
    )
    own_addresses: tuple[v.Address, ...] = key(
        _ADDRESSES, [], "Public addresses of this machine behind NAT; the server never delivers to itself"
    )
    sessions: int = key(_SESSIONS, 500, "Maximum concurrent SMTP transactions in all pools")
    relays: Mapping[str, RelaySettings] = named(RelaySettings, v.DOMAIN_PATTERN, "example.com")
    pools: Mapping[str, PoolSettings] = named(PoolSettings, v.POOL_NAME, "google")
    streams: Mapping[str, StreamSettings] = named(StreamSettings, v.POOL_NAME, "digest")
    sources: Mapping[str, SourceSettings] = named(SourceSettings, v.POOL_NAME, "news")


@dataclass(frozen=True, slots=True)
class RampSettings:
    """Moving from a relay to direct delivery step by step; see ramp.md."""

    percent: int | None = key(
        v.optional(v.integer(0, 100), None),
        "",
        "Percent of recipients that go to MX servers, in mode relay; empty: off",
    )


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """Lower limits for new sending addresses, per pool and address of this machine; see delivery.md."""

    enabled: bool = key(v.BOOLEAN, False, "Limit recipients per hour; mail above it stays queued without an attempt")
    first_hour: int = key(v.integer(1, 1_000_000), 20, "Recipients per hour and pool on the first day")
    growth: float = key(v.number(1, 3), 1.4, "Factor by which the limit grows on each further day with mail; 1 to 3")
    days: int = key(v.integer(1, 365), 30, "Days with mail until warm-up ends for a pool and address")
    addresses: tuple[v.Address, ...] = key(_ADDRESSES, [], "New local addresses of this machine; empty: all of them")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Event posts to customers' servers."""

    allow_networks: Networks = key(
        _NETWORKS, [], 'Private networks that webhooks may connect to (normally refused), e.g. ["10.0.0.0/8"]'
    )
    ports: tuple[int, ...] = key(v.many(v.PORT, at_least=1), [443, 8443], "Ports allowed in webhook URLs")
    ca_file: Path | None = key(v.FILE, "", "Certificates (PEM) to trust besides the system's")
    retry_delays: tuple[float, ...] = key(
        _DELAYS, ["5s", "5m", "30m", "2h", "5h", "10h"], "Delay before each retry; the delivery fails after the last"
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Request rate, disk space and storage limits."""

    requests_per_second: int = key(
        v.integer(0, 1_000_000), 200, "Requests per second per credential, with bursts of twice that; 0: no limit"
    )
    min_free_disk: int = key(
        v.size(), "1GiB", 'Minimum free disk space; below it, new mail is refused temporarily; "0": no check at all'
    )
    min_free_disk_percent: int = key(
        v.integer(0, 99), 10, "Minimum free space in percent of the disk; the larger of both minimums applies; 0: off"
    )
    stored_bytes_per_account: v.Share = key(
        v.SIZE_OR_PERCENT, "25%", 'Storage quota per account: a size, or a share of the space for mail; "0": no quota'
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long the server keeps data. It never deletes undelivered mail."""

    # At least an hour: a delivery may be reading the bytes when its message is cancelled.
    bodies: float = key(
        v.duration(positive=True, at_least="1h"),
        "24h",
        "Message content, counted from the last recipient's final result; from 1h up to metadata",
    )
    metadata: float = key(
        _KEPT, "30d", "Messages with recipients and attempts, counted likewise; at least 24h, bodies and webhook_logs"
    )
    webhook_logs: float = key(_KEPT, "7d", "Webhook deliveries, counted from their event; at least 24h")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Prometheus metrics."""

    bind: Endpoints = key(
        _BINDS, [], 'Listen addresses for /metrics, without authentication, e.g. ["127.0.0.1:9180"]; [] for none'
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log on stderr."""

    messages: bool = key(v.BOOLEAN, True, "Log a line per accepted message and per delivery attempt")


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting."""

    server: ServerSettings
    store: StoreSettings
    http: HttpSettings
    dashboard: DashboardSettings
    notifications: NotificationSettings
    smtp: SmtpSettings
    inbound: InboundSettings
    acme: AcmeSettings
    dns: DnsSettings
    delivery: DeliverySettings
    delivery_ramp: RampSettings
    warmup: WarmupSettings
    webhooks: WebhookSettings
    limits: LimitSettings
    retention: RetentionSettings
    metrics: MetricsSettings
    log: LogSettings
    source: Path | None = None  # the file
    embedded: bool = False  # without a file
    local_webhooks: bool = False  # allows webhook URLs with plain http to this machine: `serve --sandbox`


# A section in a section, such as `[delivery.ramp]`, is the field `delivery_ramp`.
SECTIONS: dict[str, type[Any]] = {
    entry.name.replace("_", "."): entry.type
    for entry in fields(Config)
    if isinstance(entry.type, type) and is_dataclass(entry.type)
}


def section_of(config: Config, name: str) -> Any:
    return getattr(config, name.replace(".", "_"))


def settings(section: str) -> Iterator[Setting]:
    return rows(section, SECTIONS[section])


def named_tables(section: str) -> Iterator[NamedTables]:
    for entry in fields(SECTIONS[section]):
        if "record" in entry.metadata:
            yield NamedTables(section, entry.name, **entry.metadata)
