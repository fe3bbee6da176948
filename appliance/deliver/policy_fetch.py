"""In charge of fetching an MTA-STS policy over HTTPS (RFC 8461 3.3): from the right server, verified, and briefly.

The name comes from whoever owns the recipient's domain, so the addresses behind it are checked like those of mail
servers, and the very address that was checked is dialled. No redirect is followed, by the RFC and for the same reason.
"""

import ssl
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass

import trio

from appliance.dns.host_addresses import host_addresses
from appliance.dns.resolver import LookupFailed, NotAsked, Resolver
from appliance.net.address_policy import Address, Network, refusal
from appliance.net.http_client import BadResponse, ClosedEarly, HttpResponse, TooLong, send_request
from appliance.system.shortage import Shortage, raise_if_short

FETCH_TIMEOUT = 10.0  # seconds for all of it, DNS included; RFC 8461 3.3 suggests a minute, and mail waits meanwhile
BODY_LIMIT = 64 * 1024  # bytes, as RFC 8461 3.3 suggests; real policies have two hundred
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
        """The text of a domain's policy file; raises `NoPolicy`, or `Shortage` if it could not be asked for."""
        host = f"mta-sts.{domain}"
        try:
            with trio.fail_after(FETCH_TIMEOUT):
                return await self._fetch(host)
        except NotAsked as failed:
            raise Shortage(failed.lack) from failed
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
            except (OSError, trio.BrokenResourceError, ssl.SSLError, BadResponse) as cause:
                raise_if_short(cause, str(address))
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
    headers = [("Host", host), ("Accept", "text/plain")]
    try:
        answer = await send_request(stream, "GET", "/.well-known/mta-sts.txt", headers)
        _check(answer, host)
        return _text(await answer.body(BODY_LIMIT), host)
    except TooLong:
        raise NoPolicy(f"the policy at {host} is over {BODY_LIMIT} bytes") from None
    except ClosedEarly:
        raise NoPolicy(f"{host} closed the connection early") from None


def _check(answer: HttpResponse, host: str) -> None:
    if answer.status != 200:
        raise NoPolicy(f"{host} answered {answer.status}")
    kinds = answer.all(b"content-type")
    # RFC 8461 3.2: a guard against text that anybody may have put on that server.
    if [kind.partition(b";")[0].strip().lower() for kind in kinds] != [b"text/plain"]:
        raise NoPolicy(f"{host} sent no text/plain")


def _text(body: bytes, host: str) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise NoPolicy(f"the policy at {host} is no UTF-8") from None
