"""Explains why a JSON body was refused: the field at fault and the reason; and finds keys that are given twice. No I/O.

For POST /emails and /v1. It runs on the event loop, for clients that may not have logged in, so its cost is bounded
whatever the body: a fault behind more than TOKENS tokens is told by its byte alone.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, inspect

from appliance.errors import Refused, invalid
from appliance.message.limits import JSON_DEPTH
from appliance.message.schema import HeaderValue
from appliance.message.template import Variable

Body = bytes | bytearray
KEY_SHOWN = 64  # characters of a caller's key repeated in a sentence
TOKENS = 1_000  # scanned to name a field, in about a millisecond; a request at every limit has as many

# In a body whose escapes are masked. Once begun it never fails to match: an unfinished string runs to the end. That
# keeps the search linear.
STRING = rb'"[^"]*"?'
_TOKEN = re.compile(STRING + rb"|[{}\[\]:,]")
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB][0-9A-Fa-f]{2}")
_HALF_REACH = 12  # bytes: an escape, and fewer than the six of the other half behind it
_BYTE = re.compile(r"\(byte (\d+)\)")
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `(\w+)`")
_NULL = re.compile(r"Expected `[^`]*`, got `null`")
_INDEX = re.compile(r"\[\d+\]")
_WRONG_LENGTH = re.compile(r"Expected `(\w+)` of length (<=|>=) (\d+)")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `[^`]*`)?\Z", re.DOTALL)
_PATH = re.compile(r" - at `\$\.?([^`]*)`\Z")
_INDEX = re.compile(r"\[\d+\]")

_KINDS = {"str": "a string", "whole": "a whole number", "int": "a number", "float": "a number", "bool": "a boolean",
          "array": "an array", "object": "an object", "null": "null"}  # fmt: skip
# Of the objects whose keys the caller chooses. Made once: to make a decoder costs twenty times what it decodes here.
_ENTRIES: dict[str, msgspec.json.Decoder[Any]] = {
    "variables": msgspec.json.Decoder(Variable), "headers": msgspec.json.Decoder(HeaderValue),
}  # fmt: skip


# ---- one pass over the tokens


class _Scan(NamedTuple):
    """Where a scan ended: the field it was in, where its last token begins, and the first key given twice."""

    path: str
    begins: int
    repeated: str | None
    complete: bool  # False: given up after TOKENS


def mask_escapes(body: Body) -> Body:
    """The body, as long as before, without escaped quotes and backslashes: the next quote ends a string.

    A backslash outside a string is no JSON; what follows the first one may then be read wrongly, and is not reported.
    """
    if b"\\" not in body:
        return body
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _scan(body: Body, until: int) -> _Scan:
    """Pass every token that begins up to this byte, as far as it is worth while."""
    places: list[str | int | None] = []  # of each open object the key being read, of each open array the index
    keys: list[set[str]] = []  # of each of them, the keys so far
    begins, repeated, awaits_key = 0, None, False
    for number, found in enumerate(_TOKEN.finditer(mask_escapes(body))):
        if found.start() > until or len(places) > JSON_DEPTH:
            break
        if number >= TOKENS:
            return _Scan("", begins, repeated, complete=False)
        begins, mark = found.start(), found[0][:1]
        if mark in (b"{", b"["):
            places.append(0 if mark == b"[" else None)
            keys.append(set())
            awaits_key = mark == b"{"
        elif not places:
            continue
        elif mark in (b"}", b"]"):
            places.pop()
            keys.pop()
            awaits_key = False
        elif mark == b"," and isinstance(index := places[-1], int):
            places[-1] = index + 1
        elif mark == b",":
            awaits_key = True
        elif mark == b'"' and awaits_key:
            places[-1] = key = _key(bytes(body[begins : found.end()]))
            awaits_key = False
            if key in keys[-1]:
                repeated = repeated or _path(places)
            keys[-1].add(key)
    return _Scan(_path(places), begins, repeated, complete=True)


def _path(places: list[str | int | None]) -> str:
    """Such as `attachments[2].filename`."""
    names = [f"[{at}]" if isinstance(at, int) else f".{at[:KEY_SHOWN]}" for at in places if at is not None]
    return "".join(names).removeprefix(".")


def _key(token: bytes) -> str:
    """A key's text; of a broken one as much as can be read."""
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return token.strip(b'"').decode("utf-8", "replace")


def place(body: Body, position: int) -> str:
    """The field that holds this byte, or `body` when none does or it takes too long to find."""
    return _scan(body, position).path or "body"


def find_repeated_key(body: Body) -> Refused | None:
    """The refusal of a body in which some object has one key twice, or which has more tokens than any needs."""
    scan = _scan(body, len(body))
    if scan.repeated is not None:
        return invalid(scan.repeated, "this key occurs twice in one object")
    return None if scan.complete else invalid("body", f"holds more than {TOKENS} JSON tokens")


