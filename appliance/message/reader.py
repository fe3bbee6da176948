"""Parses stored messages: header, texts and attachments for the dashboard; header and parts for `feedback/`. No I/O.

A message may be written to be expensive to parse, so nothing here raises, recurses or backtracks: each octet is read a
bounded number of times, every count has a limit, and no single call holds the interpreter lock for long. Content over
a limit is dropped and sets `truncated`; malformed content is shown as it is.

Delimiters of an outer multipart end all inner parts (RFC 2046 5.1.2). Attached messages are files and are not opened.
"""

import binascii
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct, field

from appliance.message.decoding import codec_of, decode_charset, display_text, read_parameters
from appliance.message.limits import CANDIDATES, DEPTH, FIELDS, PART_HEADER_BYTES, PARTS, TEXT_BYTES, TOTAL_HEADER_LINES

_WINDOW: Final = 256 * 1024  # octets per call

_FIELD: Final = re.compile(rb"([!-9;-~]{1,200})[ \t]*:(.*)", re.DOTALL)
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/[a-z0-9!#$&^_.+-]{1,127}")
_NOT_BASE64: Final = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))


class AttachedFile(Struct, frozen=True):
    filename: str
    content_type: str
    size: int
    content_id: str | None


class MessageView(Struct):
    """A message for the dashboard; `truncated` if content was dropped."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    text: str | None = None
    html: str | None = None
    attachments: list[AttachedFile] = field(default_factory=list)
    truncated: bool = False


class ContentPart(Struct, frozen=True):
    """A decoded part that is not a multipart; `complete` unless its content was cut."""

    kind: str
    filename: str
    codec: str
    content: bytes
    complete: bool

    def text(self, most: int) -> str:
        return decode_charset(self.content[: 4 * most], self.codec)[:most]


class _Part(Struct, kw_only=True):
    """A leaf part, or a multipart shown as one: the extent of its content, and how to decode it."""

    start: int
    end: int
    kind: str
    parameters: dict[str, str]  # of its media type
    codec: str
    encoding: str
    filename: str
    is_attachment: bool
    content_id: str | None


def read_message(mime: bytes) -> MessageView:
    reader = MimeReader(mime)
    for part in reader.parts():
        reader.show(part)
    return reader.view


def read_parts(mime: bytes, most: int) -> tuple[list[tuple[str, str]], list[ContentPart]]:
    reader = MimeReader(mime)
    parts = []
    for part in reader.parts():
        content, complete = reader.content(part, most)
        parts.append(ContentPart(part.kind, part.filename, part.codec, content, complete))
    return reader.view.headers, parts


def read_attachment(mime: bytes, number: int, most: int) -> bytes | None:
    """Return up to `most` bytes of an attachment by its index in `read_message`, or None."""
    for reader, part in islice(_attached(mime), number, None):
        return reader.content(part, most)[0]
    return None


def read_attachments(mime: bytes, most: int) -> list[tuple[AttachedFile, bytes]]:
    """Return the attachments of `read_message` with up to `most` bytes of each."""
    return [(reader.view.attachments[-1], reader.content(part, most)[0]) for reader, part in _attached(mime)]


def _attached(mime: bytes) -> Iterator[tuple["MimeReader", _Part]]:
    """Yield the part of each attachment once the reader has shown it."""
    reader = MimeReader(mime)
    for part in reader.parts():
        before = len(reader.view.attachments)
        reader.show(part)
        if len(reader.view.attachments) > before:
            yield reader, part


def read_header(mime: bytes) -> list[tuple[str, str]]:
    return _decoded(MimeReader(mime).header(0, len(mime))[0])


class MimeReader:
    def __init__(self, mime: bytes) -> None:
        self._mime = mime
        self.view = MessageView()
        self.fields: list[tuple[str, bytes]] = []  # of the message's header, once `parts` has begun
        self._lines = TOTAL_HEADER_LINES
        self._candidates = CANDIDATES

    def parts(self) -> Iterator[_Part]:
        pending = [(0, len(self._mime), 0, "text/plain")]  # a stack of extents
        remaining = PARTS
        while pending:
            if not remaining:
                self.view.truncated = True
                return
            remaining -= 1
            start, end, depth, default_type = pending.pop()
            fields, body = self.header(start, end)
            if start == 0 and not depth:
                self.fields = fields
                self.view.headers = _decoded(fields)
                self.view.truncated |= len(fields) > FIELDS
            part, boundary = _describe(fields, default_type, body, end)
            inside = self.split(body, end, boundary) if boundary and depth < DEPTH else []
            if not inside:
                yield part
                continue
            default_type = "message/rfc822" if part.kind == "multipart/digest" else "text/plain"  # RFC 2046 5.1.5
            pending += [(*extent, depth + 1, default_type) for extent in reversed(inside)]

    def header(self, start: int, end: int) -> tuple[list[tuple[str, bytes]], int]:
        """Return the unfolded fields of an extent, at most one over the limit, and the start of its body."""
        fields: list[tuple[str, list[bytes]]] = []
        value: list[bytes] = []
        at, limit = start, min(end, start + PART_HEADER_BYTES)
        while at < limit and self._lines:
            self._lines -= 1
            after = self._mime.find(b"\n", at, limit) + 1 or limit
            line = self._mime[at:after].rstrip(b"\r\n")
            if not line:
                at = after
                break
            if line[:1] in b" \t" and fields:
                value.append(line)
            elif (match := _FIELD.fullmatch(line)) is not None:
                value = [match[2]]
                if len(fields) <= FIELDS:
                    fields.append((match[1].decode("ascii"), value))
            else:  # the empty line is missing: this is the body
                break
            at = after
        else:
            self.view.truncated |= at < end
        return [(name, b"".join(lines).strip(b" \t")) for name, lines in fields], at

    def split(self, start: int, end: int, boundary: bytes) -> list[tuple[int, int]]:
        extents: list[tuple[int, int]] = []
        opened = -1
        for line_start, line_end, closes in self._delimiters(start, end, boundary):
            if 0 <= opened < line_start:  # the preceding line break belongs to the delimiter
                line_break = 2 if self._mime.endswith(b"\r\n", opened, line_start) else 1
                extents.append((opened, line_start - line_break))
            if closes:
                return extents
            if len(extents) >= PARTS:
                self.view.truncated = True
                return extents
            opened = line_end
        if opened >= 0:
            extents.append((opened, end))
        return extents

    def _delimiters(self, start: int, end: int, boundary: bytes) -> Iterator[tuple[int, int, bool]]:
        """Yield the start of each delimiter line, the start of the next line, and whether it closes the multipart."""
        mark = b"--" + boundary
        at = start
        while (line_start := self._find_line(mark, at, end)) >= 0:
            if not self._candidates:
                self.view.truncated = True
                return
            self._candidates -= 1
            rest = line_start + len(mark)
            closes = self._mime.startswith(b"--", rest, end)
            rest += 2 if closes else 0
            # Only transport padding may follow. A line has at most 998 octets.
            after = self._mime.find(b"\n", rest, min(end, rest + 1000)) + 1
            line_end = after or (end if rest + 1000 >= end else 0)
            if line_end and not self._mime[rest:line_end].strip(b" \t\r\n"):
                yield line_start, line_end, closes
            at = rest

    def _find_line(self, mark: bytes, start: int, end: int) -> int:
        if self._mime.startswith(mark, start, end) and (start == 0 or self._mime[start - 1 : start] == b"\n"):
            return start
        target = b"\n" + mark
        for at in range(max(start - 1, 0), end, _WINDOW):
            line_break = self._mime.find(target, at, min(end, at + _WINDOW + len(target) - 1))
            if line_break >= 0:
                return line_break + 1
        return -1

    def show(self, part: _Part) -> None:
        """Show the first plain text and the first HTML that is not a file; list everything else as attachments."""
        view = self.view
        if not part.filename and not part.is_attachment:
            if part.kind == "text/plain" and view.text is None:
                view.text = self._shown(part)
                return
            if part.kind == "text/html" and view.html is None:
                view.html = self._shown(part)
                return
        view.attachments.append(AttachedFile(part.filename, part.kind, self._size(part), part.content_id))

    def _shown(self, part: _Part) -> str:
        content, complete = self.content(part, TEXT_BYTES)
        self.view.truncated |= not complete
        return decode_charset(content, part.codec)

    def content(self, part: _Part, most: int) -> tuple[bytes, bool]:
        """Return up to `most` bytes of a part's content, and whether that is all."""
        decodings = {"base64": self._base64, "quoted-printable": self._quoted_printable}
        pieces, size = [], 0
        for piece in decodings.get(part.encoding, self._windows)(part):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break
        return b"".join(pieces)[:most], size <= most

    def _size(self, part: _Part) -> int:
        if part.encoding == "base64":  # counted without decoding
            return sum(len(window.translate(None, _NOT_BASE64)) for window in self._windows(part)) * 3 // 4
        if part.encoding == "quoted-printable":
            return sum(map(len, self._quoted_printable(part)))
        return part.end - part.start

    def _windows(self, part: _Part) -> Iterator[bytes]:
        for at in range(part.start, part.end, _WINDOW):
            yield self._mime[at : min(at + _WINDOW, part.end)]

    def _base64(self, part: _Part) -> Iterator[bytes]:
        """Decode; other characters are ignored (RFC 2045 6.8), and padding may be missing."""
        rest = b""
        for window in self._windows(part):
            clean = rest + window.translate(None, _NOT_BASE64)
            whole = len(clean) // 4 * 4
            rest = clean[whole:]
            yield binascii.a2b_base64(clean[:whole])
        if len(rest) > 1:  # one character is less than an octet
            yield binascii.a2b_base64(rest + b"=" * (4 - len(rest)))

    def _quoted_printable(self, part: _Part) -> Iterator[bytes]:
        at = part.start
        while at < part.end:
            cut = min(at + _WINDOW, part.end)
            if cut < part.end:  # between two lines, or two `=XX`
                code = self._mime.rfind(b"=", max(cut - 2, at + 1), cut)
                cut = self._mime.rfind(b"\n", at, cut) + 1 or (code if code >= 0 else cut)
            yield binascii.a2b_qp(self._mime[at:cut])
            at = cut


