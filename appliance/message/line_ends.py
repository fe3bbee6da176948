"""In charge of lines on the wire: each ends in CRLF, no CR or LF stands alone, and none is longer than mail allows."""

from collections.abc import Iterator
from typing import Final

from appliance.message.limits import LINE_LENGTH

_BLOCK: Final = 64 * 1024  # bytes looked at together


def has_lone_line_end(message: bytes) -> bool:
    """Whether some CR or LF is not part of a CRLF: then its lines, joined by CRLF, are not the message again.

    Half as dear as counting each of the three; in blocks, so that a large message is not copied whole.
    """
    start = 0
    while start < len(message):
        cut = start + _BLOCK
        cut += message[cut - 1 : cut + 1] == b"\r\n"  # never between the two
        block = message[start:cut]
        if b"\r\n".join(block.splitlines()) != block.removesuffix(b"\r\n"):
            return True
        start = cut
    return False


def replaced(data: bytes | bytearray, old: bytes, new: bytes) -> Iterator[bytes]:
    """`data.replace(old, new)` in pieces, for an `old` that cannot overlap with itself.

    A replacement in 10 MiB holds the interpreter lock for up to 70 ms; between two pieces other threads get it.
    """
    start, view = 0, memoryview(data)
    while start < len(data):
        cut = start + _BLOCK
        across = data.find(old, cut - len(old) + 1, cut + len(old) - 1)
        if across >= 0:
            cut = across + len(old)
        yield bytes(view[start:cut]).replace(old, new)
        start = cut


def number_of_long_line(message: bytes) -> int | None:
    """Which line, counted from 1, is the first with more octets than RFC 5322 2.1.1 allows; None when there is none.

    From the start of a line, the last CRLF within reach of a longest line: a thousand octets are one step.
    """
    start, reach = 0, LINE_LENGTH + 2
    while len(message) - start > LINE_LENGTH:
        end = message.rfind(b"\r\n", start, start + reach)
        if end < 0:
            return message.count(b"\r\n", 0, start) + 1
        start = end + 2
    return None
