"""DKIM signatures (RFC 6376, RFC 8463): relaxed/relaxed, RSA and Ed25519, over the same two hashes. No I/O.

HTTP and SMTP refuse a bare CR or LF before anything is signed. In a header it is an error here too, because it could
hide a field from us and show it to a reader; in the body it is hashed like any other octet.

Verification (RFC 6376 6.1) covers only the header, and only signatures as written here: mailbox providers return
messages without a complete body, and a verified header proves that its sender has the message.
"""

import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key
from msgspec import Struct

from appliance.message.limits import HEADER_LINE_LENGTH

PrivateKey = RSAPrivateKey | Ed25519PrivateKey

# Each name is listed one time more than it occurs, so that adding a field breaks the signature (RFC 6376 8.15). Each
# may occur only once (RFC 5322 3.6, RFC 2369 3). These are listed even if absent, because a field added later would
# change what a reader sees or where a reply goes:
GUARDED: Final = ("From", "To", "Cc", "Subject", "Reply-To", "MIME-Version", "Content-Type")
# These are listed only if present. A relay may add a missing Date or Message-ID (RFC 6409 8), a Sender, or an encoding
# to a multipart; a list adds its own List fields (RFC 2369 4). RFC 8058 4 requires both List-Unsubscribe fields to be
# signed. Resent fields are not signed: a resender adds new ones on top.
SIGNED: Final = (
    "Date", "Message-ID", "Sender", "In-Reply-To", "References", "Content-Transfer-Encoding", "List-Id",
    "List-Unsubscribe", "List-Unsubscribe-Post", "List-Help", "Feedback-ID", "Auto-Submitted", "X-Service-Tag",
)  # fmt: skip

_NAMES: Final = tuple((name, name.lower().encode("ascii")) for name in GUARDED + SIGNED)
_GUARDED: Final = frozenset(name.lower().encode("ascii") for name in GUARDED)
# Lower-case names by their usual spelling and by themselves.
_KEYS: Final = {key: key for _, key in _NAMES} | {name.encode("ascii"): key for name, key in _NAMES}

_PIECE: Final = 64 * 1024  # bytes of body per step: fits a CPU's cache, and releases the interpreter lock in between
_TAIL: Final = 256  # bytes per step when searching the end for empty lines
_SIGNATURE_LINE: Final = 72  # characters of base64 in one line
_DOMAIN: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?)*")
_PADDING: Final = PKCS1v15()
_HASHED: Final = Prehashed(SHA256())


class Algorithm(StrEnum):
    """A key type, named as in a key record (RFC 6376 3.6.1, RFC 8463 4)."""

    RSA = "rsa"
    ED25519 = "ed25519"


class SigningKey(Struct, frozen=True):
    """A private key and the DNS name of its public half, in lower-case A-labels."""

    domain: str
    selector: str
    algorithm: Algorithm
    key: PrivateKey

    def __post_init__(self) -> None:
        if not _DOMAIN.fullmatch(self.domain) or not _DOMAIN.fullmatch(self.selector):
            raise ValueError("a signing domain and a selector are lower-case DNS names")
        if self.algorithm is not algorithm_of(self.key):
            raise ValueError("the algorithm of a signing key is that of its key")


def algorithm_of(key: PrivateKey) -> Algorithm:
    return Algorithm.RSA if isinstance(key, RSAPrivateKey) else Algorithm.ED25519


def sign(message: bytes, keys: Sequence[SigningKey], *, now_seconds: int) -> bytes:
    """Return a DKIM-Signature field per key, to prepend; RSA first, because some verifiers read only the first."""
    if not keys:
        return b""
    end = message.find(b"\r\n\r\n")
    head, start = (message[:end], end + 4) if end >= 0 else (message.removesuffix(b"\r\n"), len(message))
    listed, relaxed_list, fields = _signed_fields(head)
    hasher = hashlib.sha256()
    for piece in canonical_body(message, start):
        hasher.update(piece)
    body_hash = _base64(hasher.digest())
    written = b"\r\n %b\r\n bh=%b;\r\n b=" % (listed, body_hash)
    relaxed = b" %b bh=%b; b=" % (relaxed_list, body_hash)
    ordered = sorted(keys, key=lambda key: key.algorithm is not Algorithm.RSA)
    return b"".join([_signature(key, now_seconds, fields, written, relaxed) for key in ordered])


