"""In charge of which characters a field may hold, so that none can end a line or a header early."""

import re

# C0, DEL and C1, the two Unicode line breaks, and halves of surrogate pairs, which no UTF-8 can carry.
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_A_BODY = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# The same in UTF-8: one octet each below U+0080, two for C1; surrogates cannot be encoded at all.
_OCTETS_NOT_IN_A_BODY = frozenset((*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F))
_CLEANED = bytes(ord("?") if octet in _OCTETS_NOT_IN_A_BODY else octet for octet in range(256))
_C1_LEAD = b"\xc2"
_C1 = re.compile(b"\xc2[\x80-\x9f]")
_BLOCK = 64 * 1024  # characters looked at together: a large text is never copied whole
_LONE_CARRIAGE_RETURN = re.compile("\r(?!\n)")

# The same for a JSON Schema, in the syntax that ECMA-262 and Python share.
LINE_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"
BODY_PATTERN = r"^(?:[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]|\r\n)*$"

_NAMES = {
    "\x00": "a NUL character",
    "\t": "a tab",
    "\n": "a line feed",
    "\r": "a carriage return",
    "\u2028": "a line separator (U+2028)",
    "\u2029": "a paragraph separator (U+2029)",
}


def fault_in_line(text: str) -> str | None:
    """What makes this text unfit for one line, in words, or None when nothing does."""
    # Nearly every short field is printable, and asking that is ten times cheaper than searching.
    if text.isascii() and text.isprintable():
        return None
    found = _NOT_IN_A_LINE.search(text)
    return found and _name(found[0])


def fault_in_body(text: str) -> str | None:
    """What makes this text unfit for a body, in words, or None when nothing does.

    Tab and newline are fine; a newline may be written LF or CRLF. A carriage return on its own is refused: some
    servers read it as the end of a line, which is how mail is smuggled (`\\r.\\r`).
    """
    if len(text) <= _BLOCK:
        suspicious = _is_suspicious(text)
    else:
        suspicious = any(_is_suspicious(text[at : at + _BLOCK]) for at in range(0, len(text), _BLOCK))
    found = _NOT_IN_A_BODY.search(text) if suspicious else None
    if found is None and "\r" in text:
        found = _LONE_CARRIAGE_RETURN.search(text)
    return found and _name(found[0])


def _is_suspicious(text: str) -> bool:
    """Whether a text holds anything unfit for a body: by its octets, five times faster than by its characters."""
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