def _decoded(fields: list[tuple[str, bytes]]) -> list[tuple[str, str]]:
    return [(name, display_text(value.decode("utf-8", "replace"))) for name, value in fields[:FIELDS]]


def _describe(fields: list[tuple[str, bytes]], default_type: str, start: int, end: int) -> tuple[_Part, bytes | None]:
    """Describe a part by its header; also return the boundary of a multipart."""
    first: dict[str, bytes] = {}
    for name, value in fields[:FIELDS]:
        first.setdefault(name.lower(), value)
    content_type, parameters = read_parameters(first.get("content-type", b""))
    disposition, placing = read_parameters(first.get("content-disposition", b""))
    content_id = display_text(first.get("content-id", b"").decode("utf-8", "replace")).strip("<> ")
    media_type = _MEDIA_TYPE.match(content_type)
    kind = media_type[0] if media_type else default_type if not content_type else "text/plain"  # RFC 2045 5.2
    boundary = parameters.get("boundary", "").rstrip(" ").encode("utf-8", "replace")
    part = _Part(
        start=start,
        end=end,
        kind=kind,
        parameters=parameters,
        codec=codec_of(parameters.get("charset", "utf-8").strip()) or "ascii",
        encoding=first.get("content-transfer-encoding", b"").strip().lower().decode("ascii", "replace"),
        filename=display_text(placing.get("filename", "") or parameters.get("name", "")),
        is_attachment=disposition == "attachment",
        content_id=content_id if "content-id" in first else None,
    )
    return part, boundary if kind.startswith("multipart/") and 0 < len(boundary) <= 200 else None
