"""Checks the URLs of webhooks and connects to them: looks up and checks addresses, verifies certificates.

- A URL that two programs could parse differently is refused, since such a difference bypasses checks.
- Every attempt checks all addresses of the name, and dials an address that it checked. One refused address refuses the
  whole name: a private address among public ones is an attempt to make this server dial it. Error texts go to the
  owner of the URL, so they name neither addresses, which may be internal to the operator's network, nor the resolver.
- Idle connections are reused only for the same name, port and checked address.
"""

import re
import ssl
from collections.abc import Collection, Container, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from math import inf
from typing import NamedTuple

import trio
from msgspec import Struct, field

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.values import is_host_name
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.model.webhooks import WEBHOOK_URL_LENGTH
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.dial import FastSocketStream, IdlePool, Shortage, faster, raise_if_short

# ---- URLs

HTTPS_PORT = 443
HTTP_PORT = 80

# RFC 3986 3.3 and 3.4, without characters that must be percent-encoded.
_PLAIN = r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]*"
_PATH = re.compile(rf"{_PLAIN}(?:%[0-9A-Fa-f]{{2}}{_PLAIN})*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# If the last label is a number, decimal or hexadecimal, many URL parsers read the host as an IPv4 address.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_LOCAL = ("localhost", "localdomain")  # RFC 6761 6.3, and a name in many hosts files


class Target(NamedTuple):
    """An allowed URL: where to connect, and what to request there."""

    host: str  # lower case; an IP address without brackets
    port: int
    path: str  # with its query
    address: Address | None = None  # if the host is an address
    secure: bool = True  # False: plain http, to loopback

    @property
    def authority(self) -> str:
        """For the Host header (RFC 9110 7.2): without the port if it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (HTTPS_PORT if self.secure else HTTP_PORT) else f"{host}:{self.port}"


class UrlRefused(Exception):
    """A URL that may not be posted to; the text says why."""


def read_url(
    url: str,
    ports: Collection[int],
    own_names: Container[str],
    allowed: Iterable[Network] = (),
    *,
    plain_loopback: bool = False,
) -> Target:
    """Parse and check a URL; raises `UrlRefused`. `allowed` admits addresses that are refused otherwise.

    `own_names` may contain patterns such as `*.example.com`. `plain_loopback`, for `serve --sandbox`, admits http,
    without TLS, to any port of a loopback address or of localhost; without `ports` (`appliance dev`), nothing else.
    """
    _check_characters(url)
    scheme, _, rest = url.partition("://")
    secure = scheme.lower() == "https"
    if not secure and not (plain_loopback and scheme.lower() == "http"):
        raise UrlRefused("the URL must begin with https://")
    end = next((at for at, character in enumerate(rest) if character in "/?"), len(rest))
    authority, path = rest[:end], rest[end:]
    if not _PATH.fullmatch(path):
        raise UrlRefused("the URL's path or query has a character that must be percent-encoded")
    path = path if path.startswith("/") else f"/{path}"
    host, port = _split(authority, HTTPS_PORT if secure else HTTP_PORT)
    address = _address(host)
    if not secure:
        if not (host == _LOCAL[0] if address is None else any(address in network for network in _LOOPBACK)):
            raise UrlRefused("the URL must begin with https://; plain http may only lead to this machine")
        return Target(host if address is None else str(address), port, path, address, secure=False)
    if plain_loopback and not ports:
        raise UrlRefused("the URL must begin with http://localhost: this server posts to no other machine")
    host = _host_name(host) if address is None else str(address)
    if port not in ports:
        raise UrlRefused(f"port {port} is not allowed for webhooks here")
    labels = host.split(".")
    if host in own_names or any("*." + ".".join(labels[at:]) in own_names for at in range(1, len(labels))):
        raise UrlRefused(f"{host} is this service itself")
    if address is not None and (reason := refusal(address, allowed)):
        raise UrlRefused(f"the URL's host must be public: {reason}")
    return Target(host, port, path, address)


def _check_characters(url: str) -> None:
    faults = (
        (len(url) > WEBHOOK_URL_LENGTH, f"the URL is over {WEBHOOK_URL_LENGTH} characters long"),
        (not url.isascii(), "the URL must be ASCII: write the host as xn--… and percent-encode the rest"),
        (not url.isprintable() or " " in url, "the URL has a space or a control character in it"),
        ("\\" in url, "the URL has a backslash in it"),
        ("#" in url, "the URL has a fragment (#…), which is never sent"),
    )
    for is_wrong, text in faults:
        if is_wrong:
            raise UrlRefused(text)


def _split(authority: str, usual_port: int) -> tuple[str, int]:
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
        return host.lower(), usual_port
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise UrlRefused("the URL's port is not a number from 1 to 65535")
    return host.lower(), int(port)


def _address(host: str) -> Address | None:
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


# ---- addresses and connections

ADDRESSES_PER_NAME = 64  # each is checked; no real receiver has so many
VERDICT_SECONDS = 1.0  # a verdict is reused this long: the address may become this machine's own
VERDICTS_KEPT = 10_000
LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
RECEIVED_LIMIT = 128 * 1024  # bytes for one answer or handshake; OpenSSL accepts certificates of 100 KiB at most

_DNS_ERRORS = {
    DnsFault.NXDOMAIN: "{} does not exist in the DNS",
    DnsFault.NODATA: "{} has no address in the DNS",
    DnsFault.TEMPORARY: "{} cannot be looked up in the DNS at the moment",
}


class NotPosted(Exception):
    """A step of an attempt failed; the owner of the webhook reads the text."""


class NoAddress(NotPosted):
    """A name has no address that may be dialled; `temporary` if a later lookup may find one."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary


class AddressLookup(Struct):
    """Finds the addresses to dial. `allowed` admits private ones; `own` are this machine's addresses."""

    resolver: Resolver
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    _verdicts: TtlCache[Address, str] = field(default_factory=lambda: TtlCache(VERDICTS_KEPT, VERDICT_SECONDS))

    async def addresses(self, target: Target) -> tuple[Address, ...]:
        """All addresses of a target, checked, in the order to try them; raises `NoAddress` or `Shortage`."""
        host = target.host
        addresses: tuple[Address, ...] = () if target.address is None else (target.address,)
        if not target.secure:
            return addresses or LOOPBACK
        try:
            addresses = addresses or (await host_addresses(self.resolver, host))[0]
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            text = _DNS_ERRORS[failed.fault].format(host)
            raise NoAddress(text, temporary=failed.fault is DnsFault.TEMPORARY) from failed
        if len(addresses) > ADDRESSES_PER_NAME:
            raise NoAddress(f"{host} has over {ADDRESSES_PER_NAME} addresses")
        for address in addresses:
            if reason := self._refusal(address, host):
                raise NoAddress(f"{host} must have public addresses only: one is {reason}")
        return addresses

    def _refusal(self, address: Address, host: str) -> str:
        """Why this address may not be dialled; "" if it may."""
        if (verdict := self._verdicts.get(address)) is not None:
            return verdict
        try:
            reason = (refusal(address, self.allowed, self.own) or "").removeprefix(f"{address} is ")
        except OSError as fault:  # the system cannot list its own addresses
            raise_if_short(fault)
            raise NoAddress(f"the addresses of {host} cannot be checked at the moment", temporary=True) from fault
        self._verdicts.put(address, reason)
        return reason


class ByteLimitExceeded(trio.BrokenResourceError):
    """The receiver sent more bytes than one answer or handshake needs."""


class LimitedStream(trio.abc.Stream):
    """The TCP stream below TLS, with a limit on the bytes received for one answer.

    The answer reader counts decrypted bytes only: an endless series of session tickets would keep the process busy.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = faster(stream)
        self.left = RECEIVED_LIMIT  # bytes; reset for each answer

    @property
    def silent(self) -> bool:
        """Whether no byte and no end of stream arrived since the last answer; True if the stream cannot tell."""
        return not isinstance(self._stream, FastSocketStream) or not self._stream.is_readable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.left <= 0:
            raise ByteLimitExceeded(f"the receiver sent over {RECEIVED_LIMIT // 1024} KiB")
        data = await self._stream.receive_some(max_bytes)
        self.left -= len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class ReceiverEndpoint(NamedTuple):
    """The peer of a connection: a name, verified by its certificate, at a checked address."""

    host: str
    port: int
    address: Address


class ReceiverConnection(Struct, eq=False):
    endpoint: ReceiverEndpoint
    stream: trio.abc.Stream  # encrypted, except for plain http
    transport: LimitedStream  # below it
    opened: float  # Trio's clock

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)


async def open_connection(
    context: ssl.SSLContext, target: Target, address: Address, stream: trio.abc.Stream
) -> ReceiverConnection:
    """Encrypt a stream, except for plain http, and verify the certificate. Raises `NotPosted`, and closes it."""
    transport = LimitedStream(stream)
    encrypted: trio.abc.Stream = transport
    if target.secure:
        try:
            # https_compatible: HTTP marks the end of an answer, and few servers close TLS properly.
            encrypted = trio.SSLStream(transport, context, server_hostname=target.host, https_compatible=True)
            await encrypted.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.BrokenResourceError | ssl.SSLError | ValueError):
                raise NotPosted(_tls_error(error)) from error
            raise
    endpoint = ReceiverEndpoint(target.host, target.port, address)
    return ReceiverConnection(endpoint, encrypted, transport, trio.current_time())


def _tls_error(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the receiver's certificate is not accepted: {cause.verify_message}"
    if isinstance(error, ByteLimitExceeded):
        return f"the TLS handshake with the receiver failed: {error}"
    # OpenSSL's name for the fault; empty for most closed connections.
    reason = str(getattr(cause, "reason", None) or "").replace("_", " ").lower()
    closed = not reason or isinstance(cause, ssl.SSLEOFError) or "eof" in reason
    return f"the TLS handshake with the receiver failed: {'the connection was closed' if closed else reason}"


# ---- idle connections

IDLE_SECONDS = 30.0  # that an unused connection is kept
CONNECTION_AGE = 300.0  # seconds; then a new connection verifies the certificate again
CONNECTIONS_KEPT = 200
CONNECTIONS_PER_HOST = 16


class IdleConnections(Struct):
    idle_seconds: float = IDLE_SECONDS
    limit: int = CONNECTIONS_KEPT
    limit_per_host: int = CONNECTIONS_PER_HOST
    pool: IdlePool[tuple[str, int], ReceiverConnection] = field(default_factory=IdlePool)  # by host name and port
    _closed: bool = False

    async def take(self, host: str, port: int, addresses: Container[Address]) -> ReceiverConnection | None:
        """An idle connection to one of these addresses that seems alive; closes dead ones."""
        while connection := self.pool.take((host, port), lambda kept: kept.endpoint.address in addresses):
            if connection.transport.silent:
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: ReceiverConnection) -> None:
        """Keep a connection for the next event; above the limit, close the one unused for longest."""
        host = connection.endpoint[:2]
        too_old = trio.current_time() - connection.opened >= CONNECTION_AGE
        if self._closed or too_old or self.pool.count(host) >= self.limit_per_host:
            await connection.aclose()
            return
        self.pool.put(host, connection)
        if len(self.pool) > self.limit and (oldest := self.pool.take_oldest()):
            await oldest.aclose()

    async def drop_all_to(self, endpoint: ReceiverEndpoint) -> None:
        """Close all connections to an endpoint that broke one of them: each would waste an attempt."""
        while connection := self.pool.take(endpoint[:2], lambda kept: kept.endpoint == endpoint):
            await connection.aclose()

    async def close_idle(self) -> None:
        await self.drop_all(idle_since=trio.current_time() - self.idle_seconds)

    async def drop_all(self, idle_since: float = inf) -> None:
        while connection := self.pool.take_oldest(idle_since):
            await connection.aclose()

    async def aclose(self) -> None:
        self._closed = True
        await self.drop_all()
