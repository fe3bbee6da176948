"""Parses the header of a submitted message: its fields in their order, and the one mailbox that a From names. No I/O.

Stricter than RFC 5322's obsolete syntax wherever mail readers disagree about it: no space in front of a colon, no line
of spaces alone, no control characters. Such things hide a field from one reader and show it to the next.

Whether a sender may use a domain depends on the From, so only what every mail reader reads the same way is accepted:
comments only where they look like part of a name, and one mailbox, since DMARC (RFC 7489 6.6.1) has receivers refuse
more than one.
"""

import re
from functools import lru_cache
from typing import Final

import idna
from msgspec.structs import replace

from appliance.errors import Refused, invalid
from appliance.message import limits
from appliance.message.addresses import Address, parse
from appliance.message.decoding import decode_words, one_line

Field = tuple[bytes, bytes]  # a name, and all that stands between its colon and the CRLF at its end

# RFC 5322 2.2: a name is printable ASCII but for the colon; a continued line has more than white space. A match begins
# at the beginning of a line, and no repeat can take the character that must follow it: there is one way to match, so
# the time grows with the header and no faster.
_FIELD: Final = re.compile(rb"^([!-9;-~]+):([^\r]*(?:\r\n[ \t]+[^ \t\r][^\r]*)*)\r\n", re.MULTILINE)
_COLON_AND_END: Final = len(":\r\n")
_CONTROLS: Final = bytes(octet for octet in (*range(0x20), 0x7F) if octet not in b"\t\r\n")
_UNFIT: Final = re.compile("[\x80-\x9f\u2028\u2029]")  # C1 and Unicode's line separators
_NAME: Final = re.compile(rb"[!-9;-~]+")

_CACHED: Final = 2_000  # senders, by their whole From
_CACHED_LENGTH: Final = 320  # octets

# In every pattern no repeat can take the character that must follow it: there is one way to match, in linear time.
_COMMENT: Final = r'\([^()<>@"\\]*\)'
_QUOTED_TEXT: Final = r'[^"\\]*(?:\\.[^"\\]*)*'
_BARE: Final = re.compile(rf'([^ <>()",;:\\]+) *({_COMMENT})?')
# RFC 5322 3.4: a phrase is quoted strings and atoms; dots and brackets are not, and widely written all the same.
_ATOMS: Final = r'[^"<>@,;:\\()]*'
_PHRASE: Final = rf'{_ATOMS}(?:(?:"{_QUOTED_TEXT}"|{_COMMENT}){_ATOMS})*'
_NAMED: Final = re.compile(rf"({_PHRASE})<([^<>]*)> *(?:{_COMMENT})?")
_TWICE: Final = re.compile(r'([^ <>()",;:\\]+) *< *(\1) *>', re.IGNORECASE)
_QUOTED: Final = re.compile(f'"({_QUOTED_TEXT})"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NEEDS_QUOTES: Final = re.compile(r'["<>,;\\]')

_ONE = "must name one mailbox, as `Name <address>`; a name with a comma or other special characters in double quotes"


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


def name_to_show(name: bytes) -> str:
    """A field's name, cut to what a refusal may repeat: it may be as long as a line."""
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
    """The refusal of a malformed header, by its first line at fault."""
    for number, line in enumerate(header.removesuffix(b"\r\n").split(b"\r\n"), start=1):
        name, colon, _ = line.partition(b":")
        reason = ""
        if line[:1] in (b" ", b"\t"):
            if number == 1:
                reason = "begins with a space, and there is no field before it to continue"
            elif not line.strip(b" \t"):
                reason = "has nothing but spaces; an empty line between header and body is empty"
        elif not colon:
            reason = "is neither a field nor the continuation of one; an empty line goes between header and body"
        elif not _NAME.fullmatch(name):
            reason = "has a field name with a space or another character that names cannot have"
        if reason:
            return invalid("header", f"line {number} {reason}")
    raise AssertionError("a header of good lines is a good header")


# ---- From


def read_from(value: bytes) -> Address:
    """The mailbox of a From, or a refusal; its `text` is as the HTTP API would show it, with the name decoded."""
    return _cached_from(value) if len(value) <= _CACHED_LENGTH else _read_from(value)


def _read_from(value: bytes) -> Address:
    if len(value) > limits.FROM_LENGTH:
        raise invalid("From", f"must have at most {limits.FROM_LENGTH} octets")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if not text:
        raise invalid("From", "must not be empty")
    name, bare = _split(text)
    if "=?" in bare:  # some readers decode it, and see another address
        raise invalid("From", "an address must not contain an encoded word")
    address = parse(bare, "From")
    written = address.spelling.rpartition("@")[2].lower()
    # The message keeps its spelling, so the domain must mean the same without the mapping (UTS 46) of a parser.
    if not written.isascii() and idna.decode(address.domain) != written:
        raise invalid("From", "the domain holds characters that readers may read differently; write it plainly")
    name = one_line(name)[: limits.DISPLAY_NAME_LENGTH].strip(" ")
    if not name:
        return address
    shown = name
    if _NEEDS_QUOTES.search(name):
        shown = '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
    return replace(address, name=name, text=f"{shown} <{address.spelling}>")


_cached_from = lru_cache(_CACHED)(_read_from)


def _split(text: str) -> tuple[str, str]:
    """The decoded name, and the address."""
    if found := _BARE.fullmatch(text):
        return decode_words((found[2] or "")[1:-1]), found[1]
    if found := _NAMED.fullmatch(text):
        outside = _QUOTED.sub("", found[1])
        # Beside a bracket some mail readers take a quoted text, which may hold an `@`, for an address of its own.
        if outside != found[1] and ("[" in outside or "]" in outside):
            raise invalid("From", _ONE)
        name = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), found[1])
        return decode_words(name.strip(" ")), found[2].strip(" ")
    if found := _TWICE.fullmatch(text):  # the address as its own name, without quotes: not allowed, and often seen
        return found[1], found[2]
    raise invalid("From", _ONE)
