"""In charge of content transfer encodings (RFC 2045 6): bodies and files as lines of 7-bit ASCII.

What comes out never ends in a line break of its own making: a boundary or the end of the message brings it. Lines that
begin with `From ` or with a dot need nothing here: the first is a matter of mailbox files, the second of SMTP's DATA.
"""

import binascii
from collections.abc import Iterator

import pybase64
from msgspec import Struct

from appliance.message.limits import LINE_LENGTH

_HIGH = bytes(range(0x80, 0x100))
_CHUNK = 57 * 1024  # octets at a time: 57 of them make a line of 76, and small chunks keep the copies small


class Encoded(Struct, frozen=True, gc=False):
    """Content ready for the wire, in pieces that are joined once, with the name of its encoding."""

    encoding: str
    pieces: list[bytes]


def encode_text(text: str) -> Encoded:
    """A body: as it is when it is ASCII in lines that fit, else quoted-printable or base64, whichever is shorter."""
    if text.isascii() and _lines_fit(text):
        return Encoded("7bit", [_canonical(chunk) for chunk in _chunks(text)])
    chunks = [_canonical(chunk) for chunk in _chunks(text)]
    high = sum(len(chunk) - len(chunk.translate(None, _HIGH)) for chunk in chunks)
    # Base64 grows by 37 %, quoted-printable by two octets for each that is not ASCII.
    if high * 2 > sum(map(len, chunks)) * 0.37:
        return encode_bytes(b"".join(chunks))
    for index, chunk in enumerate(chunks):  # in place: each chunk makes room for the next
        chunks[index] = _quoted_printable(chunk)
    return Encoded("quoted-printable", chunks)


def _canonical(text: str) -> bytes:
    """UTF-8 with every line break as CRLF, RFC 2046 4.1.1."""
    data = text.encode("utf-8")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    return data.replace(b"\n", b"\r\n")


def _chunks(text: str) -> Iterator[str]:
    """The text in runs of whole lines, so that a large one is never in memory several times."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK) + 1 or len(text)
        yield text[start:end]
        start = end


def encode_bytes(data: bytes) -> Encoded:
    """A file, in base64 with lines of 76."""
    view = memoryview(data)
    pieces = [
        pybase64.encodebytes(view[start : start + _CHUNK]).replace(b"\n", b"\r\n")
        for start in range(0, len(data), _CHUNK)
    ]
    if pieces:
        pieces[-1] = pieces[-1].removesuffix(b"\r\n")
    return Encoded("base64", pieces)


def _quoted_printable(data: bytes) -> bytes:
    if data.endswith(b"\r\n"):
        return binascii.b2a_qp(data)
    # With a line break at its end, a final space is encoded, and the first break found tells b2a_qp to write CRLF.
    return binascii.b2a_qp(data + b"\r\n").removesuffix(b"\r\n")


def _lines_fit(text: str) -> bool:
    """Whether every line has at most 998 octets: from each line's start there must be a break within reach."""
    start, size = 0, len(text)
    while size - start > LINE_LENGTH:
        found = text.rfind("\n", start, start + LINE_LENGTH + 1)
        if found < 0:
            return False
        start = found + 1
    return True
