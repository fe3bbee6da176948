"""Opens received mail for the readers of this package: header, parts, blocks of fields, and an attached report. No I/O.

`message/reader.py` parses the mail without recursion or backtracking. Of an attached message only the header is read. A
compressed report may be written to expand without end, so the limits apply during expansion. An encrypted archive, one
with several files and any other compression are refused. Only reading a report raises, and only UnreadableReport.
"""

import re
import struct
import zlib
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from appliance.message.decoding import display_text
from appliance.message.reader import ContentPart, read_header, read_parts
from appliance.message.text_from_html import text_from_html

CONTENT_BYTES: Final = 2 * 1024 * 1024  # of one part, such as a compressed report
READ_CHARACTERS: Final = 64 * 1024  # of a text or a block of fields; the reason of a bounce is near the start
GROUPS: Final = 1_000  # of fields in a block, RFC 3464 2.1: one per recipient
VALUE_CHARACTERS: Final = 4_000  # of one field

_FIELD: Final = re.compile(r"([!-9;-~]{1,100})[ \t]*:(.*)", re.DOTALL)
_EMBEDDED: Final = frozenset(("message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers"))
_MESSAGE_START: Final = re.compile(rb"[ \t\r\n]*(?:From [^\n]{0,200}\n)?")  # some servers add an mbox line


@dataclass(frozen=True)
class ReceivedMail:
    headers: list[tuple[str, str]]
    parts: list[ContentPart]

    def header(self, name: str) -> str:
        return first_value(self.headers, name)

    def part(self, *endings: str) -> ContentPart | None:
        return next((part for part in self.parts if part.kind.endswith(endings)), None)

    @cached_property
    def text(self) -> str:
        """The first plain text, otherwise the first HTML as text."""
        for part in self.parts:
            if part.kind == "text/plain" and part.content.strip():
                return part.text(READ_CHARACTERS)
        html = self.part("text/html")
        return (text_from_html(html.text(READ_CHARACTERS)) or "") if html else ""

    @cached_property
    def embedded_bytes(self) -> bytes:
        """The attached message from its header on, or nothing."""
        part = next((part for part in self.parts if part.kind in _EMBEDDED), None)
        if part is None:
            return b""
        start = _MESSAGE_START.match(part.content)
        return part.content[start.end() if start else 0 :]

    @cached_property
    def embedded(self) -> list[tuple[str, str]]:
        return read_header(self.embedded_bytes) if self.embedded_bytes else []


def open_mail(mime: bytes) -> ReceivedMail:
    return ReceivedMail(*read_parts(mime, CONTENT_BYTES))


def first_value(headers: list[tuple[str, str]], name: str) -> str:
    return next((value[:VALUE_CHARACTERS] for key, value in headers if key.lower() == name), "")


def field_groups(block: ContentPart | str) -> list[dict[str, str]]:
    """Return the groups of fields, separated by empty lines; the first field of a lower-case name wins."""
    text = block if isinstance(block, str) else block.text(READ_CHARACTERS)
    groups: list[dict[str, list[str]]] = [{}]
    last: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            if groups[-1]:
                if len(groups) == GROUPS:
                    break
                groups.append({})
            last = []
        elif line[0] in " \t":
            last.append(line)
        elif (match := _FIELD.fullmatch(line)) is not None:
            last = [match[2]]
            groups[-1].setdefault(match[1].lower(), last)
    return [
        {name: display_text(" ".join(map(str.strip, lines))[:VALUE_CHARACTERS]) for name, lines in group.items()}
        for group in groups
        if group
    ]


EXPANDED_BYTES: Final = 8 * 1024 * 1024  # 100,000 elements of DMARC, at 80 bytes each
RATIO: Final = 200  # of expanded to compressed; reports have 10 to 50
_RATIO_FROM: Final = 1024 * 1024  # bytes expanded; below, a high ratio is harmless

_END: Final = b"PK\x05\x06"  # of the directory; PKWARE's APPNOTE 4.3.16, 4.3.12 and 4.3.7
_ENTRY: Final = b"PK\x01\x02"
_FILE: Final = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8


class UnreadableReport(Exception):
    """The message has no readable report; the text says why."""


def report_file(mime: bytes, kinds: Container[str], endings: tuple[str, ...]) -> bytes:
    """Return the expanded content of the first part of one of these types, or whose file name ends like this."""
    parts = open_mail(mime).parts
    part = next((part for part in parts if part.kind in kinds or part.filename.lower().endswith(endings)), None)
    if part is None:
        raise UnreadableReport("no report is attached")
    if not part.complete:
        raise UnreadableReport(f"the report is larger than {CONTENT_BYTES} bytes")
    return expanded(part.content)


def expanded(data: bytes) -> bytes:
    """Expand a file by the format of its first bytes: gzip, zip or none."""
    if len(data) > CONTENT_BYTES:
        raise UnreadableReport(f"the report is larger than {CONTENT_BYTES} bytes")
    if data.startswith(b"\x1f\x8b"):
        return _inflated(data, zlib.MAX_WBITS | 16)
    return _unzipped(data) if data.startswith(_FILE) else data


def _inflated(data: bytes, window: int) -> bytes:
    expander, limit = zlib.decompressobj(window), min(EXPANDED_BYTES, max(len(data) * RATIO, _RATIO_FROM))
    try:
        content = expander.decompress(data, limit + 1)  # without the interpreter lock
    except zlib.error as cause:
        raise UnreadableReport("the compressed report is damaged") from cause
    if len(content) > limit:
        raise UnreadableReport(f"the report expands to more than {limit} bytes")
    if not expander.eof:
        raise UnreadableReport("the compressed report ends too early")
    return content


def _unzipped(data: bytes) -> bytes:
    end = data.rfind(_END, max(0, len(data) - 65_557))  # 22 bytes, and a comment
    try:
        if end < 0:
            raise UnreadableReport("the archive has no directory")
        entries, at = struct.unpack_from("<H4xI", data, end + 10)
        if entries != 1:
            raise UnreadableReport("the archive must have one file")
        if not data.startswith(_ENTRY, at):
            raise UnreadableReport("the archive's directory is damaged")
        flags, method, checksum, size, whole = struct.unpack_from("<HH4xIII", data, at + 8)
        (start,) = struct.unpack_from("<I", data, at + 42)
        if not data.startswith(_FILE, start):
            raise UnreadableReport("the archive's file is missing")
        name, extra = struct.unpack_from("<HH", data, start + 26)
    except struct.error as cause:
        raise UnreadableReport("the archive is cut off") from cause
    if flags & 1 or method not in (_STORED, _DEFLATED):
        raise UnreadableReport("the archive is encrypted or compressed in an unknown way")
    if whole > EXPANDED_BYTES:
        raise UnreadableReport(f"the report expands to more than {EXPANDED_BYTES} bytes")
    start += 30 + name + extra
    packed = data[start : start + size]
    content = packed if method == _STORED else _inflated(packed, -zlib.MAX_WBITS)
    if zlib.crc32(content) != checksum:
        raise UnreadableReport("the archive's file is damaged")
    return content
