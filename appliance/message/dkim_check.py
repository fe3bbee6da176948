"""Verifies the DKIM signatures of received mail (RFC 6376 6.1, RFC 8301, RFC 8463). No I/O.

`signatures_of` reads the signature fields and hashes header and body; `verdict` checks one with the DNS records of its
key. A stranger wrote both, so the number of signatures, the size of keys and exponents, and the length of fields
and records are bounded. The body is hashed once per canonicalization and length.
"""

import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from appliance.message.dkim import canonical_body, canonical_field
from appliance.model.received import CheckResult

CHECKED_SIGNATURES: Final = 5  # checked per message; further ones are ignored
SIGNED_NAMES: Final = 500  # in `h=`
SIGNATURE_FIELD_BYTES: Final = 16 * 1024  # of a signature field
KEY_RECORD_CHARACTERS: Final = 4_096  # of a key record
ACCEPTED_RSA_BITS: Final = (1_024, 4_096)  # RFC 8301 3.2: shorter keys are not accepted; longer ones are expensive
RSA_EXPONENT: Final = 2**32  # larger ones only make verification expensive
PIECE: Final = 64 * 1024  # bytes of body per step: releases the interpreter lock in between

_FIELD_START: Final = re.compile(rb"\r\n(?![ \t])")
_SPACE: Final = re.compile(rb"[ \t\r\n]+")
_TAG_NAME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9_]*")
_SIGNATURE_VALUE: Final = re.compile(rb"((?:^|;)[ \t\r\n]*b[ \t\r\n]*=)[^;]*")
_DNS_NAME: Final = re.compile(
    rb"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)
_REQUIRED: Final = (b"v", b"a", b"b", b"bh", b"d", b"h", b"s")
_ALGORITHMS: Final = {b"rsa-sha256": b"rsa", b"ed25519-sha256": b"ed25519"}
_HASHED: Final = Prehashed(SHA256())


class BadSignature(Exception):
    """The text says why; it never contains text of the message."""


@dataclass(frozen=True, slots=True)
class ReceivedSignature:
    """A signature field; `fault` if it cannot be verified whatever its key."""

    domain: str
    selector: str
    algorithm: bytes = b""
    identity_is_subdomain: bool = False  # `i=` has a subdomain of `d=`
    digest: bytes = field(default=b"", repr=False)
    signature: bytes = field(default=b"", repr=False)
    body_matches: bool = False
    expires: int | None = None  # seconds
    fault: str = ""

    @property
    def key_name(self) -> str:
        return f"{self.selector}._domainkey.{self.domain}"


def signatures_of(mime: bytes) -> list[ReceivedSignature]:
    end = mime.find(b"\r\n\r\n")
    head, start = (mime[:end], end + 4) if end >= 0 else (mime.removesuffix(b"\r\n"), len(mime))
    parts = [line.partition(b":") for line in _FIELD_START.split(head)]
    fields = [(name, value) for name, colon, value in parts if colon]
    own = [(name, value) for name, value in fields if name.rstrip(b" \t").lower() == b"dkim-signature"]
    hashes: dict[tuple[bytes, int | None], bytes] = {}
    return [_read(fields, name, value, mime, start, hashes) for name, value in own[:CHECKED_SIGNATURES]]


def verdict(signature: ReceivedSignature, records: Sequence[str], now_seconds: int) -> tuple[CheckResult, str]:
    """Return the result of a signature with the key records of its name, and the reason unless it passes."""
    try:
        if signature.fault:
            raise BadSignature(signature.fault)
        public = _public_key(signature, records)
    except BadSignature as fault:
        return CheckResult.PERMERROR, str(fault)
    if signature.expires is not None and now_seconds > signature.expires:
        return CheckResult.FAIL, "the signature has expired"
    if not signature.body_matches:
        return CheckResult.FAIL, "the body was changed after it was signed"
    try:
        if isinstance(public, Ed25519PublicKey):
            public.verify(signature.signature, signature.digest)
        else:
            public.verify(signature.signature, signature.digest, PKCS1v15(), _HASHED)
    except InvalidSignature:
        return CheckResult.FAIL, "the header was changed after it was signed, or another key signed it"
    return CheckResult.PASS, ""


def _public_key(signature: ReceivedSignature, records: Sequence[str]) -> RSAPublicKey | Ed25519PublicKey:
    if not records:
        raise BadSignature("DNS has no key of this name")
    record = records[0]  # RFC 6376 3.6.2.2: the result is undefined with several
    if len(record) > KEY_RECORD_CHARACTERS:
        raise BadSignature("the key record is too long")
    tags = _tags(record.encode("utf-8", "replace"))
    if tags.get(b"v", b"DKIM1") != b"DKIM1" or tags.get(b"k", b"rsa") != signature.algorithm:
        raise BadSignature("the key record is of another version or key type")
    if b"h" in tags and b"sha256" not in tags[b"h"].split(b":"):
        raise BadSignature("the key may not be used with SHA-256")
    if b"s" in tags and not {b"email", b"*"} & set(tags[b"s"].split(b":")):
        raise BadSignature("the key is not for mail")
    if b"s" in tags.get(b"t", b"").split(b":") and signature.identity_is_subdomain:
        raise BadSignature("the key may not sign for subdomains")
    if not tags.get(b"p"):
        raise BadSignature("the key is revoked" if b"p" in tags else "the key record has no key")
    return _load(signature.algorithm, tags[b"p"])


def _load(algorithm: bytes, text: bytes) -> RSAPublicKey | Ed25519PublicKey:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
        if algorithm == b"ed25519":
            return Ed25519PublicKey.from_public_bytes(data)
        key = load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise BadSignature("the key cannot be read") from None
    if not isinstance(key, RSAPublicKey):
        raise BadSignature("the key cannot be read")
    least, most = ACCEPTED_RSA_BITS
    if not least <= key.key_size <= most or key.public_numbers().e > RSA_EXPONENT:
        raise BadSignature(f"an RSA key must have {least} to {most} bits")
    return key


def _read(
    fields: list[tuple[bytes, bytes]],
    name: bytes,
    value: bytes,
    mime: bytes,
    start: int,
    hashes: dict[tuple[bytes, int | None], bytes],
) -> ReceivedSignature:
    domain = selector = ""
    try:
        if len(value) > SIGNATURE_FIELD_BYTES:
            raise BadSignature("the field is too long")
        tags = _tags(value)
        domain, selector = _dns_name(tags.get(b"d", b"")), _dns_name(tags.get(b"s", b""))
        algorithm = _check(tags, domain)
        kinds = tags.get(b"c", b"simple").split(b"/")
        header_kind, body_kind = kinds[0], kinds[1] if len(kinds) == 2 else b"simple"
        if len(kinds) > 2 or not {header_kind, body_kind} <= {b"simple", b"relaxed"}:
            raise BadSignature("the canonicalization is unknown")
        key = body_kind, _number(tags, b"l")
        if key not in hashes:
            hashes[key] = _body_hash(mime, start, *key)
        return ReceivedSignature(
            domain,
            selector,
            algorithm,
            identity_is_subdomain=tags.get(b"i", b"").rpartition(b"@")[2].lower() not in (b"", domain.encode("ascii")),
            digest=_header_hash(fields, name, value, tags[b"h"], relaxed=header_kind == b"relaxed"),
            signature=_octets(tags[b"b"]),
            body_matches=hmac.compare_digest(hashes[key], _octets(tags[b"bh"])),
            expires=_number(tags, b"x"),
        )
    except BadSignature as fault:
        return ReceivedSignature(domain, selector, fault=str(fault))


def _check(tags: dict[bytes, bytes], domain: str) -> bytes:
    """Check a signature's tags (RFC 6376 6.1.1) and return its key type."""
    if missing := [tag for tag in _REQUIRED if not tags.get(tag)]:
        raise BadSignature(f"the tag {missing[0].decode()}= is missing")
    if tags[b"v"] != b"1":
        raise BadSignature("the version is unknown")
    algorithm = _ALGORITHMS.get(tags[b"a"].lower())
    if algorithm is None:
        raise BadSignature("the algorithm is not accepted: use rsa-sha256 or ed25519-sha256")
    names = [name.lower() for name in tags[b"h"].split(b":")]
    if b"from" not in names:
        raise BadSignature("the From field is not signed")
    if len(names) > SIGNED_NAMES:
        raise BadSignature("too many fields are signed")
    identity = tags.get(b"i", b"").rpartition(b"@")[2].lower()
    if identity and identity != domain.encode() and not identity.endswith(b"." + domain.encode()):
        raise BadSignature("the identity is not within the signing domain")
    if b"dns/txt" not in tags.get(b"q", b"dns/txt").split(b":"):
        raise BadSignature("the key is not in DNS")
    if (expires := _number(tags, b"x")) is not None and expires < (_number(tags, b"t") or 0):
        raise BadSignature("the signature expires before it was made")
    return algorithm


def _header_hash(fields: list[tuple[bytes, bytes]], name: bytes, value: bytes, names: bytes, *, relaxed: bool) -> bytes:
    present: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for item in fields:
        present.setdefault(item[0].rstrip(b" \t").lower(), []).append(item)
    hasher = hashlib.sha256()
    for signed_name in names.lower().split(b":"):  # RFC 6376 5.4.2: last field of a name first
        if items := present.get(signed_name):
            hasher.update(_canonical(*items.pop(), relaxed=relaxed))
    unsigned = _SIGNATURE_VALUE.sub(rb"\1", value, count=1)
    hasher.update(_canonical(name, unsigned, relaxed=relaxed).removesuffix(b"\r\n"))
    return hasher.digest()


def _canonical(name: bytes, value: bytes, *, relaxed: bool) -> bytes:
    return canonical_field(name, value) if relaxed else b"%b:%b\r\n" % (name, value)


def _body_hash(mime: bytes, start: int, kind: bytes, length: int | None) -> bytes:
    hasher, left = hashlib.sha256(), length
    for piece in canonical_body(mime, start) if kind == b"relaxed" else _simple_body(mime, start):
        if left is not None:
            piece = piece[:left]
            left -= len(piece)
        hasher.update(piece)
    if left:
        raise BadSignature("the body is shorter than the signed part")
    return hasher.digest()


def _simple_body(mime: bytes, start: int) -> Iterator[bytes]:
    """RFC 6376 3.4.3: empty lines at the end are one line end."""
    end = len(mime)
    while end - start >= 2 and mime.endswith(b"\r\n", start, end):
        end -= 2
    for at in range(start, end, PIECE):
        yield mime[at : min(end, at + PIECE)]
    yield b"\r\n"


def _tags(text: bytes) -> dict[bytes, bytes]:
    """Parse a tag list (RFC 6376 3.2) without white space; raises BadSignature."""
    tags: dict[bytes, bytes] = {}
    parts = text.split(b";")
    for part in parts if parts[-1].strip() else parts[:-1]:
        name, equals, value = part.partition(b"=")
        name = _SPACE.sub(b"", name)
        if not equals or not _TAG_NAME.fullmatch(name):
            raise BadSignature("it is not a list of tags")
        if name in tags:
            raise BadSignature("a tag occurs twice")
        tags[name] = _SPACE.sub(b"", value)
    return tags


def _dns_name(text: bytes) -> str:
    if not text or len(text) > 253 or not _DNS_NAME.fullmatch(text):
        raise BadSignature("the domain or the selector is missing or not a DNS name")
    return text.decode("ascii").lower()


def _number(tags: dict[bytes, bytes], tag: bytes) -> int | None:
    text = tags.get(tag)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 20:
        raise BadSignature(f"the tag {tag.decode()}= is not a number")
    return int(text)


def _octets(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise BadSignature("it is not base64") from None
