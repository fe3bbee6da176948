"""The characters and line ends that a message may contain: checks for one-line fields, bodies and whole messages.

A text that passes can neither end a line or a header early nor break UTF-8. Pure: no I/O, no state.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Final

from appliance.errors import invalid
from appliance.message.limits import LINE_LENGTH, SUBJECT_LENGTH

# C0, DEL, C1, the Unicode line breaks, and surrogates, which UTF-8 cannot represent.
_NOT_IN_A_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_A_BODY: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# The same in UTF-8: one octet below U+0080, two for C1; surrogates cannot be encoded.
_OCTETS_NOT_IN_A_BODY: Final = frozenset((*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F))
_CLEANED: Final = bytes(ord("?") if octet in _OCTETS_NOT_IN_A_BODY else octet for octet in range(256))
_C1_LEAD: Final = b"\xc2"
_C1: Final = re.compile(b"\xc2[\x80-\x9f]")
_LONE_CARRIAGE_RETURN: Final = re.compile("\r(?!\n)")
# Characters or octets per check, so that other threads run in between: with 64 KiB, 10 MiB of dots raised the p99 of
# other clients from 16 to 37 ms.
_BLOCK: Final = 8 * 1024
_COPIED: Final = 256 * 1024  # octets per copy

# Estimates of CPU time (`cost_of_…`) are in microseconds and err on the high side, by the worst known input: expensive
# work runs on a worker thread. `tests/message/test_cost.py` compares them with measurements.
BYTES_PER_MICROSECOND: Final = 24

# Cells that a spreadsheet evaluates as formulas, and the prefix that makes them text.
_FORMULA: Final = re.compile(r"[\t\r\n]|\s*[=+@-]")
_AS_TEXT: Final = "'"

# One-line texts and bodies for a JSON Schema, in the syntax that ECMA-262 and Python share.
LINE_PATTERN: Final = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"
BODY_PATTERN: Final = r"^(?:[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]|\r\n)*$"

_NAMES: Final = {
    "\x00": "a NUL character",
    "\t": "a tab",
    "\n": "a line feed",
    "\r": "a carriage return",
    "\u2028": "a line separator (U+2028)",
    "\u2029": "a paragraph separator (U+2029)",
}


def cost_of_size(size: int) -> int:
    return size // BYTES_PER_MICROSECOND


def fault_in_line(text: str) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    match = _NOT_IN_A_LINE.search(text)
    return match and _name(match[0])


def fault_in_body(text: str, block_size: int = _BLOCK) -> str | None:
    """Return the name of the first forbidden character of a body, or None. A bare CR allows SMTP smuggling."""
    if len(text) <= block_size:
        suspicious = _is_suspicious(text)
    else:
        suspicious = any(_is_suspicious(text[at : at + block_size]) for at in range(0, len(text), block_size))
    match = _NOT_IN_A_BODY.search(text) if suspicious else None
    if match is None and "\r" in text:
        match = _LONE_CARRIAGE_RETURN.search(text)
    return match and _name(match[0])


def check_subject(subject: str) -> None:
    if len(subject) > SUBJECT_LENGTH:
        raise invalid("subject", f"must have at most {SUBJECT_LENGTH} characters")
    if fault := fault_in_line(subject):
        raise invalid("subject", f"must not contain {fault}")


def check_body(field: str, body: str) -> None:
    if fault := fault_in_body(body):
        raise invalid(field, f"must not contain {fault}")


def _is_suspicious(text: str) -> bool:
    """Check a body by its octets, five times faster than by its characters."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    if data.translate(_CLEANED) != data:
        return True
    return _C1_LEAD in data and _C1.search(data) is not None


def _name(character: str) -> str:
    if character in _NAMES:
        return _NAMES[character]
    if "\ud800" <= character <= "\udfff":
        return f"half of a surrogate pair (U+{ord(character):04X})"
    return f"a control character (U+{ord(character):04X})"


def has_lone_line_end(message: bytes, block_size: int = _BLOCK) -> bool:
    start = 0
    while start < len(message):
        cut = start + block_size
        cut += message[cut - 1 : cut + 1] == b"\r\n"  # not between CR and LF
        rest = message[start:cut].replace(b"\r\n", b"")  # twice as fast as counting CR, LF and both
        if b"\r" in rest or b"\n" in rest:
            return True
        start = cut
    return False


def has_dot_line(message: bytes, block_size: int = _BLOCK) -> bool:
    """Return whether a line begins with a dot. Blocks without a dot, such as base64, are skipped five times faster."""
    if message.startswith(b"."):
        return True
    for start in range(0, len(message), block_size):
        end = start + block_size
        if message.find(b".", start, end) >= 0 and message.find(b"\r\n.", max(0, start - 2), end) >= 0:
            return True
    return False


def replaced(data: bytes | bytearray, old: bytes, new: bytes, block_size: int = _BLOCK) -> Iterator[bytes]:
    """Yield `data.replace(old, new)` in pieces: 10 MiB at once would hold the interpreter lock for up to 70 ms."""
    start, view = 0, memoryview(data)
    while start < len(data):
        cut = start + block_size
        across = data.find(old, cut - len(old) + 1, cut + len(old) - 1)
        if across >= 0:
            cut = across + len(old)
        yield bytes(view[start:cut]).replace(old, new)
        start = cut


def joined(parts: Iterable[bytes | bytearray | memoryview], block_size: int = _COPIED) -> bytes:
    """Return `b"".join(parts)`, copied in pieces: 10 MiB at once would hold the interpreter lock for 7 ms."""
    copy = BytesIO()  # returns its content without another copy
    for part in parts:
        for start in range(0, len(part), block_size):
            copy.write(part if len(part) <= block_size else memoryview(part)[start : start + block_size])
    return copy.getvalue()


def number_of_long_line(message: bytes) -> int | None:
    start, reach = 0, LINE_LENGTH + 2
    while len(message) - start > LINE_LENGTH:
        end = message.rfind(b"\r\n", start, start + reach)
        if end < 0:
            return message.count(b"\r\n", 0, start) + 1
        start = end + 2
    return None


# ---- cells of CSV files
def guard_cell(text: str) -> str:
    """Prevent a spreadsheet from evaluating a cell as a formula."""
    return f"{_AS_TEXT}{text}" if _FORMULA.match(text) else text


def unguard_cell(cell: str) -> str:
    return cell[1:] if cell.startswith(_AS_TEXT) and _FORMULA.match(cell, 1) else cell
