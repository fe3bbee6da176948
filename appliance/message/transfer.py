"""In charge of content transfer encodings (RFC 2045 6): bodies and files as lines of 7-bit ASCII.

What comes out never ends in a line break of its own making: a boundary or the end of the message brings it. Lines that
begin with `From ` or with a dot need nothing here: the first is a matter of mailbox files, the second of SMTP's DATA.
"""

import binascii
from dataclasses import dataclass

import pybase64

from appliance.message.limits import LINE_LENGTH

_HIGH = bytes(range(0x80, 0x100))
_CHUNK = 57 * 1024  # octets at a time: 57 of them make a line of 76, and small chunks keep the copies small


@dataclass(frozen=True, slots=True)
class Encoded:
    """Content ready for the wire, in pieces that are joined once, with the name of its encoding."""

    encoding: str
    pieces: list[bytes]


def encode_text(text: str) -> Encoded:
    """A body: as it is when it is ASCII in lines that fit, else quoted-printable or base64, whichever is shorter."""
    data = text.encode("utf-8")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    data = data.replace(b"\n", b"\r\n")
    if text.isascii():
        if _lines_fit(data):
            return Encoded("7bit", [data])
        return _quoted_printable(data)
    high = len(data) - len(data.translate(None, _HIGH))
    # Base64 grows by 37 %, quoted-printable by two octets for each that is not ASCII.
    return encode_bytes(data) if high * 2 > len(data) * 0.37 else _quoted_printable(data)


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


def _quoted_printable(data: bytes) -> Encoded:
    # With a line break at its end, a final space is encoded, and the first break found tells b2a_qp to write CRLF.
    encoded = binascii.b2a_qp(data + b"\r\n", istext=True)
    return Encoded("quoted-printable", [encoded.removesuffix(b"\r\n")])


def _lines_fit(data: bytes) -> bool:
    """Whether every line has at most 998 octets: from each line's start there must be a break within reach."""
    start, size = 0, len(data)
    while size - start > LINE_LENGTH:
        found = data.rfind(b"\r\n", start, start + LINE_LENGTH + 2)
        if found < 0:
            return False
        start = found + 2
    return True
