"""Explains why a JSON body was refused: the field at fault and the reason; and finds keys that are given twice. No I/O.

For POST /emails and /v1. It runs on the event loop, for clients that may not have logged in, so its cost is bounded
whatever the body: a fault behind more than TOKENS tokens is told by its byte alone.
"""

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw

from appliance.errors import Refused, invalid
from appliance.message.limits import JSON_DEPTH
from appliance.message.schema import HeaderValue
from appliance.message.template import Variable

Body = bytes | bytearray
KEY_SHOWN = 64  # characters of a caller's key repeated in a sentence
TOKENS = 2_200  # scanned to name a field, in 1 to 3 ms; a request at every limit has 2,181

# In a body whose escapes are masked. Once begun it never fails to match: an unfinished string runs to the end. That
# keeps the search linear.
STRING = rb'"[^"]*"?'
_TOKEN = re.compile(STRING + rb"|[{}\[\]:,]")
_ARRAY, _COMMA, _QUOTE = b'[,"'
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB][0-9A-Fa-f]{2}")
_HALF_REACH = 12  # bytes: an escape, and fewer than the six of the other half behind it
_BYTE = re.compile(r"\(byte (\d+)\)")
_PATH = re.compile(r" - at `\$\.?([^`]*)`\Z")
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `(\w+)`")
_WRONG_LENGTH = re.compile(r"Expected `(\w+)` of length (<=|>=) (\d+)")
_WRONG_FIELDS = (
    (re.compile(r"Object contains unknown field `(.*?)`(?: - at `[^`]*`)?\Z", re.DOTALL), "there is no such field"),
    (re.compile(r"Object missing required field `([^`]*)`"), "this field is required"),
)
_KINDS = {"str": "a string", "whole": "a whole number", "int": "a number", "float": "a number", "bool": "a boolean",
          "array": "an array", "object": "an object", "null": "null"}  # fmt: skip
# Of the objects whose keys the caller chooses. Made once: to make a decoder costs twenty times what it decodes here.
_ENTRIES: dict[str, msgspec.json.Decoder[Any]] = {
    "variables": msgspec.json.Decoder(Variable), "headers": msgspec.json.Decoder(HeaderValue),
}  # fmt: skip


def mask_escapes(body: Body) -> Body:
    """The body, as long as before, without escaped quotes and backslashes: the next quote ends a string.

    A backslash outside a string is no JSON; what follows the first one may then be read wrongly, and is not reported.
    """
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body


def scan(body: Body, until: int) -> tuple[str, int, str | None, bool]:
    """Pass every token that begins up to this byte: the field it is in, or `body`; where the last token begins; the
    first key that is given twice; and whether all were passed, or it was given up after TOKENS.
    """
    levels: list[dict[str | int, bool]] = []  # of each open object the keys so far, of each open array the indexes
    begins, repeated, awaits_key = 0, None, False
    for number, found in enumerate(_TOKEN.finditer(mask_escapes(body))):
        if found.start() > until or len(levels) > JSON_DEPTH:
            break
        if number >= TOKENS:
            return "body", begins, repeated, False
        begins = found.start()
        mark = body[begins]
        if mark in b"{[":
            levels.append({0: True} if mark == _ARRAY else {})
        elif mark in b"}]" and levels:
            levels.pop()
        elif mark == _COMMA and levels and 0 in levels[-1]:
            levels[-1][len(levels[-1])] = True
        elif mark == _QUOTE and awaits_key:
            key = _key(bytes(body[begins : found.end()]))
            is_repeated = levels[-1].pop(key, False)
            levels[-1][key] = True  # the last is the one being read
            if is_repeated and repeated is None:
                repeated = _path(levels)
        awaits_key = mark in b"{," and bool(levels) and 0 not in levels[-1]
    return _path(levels) or "body", begins, repeated, True


def _path(levels: list[dict[str | int, bool]]) -> str:
    """Such as `attachments[2].filename`."""
    places = [next(reversed(level)) for level in levels if level]
    return "".join([f"[{at}]" if isinstance(at, int) else f".{at[:KEY_SHOWN]}" for at in places]).removeprefix(".")


def _key(token: bytes) -> str:
    """A key's text; of a broken one as much as can be read."""
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return token.strip(b'"').decode("utf-8", "replace")


def find_repeated_key(body: Body) -> Refused | None:
    """The refusal of a body in which some object has one key twice, or which has more tokens than any needs."""
    _, _, repeated, complete = scan(body, len(body))
    if repeated is not None:
        return invalid(repeated, "this key occurs twice in one object")
    return None if complete else invalid("body", f"holds more than {TOKENS} JSON tokens")


