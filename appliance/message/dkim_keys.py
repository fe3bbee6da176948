"""Generates and serializes DKIM keys, and names their DNS records and selectors. No I/O, no state."""

import binascii
import time
from collections.abc import Collection
from itertools import count
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.message.dkim import Algorithm, PrivateKey, algorithm_of

RSA_BITS: Final = 2048  # the minimum of RFC 8301 3.2; 4096 bits sign six times slower


class KeyUnusable(Exception):
    """These bytes are not a private key that signs mail."""


def generate(algorithm: Algorithm) -> PrivateKey:
    """Generate a key. RSA takes 0.1 s of CPU or more: not on the event loop."""
    if algorithm is Algorithm.RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    return Ed25519PrivateKey.generate()


def to_der(key: PrivateKey) -> bytes:
    """Return the private key as unencrypted PKCS #8; seal it before storing."""
    return key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())


def from_der(data: bytes) -> PrivateKey:
    """Load the key that `to_der` wrote; raise KeyUnusable if it is invalid or too weak."""
    try:
        key = form.load_der_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise KeyUnusable("the bytes are not an unencrypted private key") from cause
    if isinstance(key, Ed25519PrivateKey) or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= RSA_BITS):
        return key
    raise KeyUnusable(f"the key is neither Ed25519 nor RSA of at least {RSA_BITS} bits")


def record_name(domain: str, selector: str) -> str:
    """Return the DNS name of the public key (RFC 6376 3.6.2.1)."""
    return f"{selector}._domainkey.{domain}"


def record_value(key: PrivateKey) -> str:
    """Return the TXT record of the public key (RFC 6376 3.6.1; for Ed25519 the raw 32 octets, RFC 8463 4)."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        data = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    else:
        data = public.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    encoded = binascii.b2a_base64(data, newline=False).decode("ascii")
    return f"v=DKIM1; k={algorithm_of(key)}; p={encoded}"


def selector(algorithm: Algorithm, now_seconds: int, taken: Collection[str] = ()) -> str:
    """Name a new key: `ma-rsa-20261115`, then `ma-rsa-20261115-2` on the same day (UTC).

    The date shows which key can be retired; `ma-` avoids the names of other senders for the domain.
    """
    base = f"ma-{algorithm}-{time.strftime('%Y%m%d', time.gmtime(now_seconds))}"
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)
