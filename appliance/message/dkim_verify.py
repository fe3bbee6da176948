"""Verifies the header part of DKIM signatures (RFC 6376 6.1): whether a key signed this header. No I/O.

The body hash is not checked: mailbox providers return messages without a complete body, and a verified header is proof
enough that its sender has the message. Only signatures as `dkim.py` writes them are read: relaxed header, SHA-256.
"""

import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from appliance.message.dkim import canonical_field

SIGNATURES: Final = 5  # read per header
HEADER_BYTES: Final = 64 * 1024  # read per header

_FIELD_NAME: Final = b"dkim-signature"
_SPACE: Final = re.compile(rb"[ \t\r\n]+")
_FIELD_START: Final = re.compile(rb"\r\n(?![ \t])")
_SIGNATURE_TAG: Final = re.compile(rb"((?:^|;)[ \t\r\n]*b[ \t\r\n]*=)[^;]*")


@dataclass(frozen=True, slots=True)
class HeaderSignature:
    """An unverified signature of a header."""

    domain: str
    selector: str
    signed_names: tuple[bytes, ...]  # in lower case and signing order
    digest: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def verifies(self, record: str) -> bool:
        """Return whether the key of this DNS record made the signature."""
        tags = _tags(record.encode())
        try:
            public = _base64(tags.get(b"p", b""))
            if tags.get(b"k", b"rsa") == b"ed25519":
                Ed25519PublicKey.from_public_bytes(public).verify(self.signature, self.digest)
                return True
            key = load_der_public_key(public)
            if not isinstance(key, RSAPublicKey):
                return False
            key.verify(self.signature, self.digest, PKCS1v15(), Prehashed(SHA256()))
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return False
        return True


def header_signatures(header: bytes) -> list[HeaderSignature]:
    """Return the valid signature fields of a header with any line ends, with or without a body."""
    lines = header[:HEADER_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0].replace(b"\n", b"\r\n")
    fields = [(name.rstrip(b" \t").lower(), value) for name, value in _fields(lines)]
    values = [value for name, value in fields if name == _FIELD_NAME][:SIGNATURES]
    signatures = (_signature(fields, value) for value in values)
    return [signature for signature in signatures if signature is not None]


def _fields(lines: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in _FIELD_START.split(lines):
        name, colon, value = line.partition(b":")
        if colon:
            yield name, value


def _signature(fields: list[tuple[bytes, bytes]], value: bytes) -> HeaderSignature | None:
    tags = _tags(value)
    canonicalization = tags.get(b"c", b"").partition(b"/")[0]
    if canonicalization != b"relaxed" or tags.get(b"a") not in (b"rsa-sha256", b"ed25519-sha256"):
        return None
    names = tuple(name.strip().lower() for name in tags.get(b"h", b"").split(b":"))
    present: dict[bytes, list[bytes]] = {}
    for name, content in fields:
        present.setdefault(name, []).append(content)
    hasher = hashlib.sha256()
    for name in names:  # RFC 6376 5.4.2: last field of a name first; an absent field adds nothing
        if contents := present.get(name):
            hasher.update(canonical_field(name, contents.pop()))
    unsigned = _SIGNATURE_TAG.sub(rb"\1", value, count=1)
    hasher.update(canonical_field(_FIELD_NAME, unsigned).removesuffix(b"\r\n"))
    try:
        domain, selector = (tags.get(tag, b"").decode("ascii").lower() for tag in (b"d", b"s"))
        return HeaderSignature(domain, selector, names, hasher.digest(), _base64(tags.get(b"b", b"")))
    except ValueError:  # not ASCII, or not base64
        return None


def _tags(text: bytes) -> dict[bytes, bytes]:
    """Parse a tag list (RFC 6376 3.2) without white space; the first of duplicate tags wins."""
    tags: dict[bytes, bytes] = {}
    for part in text.split(b";"):
        name, equals, value = part.partition(b"=")
        if equals:
            tags.setdefault(name.strip(), _SPACE.sub(b"", value))
    return tags


def _base64(text: bytes) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)