def explain(fault: Exception, body: Body, kind: Any) -> Refused:
    """The refusal for an error that msgspec raised while it decoded this body as that type."""
    if isinstance(fault, RecursionError):
        return invalid("body", f"nested deeper than {JSON_DEPTH} levels")
    if isinstance(fault, msgspec.ValidationError):
        return _explain_value(str(fault), body, kind)
    if isinstance(fault, UnicodeDecodeError):
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as first:
            return invalid(scan(body, first.start)[0], f"not valid UTF-8 (byte {first.start})")
    return _explain_syntax(str(fault), body)


def _explain_syntax(text: str, body: Body) -> Refused:
    if not body.strip():
        return invalid("body", "expected a JSON object, got nothing")
    if body.startswith(b"\xef\xbb\xbf"):
        return invalid("body", "begins with a byte order mark; JSON is sent without one (RFC 8259 8.1)")
    position = int(found[1]) if (found := _BYTE.search(text)) else 0
    reason, half = f"not valid JSON (byte {position})", None
    if "truncated" in text:  # which msgspec also says of half a pair near the end
        position, reason = len(body), "the JSON ends too early"
        half = _HIGH_HALF.search(mask_escapes(body), max(0, len(body) - _HALF_REACH))
    if half or "surrogate" in text:
        position = half.start() if half else position - 1
        path, begins, _, complete = scan(body, position)
        where = f"in the string that begins at byte {begins}" if complete else f"(byte {position})"
        return invalid(path, f"half of a surrogate pair {where}")
    if body[position : position + 2] in (b"Na", b"In"):
        reason = "NaN and Infinity are not JSON numbers"
    elif "trailing characters" in text:
        return invalid("body", f"something follows the JSON object (byte {position})")
    return invalid(scan(body, position)[0], reason)


def _explain_value(text: str, body: Body, kind: Any) -> Refused:
    path = found[1] if (found := _PATH.search(text)) else ""
    if path.endswith("[...]"):
        path = _entry(path.removesuffix("[...]"), body)
    for pattern, reason in _WRONG_FIELDS:
        if found := pattern.match(text):
            return invalid(f"{path}.{found[1][:KEY_SHOWN]}".removeprefix("."), reason)
    return invalid(path or "body", _reason(text, path, kind))


def _entry(path: str, body: Body) -> str:
    """The entry of `variables` or `headers` that is wrong: msgspec names only the object it stands in."""
    try:
        entries = _ENTRIES[path]
        values = msgspec.json.decode(msgspec.json.decode(body, type=dict[str, Raw])[path], type=dict[str, Raw])
    except (ValueError, KeyError, RecursionError):
        return path
    for key, value in values.items():
        try:
            entries.decode(value)
        except ValueError:
            return f"{path}.{key[:KEY_SHOWN]}"
    return path


def _reason(text: str, path: str, kind: Any) -> str:
    if wrong := _WRONG_TYPE.match(text):
        named = wrong[1].removesuffix(" | null").split(" | ")
        if "int" in named and "float" not in named:
            named[named.index("int")] = "whole"
        *others, last = dict.fromkeys(words for name, words in _KINDS.items() if name in named) or ("another value",)
        expected = f"{', '.join(others)} or {last}" if others else last
        instead = ""
        if wrong[2] == "null" and path:
            instead = f"; leave the {'entry' if path.endswith(']') else 'field'} out instead"
            if path.partition(".")[0] not in _ENTRIES and path.rpartition(".")[2] in _required(kind):
                instead = "; this field is required"
        return f"expected {expected}, got {_KINDS.get(wrong[2], wrong[2])}{instead}"
    if wrong := _WRONG_LENGTH.match(text):
        if wrong[2] == ">=" and wrong[3] == "1":
            return "must not be empty"
        bound = "at most" if wrong[2] == "<=" else "at least"
        return f"must have {bound} {wrong[3]} {'characters' if wrong[1] == 'str' else 'entries'}"
    is_number = "out of range" in text or "`int`" in text or "`float`" in text
    return "this number is out of range" if is_number else "this value is not allowed"


@cache
def _required(kind: Any) -> frozenset[str]:
    """The names of the fields that must be given, those of objects within included."""
    _, structs = msgspec.json.schema_components([kind])
    return frozenset(name for struct in structs.values() for name in struct.get("required", ()))
