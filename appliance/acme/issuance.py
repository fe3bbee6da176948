"""Issues a certificate (RFC 8555 7): account, order, challenges, finalization.

An issuance does no I/O: it is a generator of steps. It yields a step (send a request, publish a token, sleep), receives
the response to a request, and returns the certificate chain or raises `NotIssued`. `Client` runs the steps over HTTPS.
"""

import ipaddress
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from appliance import __version__
from appliance.acme import messages
from appliance.acme.messages import AcmeResponse, Authorization, Directory, Json, NotIssued, Order, Problem
from appliance.dns.resolver import LookupFailed, Resolver, host_addresses
from appliance.environment import Environment
from appliance.net.address_policy import Address
from appliance.net.dial import Shortage, dial_first
from appliance.net.http import BadResponse, send_request
from appliance.times import SECOND

NONCE_TRIES = 10  # per request; an authority may invalidate nonces at any time (RFC 8555 6.5)
POLL_DELAYS = (0.5, 1.0, 2.0, 3.0, 5.0)  # seconds between two polls; the last one repeats
POLLS = 60
MAX_POLL_DELAY = 60.0  # seconds that an authority may ask for between two polls
REQUEST_TIMEOUT = 30.0  # seconds for one request, DNS included
RESPONSE_BYTES = 256 * 1024  # a certificate chain has about ten thousand
ADDRESSES_DIALLED = 3  # per request
ACME_CONNECT_TIMEOUT = 5.0  # seconds per address; the last one has the remaining time

_URL = re.compile(r"https://[\x21-\x7e]+")

T = TypeVar("T")
Stated = TypeVar("Stated", Order, Authorization)


class AcmeRequest(Struct, frozen=True):
    """Send this request; the generator receives the response."""

    method: str
    url: str
    body: bytes = b""
    accept: str = "application/json"


class PublishToken(Struct, frozen=True):
    """Answer the challenge of this token with this text on port 80 from now on."""

    token: str
    text: str


Step = AcmeRequest | PublishToken | float  # a number: sleep for this many seconds
Steps = Generator[Step, AcmeResponse, T]


