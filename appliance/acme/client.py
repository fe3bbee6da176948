"""Runs the steps of an issuance: sends requests over HTTPS, publishes tokens, sleeps.

The operator configures the authority, and its URLs arrive over a verified connection. So unlike a webhook's, its
addresses may be in any network.
"""

import ipaddress
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

from appliance import __version__
from appliance.acme.issuance import AcmeRequest, PublishToken, Steps, T
from appliance.acme.messages import AcmeResponse, retry_after_seconds
from appliance.acme.problems import NotIssued
from appliance.dns.resolver import LookupFailed, Resolver, host_addresses
from appliance.environment import Environment
from appliance.net.address_policy import Address
from appliance.net.dial import Shortage, dial_first
from appliance.net.http import BadResponse, send_request
from appliance.times import SECOND

REQUEST_TIMEOUT = 30.0  # seconds for one request, DNS included
RESPONSE_BYTES = 256 * 1024  # a certificate chain has about ten thousand
ADDRESSES_DIALLED = 3  # per request
ACME_CONNECT_TIMEOUT = 5.0  # seconds per address; the last one has the remaining time

_URL = re.compile(r"https://[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Client:
    """An HTTPS client; `context` must verify certificates and host names."""

    resolver: Resolver
    context: ssl.SSLContext
    env: Environment

    async def run(
        self, steps: Steps[T], tokens: dict[str, str], publish: Callable[[str, str], Awaitable[None]] | None = None
    ) -> T:
        """Run all steps; raises `NotIssued`. Published tokens are in `tokens` until it ends.

        `publish` passes a token to other nodes, before the authority can request it.
        """
        published: list[str] = []
        response: AcmeResponse | None = None  # to the last step, if that was a request
        try:
            while True:
                step = next(steps) if response is None else steps.send(response)
                response = None
                if isinstance(step, AcmeRequest):
                    response = await self._send(step)
                elif isinstance(step, PublishToken):
                    tokens[step.token] = step.text
                    published.append(step.token)
                    if publish is not None:
                        await publish(step.token, step.text)
                else:
                    await trio.sleep(step)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()
            for token in published:
                tokens.pop(token, None)

    async def _send(self, step: AcmeRequest) -> AcmeResponse:
        host, port, target = _place(step.url)
        try:
            with trio.fail_after(REQUEST_TIMEOUT):
                try:
                    addresses: tuple[Address, ...] = (ipaddress.ip_address(host),)
                except ValueError:
                    addresses = (await host_addresses(self.resolver, host))[0][:ADDRESSES_DIALLED]
                _, dialled = await dial_first(self.env.dial, addresses, port, patience=ACME_CONNECT_TIMEOUT)
                # The TLS handshake runs with the first byte.
                stream = trio.SSLStream(dialled, self.context, server_hostname=host, https_compatible=True)
                try:
                    return await self._exchange(stream, step, host, port, target)
                finally:
                    await trio.aclose_forcefully(stream)
        except (LookupFailed, Shortage) as failed:
            raise _unreachable(host, str(failed)) from failed
        except trio.TooSlowError:
            raise _unreachable(host, f"no response within {REQUEST_TIMEOUT:g} s") from None
        except (OSError, trio.BrokenResourceError, BadResponse) as error:
            raise _fault(host, error) from error

    async def _exchange(
        self, stream: trio.abc.Stream, step: AcmeRequest, host: str, port: int, target: str
    ) -> AcmeResponse:
        shown = f"[{host}]" if ":" in host else host
        agent = ("User-Agent", f"appliance/{__version__}")  # RFC 8555 6.1
        headers = [("Host", shown if port == 443 else f"{shown}:{port}"), agent, ("Accept", step.accept)]
        if step.body:
            headers.append(("Content-Type", "application/jose+json"))
        answer = await send_request(stream, step.method, target, headers, step.body)

        def header(name: bytes) -> str:
            return b"".join(answer.all(name)[:1]).decode("latin-1")

        body = await answer.body(RESPONSE_BYTES)
        retry_after = retry_after_seconds(header(b"retry-after"), self.env.now() / SECOND)
        return AcmeResponse(answer.status, body, header(b"replay-nonce"), header(b"location"), retry_after)


def _place(url: str) -> tuple[str, int, str]:
    """Return host, port and target of a URL; raise `NotIssued` unless it is https."""
    try:
        parts = urlsplit(url if _URL.fullmatch(url) else "")
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        host, port = "", 0
    if not host:
        raise NotIssued(f"the authority returned a URL that is not https: {url[:200]!r}")
    return host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _unreachable(host: str, reason: str) -> NotIssued:
    advice = f"If it persists, allow connections from this machine to {host}."
    return NotIssued(f"{host} cannot be reached: {reason}", advice)


def _fault(host: str, error: BaseException) -> NotIssued:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        advice = "Set acme.ca_file to the root certificate of a private authority; otherwise check the clock."
        return NotIssued(f"the certificate of {host} is not trusted: {cause.verify_message}", advice)
    if isinstance(cause, ssl.SSLError):
        return _unreachable(host, f"TLS failed: {str(cause.reason or 'the connection was closed').replace('_', ' ')}")
    if isinstance(cause, OSError) and cause.errno is not None:
        return _unreachable(host, os.strerror(cause.errno).lower())  # Trio's own text contains the address
    return _unreachable(host, str(cause or "") or "the connection was closed")
