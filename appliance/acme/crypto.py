"""ACME keys, requests signed by the account's key (JWS, ES256), and certificate signing requests. No I/O.

RFC 8555 6.2 requires the flattened form of RFC 7515, with the URL and a nonce in the signed header.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

COORDINATE = 32  # bytes, on P-256 (RFC 7518 3.4, 6.2.1)

Json = Mapping[str, object]


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
