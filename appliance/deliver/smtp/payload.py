"""In charge of a message's bytes as DATA carries them: checked once, dot-stuffed, with the final dot."""

from msgspec import Struct

from appliance.message.characters import has_lone_line_end

JOINED_BYTES = 256 * 1024  # up to here one more copy is cheaper than one more system call
LONE_DOT = b".\r\n"  # ends a message of nothing, RFC 2920 3.1

_END = b".\r\n"  # RFC 5321 4.1.1.4; the CRLF before it ends the message's own last line


class LoneLineEnd(ValueError):
    """A CR or LF that is not part of a CRLF: to some servers an end of line, to others not, and so a way to smuggle."""


class Payload(Struct, frozen=True, gc=False):
    """A message ready for DATA; make it once and send it to as many servers as need be."""

    parts: tuple[bytes, ...]
    size: int  # bytes of the message itself, as RFC 1870 6.1 counts them
    eight_bit: bool

    def __repr__(self) -> str:
        """Without the message: what a customer wrote stays out of logs and tracebacks."""
        return f"Payload(size={self.size}, eight_bit={self.eight_bit})"


def prepare(message: bytes) -> Payload:
    """Check and dot-stuff (RFC 5321 4.5.2) a message with CRLF line ends; one copy, or none when no line has a dot."""
    if has_lone_line_end(message):
        raise LoneLineEnd("a lone CR or LF in a message on its way out")
    end = _END if message.endswith(b"\r\n") else b"\r\n" + _END
    stuffed = message.replace(b"\r\n.", b"\r\n..")
    first = (b".",) if message.startswith(b".") else ()
    parts = (*first, stuffed, end)
    if len(stuffed) <= JOINED_BYTES:
        parts = (b"".join(parts),)
    return Payload(parts, len(message), not message.isascii())
