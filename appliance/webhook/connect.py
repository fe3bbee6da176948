"""In charge of a new connection to a receiver: dialled at a checked address, encrypted, its certificate verified."""

import ssl

import trio

from appliance.net.address_policy import Address
from appliance.net.dial import Dial, dial_first
from appliance.webhook.attempt import Attempt, NotPosted, Step
from appliance.webhook.connection_pool import Connection, Place
from appliance.webhook.limited_stream import Flooded, Transport
from appliance.webhook.url_policy import Target

ADDRESSES_TRIED = 2
FIRST_ADDRESS = 2.0  # seconds until the second is tried instead: an IPv6 that leads nowhere mostly says nothing


async def connect(
    attempt: Attempt, dial: Dial, context: ssl.SSLContext, target: Target, addresses: tuple[Address, ...]
) -> Connection:
    """A connection to one of these addresses, which have been checked; raises `NotPosted` or `Shortage`."""
    attempt.awaiting = Step.CONNECTED
    address, stream = await _dial(dial, target, addresses[:ADDRESSES_TRIED])
    attempt.awaiting = Step.SECURED
    transport = Transport(stream)
    try:
        # https_compatible: the end of an answer shows in HTTP; few servers say goodbye in TLS as well.
        secure = trio.SSLStream(transport, context, server_hostname=target.host, https_compatible=True)
        await secure.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError | ssl.SSLError | ValueError):
            raise NotPosted(_words(error)) from error
        raise
    return Connection(Place(target.host, target.port, address), secure, transport, trio.current_time())


async def _dial(dial: Dial, target: Target, addresses: tuple[Address, ...]) -> tuple[Address, trio.abc.Stream]:
    try:
        return await dial_first(dial, addresses, target.port, patience=FIRST_ADDRESS)
    except OSError as error:
        words = error.strerror or str(error)
        raise NotPosted(f"the receiver did not accept a connection to port {target.port}: {words}") from error


def _words(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the receiver's certificate is not accepted: {cause.verify_message}"
    if isinstance(error, Flooded):
        return f"the TLS handshake with the receiver failed: {error}"
    # OpenSSL's name for the fault, as words; it has one for a closed connection only now and then.
    reason = str(getattr(cause, "reason", None) or "").replace("_", " ").lower()
    closed = not reason or isinstance(cause, ssl.SSLEOFError) or "eof" in reason
    return f"the TLS handshake with the receiver failed: {'the connection was closed' if closed else reason}"
