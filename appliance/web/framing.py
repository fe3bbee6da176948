"""Where a request's head and body end, found in the raw bytes before any parser sees them. No I/O.

A head is refused by its bytes and lines alone, so a client cannot make h11 parse thousands of header lines; a bare LF
and a folded line are refused because a proxy in front may read them differently (RFC 9112 2.2, 5.2). One empty line
before a request line is ignored, as some clients send one after a body (RFC 9112 2.2). Every byte is looked at a fixed
number of times, also when a head arrives one byte per packet.
"""

import re

from appliance.errors import Code, Refused

REQUEST_HEAD_BYTES = 16 * 1024  # the request line and all header lines, with their line ends
HEAD_LINES = 100  # header lines
CHUNK_LINE = 1_024  # bytes of a chunk's size with its extensions, or of a trailer line
TRAILER_LINES = 16
# Chunks cost by their number: a client that sends many may not send many small ones.
FREE_CHUNKS = 256
CHUNK_AVERAGE = 64  # bytes, of the chunks beyond those

_EMPTY_LINE = b"\r\n"
_END = b"\r\n\r\n"
_LINE_ENDS = 2 + HEAD_LINES  # those of the request line and of the empty line, too
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")  # RFC 9112 7.1


class BadHead(Exception):
    """A head that is refused; its text is for the client."""


class HeadReader:
    """Gathers one request's head."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._line_ends = 0

    def __bool__(self) -> bool:
        """Whether a part of a head has come."""
        return bool(self._held)

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The head and the bytes after it, once it is complete; None before. Raises BadHead."""
        held = self._held
        before = len(held)
        held += data
        end = held.find(_END, max(0, before - len(_END) + 1))
        stop = len(held) if end < 0 else end + len(_END)
        self._check(before, stop)
        if end < 0:
            return None
        head, rest = bytes(held[:stop]).removeprefix(_EMPTY_LINE), bytes(held[stop:])
        held.clear()
        self._line_ends = 0
        return head, rest

    def _check(self, before: int, stop: int) -> None:
        """Refuse what makes this no good head; `before` bytes of it were checked already."""
        held = self._held
        line_ends = held.count(b"\n", before, stop)
        self._line_ends += line_ends
        if self._line_ends > _LINE_ENDS + held.startswith(_EMPTY_LINE):
            raise BadHead(f"The request has more than {HEAD_LINES} header lines. Send fewer.")
        if stop > REQUEST_HEAD_BYTES:
            raise BadHead("The request's headers are larger than 16 KiB. Send less in them.")
        last = max(0, before - 1)
        if held.count(b"\r\n", last, stop) != line_ends:
            raise BadHead("A line of the request's head ends with a bare LF. End each with CRLF.")
        if held.find(b"\n ", last, stop) >= 0 or held.find(b"\n\t", last, stop) >= 0:
            raise BadHead("A header is folded over several lines. Send each header in one line.")
        if held.startswith(_EMPTY_LINE * 2):
            raise BadHead("This is not a valid HTTP/1.1 request.")


class LengthBody:
    """A body whose length was told."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = not length

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The body's part of these bytes, and the rest."""
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self.complete = not self._left
        return piece, rest


class ChunkedBody:
    """A body that comes in chunks (RFC 9112 7.1); extensions and trailers are read over, as far as they go."""

    def __init__(self) -> None:
        self.complete = False
        self._line = b""  # one that is not complete yet
        self._left = 0  # bytes of the chunk that are still to come
        self._begun = False  # a chunk, whose CRLF is still to come after its bytes
        self._ending = False  # the last chunk has come
        self._chunks = self._size = self._trailers = 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The content among these bytes, and the rest once the body is complete."""
        if self._line:
            data, self._line = self._line + data, b""
        pieces, at = [], 0
        while at < len(data) and not self.complete:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", at, at + CHUNK_LINE) + 1
            if not end:
                if len(data) - at >= CHUNK_LINE:
                    raise _bad_chunks("has a line that is too long")
                self._line = data[at:]
                return b"".join(pieces), b""
            self._take_line(data[at:end])
            at = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), data[at:]

    def _take_line(self, line: bytes) -> None:
        if self._begun:
            if line != b"\r\n":
                raise _bad_chunks("has a chunk of another size than it says")
            self._begun = False
        elif self._ending:
            self._trailers += 1
            self.complete = line == b"\r\n"
            if not line.endswith(b"\r\n") or (self._trailers > TRAILER_LINES and not self.complete):
                raise _bad_chunks("has trailers that are not taken")
        elif found := _CHUNK_SIZE.fullmatch(line):
            size = self._left = int(found[1], 16)
            self._begun, self._ending = size > 0, size == 0
            self._chunks += 1
            self._size += size
            if self._chunks > FREE_CHUNKS + self._size // CHUNK_AVERAGE:
                raise _bad_chunks("comes in too many small chunks")
        else:
            raise _bad_chunks("is not in chunks, as its head says")


BodyReader = LengthBody | ChunkedBody


def _bad_chunks(what: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"The request's body {what}. Send it with a Content-Length.")
