"""In charge of telling two submitted messages apart that come under one Idempotency-Key.

A client that retries may send the bytes it kept, or write the message anew. A library that writes it anew gives it
another Date, Message-ID and multipart boundaries, signs it again, and a relay in between adds its own Received: these
do not count. Everything else does: the envelope, every other field, and the body.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final

from appliance.message.addresses import Address
from appliance.message.header_fields import Field

_VARIES: Final = frozenset(
    (
        b"date", b"message-id", b"received", b"return-path", b"dkim-signature", b"idempotency-key", b"bcc",
        b"resent-bcc",
    )
)  # fmt: skip
_BOUNDARY: Final = re.compile(rb'boundary="?([^"\s;]{1,70})')  # as every library writes it, RFC 2046 5.1.1
_BOUNDARIES: Final = 8  # looked for: a message of three levels has three
_SLICE: Final = (
    64 * 1024
)  # bytes searched at once: searching holds the interpreter lock, and the event loop waits for it


def print_of(
    envelope_from: Address, recipients: Sequence[Address], fields: Sequence[Field], data: bytes, header_end: int
) -> bytes:
    """A SHA-256 that is equal for a message and its retry, and never that of a request over HTTP: those hold no NUL."""
    envelope = ["smtp", envelope_from.key, *sorted(address.key for address in recipients), "\0"]
    digest = hashlib.sha256("\0".join(envelope).encode("utf-8"))
    multipart = b""
    for name, value in fields:
        key = name.lower()
        if key in _VARIES:
            continue
        if key == b"content-type":
            multipart = value if value.lstrip().lower().startswith(b"multipart/") else b""
            value = _without(value, _boundaries(multipart))
        digest.update(b"%b:%b\r\n" % (key, value))
    if multipart:
        boundaries = _boundaries(multipart, data[header_end:])
        for part in _slices(data, header_end):
            digest.update(_without(part, boundaries))
    else:
        digest.update(memoryview(data)[header_end:])
    return digest.digest()


def _boundaries(*texts: bytes) -> list[bytes]:
    """The first few boundaries declared in these; a long one first, lest a shorter one that it begins with cut it."""
    found: set[bytes] = set()
    for text in texts:
        start = -1
        for _ in range(_BOUNDARIES):
            if (start := text.find(b"boundary=", start + 1)) < 0:
                break
            if declared := _BOUNDARY.match(text, start):
                found.add(declared[1])
    return sorted(found, key=len, reverse=True)


def _slices(data: bytes, start: int) -> Iterator[bytes]:
    """The data from `start` on in pieces that end with a line, as no boundary goes beyond one."""
    while start < len(data):
        end = data.rfind(b"\n", start, start + _SLICE) + 1 if start + _SLICE < len(data) else len(data)
        end = end or data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _without(text: bytes, boundaries: Sequence[bytes]) -> bytes:
    """A text with these boundaries taken out where they are declared and where they stand between parts."""
    for boundary in boundaries:
        for mark in (b"--", b'="', b"="):
            text = text.replace(mark + boundary, mark)
    return text