def canonical_field(name: bytes, value: bytes) -> bytes:
    return b"%b:%b\r\n" % (name.rstrip(b" \t").lower(), _collapsed(_unfolded(value)).strip(b" "))


def canonical_body(message: bytes, start: int, *, piece: int = _PIECE, tail: int = _TAIL) -> Iterator[bytes]:
    """Yield the body from `start` in relaxed form (RFC 6376 3.4.4), in pieces."""
    end = _end_of_text(message, start, tail)
    if start == end:
        return
    while start < end:
        cut = _end_of_piece(message, start, end, piece)
        yield _collapsed(message[start:cut])
        start = cut
    yield b"\r\n"


def _signed_fields(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Return `h=` as written and in relaxed form, and the relaxed fields in signing order."""
    if not head.count(b"\r\n") == head.count(b"\r") == head.count(b"\n"):
        raise ValueError("a header with a lone CR or LF cannot be signed")
    present: list[bytes] = []
    fields: list[bytes] = []
    for line in _collapsed(_unfolded(head)).split(b"\r\n"):  # as canonical_field does, for all fields at once
        name, colon, value = line.partition(b":")
        key = _KEYS.get(name) or _KEYS.get(name.rstrip(b" ").lower())
        if colon and key is not None:
            present.append(key)
            fields.append(b"%b:%b\r\n" % (key, value.strip(b" ")))
    if b"from" not in present or head.startswith(b"\r\n"):  # an empty first line: everything is body
        raise ValueError("a message without From cannot be signed")  # RFC 6376 5.4
    written, relaxed, order = _listing(present)
    return written, relaxed, b"".join([fields[place] for place in order])


def _listing(present: Sequence[bytes]) -> tuple[bytes, bytes, list[int]]:
    """Return `h=` as written and in relaxed form, and the indexes of the fields in signing order.

    Each name is listed one time more than it occurs; the last field of a name comes first (RFC 6376 5.4.2).
    """
    places_by_name: dict[bytes, list[int]] = {}
    for place, key in enumerate(present):
        places_by_name.setdefault(key, []).append(place)
    names: list[str] = []
    order: list[int] = []
    for name, key in _NAMES:
        places = places_by_name.get(key, ())
        if places or key in _GUARDED:
            names += [name] * (len(places) + 1)
            order += reversed(places)
    written = _folded("h=", [*(f"{name}:" for name in names[:-1]), f"{names[-1]};"])
    return written, _collapsed(_unfolded(written)), order


@lru_cache(maxsize=256)  # many messages of a domain share a second
def _opening(algorithm: Algorithm, domain: str, selector: str, now_seconds: int) -> tuple[bytes, bytes]:
    tags = ("v=1;", f" a={algorithm}-sha256;", " c=relaxed/relaxed;", f" t={now_seconds};", f" d={domain};",
            f" s={selector};")  # fmt: skip
    written = _folded("DKIM-Signature: ", tags)
    name, _, value = written.partition(b":")
    return written, canonical_field(name, value).removesuffix(b"\r\n")


def _signature(key: SigningKey, now_seconds: int, fields: bytes, written: bytes, relaxed: bytes) -> bytes:
    """Return one field. It signs the others, then itself with an empty `b=` and no final CRLF (RFC 6376 3.7)."""
    opening, relaxed_opening = _opening(key.algorithm, key.domain, key.selector, now_seconds)
    digest = hashlib.sha256(fields + relaxed_opening + relaxed).digest()
    if isinstance(key.key, RSAPrivateKey):
        signature = _base64(key.key.sign(digest, _PADDING, _HASHED))
    else:  # RFC 8463 3: Ed25519 signs the hash as if it were the message
        signature = _base64(key.key.sign(digest))
    # RFC 6376 3.5 allows folding white space inside `b=`.
    lines = [signature[at : at + _SIGNATURE_LINE] for at in range(0, len(signature), _SIGNATURE_LINE)]
    return b"%b%b%b\r\n" % (opening, written, b"\r\n ".join(lines))


def _unfolded(data: bytes) -> bytes:
    return data.replace(b"\r\n ", b" ").replace(b"\r\n\t", b"\t")


def _collapsed(data: bytes) -> bytes:
    """Reduce runs of spaces and tabs to one space, and remove them at line ends.

    Bytes methods are five to ten times faster than re.sub. Runs are halved repeatedly; long ones, as in indented HTML,
    are first cut to an eighth.
    """
    if b"\t" in data:
        data = data.replace(b"\t", b" ")
    elif b" " not in data:  # base64
        return data
    if b"  " in data:
        data = data.replace(b"        ", b" ")
        while b"  " in data:
            data = data.replace(b"  ", b" ")
    return data.replace(b" \r\n", b"\r\n")


def _end_of_text(message: bytes, start: int, step: int) -> int:
    end = len(message)
    while end > start:
        tail = message[max(start, end - step) : end]
        if kept := len(tail.rstrip(b" \t\r\n")):
            return end - len(tail) + kept
        end -= len(tail)
    return start


def _end_of_piece(message: bytes, start: int, end: int, size: int) -> int:
    if end - start <= size:
        return end
    line_end = message.rfind(b"\r\n", start, start + size)
    if line_end < 0:
        line_end = message.find(b"\r\n", start + size, end)
    return end if line_end < 0 else line_end + 2


def _folded(line: str, words: Iterable[str]) -> bytes:
    lines = []
    for word in words:
        if len(line) + len(word) > HEADER_LINE_LENGTH - 1:  # the space of a continuation line counts
            lines.append(line)
            line = word.lstrip()
        else:
            line += word
    return "\r\n ".join([*lines, line]).encode("ascii")


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


# ---- verification

SIGNATURES: Final = 5  # read per header
HEADER_BYTES: Final = 64 * 1024  # read per header

_FIELD_NAME: Final = b"dkim-signature"
_SPACE: Final = re.compile(rb"[ \t\r\n]+")
_FIELD_START: Final = re.compile(rb"\r\n(?![ \t])")
_SIGNATURE_TAG: Final = re.compile(rb"((?:^|;)[ \t\r\n]*b[ \t\r\n]*=)[^;]*")


@dataclass(frozen=True, slots=True)
class HeaderSignature:
    domain: str
    selector: str
    signed_names: tuple[bytes, ...]  # in lower case and signing order
    digest: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def verifies(self, record: str) -> bool:
        """Return whether the key of this DNS record made the signature."""
        tags = _tags(record.encode())
        try:
            public = _octets(tags.get(b"p", b""))
            if tags.get(b"k", b"rsa") == b"ed25519":
                Ed25519PublicKey.from_public_bytes(public).verify(self.signature, self.digest)
                return True
            key = load_der_public_key(public)
            if not isinstance(key, RSAPublicKey):
                return False
            key.verify(self.signature, self.digest, _PADDING, _HASHED)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return False
        return True


def header_signatures(header: bytes) -> list[HeaderSignature]:
    """Return the valid signature fields of a header with any line ends, with or without a body."""
    lines = header[:HEADER_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0].replace(b"\n", b"\r\n")
    parts = [line.partition(b":") for line in _FIELD_START.split(lines)]
    fields = [(name.rstrip(b" \t").lower(), value) for name, colon, value in parts if colon]
    values = [value for name, value in fields if name == _FIELD_NAME][:SIGNATURES]
    signatures = (_read_signature(fields, value) for value in values)
    return [signature for signature in signatures if signature is not None]


def _read_signature(fields: list[tuple[bytes, bytes]], value: bytes) -> HeaderSignature | None:
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
        return HeaderSignature(domain, selector, names, hasher.digest(), _octets(tags.get(b"b", b"")))
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


def _octets(text: bytes) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)