def repeated_key(body: Body) -> Refused:
    """The refusal of a body that is known to have a key twice."""
    path = _scan(body, len(body)).repeated
    return invalid(path or "body", f"{'this' if path else 'a'} key occurs twice in one object")


# ---- what msgspec raised


def explain(fault: Exception, body: Body, kind: Any) -> Refused:
    """The refusal for an error that msgspec raised while it decoded this body as that type."""
    if isinstance(fault, UnicodeDecodeError):
        return _explain_encoding(body)
    if isinstance(fault, RecursionError):
        return invalid("body", f"nested deeper than {JSON_DEPTH} levels")
    if isinstance(fault, msgspec.ValidationError):
        return _explain_value(str(fault), body, kind)
    return _explain_syntax(str(fault), body)


def _explain_encoding(body: Body) -> Refused:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as fault:
        return invalid(place(body, fault.start), f"not valid UTF-8 (byte {fault.start})")
    return invalid("body", "not valid UTF-8")


def _explain_syntax(text: str, body: Body) -> Refused:
    if not body.strip():
        return invalid("body", "expected a JSON object, got nothing")
    if body.startswith(b"\xef\xbb\xbf"):
        return invalid("body", "begins with a byte order mark; JSON is sent without one (RFC 8259 8.1)")
    position = int(found[1]) if (found := _BYTE.search(text)) else 0
    if "surrogate" in text:
        return _half_surrogate(body, position - 1)
    if "truncated" in text:  # which msgspec also says of half a pair near the end
        half = _HIGH_HALF.search(mask_escapes(body), max(0, len(body) - _HALF_REACH))
        return (
            _half_surrogate(body, half.start()) if half else invalid(place(body, len(body)), "the JSON ends too early")
        )
    if body[position : position + 2] in (b"Na", b"In"):
        return invalid(place(body, position), "NaN and Infinity are not JSON numbers")
    if "trailing characters" in text:
        return invalid("body", f"something follows the JSON object (byte {position})")
    return invalid(place(body, position), f"not valid JSON (byte {position})")


def _half_surrogate(body: Body, position: int) -> Refused:
    scan = _scan(body, position)
    where = f"in the string that begins at byte {scan.begins}" if scan.complete else f"(byte {position})"
    return invalid(scan.path or "body", f"half of a surrogate pair {where}")


def _explain_value(text: str, body: Body, kind: Any) -> Refused:
    path = found[1] if (found := _PATH.search(text)) else ""
    if path.endswith("[...]"):
        path = _entry(path.removesuffix("[...]"), body)
    if unknown := _UNKNOWN.match(text):
        return invalid(f"{path}.{unknown[1][:KEY_SHOWN]}".removeprefix("."), "there is no such field")
    if missing := _MISSING.match(text):
        return invalid(f"{path}.{missing[1]}".removeprefix("."), "this field is required")
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
        instead = _instead(path, kind) if wrong[2] == "null" else ""
        return f"expected {_kinds(wrong[1])}, got {_KINDS.get(wrong[2], wrong[2])}{instead}"
    if wrong := _WRONG_LENGTH.match(text):
        if wrong[2] == ">=" and wrong[3] == "1":
            return "must not be empty"
        bound = "at most" if wrong[2] == "<=" else "at least"
        return f"must have {bound} {wrong[3]} {'characters' if wrong[1] == 'str' else 'entries'}"
    if "out of range" in text or "`int`" in text or "`float`" in text:
        return "this number is out of range"
    return "this value is not allowed"


def _kinds(alternatives: str) -> str:
    named = alternatives.removesuffix(" | null").split(" | ")
    if "int" in named and "float" not in named:
        named[named.index("int")] = "whole"
    *others, last = dict.fromkeys(kind for name, kind in _KINDS.items() if name in named) or ("another value",)
    return f"{', '.join(others)} or {last}" if others else last


def _instead(path: str, kind: Any) -> str:
    """What to send instead of null."""
    if not path:
        return ""
    if path.endswith("]"):
        return "; leave the entry out instead"
    return "; this field is required" if _INDEX.sub("", path) in _required(kind) else "; leave the field out instead"


@cache
def _required(kind: Any) -> frozenset[str]:
    """The paths, without indexes, of the fields that must be given, those of objects within included."""
    return frozenset(_required_paths(inspect.type_info(kind), ""))


def _required_paths(kind: inspect.Type, at: str) -> Iterator[str]:
    if isinstance(kind, inspect.StructType):
        for each in kind.fields:
            if each.required:
                yield at + each.encode_name
            yield from _required_paths(each.type, f"{at}{each.encode_name}.")
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _required_paths(one, at)
    elif isinstance(kind, inspect.ListType | inspect.Metadata):
        yield from _required_paths(kind.item_type if isinstance(kind, inspect.ListType) else kind.type, at)
