"""Takes the file out of a message that carries a report, and expands it: gzip, zip, or as it is. No I/O.

A file may be written to expand without end, so the limits hold while it is expanded: no more is ever in memory. An
archive with more than one file, an encrypted one and any other compression are refused.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

from appliance.feedback.mime import CONTENT_BYTES, open_mail
from appliance.message.reader import ContentPart

COMPRESSED_BYTES: Final = CONTENT_BYTES
EXPANDED_BYTES: Final = 8 * 1024 * 1024  # what DMARC's 100,000 elements need, at 80 bytes each
RATIO: Final = 200  # of expanded to compressed; reports have 10 to 50
_RATIO_FROM: Final = 1024 * 1024  # bytes expanded: below that a high ratio costs nothing
_STEP: Final = 64 * 1024  # bytes given to, and expanded by, one call

_END: Final = b"PK\x05\x06"  # of an archive's directory; PKWARE's APPNOTE 4.3.16, 4.3.12 and 4.3.7
_ENTRY: Final = b"PK\x01\x02"
_FILE: Final = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8


class UnreadableReport(Exception):
    """The message has no report that can be read; the text says why."""


def report_file(mime: bytes, is_report: Callable[[ContentPart], bool]) -> bytes:
    """The expanded content of the first part that may be the report. Raises UnreadableReport."""
    part = next((part for part in open_mail(mime).parts if is_report(part)), None)
    if part is None:
        raise UnreadableReport("no report is attached")
    if not part.complete:
        raise UnreadableReport(f"the report is larger than {COMPRESSED_BYTES} bytes")
    return expanded(part.content)


def expanded(data: bytes) -> bytes:
    """A file's content, by its first bytes. Raises UnreadableReport."""
    if len(data) > COMPRESSED_BYTES:
        raise UnreadableReport(f"the report is larger than {COMPRESSED_BYTES} bytes")
    if data.startswith(b"\x1f\x8b"):
        return _inflated(data, zlib.MAX_WBITS | 16)
    return _unzipped(data) if data.startswith(_FILE) else data


def _inflated(data: bytes, window: int) -> bytes:
    expander = zlib.decompressobj(window)
    limit = EXPANDED_BYTES
    if len(data) * RATIO < limit:
        limit = max(len(data) * RATIO, _RATIO_FROM)
    pieces, size, at, rest = [], 0, 0, b""
    try:
        while not expander.eof:
            if not rest:
                rest, at = data[at : at + _STEP], at + _STEP
            piece = expander.decompress(rest, _STEP)
            if not piece and not rest:
                raise UnreadableReport("the compressed report ends too early")
            rest = expander.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise UnreadableReport(f"the report expands to more than {limit} bytes")
    except zlib.error as cause:
        raise UnreadableReport("the compressed report is damaged") from cause
    return b"".join(pieces)


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
