"""Which URLs may be posted to, and connections to them: addresses looked up and checked, certificates verified.

- The owner of a webhook chooses what this machine connects to: https, a public host, an allowed port, in one plain
  spelling. A check can be bypassed where two programs read one URL differently, so a URL with more than one possible
  reading is refused. Names of the service itself are refused, each exactly; a pattern such as `*.example.com` stands
  for all names below. Under `serve --sandbox`, to try it on a laptop, plain http to loopback is allowed as well.
- The addresses of a name are checked at every attempt, and the address that was checked is the one dialled. One refused
  address refuses the whole name: a name with a private address beside a public one is an attempt to make this server
  dial the private one. The owner of the URL reads the error texts, so they name neither the addresses behind a name,
  which may be known only inside the operator's network, nor the resolver.
- Idle connections are kept for the next event, bounded in all and per host, by idle time and by age, and reused only
  for the same name, port and checked address.
"""

import re
import ssl
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from math import inf
from typing import NamedTuple

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.values import is_host_name
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.model.webhooks import WEBHOOK_URL_LENGTH
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.dial import IdlePool, Shortage, raise_if_short
from appliance.net.socket_stream import FastSocketStream, faster

# ---- URLs

HTTPS_PORT = 443
HTTP_PORT = 80

# RFC 3986 3.3 and 3.4: nothing that would have to be percent-encoded first.
_PLAIN = r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]*"
_PATH = re.compile(rf"{_PLAIN}(?:%[0-9A-Fa-f]{{2}}{_PLAIN})*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# A last label that is a number, hexadecimal ones too, makes many URL parsers take the whole for an IPv4 address.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_LOCAL = ("localhost", "localdomain")  # RFC 6761 6.3, and what many hosts files add


class Target(NamedTuple):
    """What an allowed URL names: where to connect, and what to request there."""

    host: str  # lower case; an IP address without brackets
    port: int
    path: str  # with its query
    address: Address | None = None  # when the host is one
    secure: bool = True  # False: plain http, to loopback

    @property
    def authority(self) -> str:
        """For the Host header (RFC 9110 7.2): the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (HTTPS_PORT if self.secure else HTTP_PORT) else f"{host}:{self.port}"


class UrlRefused(Exception):
    """A URL that may not be posted to; the text says why."""


def read_url(
    url: str,
    ports: Container[int],
    own_names: Container[str],
    allowed: Iterable[Network] = (),
    *,
    plain_loopback: bool = False,
) -> Target:
    """Parse and check a URL; raises `UrlRefused`. `allowed` admits addresses that would be refused otherwise.

    `plain_loopback` admits http, without TLS, to any port of a loopback address or of localhost.
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
    if len(url) > WEBHOOK_URL_LENGTH:
        raise UrlRefused(f"the URL is over {WEBHOOK_URL_LENGTH} characters long")
    if not url.isascii():
        raise UrlRefused("the URL must be ASCII: write the host as xn--… and percent-encode the rest")
    if not url.isprintable() or " " in url:
        raise UrlRefused("the URL has a space or a control character in it")
    if "\\" in url:
        raise UrlRefused("the URL has a backslash in it")
    if "#" in url:
        raise UrlRefused("the URL has a fragment (#…), which is never sent")


def _split(authority: str, usual_port: int) -> tuple[str, int]:
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
        return host.lower(), usual_port
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


# ---- addresses and connections

ADDRESSES_PER_NAME = 64  # each has to be checked; no real receiver has so many
VERDICT_SECONDS = 1.0  # a verdict on an address is reused this long: the address may become one of this machine
VERDICTS_KEPT = 10_000
LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
RECEIVED_LIMIT = 128 * 1024  # bytes for one answer or handshake; OpenSSL accepts certificates of 100 KiB at most

_DNS_ERRORS = {
    DnsFault.NXDOMAIN: "{} does not exist in the DNS",
    DnsFault.NODATA: "{} has no address in the DNS",
    DnsFault.TEMPORARY: "{} cannot be looked up in the DNS at the moment",
}


class NotPosted(Exception):
    """A step of an attempt failed; the text says why, for the owner of the webhook."""


class NoAddress(NotPosted):
    """A name has no address that may be dialled; `temporary` when a later lookup may find one."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary


@dataclass(slots=True)
class AddressLookup:
    """Finds the addresses to dial. `allowed` admits otherwise refused ones, `own` are those of this machine."""

    resolver: Resolver
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    _verdicts: TtlCache[Address, str] = field(default_factory=lambda: TtlCache(VERDICTS_KEPT, VERDICT_SECONDS))

    async def addresses(self, target: Target) -> tuple[Address, ...]:
        """Every address of a target, each checked, in the order to try them; raises `NoAddress` or `Shortage`."""
        host = target.host
        found: tuple[Address, ...] = () if target.address is None else (target.address,)
        if not target.secure:
            return found or LOOPBACK
        try:
            found = found or (await host_addresses(self.resolver, host))[0]
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            text = _DNS_ERRORS[failed.fault].format(host)
            raise NoAddress(text, temporary=failed.fault is DnsFault.TEMPORARY) from failed
        if len(found) > ADDRESSES_PER_NAME:
            raise NoAddress(f"{host} has over {ADDRESSES_PER_NAME} addresses")
        for address in found:
            if reason := self._refusal(address, host):
                raise NoAddress(f"{host} must have public addresses only: one is {reason}")
        return found

    def _refusal(self, address: Address, host: str) -> str:
        """Why this address may not be dialled; "" when it may."""
        if (known := self._verdicts.get(address)) is not None:
            return known
        try:
            refused = refusal(address, self.allowed, self.own)
        except OSError as fault:  # the system cannot say whether the address is its own
            raise_if_short(fault)
            raise NoAddress(f"the addresses of {host} cannot be checked at the moment", temporary=True) from fault
        reason = (refused or "").removeprefix(f"{address} is ")
        self._verdicts.put(address, reason)
        return reason


class ByteLimitExceeded(trio.BrokenResourceError):
    """The receiver sent more bytes than one answer or handshake needs."""


class LimitedStream(trio.abc.Stream):
    """The TCP stream beneath TLS, with a limit on the bytes received for one answer.

    The answer reader counts decrypted bytes. This counts what it does not see, such as an endless row of session
    tickets, which would keep the process busy until the attempt times out.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = faster(stream)
        self.left = RECEIVED_LIMIT  # bytes; set anew for each answer

    @property
    def silent(self) -> bool:
        """Whether nothing has come, not even the end, since the last answer; True where that cannot be told."""
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
    """The other end of a connection: a name, verified by the certificate, at an address that was checked."""

    host: str
    port: int
    address: Address


@dataclass(eq=False, slots=True)
class ReceiverConnection:
    endpoint: ReceiverEndpoint
    stream: trio.abc.Stream  # encrypted, but for plain http
    transport: LimitedStream  # beneath it
    opened: float  # Trio's clock

    @property
    def secure(self) -> bool:
        return self.stream is not self.transport

    async def aclose(self) -> None:
        """Close without the TLS closing handshake: receivers do not wait for it."""
        await trio.aclose_forcefully(self.stream)


def unencrypted(target: Target, address: Address, stream: trio.abc.Stream) -> ReceiverConnection:
    """A dialled stream as it is, for a target of plain http."""
    transport = LimitedStream(stream)
    endpoint = ReceiverEndpoint(target.host, target.port, address)
    return ReceiverConnection(endpoint, transport, transport, trio.current_time())


async def start_tls(
    context: ssl.SSLContext, target: Target, address: Address, stream: trio.abc.Stream
) -> ReceiverConnection:
    """Encrypt a dialled stream and verify the certificate; closes the stream and raises `NotPosted` otherwise."""
    transport = LimitedStream(stream)
    try:
        # https_compatible: HTTP shows where an answer ends; few servers close TLS properly as well.
        secure = trio.SSLStream(transport, context, server_hostname=target.host, https_compatible=True)
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError | ssl.SSLError | ValueError):
            raise NotPosted(_tls_error(error)) from error
        raise
    endpoint = ReceiverEndpoint(target.host, target.port, address)
    return ReceiverConnection(endpoint, secure, transport, trio.current_time())


