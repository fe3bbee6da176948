"""In charge of fetching an MTA-STS policy over HTTPS (RFC 8461 3.3): from the right server, verified, and briefly.

The name comes from whoever owns the recipient's domain, so the addresses behind it are checked like those of mail
servers, and the very address that was checked is dialled. No redirect is followed, by the RFC and for the same reason.
"""

import ssl
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass

import h11
import trio

from appliance.host_addresses import host_addresses
from appliance.networks import Address, Network, refusal
from appliance.resolver import LookupFailed, Resolver

FETCH_TIMEOUT = 10.0  # seconds for all of it, DNS included; RFC 8461 3.3 suggests a minute, and mail waits meanwhile
BODY_LIMIT = 64 * 1024  # bytes, as RFC 8461 3.3 suggests; real policies have two hundred
HEADER_LIMIT = 16 * 1024  # bytes
ADDRESS_LIMIT = 2  # addresses tried
HTTPS_PORT = 443

Dial = Callable[[Address, int], Awaitable[trio.abc.Stream]]


class NoPolicy(Exception):
    """A policy that could not be fetched, with the reason in words."""


async def _dial(address: Address, port: int) -> trio.abc.Stream:
    return await trio.open_tcp_stream(str(address), port)


@dataclass(frozen=True, slots=True)
class PolicyFetcher:
    """Fetches policies; `context` has to verify certificates and their names."""

    resolver: Resolver
    context: ssl.SSLContext
    allowed: tuple[Network, ...] = ()
    own: Container[Address] = frozenset()
    port: int = HTTPS_PORT
    dial: Dial = _dial

    async def fetch(self, domain: str) -> str:
        """The text of a domain's policy file; raises `NoPolicy`."""
        host = f"mta-sts.{domain}"
        try:
            with trio.fail_after(FETCH_TIMEOUT):
                return await self._fetch(host)
        except LookupFailed as failed:
            raise NoPolicy(failed.text) from failed
        except trio.TooSlowError:
            raise NoPolicy(f"{host} did not answer within {FETCH_TIMEOUT:g} s") from None

    async def _fetch(self, host: str) -> str:
        fault = NoPolicy(f"{host} has no address")
        for address in (await host_addresses(self.resolver, host))[0][:ADDRESS_LIMIT]:
            if reason := refusal(address, self.allowed, self.own):
                fault = NoPolicy(reason)
                continue
            try:
                return await self._fetch_from(address, host)
            except (OSError, trio.BrokenResourceError, ssl.SSLError, h11.RemoteProtocolError) as cause:
                fault = NoPolicy(f"{host} at {address}: {cause.__cause__ or cause}")
        raise fault

    async def _fetch_from(self, address: Address, host: str) -> str:
        connection = await self.dial(address, self.port)
        stream = trio.SSLStream(connection, self.context, server_hostname=host, https_compatible=True)
        try:
            return await _get(stream, host)
        finally:
            await trio.aclose_forcefully(stream)


async def _get(stream: trio.abc.Stream, host: str) -> str:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_LIMIT)
    headers = [("Host", host), ("Accept", "text/plain"), ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = h11.Request(method="GET", target="/.well-known/mta-sts.txt", headers=headers)
    await stream.send_all((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(HEADER_LIMIT)))
        elif isinstance(event, h11.Response):
            _check(event, host)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_LIMIT:
                raise NoPolicy(f"the policy at {host} is over {BODY_LIMIT} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return _text(body, host)
        elif not isinstance(event, h11.InformationalResponse):
            raise NoPolicy(f"{host} closed the connection early")


def _check(response: h11.Response, host: str) -> None:
    if response.status_code != 200:
        raise NoPolicy(f"{host} answered {response.status_code}")
    kinds = [value for name, value in response.headers if name == b"content-type"]
    # RFC 8461 3.2: a guard against text that anybody may have put on that server.
    if [kind.partition(b";")[0].strip().lower() for kind in kinds] != [b"text/plain"]:
        raise NoPolicy(f"{host} sent no text/plain")


def _text(body: bytes, host: str) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise NoPolicy(f"the policy at {host} is no UTF-8") from None
