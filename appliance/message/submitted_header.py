"""Parses the header and the From field of a submitted message. No I/O, no state but a cache.

The parser is stricter than RFC 5322's obsolete syntax wherever mail readers disagree: no space before a colon, no line
of spaces alone, no control characters. Such lines hide a field from one reader and show it to the next. The From
decides whether a sender may use a domain, so it must mean the same to every reader: one mailbox (DMARC receivers refuse
more, RFC 7489 6.6.1), and comments only where they look like part of a name.
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

Field = tuple[bytes, bytes]  # the name, and everything between the colon and the final CRLF

# RFC 5322 2.2: a name is printable ASCII without the colon; a continuation line has more than white space. In all these
# patterns no repeat can consume the character that must follow it, so there is one way to match, in linear time.
_FIELD: Final = re.compile(rb"^([!-9;-~]+):([^\r]*(?:\r\n[ \t]+[^ \t\r][^\r]*)*)\r\n", re.MULTILINE)
_COLON_AND_END: Final = len(":\r\n")
_CONTROLS: Final = bytes(octet for octet in (*range(0x20), 0x7F) if octet not in b"\t\r\n")
_UNFIT: Final = re.compile("[\x80-\x9f\u2028\u2029]")  # C1 and Unicode's line separators
_NAME: Final = re.compile(rb"[!-9;-~]+")

_CACHED: Final = 2_000  # whole From fields
_CACHED_LENGTH: Final = 320  # octets

_COMMENT: Final = r'\([^()<>@"\\]*\)'
_QUOTED_TEXT: Final = r'[^"\\]*(?:\\.[^"\\]*)*'
_BARE: Final = re.compile(rf'([^ <>()",;:\\]+) *({_COMMENT})?')
# RFC 5322 3.4: a phrase is quoted strings and atoms. Dots and brackets are not allowed, but common.
_ATOMS: Final = r'[^"<>@,;:\\()]*'
_PHRASE: Final = rf'{_ATOMS}(?:(?:"{_QUOTED_TEXT}"|{_COMMENT}){_ATOMS})*'
_NAMED: Final = re.compile(rf"({_PHRASE})<([^<>]*)> *(?:{_COMMENT})?")
_TWICE: Final = re.compile(r'([^ <>()",;:\\]+) *< *(\1) *>', re.IGNORECASE)
_QUOTED: Final = re.compile(f'"({_QUOTED_TEXT})"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NEEDS_QUOTES: Final = re.compile(r'["<>,;\\]')

_ONE = "expected one mailbox, `Name <address>`. Put a name with a comma or other special characters in double quotes."


def end_of_header(message: bytes) -> int:
    """Return the end of the header, after the CRLF of its last field; an empty line and the body follow."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n")
    return len(message) if end < 0 else end + 2


def fields_of(header: bytes) -> list[Field]:
    """Parse a header of complete lines into its fields, in order."""
    if len(header) > limits.HEADER_SIZE or header.count(b"\r\n") > limits.HEADER_LINES:
        raise invalid(
            "header",
            f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines."
            " Is the empty line between header and body missing?",
        )
    _check_characters(header)
    fields: list[Field] = _FIELD.findall(header)
    parsed = sum([len(name) + len(value) + _COLON_AND_END for name, value in fields])
    if parsed != len(header):
        raise _fault(header)
    if len(fields) > limits.HEADER_FIELDS:
        raise invalid("header", f"has more than {limits.HEADER_FIELDS} fields")
    return fields


def name_to_show(name: bytes) -> str:
    """Return a field's name, cut to a length that a refusal may quote."""
    return name[: limits.HEADER_NAME_LENGTH].decode("ascii")


def _check_characters(header: bytes) -> None:
    if len(header.translate(None, _CONTROLS)) != len(header):
        raise invalid("header", "contains a control character. Remove it, or write it as an encoded word.")
    if header.isascii():
        return
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise invalid("header", "contains 8-bit text that is not UTF-8. Use encoded words (RFC 2047).") from cause
    if _UNFIT.search(text):
        raise invalid("header", "contains a control character or a Unicode line break. Remove it.")


def _fault(header: bytes) -> Refused:
    """Return the refusal of a malformed header, with the first malformed line."""
    for number, line in enumerate(header.removesuffix(b"\r\n").split(b"\r\n"), start=1):
        name, colon, _ = line.partition(b":")
        reason = ""
        if line[:1] in (b" ", b"\t"):
            if number == 1:
                reason = "begins with a space, but there is no field before it to continue"
            elif not line.strip(b" \t"):
                reason = "contains only spaces. The line between header and body must be empty."
        elif not colon:
            reason = "is neither a field nor the continuation of one. Put an empty line between header and body."
        elif not _NAME.fullmatch(name):
            reason = "has a field name with a space or another invalid character"
        if reason:
            return invalid("header", f"line {number} {reason}")
    raise AssertionError("every line is valid, but the header is not")


# ---- From


def read_from(value: bytes) -> Address:
    """Parse the mailbox of a From field; its `text` has the decoded name, as in the HTTP API."""
    return _cached_from(value) if len(value) <= _CACHED_LENGTH else _read_from(value)


def _read_from(value: bytes) -> Address:
    if len(value) > limits.FROM_LENGTH:
        raise invalid("From", f"must have at most {limits.FROM_LENGTH} octets")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if not text:
        raise invalid("From", "must not be empty")
    name, bare = _split(text)
    if "=?" in bare:  # some readers decode it and show another address
        raise invalid("From", "an address must not contain an encoded word")
    address = parse(bare, "From")
    written = address.spelling.rpartition("@")[2].lower()
    # The message keeps its spelling, so the domain must mean the same without UTS 46 mapping.
    if not written.isascii() and idna.decode(address.domain) != written:
        raise invalid(
            "From",
            "the domain means different things to different mail readers. Use A-labels.",
        )
    name = one_line(name)[: limits.DISPLAY_NAME_LENGTH].strip(" ")
    if not name:
        return address
    shown = name
    if _NEEDS_QUOTES.search(name):
        shown = '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
    return replace(address, name=name, text=f"{shown} <{address.spelling}>")


_cached_from = lru_cache(_CACHED)(_read_from)


def _split(text: str) -> tuple[str, str]:
    """Return the decoded name and the address."""
    if match := _BARE.fullmatch(text):
        return decode_words((match[2] or "")[1:-1]), match[1]
    if match := _NAMED.fullmatch(text):
        unquoted = _QUOTED.sub("", match[1])
        # Next to a bracket some readers take quoted text with an `@` for another address.
        if unquoted != match[1] and ("[" in unquoted or "]" in unquoted):
            raise invalid("From", _ONE)
        name = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), match[1])
        return decode_words(name.strip(" ")), match[2].strip(" ")
    if match := _TWICE.fullmatch(text):  # the address as its own name, without quotes: invalid, but common
        return match[1], match[2]
    raise invalid("From", _ONE)
