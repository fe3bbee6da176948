"""Says, in words and with the field's name, what is wrong with a JSON body. For POST /emails and /v1.

It runs on the event loop, for clients that may not even have logged in. So its cost is bounded whatever the body: a
place that lies behind more than TOKENS tokens is told by its byte alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import msgspec
import msgspec.inspect

from appliance.errors import Refused, invalid
from appliance.message.limits import HEADER_VALUE_LENGTH, JSON_DEPTH
from appliance.message.variables import Variable

Body = bytes | bytearray
KEY_SHOWN = 64  # characters of a caller's key repeated in a sentence
TOKENS = 1_000  # looked at to name a place, in about a millisecond; a request at every limit has as many
_TOO_EARLY = "the JSON ends too early"

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

_KINDS = {
    "str": "a string",
    "whole": "a whole number",
    "int": "a number",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_UNITS = {"str": "characters", "array": "entries", "object": "entries"}


class _Entries(msgspec.Struct):
    """The two objects of a request whose keys the caller chooses, their values not yet read."""

    variables: dict[str, msgspec.Raw] | None = None
    headers: dict[str, msgspec.Raw] | None = None


HeaderValue = Annotated[str, msgspec.Meta(max_length=HEADER_VALUE_LENGTH)]
_ENTRIES = msgspec.json.Decoder(_Entries)
_VARIABLE: msgspec.json.Decoder[object] = msgspec.json.Decoder(Variable)
_HEADER_VALUE: msgspec.json.Decoder[object] = msgspec.json.Decoder(HeaderValue)


@dataclass(slots=True)
class _Level:
    """One object or array that is open while the body is walked."""

    is_object: bool
    keys: set[str] = field(default_factory=set)
    at: str | int = 0  # the key or index being read
    awaits_key: bool = False


@dataclass(slots=True)
class _Walk:
    """How far a body has been walked: where we are, and which object key came twice."""

    levels: list[_Level] = field(default_factory=list)
    repeated: str | None = None
    begins: int = 0  # where the last token does
    complete: bool = True  # False: given up after TOKENS

    @property
    def path(self) -> str:
        """The place in the words of an error message, such as `attachments[2].filename`."""
        text = ""
        for level in self.levels:
            if not level.is_object:
                text += f"[{level.at}]"
            elif isinstance(level.at, str):
                text += f".{level.at[:KEY_SHOWN]}"
        return text.removeprefix(".")

    def take(self, token: bytes) -> None:
        """Move past one token."""
        level = self.levels[-1] if self.levels else None
        if token in (b"{", b"["):
            self.levels.append(_Level(is_object=token == b"{", awaits_key=token == b"{"))
        elif level is None:
            return
        elif token in (b"}", b"]"):
            self.levels.pop()
        elif token == b",":
            level.awaits_key = level.is_object
            level.at = level.at if isinstance(level.at, str) else level.at + 1
        elif token[:1] == b'"' and level.awaits_key:
            self._take_key(level, _key(token))

    def _take_key(self, level: _Level, key: str) -> None:
        level.at, level.awaits_key = key, False
        if key in level.keys and self.repeated is None:
            self.repeated = self.path
        level.keys.add(key)


def _key(token: bytes) -> str:
    """A key's text; of a broken one as much as can be read."""
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return token.strip(b'"').decode("utf-8", "replace")


def mask_escapes(body: Body) -> Body:
    """The body, as long as before, without escaped quotes and backslashes: the next quote ends a string.

    A backslash outside a string is no JSON; what follows the first one may then be read wrongly, and is not reported.
    """
    if b"\\" not in body:
        return body
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _walked(body: Body, until: int) -> _Walk:
    """The walk past every token that begins up to this byte, as far as it is worth while."""
    walk = _Walk()
    for number, found in enumerate(_TOKEN.finditer(mask_escapes(body))):
        start = found.start()
        if start > until:
            break
        if number >= TOKENS:
            walk.complete = False
            break
        walk.begins = start
        walk.take(bytes(body[start : found.end()]))
        if len(walk.levels) > JSON_DEPTH:
            break
    return walk


def place(body: Body, position: int) -> str:
    """The field that holds this byte, or `body` when none does or it takes too long to find."""
    walk = _walked(body, position)
    return walk.path or "body" if walk.complete else "body"


def find_repeated_key(body: Body) -> Refused | None:
    """The refusal of a body in which some object has one key twice, or which has more tokens than any needs."""
    walk = _walked(body, len(body))
    if walk.repeated is not None:
        return _twice(walk.repeated)
    return None if walk.complete else invalid("body", f"holds more than {TOKENS} JSON tokens")


def repeated_key(body: Body) -> Refused:
    """The refusal of a body that is known to have a key twice."""
    repeated = _walked(body, len(body)).repeated
    return invalid("body", "a key occurs twice in one object") if repeated is None else _twice(repeated)


