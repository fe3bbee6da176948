"""Runs the steps of an issuance: sends its requests over HTTPS, publishes its tokens, sleeps.

The operator names the authority, and the URLs that it names come over a verified connection: unlike a webhook's, its
addresses may be in any network.
"""

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

from appliance import __version__
from appliance.acme.issuance import AcmeRequest, PublishToken, Steps, T
from appliance.acme.messages import AcmeResponse, retry_after_seconds
from appliance.acme.problems import NotIssued
from appliance.dns.resolver import LookupFailed, Resolver, host_addresses
from appliance.net.address_policy import Address
from appliance.net.dial import dial_first
from appliance.net.http_client import BadResponse, send_request
from appliance.outside import Outside
from appliance.system.shortage import Shortage
from appliance.times import SECOND

REQUEST_TIMEOUT = 30.0  # seconds for one request, DNS included
RESPONSE_BYTES = 256 * 1024  # bytes; a chain has ten thousand
ADDRESSES_DIALLED = 3  # addresses tried
CONNECT_TIMEOUT = 5.0  # seconds for each but the last

_URL = re.compile(r"https://[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to authorities; `context` has to verify certificates and their names."""

    resolver: Resolver
    context: ssl.SSLContext
    outside: Outside

    async def run(self, steps: Steps[T], tokens: dict[str, str]) -> T:
        """Run all steps; raises `NotIssued`. What they publish is in `tokens` until then."""
        published, result = [], AcmeResponse()
        try:
            while True:
                step = steps.send(result) if result.status else next(steps)
                result = _DONE
                if isinstance(step, AcmeRequest):
                    result = await self._send(step)
                elif isinstance(step, PublishToken):
                    tokens[step.token] = step.text
                    published.append(step.token)
                else:
                    await trio.sleep(step.seconds)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            steps.close()
            for token in published:
                tokens.pop(token, None)

    async def _send(self, step: AcmeRequest) -> AcmeResponse:
        host, port, target = _place(step.url)
        try:
            with trio.fail_after(REQUEST_TIMEOUT):
                stream = await self._connect(host, port)
                try:
                    return await self._exchange(stream, step, host, port, target)
                finally:
                    await trio.aclose_forcefully(stream)
        except (LookupFailed, Shortage) as failed:
            raise _unreachable(host, str(failed)) from failed
        except trio.TooSlowError:
            raise _unreachable(host, f"no answer within {REQUEST_TIMEOUT:g} s") from None
        except (OSError, trio.BrokenResourceError, BadResponse) as error:
            raise _fault(host, error) from error

    async def _connect(self, host: str, port: int) -> trio.abc.Stream:
        """A connection to the first address that accepts one; the TLS handshake comes with the first byte."""
        addresses = (await self._addresses(host))[:ADDRESSES_DIALLED]
        _, stream = await dial_first(self.outside.dial, addresses, port, patience=CONNECT_TIMEOUT)
        return trio.SSLStream(stream, self.context, server_hostname=host, https_compatible=True)

    async def _addresses(self, host: str) -> tuple[Address, ...]:
        try:
            return (ipaddress.ip_address(host),)
        except ValueError:
            return (await host_addresses(self.resolver, host))[0]

    async def _exchange(
        self, stream: trio.abc.Stream, step: AcmeRequest, host: str, port: int, target: str
    ) -> AcmeResponse:
        shown = f"[{host}]" if ":" in host else host
        headers = [
            ("Host", shown if port == 443 else f"{shown}:{port}"),
            ("User-Agent", f"appliance/{__version__}"),  # RFC 8555 6.1
            ("Accept", step.accept),
        ]
        if step.body:
            headers.append(("Content-Type", "application/jose+json"))
        answer = await send_request(stream, step.method, target, headers, step.body)

        def header(name: bytes) -> str:
            return b"".join(answer.all(name)[:1]).decode("latin-1")

        return AcmeResponse(
            answer.status,
            await answer.body(RESPONSE_BYTES),
            header(b"replay-nonce"),
            header(b"location"),
            retry_after_seconds(header(b"retry-after"), self.outside.now() / SECOND),
        )


_DONE = AcmeResponse(status=1)  # the result of a step that sends no request


def _place(url: str) -> tuple[str, int, str]:
    """Host, port and target of a URL; `NotIssued` for one that is not https."""
    try:
        parts = urlsplit(url if _URL.fullmatch(url) else "")
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        host, port = "", 0
    if not host:
        raise NotIssued(f"the authority names a URL that is not https: {url[:200]!r}")
    return host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _unreachable(host: str, reason: str) -> NotIssued:
    return NotIssued(
        f"{host} cannot be reached: {reason}",
        f"Nothing, if it passes; else let this machine open connections to {host}.",
    )


def _fault(host: str, error: BaseException) -> NotIssued:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return NotIssued(
            f"the certificate of {host} is not accepted: {cause.verify_message}",
            "For an authority of your own name its root certificate in acme.ca_file; else look at the clock.",
        )
    if isinstance(cause, ssl.SSLError):
        return _unreachable(host, f"TLS failed: {str(cause.reason or 'the connection was closed').replace('_', ' ')}")
    if isinstance(cause, OSError) and cause.errno is not None:
        return _unreachable(host, os.strerror(cause.errno).lower())  # Trio's own text contains the address
    return _unreachable(host, str(cause or "") or "the connection was closed")
