"""Issues a certificate (RFC 8555 7): account, order, challenges, finalization. No I/O.

An issuance is a generator of steps. It yields a step (send a request, publish a token, sleep), receives the response to
a request, and returns the certificate chain or raises `NotIssued`. `client.py` runs the steps over HTTPS.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.crypto import Json, base64url, certificate_request, checked_chain, signed, thumbprint
from appliance.acme.messages import AcmeResponse, Authorization, Directory, Order, read
from appliance.acme.problems import BAD_NONCE, NO_ACCOUNT, NotIssued, Problem, explain

NONCE_TRIES = 10  # per request; an authority may invalidate nonces at any time (RFC 8555 6.5)
POLL_DELAYS = (0.5, 1.0, 2.0, 3.0, 5.0)  # seconds between two polls; the last one repeats
POLLS = 60
MAX_POLL_DELAY = 60.0  # seconds that an authority may ask for between two polls

T = TypeVar("T")
Stated = TypeVar("Stated", Order, Authorization)


@dataclass(frozen=True, slots=True)
class AcmeRequest:
    """Send this request; the generator receives the response."""

    method: str
    url: str
    body: bytes = b""
    accept: str = "application/json"


@dataclass(frozen=True, slots=True)
class PublishToken:
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
        self._directory = read(self._accepted((yield AcmeRequest("GET", self.directory_url))).body, Directory)
        place, order = yield from self._order()
        yield from self._authorize(order)
        order = yield from self._until(place, Order, ("pending",))
        if order.status == "ready":
            request = base64url(certificate_request(certificate_key, self.names))
            order = read((yield from self._post(order.finalize, {"csr": request})).body, Order)
        order = yield from self._until(place, Order, ("pending", "ready", "processing"), order)
        if order.status != "valid" or not order.certificate:
            gave_up = NotIssued("the authority cancelled the order")
            raise gave_up if order.error is None else explain(order.error, self.names)
        answer = yield from self._post(order.certificate, None, accept="application/pem-certificate-chain")
        try:
            return checked_chain(answer.body, certificate_key, self.names)
        except ValueError as wrong:
            raise NotIssued(f"the certificate is not usable: {wrong}") from wrong

    def _register(self) -> Steps[None]:
        """Create the account, or find it by its key (RFC 8555 7.3)."""
        meta = self._directory.meta
        if meta.external_account_required:
            raise explain(Problem("externalAccountRequired"), self.names)
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
            if failed.kind != NO_ACCOUNT:
                raise
            yield from self._register()
            answer = yield from self._post(self._directory.new_order, identifiers)
        if not answer.location:
            raise NotIssued("the authority created an order without returning its URL")
        return answer.location, read(answer.body, Order)

    def _authorize(self, order: Order) -> Steps[None]:
        """Answer a challenge for each name that is not authorized yet, then wait for the results."""
        pending = []
        for url in order.authorizations:
            authorization = read((yield from self._post(url, None)).body, Authorization)
            if authorization.status == "pending":
                offered = [offer for offer in authorization.challenges if offer.type == "http-01"]
                challenge = next((offer for offer in offered if offer.token and offer.url), None)
                if challenge is None:
                    text = f"the authority offers no http-01 challenge for {authorization.identifier.value}"
                    raise NotIssued(text, "Use names without a wildcard, or another authority.")
                yield PublishToken(challenge.token, f"{challenge.token}.{thumbprint(self.key)}")
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
        return explain(problem, [name], validating=True)

    def _until(
        self, url: str, kind: type[Stated], pending: Sequence[str], known: Stated | None = None
    ) -> Steps[Stated]:
        """Poll an object until it is no longer pending."""
        for delay in (*POLL_DELAYS, *[POLL_DELAYS[-1]] * (POLLS - len(POLL_DELAYS))):
            wait = delay
            if known is None:
                answer = yield from self._post(url, None)
                known = read(answer.body, kind)
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
            body = signed(self.key, url, nonce, payload, self.account or None)
            answer = yield AcmeRequest("POST", url, body, accept)
            try:
                return self._accepted(answer)
            except NotIssued as failed:
                if failed.kind != BAD_NONCE or not left:
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
        raise explain(problem, self.names, retry_after=answer.retry_after)
