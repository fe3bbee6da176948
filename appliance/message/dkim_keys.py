"""DKIM keys: generating and serialising them, their DNS records and selectors. No I/O, no state."""

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

RSA_BITS: Final = 2048  # RFC 8301 3.2 wants no fewer; twice as many sign six times slower


class KeyUnusable(Exception):
    """These bytes are not a private key that signs mail."""


def generate(algorithm: Algorithm) -> PrivateKey:
    """A new key. RSA takes a tenth of a second of CPU, sometimes more: keep it off the event loop."""
    if algorithm is Algorithm.RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    return Ed25519PrivateKey.generate()


def to_der(key: PrivateKey) -> bytes:
    """The private key as PKCS #8, unencrypted: to be sealed before it is stored."""
    return key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())


def from_der(data: bytes) -> PrivateKey:
    """The key that `to_der` wrote; KeyUnusable when it is none, or too weak to be accepted anywhere."""
    try:
        key = form.load_der_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise KeyUnusable("the bytes are not an unencrypted private key") from cause
    if isinstance(key, Ed25519PrivateKey) or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= RSA_BITS):
        return key
    raise KeyUnusable(f"the key is neither Ed25519 nor RSA of at least {RSA_BITS} bits")


def record_name(domain: str, selector: str) -> str:
    """Where the public key is looked up, RFC 6376 3.6.2.1."""
    return f"{selector}._domainkey.{domain}"


def record_value(key: PrivateKey) -> str:
    """The TXT record with the key's public half, RFC 6376 3.6.1; of Ed25519 the bare 32 octets, RFC 8463 4."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        data = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    else:
        data = public.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    encoded = binascii.b2a_base64(data, newline=False).decode("ascii")
    return f"v=DKIM1; k={algorithm_of(key)}; p={encoded}"


def selector(algorithm: Algorithm, now_seconds: int, taken: Collection[str] = ()) -> str:
    """A name for a new key: `ma-rsa-20261115`, and `ma-rsa-20261115-2` for a second one on that day (UTC).

    The day tells an operator which key may be retired; `ma-` keeps clear of other senders for the same domain.
    """
    base = f"ma-{algorithm}-{time.strftime('%Y%m%d', time.gmtime(now_seconds))}"
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)