@dataclass(slots=True)
class Issuance:
    """The issuance of one certificate. `account` is the account's URL, which is kept after a failure too."""

    directory_url: str
    key: ec.EllipticCurvePrivateKey  # the account's
    account: str
    email: str
    names: Sequence[str]
    terms: str = ""  # URL of the terms that a new account has agreed to
    _directory: Directory = field(init=False)
    _nonce: str = ""

    def certificate(self, certificate_key: ec.EllipticCurvePrivateKey) -> Steps[bytes]:
        """Yield the steps that lead to the chain (PEM) for the names and this key."""
        self._directory = messages.read(self._accepted((yield AcmeRequest("GET", self.directory_url))).body, Directory)
        place, order = yield from self._order()
        yield from self._authorize(order)
        order = yield from self._until(place, Order, ("pending",))
        if order.status == "ready":
            request = messages.base64url(messages.certificate_request(certificate_key, self.names))
            order = messages.read((yield from self._post(order.finalize, {"csr": request})).body, Order)
        order = yield from self._until(place, Order, ("pending", "ready", "processing"), order)
        if order.status != "valid" or not order.certificate:
            gave_up = NotIssued("the authority cancelled the order")
            raise gave_up if order.error is None else messages.explain(order.error, self.names)
        answer = yield from self._post(order.certificate, None, accept="application/pem-certificate-chain")
        try:
            return messages.checked_chain(answer.body, certificate_key, self.names)
        except ValueError as wrong:
            raise NotIssued(f"the certificate is not usable: {wrong}") from wrong

    def _register(self) -> Steps[None]:
        """Create the account, or find it by its key (RFC 8555 7.3)."""
        meta = self._directory.meta
        if meta.external_account_required:
            raise messages.explain(Problem("externalAccountRequired"), self.names)
        contact = {"contact": [f"mailto:{self.email}"]} if self.email else {}
        self.account = ""
        answer = yield from self._post(self._directory.new_account, {"termsOfServiceAgreed": True, **contact})
        if not answer.location:
            raise NotIssued("the authority created an account without returning its URL")
        self.account, self.terms = answer.location, meta.terms_of_service

    def _order(self) -> Steps[tuple[str, Order]]:
        """Create an order and return its URL; create a new account if the authority no longer knows the old one."""
        if not self.account:
            yield from self._register()
        identifiers = {"identifiers": [{"type": "dns", "value": name} for name in self.names]}
        try:
            answer = yield from self._post(self._directory.new_order, identifiers)
        except NotIssued as failed:
            if failed.kind != messages.NO_ACCOUNT:
                raise
            yield from self._register()
            answer = yield from self._post(self._directory.new_order, identifiers)
        if not answer.location:
            raise NotIssued("the authority created an order without returning its URL")
        return answer.location, messages.read(answer.body, Order)

    def _authorize(self, order: Order) -> Steps[None]:
        """Answer a challenge for each name that is not authorized yet, then wait for the results."""
        pending = []
        for url in order.authorizations:
            authorization = messages.read((yield from self._post(url, None)).body, Authorization)
            if authorization.status == "pending":
                offered = [offer for offer in authorization.challenges if offer.type == "http-01"]
                challenge = next((offer for offer in offered if offer.token and offer.url), None)
                if challenge is None:
                    text = f"the authority offers no http-01 challenge for {authorization.identifier.value}"
                    raise NotIssued(text, "Use names without a wildcard, or another authority.")
                yield PublishToken(challenge.token, f"{challenge.token}.{messages.thumbprint(self.key)}")
                if challenge.status in ("", "pending"):
                    yield from self._post(challenge.url, {})
                pending.append(url)
            elif authorization.status != "valid":
                raise self._not_authorized(authorization)
        for url in pending:
            authorization = yield from self._until(url, Authorization, ("pending",))
            if authorization.status != "valid":
                raise self._not_authorized(authorization)

    def _not_authorized(self, authorization: Authorization) -> NotIssued:
        name, problem = authorization.identifier.value, authorization.error
        if problem is None:
            return NotIssued(f"the authority did not authorize {name} ({authorization.status})")
        return messages.explain(problem, [name], validating=True)

    def _until(
        self, url: str, kind: type[Stated], pending: Sequence[str], known: Stated | None = None
    ) -> Steps[Stated]:
        """Poll an object until it is no longer pending."""
        for delay in (*POLL_DELAYS, *[POLL_DELAYS[-1]] * (POLLS - len(POLL_DELAYS))):
            wait = delay
            if known is None:
                answer = yield from self._post(url, None)
                known = messages.read(answer.body, kind)
                wait = delay if answer.retry_after is None else min(max(answer.retry_after, delay), MAX_POLL_DELAY)
            if known.status not in pending:
                return known
            known = None
            yield wait
        raise NotIssued("the authority did not decide in time", "None: the server retries.")

    def _post(self, url: str, payload: Json | None, *, accept: str = "application/json") -> Steps[AcmeResponse]:
        """Send a signed request; retry with a new nonce if the authority rejects the nonce."""
        for left in reversed(range(NONCE_TRIES)):
            if not self._nonce:
                self._accepted((yield AcmeRequest("HEAD", self._directory.new_nonce)))
            nonce, self._nonce = self._nonce, ""
            body = messages.signed(self.key, url, nonce, payload, self.account or None)
            answer = yield AcmeRequest("POST", url, body, accept)
            try:
                return self._accepted(answer)
            except NotIssued as failed:
                if failed.kind != messages.BAD_NONCE or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _accepted(self, answer: AcmeResponse) -> AcmeResponse:
        """Return the response unless it is an error; keep its nonce for the next request."""
        self._nonce = answer.nonce or self._nonce
        if 200 <= answer.status < 300:
            return answer
        try:
            problem = msgspec.json.decode(answer.body, type=Problem)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            problem = Problem()
        if not problem.type.startswith("urn:"):  # the error page of a web server or a proxy
            advice = "Check acme.directory." if answer.status < 500 else "None: the server retries."
            text = f"the authority returned HTTP status {answer.status}"
            raise NotIssued(text, advice, retry_after=answer.retry_after)
        raise messages.explain(problem, self.names, retry_after=answer.retry_after)


# ---- the client
class Client(Struct, frozen=True):
    """An HTTPS client; `context` must verify certificates and host names."""

    resolver: Resolver
    context: ssl.SSLContext
    env: Environment

    async def run(
        self, steps: Steps[T], tokens: dict[str, str], publish: Callable[[str, str], Awaitable[None]] | None = None
    ) -> T:
        """Run all steps; raises `NotIssued`. Tokens are published in `tokens`, and by `publish` to other nodes."""
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
        retry_after = messages.retry_after_seconds(header(b"retry-after"), self.env.now() / SECOND)
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
