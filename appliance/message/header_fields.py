"""In charge of taking a submitted header apart: fields in their order, or a refusal that names the line at fault.

Stricter than RFC 5322's obsolete syntax wherever readers disagree about it: no space in front of a colon, no line of
spaces alone, no control characters. Such things hide a field from one reader and show it to the next.
"""

import re
from typing import Final

from appliance.errors import Refused, invalid
from appliance.message import limits

Field = tuple[bytes, bytes]  # a name, and all that stands between its colon and the CRLF at its end

# RFC 5322 2.2: a name is printable ASCII but for the colon; a continued line has more than white space. A match begins
# at the beginning of a line, and no repeat can take the character that must follow it: there is one way to match, so
# the time grows with the header and no faster.
_FIELD: Final = re.compile(rb"^([!-9;-~]+):([^\r]*(?:\r\n[ \t]+[^ \t\r][^\r]*)*)\r\n", re.MULTILINE)
_COLON_AND_END: Final = len(":\r\n")
_CONTROLS: Final = bytes(octet for octet in (*range(0x20), 0x7F) if octet not in b"\t\r\n")
_UNFIT: Final = re.compile("[\x80-\x9f\u2028\u2029]")  # C1 and Unicode's own line ends
_NAME: Final = re.compile(rb"[!-9;-~]+")


def end_of_header(message: bytes) -> int:
    """Where the header ends: behind the CRLF of its last field. What follows is an empty line and the body."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n")
    return len(message) if end < 0 else end + 2


def fields_of(header: bytes) -> list[Field]:
    """The fields of a header of whole lines, in their order."""
    if len(header) > limits.HEADER_SIZE or header.count(b"\r\n") > limits.HEADER_LINES:
        raise invalid(
            "header",
            f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines;"
            " is the empty line between header and body missing?",
        )
    _check_characters(header)
    fields: list[Field] = _FIELD.findall(header)
    taken = _COLON_AND_END * len(fields)
    for name, value in fields:
        taken += len(name) + len(value)
    if taken != len(header):
        raise _fault(header)
    if len(fields) > limits.HEADER_FIELDS:
        raise invalid("header", f"has more than {limits.HEADER_FIELDS} fields")
    return fields


def name_for_people(name: bytes) -> str:
    """A field's name as a refusal may repeat it: it may be as long as a line."""
    return name[: limits.HEADER_NAME_LENGTH].decode("ascii")


def _check_characters(header: bytes) -> None:
    if len(header.translate(None, _CONTROLS)) != len(header):
        raise invalid("header", "holds a control character; remove it, or write it as an encoded word")
    if header.isascii():
        return
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise invalid("header", "holds 8-bit text that is not UTF-8; write it as encoded words (RFC 2047)") from cause
    if _UNFIT.search(text):
        raise invalid("header", "holds a control character or a Unicode line break; remove it")


def _fault(header: bytes) -> Refused:
    """What is wrong with a header, by its first line that is."""
    for number, line in enumerate(header.removesuffix(b"\r\n").split(b"\r\n"), start=1):
        if reason := _fault_of_line(line, first=number == 1):
            return invalid("header", f"line {number} {reason}")
    raise AssertionError("a header of good lines is a good header")


def _fault_of_line(line: bytes, *, first: bool) -> str | None:
    if line[:1] in (b" ", b"\t"):
        if first:
            return "begins with a space, and there is no field before it to continue"
        return None if line.strip(b" \t") else "has nothing but spaces; an empty line between header and body is empty"
    name, colon, _ = line.partition(b":")
    if not colon:
        return "is neither a field nor the continuation of one; an empty line goes between header and body"
    return (
        None if _NAME.fullmatch(name) else "has a field name with a space or another character that names cannot have"
    )
