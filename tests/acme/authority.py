"""An authority without sockets: it answers the steps of a issuance by the rules of RFC 8555, and can be spoiled."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm

from appliance.acme.issuance import AcmeRequest, PublishToken, Step, Steps, T
from appliance.acme.messages import AcmeResponse

HOST = "https://ca.test"
DIRECTORY = f"{HOST}/directory"
PROBLEM = "urn:ietf:params:acme:error:"

Spoil = Callable[[str, Any], AcmeResponse | None]


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def problem(kind: str, detail: str = "no", status: int = 403, **more: Any) -> AcmeResponse:
    document = {"type": PROBLEM + kind, "detail": detail, **more}
    return AcmeResponse(status, json.dumps(document).encode(), nonce="after-problem")


@dataclass
class Authority:
    """Issues certificates. `spoil` is asked first what to answer to (path, payload); None: as it should be."""

    spoil: Spoil = lambda path, payload: None
    meta: dict[str, Any] = field(default_factory=lambda: {"termsOfService": "https://ca.test/terms"})
    proven: frozenset[str] = frozenset()  # names that need no challenge
    polls: int = 1  # looks at anything until it is decided
    retry_after: float | None = None  # said with what is not decided
    life: timedelta = timedelta(days=90)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    asked: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    signer: Any = None  # the public key of the account
    accounts: int = 0
    nonces: int = 0
    names: list[str] = field(default_factory=list)
    challenged: set[str] = field(default_factory=set)
    looks: dict[str, int] = field(default_factory=dict)
    chain: bytes = b""

    def play(self, steps: Steps[T]) -> T:
        answer = None
        while True:
            try:
                step = steps.send(answer) if answer else next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
            answer = self.answer(step)

    def answer(self, step: Step) -> AcmeResponse:
        if isinstance(step, PublishToken):
            self.shown[step.token] = step.text
        elif isinstance(step, float):
            self.waits.append(step)
        else:
            return self.request(step)
        return AcmeResponse(1)

    def request(self, step: AcmeRequest) -> AcmeResponse:
        path = step.url.removeprefix(HOST)
        payload, head = self.verified(step) if step.method == "POST" else (None, {})
        self.asked.append(path)
        if head:
            assert head["url"] == step.url
            assert head["nonce"] in (f"nonce-{self.nonces}", "after-problem")
            assert ("jwk" in head) == (path == "/account")
        self.nonces += 1
        if (spoiled := self.spoil(path, payload)) is not None:
            return spoiled
        return self.good(path, payload)

    def verified(self, step: AcmeRequest) -> tuple[Any, dict[str, Any]]:
        """Payload and protected header of a request, whose signature another library has found to be good."""
        parts = json.loads(step.body)
        head = json.loads(decoded(parts["protected"]))
        if "jwk" in head:
            self.signer = ECAlgorithm.from_jwk(json.dumps(head["jwk"]))
        compact = ".".join((parts["protected"], parts["payload"], parts["signature"]))
        content = jwt.PyJWS().decode(compact, self.signer, algorithms=["ES256"])
        return json.loads(content) if content else None, head

    def good(self, path: str, payload: Any) -> AcmeResponse:
        kind, _, name = path.strip("/").partition("/")
        if kind == "directory":
            urls = {"newNonce": "/nonce", "newAccount": "/account", "newOrder": "/order", "keyChange": "/other"}
            value = {**{key: HOST + value for key, value in urls.items()}, "meta": self.meta}
            return AcmeResponse(200, json.dumps(value).encode())
        if kind == "account":
            self.accounts += 1
            return self.json({"status": "valid"}, location=f"{HOST}/account/{self.accounts}", status=201)
        if kind == "order" and not name:
            self.names = [each["value"] for each in payload["identifiers"]]
            return self.json(self.order("pending"), location=f"{HOST}/order/1", status=201)
        if kind == "order":
            return self.json(self.order(self.stage()), wait=self.stage() == "processing")
        if kind == "authz":
            return self.json(self.authorization(name), wait=True)
        if kind == "challenge":
            assert payload == {}
            self.challenged.add(name)
        if kind == "finalize":
            self.chain = self.issue(decoded(payload["csr"]))
            return self.json(self.order("processing"))
        if kind == "certificate":
            return AcmeResponse(200, self.chain, self.nonce)
        return self.json({})

    @property
    def nonce(self) -> str:
        return f"nonce-{self.nonces}"

    def json(self, value: Any, *, location: str = "", status: int = 200, wait: bool = False) -> AcmeResponse:
        retry_after = self.retry_after if wait else None
        return AcmeResponse(status, json.dumps(value).encode(), self.nonce, location, retry_after)

    def decided(self, what: str) -> bool:
        self.looks[what] = self.looks.get(what, 0) + 1
        return self.looks[what] > self.polls

    def stage(self) -> str:
        if not self.chain:
            return "ready"
        return "valid" if self.decided("order") else "processing"

    def order(self, status: str) -> dict[str, Any]:
        made = {
            "status": status,
            "authorizations": [f"{HOST}/authz/{name}" for name in self.names],
            "finalize": f"{HOST}/finalize/1",
        }
        return made | ({"certificate": f"{HOST}/certificate/1"} if status == "valid" else {})

    def authorization(self, name: str) -> dict[str, Any]:
        """How it stands with a name: valid once it has been challenged and shows the right text."""
        status = "valid" if name in self.proven else "pending"
        if name in self.challenged and self.decided(name):
            status = "valid" if self.shown.get(f"token-{name}", "").startswith(f"token-{name}.") else "invalid"
        challenges = [
            {"type": "dns-01", "url": f"{HOST}/other", "status": "pending", "token": "x"},
            {"type": "http-01", "url": f"{HOST}/challenge/{name}", "status": "pending", "token": f"token-{name}"},
        ]
        return {"identifier": {"type": "dns", "value": name}, "status": status, "challenges": challenges}

    def issue(self, der: bytes) -> bytes:
        request = x509.load_der_x509_csr(der)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return issued(self.key, request.public_key(), names, self.now, self.now + self.life)  # type: ignore[arg-type]


def issued(
    authority: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    names: x509.SubjectAlternativeName,
    begin: datetime,
    end: datetime,
) -> bytes:
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(names, critical=True)
        .sign(authority, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
