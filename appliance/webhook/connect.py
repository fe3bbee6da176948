"""A new connection to a receiver: its addresses looked up and checked, dialled, TLS with its certificate verified.

The address that was checked is the one dialled. One refused address refuses the whole name: a name with a private
address beside a public one is an attempt to make this server dial the private one. The owner of the URL reads these
error texts, so they name neither the addresses behind a name, which may be known only inside the operator's network,
nor the resolver.
"""

import ssl
from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.dns.resolver import DnsFault, LookupFailed, NotAsked, Resolver, host_addresses
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.dial import Dial, dial_first
from appliance.net.socket_stream import FastSocketStream, faster
from appliance.system.shortage import Shortage, raise_if_short
from appliance.webhook.url_policy import Target

ADDRESSES_PER_NAME = 64  # each has to be checked; no real receiver has so many
VERDICT_SECONDS = 1.0  # a verdict on an address is reused this long: the address may become one of this machine
VERDICTS_KEPT = 10_000
ADDRESSES_TRIED = 2
FIRST_ADDRESS = 2.0  # seconds until the second is tried instead: an unreachable IPv6 address mostly does not answer
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
        found = (target.address,) if target.address is not None else await self._look_up(target.host)
        for address in found:
            if reason := self._refusal(address, target.host):
                raise NoAddress(f"{target.host} must have public addresses only: one is {reason}")
        return found

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        try:
            found, _ = await host_addresses(self.resolver, host)
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
        except LookupFailed as failed:
            text = _DNS_ERRORS[failed.fault].format(host)
            raise NoAddress(text, temporary=failed.fault is DnsFault.TEMPORARY) from failed
        if len(found) > ADDRESSES_PER_NAME:
            raise NoAddress(f"{host} has over {ADDRESSES_PER_NAME} addresses")
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
        self._left = RECEIVED_LIMIT

    def reset_limit(self) -> None:
        """Allow the bytes of one more answer."""
        self._left = RECEIVED_LIMIT

    @property
    def silent(self) -> bool:
        """Whether nothing has come, not even the end, since the last answer; True where that cannot be told."""
        return not isinstance(self._stream, FastSocketStream) or not self._stream.has_come()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._left <= 0:
            raise ByteLimitExceeded(f"the receiver sent over {RECEIVED_LIMIT // 1024} KiB")
        data = await self._stream.receive_some(max_bytes)
        self._left -= len(data)
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
    """An open connection to a receiver."""

    endpoint: ReceiverEndpoint
    stream: trio.abc.Stream  # encrypted
    transport: LimitedStream  # beneath it
    opened: float
    used: float = 0.0

    async def aclose(self) -> None:
        """Close without the TLS closing handshake: receivers do not wait for it."""
        await trio.aclose_forcefully(self.stream)


async def dial_receiver(
    dial: Dial, target: Target, addresses: tuple[Address, ...], *, first_address: float = FIRST_ADDRESS
) -> tuple[ReceiverEndpoint, trio.abc.Stream]:
    """Connect to the first of these checked addresses that accepts; raises `NotPosted` or `Shortage`."""
    try:
        tried = addresses[:ADDRESSES_TRIED]
        address, stream = await dial_first(dial, tried, target.port, patience=first_address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotPosted(f"the receiver did not accept a connection to port {target.port}: {reason}") from error
    return ReceiverEndpoint(target.host, target.port, address), stream


async def start_tls(context: ssl.SSLContext, endpoint: ReceiverEndpoint, stream: trio.abc.Stream) -> ReceiverConnection:
    """Encrypt a dialled stream and verify the certificate; closes the stream and raises `NotPosted` otherwise."""
    transport = LimitedStream(stream)
    try:
        # https_compatible: HTTP shows where an answer ends; few servers close TLS properly as well.
        secure = trio.SSLStream(transport, context, server_hostname=endpoint.host, https_compatible=True)
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError | ssl.SSLError | ValueError):
            raise NotPosted(_tls_error(error)) from error
        raise
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
