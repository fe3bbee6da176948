"""The messages of ACME (RFC 8555): an authority's objects and problems, signed requests, and keys. No I/O.

Unknown fields of an object are ignored, as the RFC requires. A problem becomes a reason and an advice for the operator.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from msgspec import Struct

PREFIX = "urn:ietf:params:acme:error:"
DETAIL_LIMIT = 500  # characters of an authority's own text

BAD_NONCE = "badNonce"
NO_ACCOUNT = "accountDoesNotExist"
MAX_RETRY_AFTER = 7 * 86400.0  # seconds; the limit of a Retry-After
COORDINATE = 32  # bytes, on P-256 (RFC 7518 3.4, 6.2.1)

Json = Mapping[str, object]
T = TypeVar("T")


# ---- problem documents (RFC 8555 6.7)
class NotIssued(Exception):
    """No certificate was issued: the reason, the advice, and the authority's Retry-After in seconds."""

    def __init__(self, text: str, advice: str = "", *, kind: str = "", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.advice, self.kind, self.retry_after = advice, kind, retry_after


class Identifier(msgspec.Struct):
    value: str = ""


class Problem(msgspec.Struct):
    """A problem document (RFC 7807, RFC 8555 6.7)."""

    type: str = ""
    detail: str = ""
    instance: str = ""
    identifier: Identifier | None = None
    subproblems: "list[Problem]" = msgspec.field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.type.removeprefix(PREFIX)


# Reason and advice by type (RFC 8555 6.7); {0} is the affected name or names.
_WORDS_BY_TYPES: dict[str, tuple[str, str]] = {
    "connection": (
        "the authority cannot reach port 80 of {0}",
        "Make port 80 of {0} reach acme.bind: check the DNS record, the firewall and NAT.",
    ),
    "dns": (
        "the authority finds no address of {0} in DNS",
        "Publish an A or AAAA record of this machine for {0}, or remove it from acme.names.",
    ),
    "unauthorized incorrectResponse": (
        "another server answers on port 80 of {0}",
        "Make port 80 of {0} reach acme.bind, or forward /.well-known/acme-challenge/ from there.",
    ),
    "caa": (
        "a CAA record in DNS forbids this authority to issue for {0}",
        "Change the CAA record of {0}, or set acme.directory to another authority.",
    ),
    "rejectedIdentifier unsupportedIdentifier": (
        "the authority does not issue for {0}",
        "Use names in your own public domain: acme.names, server.hostname, http.base_url.",
    ),
    "rateLimited": (
        "the authority received too many requests",
        "None: the server retries when the authority allows it.",
    ),
    "externalAccountRequired": (
        "the authority requires an existing account",
        "Set acme.directory to an authority that does not.",
    ),
    "userActionRequired": (
        "the authority requires an action by its customer",
        "Follow the instructions in its message.",
    ),
    "invalidContact unsupportedContact": (
        "the authority does not accept the address in acme.email",
        "Correct acme.email.",
    ),
    "accountDoesNotExist": ("the authority does not know the account", ""),
    "serverInternal": ("the authority has an internal error", "None: the server retries."),
}
_WORDS = {kind: words for kinds, words in _WORDS_BY_TYPES.items() for kind in kinds.split()}
# RFC 8555 6.7 uses "unauthorized" also for an account without permission, which has nothing to do with port 80.
_ACCOUNT_UNAUTHORIZED = (
    "the authority rejects the account",
    "Ask the authority why. To create a new account, delete account.key and state.json in data_dir/acme, or on"
    " PostgreSQL the rows of acme_records.",
)


def explain(
    problem: Problem, names: Sequence[str], *, validating: bool = False, retry_after: float | None = None
) -> NotIssued:
    """Return the error for a problem document; `validating` if it is about a challenge."""
    first = problem.subproblems[0] if problem.subproblems else problem  # more precise than "compound"
    about = first.identifier.value if first.identifier and first.identifier.value else ", ".join(names)
    words, advice = _WORDS.get(first.kind, ("the authority rejects the request", ""))
    if first.kind == "unauthorized" and not validating:
        words, advice = _ACCOUNT_UNAUTHORIZED
    text, stated = words.format(about), " ".join(filter(None, (first.detail, first.instance))) or first.kind
    if detail := " ".join("".join(c if c.isprintable() else " " for c in stated).split()):
        text += f": {detail if len(detail) <= DETAIL_LIMIT else detail[: DETAIL_LIMIT - 1] + '…'}"
    return NotIssued(text, advice.format(about), kind=problem.kind, retry_after=retry_after)


# ---- objects (RFC 8555 7.1)
class AcmeResponse(Struct, frozen=True):
    status: int = 0
    body: bytes = b""
    nonce: str = ""  # Replay-Nonce
    location: str = ""
    retry_after: float | None = None  # seconds


class DirectoryMeta(msgspec.Struct, rename="camel"):
    """The authority's terms and conditions (RFC 8555 7.1.1)."""

    terms_of_service: str = ""
    external_account_required: bool = False


class Directory(msgspec.Struct, rename="camel"):
    """The URLs of an authority's operations (RFC 8555 7.1.1)."""

    new_nonce: str
    new_account: str
    new_order: str
    meta: DirectoryMeta = msgspec.field(default_factory=DirectoryMeta)


class Challenge(msgspec.Struct):
    """One way to prove control of a name (RFC 8555 8)."""

    type: str
    url: str = ""
    status: str = ""
    token: str = ""
    error: Problem | None = None


class Authorization(msgspec.Struct):
    """The state of the proof for one name (RFC 8555 7.1.4)."""

    identifier: Identifier
    status: str
    challenges: list[Challenge] = msgspec.field(default_factory=list)

    @property
    def error(self) -> Problem | None:
        return next((challenge.error for challenge in self.challenges if challenge.error is not None), None)


class Order(msgspec.Struct):
    """A request for a certificate (RFC 8555 7.1.3)."""

    status: str
    finalize: str
    authorizations: list[str] = msgspec.field(default_factory=list)
    certificate: str = ""
    error: Problem | None = None


def read(body: bytes, kind: type[T]) -> T:
    """Parse an object in a response; raise `NotIssued` if that fails."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        advice = "Check that acme.directory is the URL of an ACME directory."
        raise NotIssued(f"invalid response from the authority: {error}", advice) from error


def retry_after_seconds(value: str, now: float) -> float | None:
    """Return the seconds of a Retry-After: a number or a date (RFC 9110 10.2.3); None if it is neither."""
    if value.isascii() and value.isdigit():
        seconds = float(value[:12])
    else:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- keys and signatures (ES256; the flattened form of RFC 7515, with URL and nonce in the signed header)
def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the P-256 key in a file; raise ValueError for any other content."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError as error:  # it is encrypted
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return key


def base64url(data: bytes) -> str:
    """RFC 7515 2: without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return the public key with its members in the order of RFC 7638 3."""
    numbers = key.public_key().public_numbers()
    x, y = (base64url(number.to_bytes(COORDINATE, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def thumbprint(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the second half of a key authorization (RFC 8555 8.1)."""
    return base64url(hashlib.sha256(_compact(public_jwk(key))).digest())


def signed(key: ec.EllipticCurvePrivateKey, url: str, nonce: str, payload: Json | None, account: str | None) -> bytes:
    """Return a request body, with the public key if there is no account; without payload it is POST-as-GET (6.3)."""
    signer: Json = {"kid": account} if account else {"jwk": public_jwk(key)}
    head = base64url(_compact({"alg": "ES256", "nonce": nonce, "url": url, **signer}))
    content = "" if payload is None else base64url(_compact(payload))
    r, s = decode_dss_signature(key.sign(f"{head}.{content}".encode(), ec.ECDSA(hashes.SHA256())))
    signature = base64url(r.to_bytes(COORDINATE, "big") + s.to_bytes(COORDINATE, "big"))
    return _compact({"protected": head, "payload": content, "signature": signature})


def _compact(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def certificate_request(key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> bytes:
    """Return a signing request (DER) with all names as alternative names: clients no longer read the subject."""
    alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    made = builder.add_extension(alternative, critical=False).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def checked_chain(chain: bytes, key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> bytes:
    """Return the certificates of the chain (PEM), nothing else; raise ValueError with the reason."""
    try:
        certificates = x509.load_pem_x509_certificates(chain)
        issued = names_of(certificates[0])
        fits = certificates[0].public_key() == key.public_key()
    except ValueError as error:
        raise ValueError(f"not a certificate: {error}") from error
    if not fits:
        raise ValueError("the certificate is for another key")
    if missing := [name for name in names if name not in issued]:
        raise ValueError(f"the certificate is not for {', '.join(missing)}")
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.lower() for name in alternative.get_values_for_type(x509.DNSName))
