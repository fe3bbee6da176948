"""In charge of a message's bytes as DATA carries them: checked once, dot-stuffed, with the final dot."""

from dataclasses import dataclass, field

JOINED_BYTES = 256 * 1024  # up to here one more copy is cheaper than one more system call
LONE_DOT = b".\r\n"  # ends a message of nothing, RFC 2920 3.1

_END = b".\r\n"  # RFC 5321 4.1.1.4; the CRLF before it ends the message's own last line


class LoneLineEnd(ValueError):
    """A CR or LF that is not part of a CRLF: to some servers an end of line, to others not, and so a way to smuggle."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A message ready for DATA; make it once and send it to as many servers as need be."""

    parts: tuple[bytes, ...] = field(repr=False)
    size: int  # bytes of the message itself, as RFC 1870 6.1 counts them
    eight_bit: bool


def prepare(message: bytes) -> Payload:
    """Check and dot-stuff (RFC 5321 4.5.2) a message with CRLF line ends; one copy, or none when no line has a dot."""
    ends = message.count(b"\r\n")
    if message.count(b"\r") != ends or message.count(b"\n") != ends:
        raise LoneLineEnd("a lone CR or LF in a message on its way out")
    end = _END if message.endswith(b"\r\n") else b"\r\n" + _END
    stuffed = message.replace(b"\r\n.", b"\r\n..")
    first = (b".",) if message.startswith(b".") else ()
    parts = (*first, stuffed, end)
    if len(stuffed) <= JOINED_BYTES:
        parts = (b"".join(parts),)
    return Payload(parts, len(message), not message.isascii())
