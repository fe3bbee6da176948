"""In charge of what proves who asks: the account's key, and requests signed by it (JWS, ES256). PURE.

RFC 8555 6.2 wants RFC 7515's flattened form, with the URL and a nonce inside what is signed.
"""

import base64
import hashlib
import json
from collections.abc import Mapping

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

COORDINATE = 32  # bytes, of a number of P-256 (RFC 7518 3.4, 6.2.1)

Json = Mapping[str, object]


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key for an account, or for a certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The key that a file holds; ValueError when it holds none of ours."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError as error:  # it is encrypted
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("is no P-256 key")
    return key


def base64url(data: bytes) -> str:
    """RFC 7515 2: without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """The public half, its members in the order that RFC 7638 3 wants for a thumbprint."""
    numbers = key.public_key().public_numbers()
    x, y = (base64url(number.to_bytes(COORDINATE, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def thumbprint(key: ec.EllipticCurvePrivateKey) -> str:
    """What a challenge is answered with, after the token (RFC 8555 8.1)."""
    return base64url(hashlib.sha256(_compact(public_jwk(key))).digest())


def signed(key: ec.EllipticCurvePrivateKey, url: str, nonce: str, payload: Json | None, account: str | None) -> bytes:
    """The body of a request. Without an account yet, it carries the key; without a payload it only reads."""
    who: Json = {"kid": account} if account else {"jwk": public_jwk(key)}
    head = base64url(_compact({"alg": "ES256", "nonce": nonce, "url": url, **who}))
    content = "" if payload is None else base64url(_compact(payload))
    r, s = decode_dss_signature(key.sign(f"{head}.{content}".encode(), ec.ECDSA(hashes.SHA256())))
    signature = base64url(r.to_bytes(COORDINATE, "big") + s.to_bytes(COORDINATE, "big"))
    return _compact({"protected": head, "payload": content, "signature": signature})


def _compact(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