def _tls_error(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the receiver's certificate is not accepted: {cause.verify_message}"
    if isinstance(error, ByteLimitExceeded):
        return f"the TLS handshake with the receiver failed: {error}"
    # OpenSSL's name for the fault; it has one for a closed connection only now and then.
    reason = str(getattr(cause, "reason", None) or "").replace("_", " ").lower()
    closed = not reason or isinstance(cause, ssl.SSLEOFError) or "eof" in reason
    return f"the TLS handshake with the receiver failed: {'the connection was closed' if closed else reason}"


# ---- idle connections

IDLE_SECONDS = 30.0  # a connection is kept without use
CONNECTION_AGE = 300.0  # seconds a connection is used at all, so that the certificate is verified again soon
CONNECTIONS_KEPT = 200
CONNECTIONS_PER_HOST = 16


@dataclass(slots=True)
class IdleConnections:
    idle_seconds: float = IDLE_SECONDS
    limit: int = CONNECTIONS_KEPT
    limit_per_host: int = CONNECTIONS_PER_HOST
    pool: IdlePool[tuple[str, int], ReceiverConnection] = field(default_factory=IdlePool)  # by host name and port
    _closed: bool = False

    async def take(self, host: str, port: int, addresses: Container[Address]) -> ReceiverConnection | None:
        """An idle connection to one of these addresses that seems alive; dead ones found on the way are closed."""
        while connection := self.pool.take((host, port), lambda kept: kept.endpoint.address in addresses):
            if connection.transport.silent:
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: ReceiverConnection) -> None:
        """Keep a connection for the next event; above the limit the one unused for longest is closed."""
        host = connection.endpoint[:2]
        too_old = trio.current_time() - connection.opened >= CONNECTION_AGE
        if self._closed or too_old or self.pool.count(host) >= self.limit_per_host:
            await connection.aclose()
            return
        self.pool.put(host, connection)
        if len(self.pool) > self.limit and (oldest := self.pool.take_oldest()):
            await oldest.aclose()

    async def drop_all_to(self, endpoint: ReceiverEndpoint) -> None:
        """Close all to an endpoint that has just broken one of them: each would waste an attempt."""
        while connection := self.pool.take(endpoint[:2], lambda kept: kept.endpoint == endpoint):
            await connection.aclose()

    async def close_idle(self) -> None:
        await self.drop_all(idle_since=trio.current_time() - self.idle_seconds)

    async def drop_all(self, idle_since: float = inf) -> None:
        while connection := self.pool.take_oldest(idle_since):
            await connection.aclose()

    async def aclose(self) -> None:
        """Close all, and keep none from now on."""
        self._closed = True
        await self.drop_all()