def _twice(path: str) -> Refused:
    return invalid(path, "this key occurs twice in one object")


def explain(fault: Exception, body: Body, kind: Any) -> Refused:
    """The refusal for whatever msgspec raised while decoding this body as that type."""
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
    found = _BYTE.search(text)
    position = int(found[1]) if found else 0
    if "surrogate" in text:
        return _half_surrogate(body, position - 1)
    if "truncated" in text:
        half = _last_half(body)
        return _half_surrogate(body, half) if half is not None else invalid(place(body, len(body)), _TOO_EARLY)
    if body[position : position + 1] in (b"N", b"I") and body[position : position + 2] in (b"Na", b"In"):
        return invalid(place(body, position), "NaN and Infinity are not JSON numbers")
    if "trailing characters" in text:
        return invalid("body", f"something follows the JSON object (byte {position})")
    return invalid(place(body, position), f"not valid JSON (byte {position})")


def _half_surrogate(body: Body, position: int) -> Refused:
    walk = _walked(body, position)
    if not walk.complete:
        return invalid("body", f"half of a surrogate pair (byte {position})")
    return invalid(walk.path or "body", f"half of a surrogate pair in the string that begins at byte {walk.begins}")


def _last_half(body: Body) -> int | None:
    """Where the body has half of a surrogate pair so near its end that msgspec takes it for cut off."""
    tail = max(0, len(body) - _HALF_REACH)
    for found in _HIGH_HALF.finditer(body, tail):
        before = bytes(body[: found.start()])
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes % 2 == 0:  # else it is an escaped backslash before a `u`
            return found.start()
    return None


def _explain_value(text: str, body: Body, kind: Any) -> Refused:
    found = _PATH.search(text)
    path = found[1] if found else ""
    if path.endswith("[...]"):
        path = _entry(path.removesuffix("[...]"), body)
    if unknown := _UNKNOWN.match(text):
        return invalid(f"{path}.{unknown[1][:KEY_SHOWN]}".removeprefix("."), "there is no such field")
    if missing := _MISSING.match(text):
        return invalid(f"{path}.{missing[1]}".removeprefix("."), "this field is required")
    return invalid(path or "body", _reason(text) + (_instead(path, kind) if _NULL.match(text) else ""))


def _instead(path: str, kind: Any) -> str:
    """What to send instead of null."""
    if not path:
        return ""
    if path.endswith("]"):
        return "; leave the entry out instead"
    if _INDEX.sub("", path) in _required(kind):
        return "; this field is required"
    return "; leave the field out instead"


@cache
def _required(kind: Any) -> frozenset[str]:
    """The paths, without indexes, of the fields that must be given, those of objects within included."""
    return frozenset(_required_paths(msgspec.inspect.type_info(kind), ""))


def _required_paths(kind: msgspec.inspect.Type, at: str) -> Iterator[str]:
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _required_paths(kind.type, at)
    elif isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            if each.required:
                yield at + each.encode_name
            yield from _required_paths(each.type, f"{at}{each.encode_name}.")
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _required_paths(one, at)
    elif isinstance(kind, msgspec.inspect.ListType):
        yield from _required_paths(kind.item_type, at)


def _reason(text: str) -> str:
    if wrong := _WRONG_TYPE.match(text):
        return f"expected {_kinds(wrong[1])}, got {_KINDS.get(wrong[2], wrong[2])}"
    if wrong := _WRONG_LENGTH.match(text):
        if wrong[2] == ">=" and wrong[3] == "1":
            return "must not be empty"
        bound = "at most" if wrong[2] == "<=" else "at least"
        return f"must have {bound} {wrong[3]} {_UNITS.get(wrong[1], 'entries')}"
    if "out of range" in text or "`int`" in text or "`float`" in text:
        return "this number is out of range"
    return "this value is not allowed"


def _kinds(alternatives: str) -> str:
    named = alternatives.removesuffix(" | null").split(" | ")
    if "int" in named and "float" not in named:
        named[named.index("int")] = "whole"
    *others, last = dict.fromkeys(kind for name, kind in _KINDS.items() if name in named) or ("another value",)
    return f"{', '.join(others)} or {last}" if others else last


def _entry(path: str, body: Body) -> str:
    """The entry of `variables` or `headers` that is wrong: msgspec names only the object it stands in."""
    try:
        entries = _ENTRIES.decode(body)
    except (ValueError, RecursionError):
        return path
    values, decoder = (entries.variables, _VARIABLE) if path == "variables" else (entries.headers, _HEADER_VALUE)
    for key, value in (values or {}).items():
        try:
            decoder.decode(value)
        except ValueError:
            return f"{path}.{key[:KEY_SHOWN]}"
    return path
