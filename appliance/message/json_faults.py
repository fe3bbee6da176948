"""Explains why a JSON body was refused, with the field at fault, and finds duplicate keys. No I/O.

msgspec names the field only for values of the wrong type; this module names it for syntax errors, for entries of
`variables` and `headers`, and for duplicate keys. It runs on the event loop for clients that may not have logged in, so
its cost is bounded: after TOKENS tokens an error is located by its byte alone.
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
KEY_SHOWN = 64  # characters of a key quoted in an error
TOKENS = 2_200  # in 1 to 3 ms; a request at every limit has 2,181

# For a body with masked escapes. An unfinished string runs to the end, so that the search stays linear.
STRING = rb'"[^"]*"?'
_TOKEN = re.compile(STRING + rb"|[{}\[\]:,]")
_ARRAY, _COMMA, _QUOTE = b'[,"'
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB][0-9A-Fa-f]{2}")
_HALF_REACH = 12  # bytes: an escape, and less than another one
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
# Objects with arbitrary keys. Creating a decoder costs twenty times as much as using it here.
_ENTRIES: dict[str, msgspec.json.Decoder[Any]] = {
    "variables": msgspec.json.Decoder(Variable), "headers": msgspec.json.Decoder(HeaderValue),
}  # fmt: skip


def mask_escapes(body: Body) -> Body:
    """Replace escaped quotes and backslashes, keeping the length: the next quote then ends a string.

    After a backslash outside a string, which is invalid JSON, the result may be wrong, but no error there is reported.
    """
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body


def scan(body: Body, until: int) -> tuple[str, int, str | None, bool]:
    """Scan the tokens that start up to this byte. Return the field of the last one, or `body`; its start; the first
    duplicate key; and whether the scan was complete, or stopped after TOKENS.
    """
    levels: list[dict[str | int, bool]] = []  # keys or indexes of each open object or array
    start, repeated, expects_key = 0, None, False
    for number, token in enumerate(_TOKEN.finditer(mask_escapes(body))):
        if token.start() > until or len(levels) > JSON_DEPTH:
            break
        if number >= TOKENS:
            return "body", start, repeated, False
        start = token.start()
        mark = body[start]
        if mark in b"{[":
            levels.append({0: True} if mark == _ARRAY else {})
        elif mark in b"}]" and levels:
            levels.pop()
        elif mark == _COMMA and levels and 0 in levels[-1]:
            levels[-1][len(levels[-1])] = True
        elif mark == _QUOTE and expects_key:
            key = _key(bytes(body[start : token.end()]))
            is_repeated = levels[-1].pop(key, False)
            levels[-1][key] = True  # last: the current key
            if is_repeated and repeated is None:
                repeated = _path(levels)
        expects_key = mark in b"{," and bool(levels) and 0 not in levels[-1]
    return _path(levels) or "body", start, repeated, True


def _path(levels: list[dict[str | int, bool]]) -> str:
    """Return a path such as `attachments[2].filename`."""
    places = [next(reversed(level)) for level in levels if level]
    return "".join([f"[{at}]" if isinstance(at, int) else f".{at[:KEY_SHOWN]}" for at in places]).removeprefix(".")


def _key(token: bytes) -> str:
    """Decode a key; replace invalid characters."""
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return token.strip(b'"').decode("utf-8", "replace")


def find_repeated_key(body: Body) -> Refused | None:
    """Return a refusal if an object has a duplicate key, or the body too many tokens."""
    _, _, repeated, complete = scan(body, len(body))
    if repeated is not None:
        return invalid(repeated, "this key occurs twice in one object")
    return None if complete else invalid("body", f"contains more than {TOKENS} JSON tokens")


def explain(fault: Exception, body: Body, kind: Any) -> Refused:
    """Return the refusal for an error that msgspec raised when decoding this body as `kind`."""
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
        return invalid("body", "starts with a byte order mark. Send JSON without one (RFC 8259 8.1).")
    position = int(byte[1]) if (byte := _BYTE.search(text)) else 0
    reason, half = f"not valid JSON (byte {position})", None
    if "truncated" in text:  # msgspec also says this about an unpaired surrogate near the end
        position, reason = len(body), "the JSON ends too early"
        half = _HIGH_HALF.search(mask_escapes(body), max(0, len(body) - _HALF_REACH))
    if half or "surrogate" in text:
        position = half.start() if half else position - 1
        path, start, _, complete = scan(body, position)
        where = f"in the string that begins at byte {start}" if complete else f"(byte {position})"
        return invalid(path, f"half of a surrogate pair {where}")
    if body[position : position + 2] in (b"Na", b"In"):
        reason = "NaN and Infinity are not JSON numbers"
    elif "trailing characters" in text:
        return invalid("body", f"something follows the JSON object (byte {position})")
    return invalid(scan(body, position)[0], reason)


def _explain_value(text: str, body: Body, kind: Any) -> Refused:
    path = match[1] if (match := _PATH.search(text)) else ""
    if path.endswith("[...]"):
        path = _entry(path.removesuffix("[...]"), body)
    for pattern, reason in _WRONG_FIELDS:
        if match := pattern.match(text):
            return invalid(f"{path}.{match[1][:KEY_SHOWN]}".removeprefix("."), reason)
    return invalid(path or "body", _reason(text, path, kind))


def _entry(path: str, body: Body) -> str:
    """Return the path of the invalid entry of `variables` or `headers`: msgspec names only the object."""
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
    """Return the names of all required fields, including nested ones."""
    _, structs = msgspec.json.schema_components([kind])
    return frozenset(name for struct in structs.values() for name in struct.get("required", ()))
