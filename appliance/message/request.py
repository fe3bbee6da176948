"""Decodes JSON bodies, above all that of POST /emails, and computes its fingerprint for idempotency. Pure: no I/O, no
state.

Any bytes become a valid request or a refusal that names the field. msgspec names it for values of the wrong type; this
module for syntax errors, entries of `variables`, `headers` and `metadata`, and duplicate keys. It may run on the event
loop for clients that have not logged in, so after TOKENS tokens an error is located by its byte alone. Time and memory
are linear in the body; a large text or attachment is never copied whole more than once.
"""

import hashlib
import re
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import UNSET, Raw

from appliance.errors import Refused, invalid
from appliance.message import limits
from appliance.message.addresses import cost_of_address
from appliance.message.characters import cost_of_size
from appliance.message.schema import HeaderValue, MetadataValue, NullableSendRequest, SendRequest
from appliance.message.template import Variable, check_numbers
from appliance.message.text_from_html import cost_of_html

Body = bytes | bytearray
KEY_SHOWN = 64  # characters of a key quoted in an error
TOKENS = 2_200  # in 1 to 3 ms; a request at every limit has 2,181

_DECODER = msgspec.json.Decoder(SendRequest)
_NULLABLE: msgspec.json.Decoder[SendRequest] = msgspec.json.Decoder(NullableSendRequest)
ORDERED = msgspec.json.Encoder(order="deterministic")
# For a body with masked escapes. An unfinished string runs to the end, so that the search stays linear.
_STRING = rb'"[^"]*"?'
_STRINGS = re.compile(_STRING)
_STRING_OR_COMMA = re.compile(_STRING + rb"|,")
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
BLOCK = 64 * 1024  # bytes or characters per step
_NEEDED = 3  # times the body's size: its texts, one text being unescaped, and other threads


def decode(body: Body) -> SendRequest:
    """Decode a body of any bytes; raises only Refused and MemoryError."""
    check_number_of_values(body)
    # msgspec does not check allocations and would crash. This raises MemoryError first.
    bytes(_NEEDED * len(body))
    try:
        try:
            request = _DECODER.decode(body)
        except msgspec.ValidationError:
            if b"null" not in body:
                raise
            request = _NULLABLE.decode(body)
    # Invalid UTF-8 raises UnicodeDecodeError, and deep nesting RecursionError.
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise explain(cause, body) from cause
    if request.variables is not UNSET and request.variables is not None:
        check_numbers(request.variables)
    if _has_repeated_key(request, body):
        raise invalid(scan(body, len(body))[1] or "body", "this key occurs twice in one object")
    if type(request) is not SendRequest:  # null means the same as leaving the field out
        for struct in (request, *(request.attachments or ())):
            for name in struct.__struct_fields__:
                if getattr(struct, name) is None:
                    setattr(struct, name, UNSET)
    return request


def check_number_of_values(body: Body, most: int = limits.JSON_VALUES) -> None:
    """Refuse millions of tiny values before each becomes an object of 60 bytes or more."""
    if len(body) <= most or occurrences(body, b",") <= most:
        return
    commas = strings = 0
    for token in _STRING_OR_COMMA.finditer(mask_escapes(body)):
        if body[token.start()] == ord(","):
            commas += 1
        else:
            strings += 1
        if commas > most or strings > 2 * most + 1:  # a pair has two
            raise invalid("body", f"contains more than {most} values")


def _has_repeated_key(request: SendRequest, body: Body) -> bool:
    """Return whether msgspec, which keeps the last of two equal keys, dropped one.

    The body and the re-encoded request have the same colons, one per pair plus those in strings, unless a pair was
    dropped. A body with escaped colons is compared without its strings.
    """
    slim, texts = without_long_texts(request) if len(body) > BLOCK else (request, [])
    again = ORDERED.encode(slim)
    if _has_escaped_colon(body):
        return colons_outside_strings(body) != colons_outside_strings(again)
    return occurrences(body, b":") != occurrences(again, b":") + sum(occurrences(text, ":") for _, text in texts)


def _has_escaped_colon(body: Body) -> bool:
    """Search in blocks: those without a backslash, such as base64, are skipped ten times faster."""
    for start in range(0, len(body), BLOCK):
        end = start + BLOCK + len(r"\u003a") - 1
        is_likely = body.find(b"\\", start, end) >= 0 and body.find(b"\\u003", start, end) >= 0
        if is_likely and _ESCAPED_COLON.search(body, start, end):
            return True
    return False


def colons_outside_strings(body: Body) -> int:
    return _STRINGS.sub(b"", mask_escapes(body)).count(b":")


def without_long_texts(request: SendRequest) -> tuple[SendRequest, list[tuple[str, str]]]:
    bodies = (("text", request.text), ("html", request.html))
    texts = [(name, body) for name, body in bodies if isinstance(body, str) and len(body) > BLOCK]  # may be null
    changes: dict[str, object] = {name: "" for name, _ in texts}
    if isinstance(request.attachments, list):
        texts += [("content", file.content) for file in request.attachments]
        changes["attachments"] = [msgspec.structs.replace(file, content="") for file in request.attachments]
    return msgspec.structs.replace(request, **changes) if changes else request, texts


def occurrences(data: Any, mark: Any) -> int:
    """Return `data.count(mark)`; blocks without a mark, such as base64, are skipped ten times faster."""
    if len(data) <= BLOCK:
        return int(data.count(mark))
    blocks = range(0, len(data), BLOCK)
    return sum(data.count(mark, at, at + BLOCK) for at in blocks if data.find(mark, at, at + BLOCK) >= 0)


def json_number(value: float) -> int | float:
    """1.0 and 1 are the same number in JSON."""
    return int(value) if value.is_integer() else value


def fingerprint(request: SendRequest) -> bytes:
    """Return a SHA-256 that is equal exactly when two requests are equal as JSON.

    Key order, white space and escapes do not matter; 1 equals 1.0; true differs from 1, and `"a"` from `["a"]`. Compute
    it before `draft()`, which releases the contents of attachments. Long texts are hashed first, in pieces, each after
    its name and length; then the request without them.
    """
    slim, texts = without_long_texts(request)
    if not texts and request.variables is UNSET:
        return hashlib.sha256(ORDERED.encode(request)).digest()
    digest = hashlib.sha256()
    for name, text in texts:
        digest.update(f"{name}{len(text)}:".encode("ascii"))
        for start in range(0, len(text), BLOCK):
            digest.update(text[start : start + BLOCK].encode("utf-8"))
    digest.update(ordered(slim))
    return digest.digest()


def ordered(request: SendRequest) -> bytes:
    """JSON that is the same for equal requests."""
    if request.variables is not UNSET:
        numbers = {name: json_number(value) for name, value in request.variables.items() if isinstance(value, float)}
        request = msgspec.structs.replace(request, variables=dict(request.variables) | numbers)
    return ORDERED.encode(request)


def cost_of_request(request: SendRequest, size: int) -> int:
    """Estimate the microseconds to compose a request of `size` bytes, without its template."""
    cost = cost_of_size(size)
    if isinstance(request.html, str) and not isinstance(request.text, str):
        cost += cost_of_html(request.html)
    for field in (request.sender, request.to, request.cc, request.bcc, request.reply_to):
        if isinstance(field, str):
            cost += cost_of_address(field)
        elif field is not UNSET:
            cost += sum(map(cost_of_address, field))
    if request.headers is not UNSET:
        cost += sum(map(len, request.headers.values()))
    return cost


class Mime(msgspec.Struct, frozen=True):
    """A complete message with its envelope."""

    sender: str
    recipients: list[str]
    data: bytes
    due_at: int | None = None  # microseconds


# ---- errors

_TOKEN = re.compile(_STRING + rb"|[{}\[\]:,]")
_ARRAY, _COMMA, _QUOTE = b'[,"'
_HIGH_HALF = re.compile(rb"\\u[dD][89abAB][0-9A-Fa-f]{2}")
_BYTE = re.compile(r"\(byte (\d+)\)")
_PATH = re.compile(r" - at `\$\.?([^`]*)`\Z")
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `(\w+)`")
_WRONG_LENGTH = re.compile(r"Expected `(\w+)` of length (<=|>=) (\d+)")
REQUIRED = "this field is required"
UNKNOWN_FIELD = "there is no such field"
_WRONG_FIELDS = (
    (re.compile(r"Object contains unknown field `(.*?)`(?: - at `[^`]*`)?\Z", re.DOTALL), UNKNOWN_FIELD),
    (re.compile(r"Object missing required field `([^`]*)`"), REQUIRED),
)
_KINDS = {"str": "a string", "whole": "a whole number", "int": "a number", "float": "a number", "bool": "a boolean",
          "array": "an array", "object": "an object", "null": "null"}  # fmt: skip
# Objects with arbitrary keys. Creating a decoder costs twenty times as much as using it here.
_ENTRIES: dict[str, msgspec.json.Decoder[Any]] = {
    "variables": msgspec.json.Decoder(Variable), "headers": msgspec.json.Decoder(HeaderValue),
    "metadata": msgspec.json.Decoder(MetadataValue),
}  # fmt: skip


def mask_escapes(body: Body) -> Body:
    """Replace escaped quotes and backslashes, keeping the length: the next quote then ends a string."""
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body


def scan(body: Body, until: int, most: int = TOKENS) -> tuple[str, str | None, bool]:
    """Scan the tokens that start up to this byte. Return the field of the last one, or `body`; the first duplicate key;
    and whether the scan was complete, or stopped after `most` tokens.
    """
    levels: list[dict[str | int, bool]] = []  # keys or indexes of each open object or array
    repeated, expects_key = None, False
    for number, token in enumerate(_TOKEN.finditer(mask_escapes(body))):
        if token.start() > until or len(levels) > limits.JSON_DEPTH:
            break
        if number >= most:
            return "body", repeated, False
        mark = body[token.start()]
        if mark in b"{[":
            levels.append({0: True} if mark == _ARRAY else {})
        elif mark in b"}]" and levels:
            levels.pop()
        elif mark == _COMMA and levels and 0 in levels[-1]:
            levels[-1][len(levels[-1])] = True
        elif mark == _QUOTE and expects_key:
            key = _key(bytes(body[token.start() : token.end()]))
            is_repeated = levels[-1].pop(key, False)
            levels[-1][key] = True  # last: the current key
            if is_repeated and repeated is None:
                repeated = _path(levels)
        expects_key = mark in b"{," and bool(levels) and 0 not in levels[-1]
    return _path(levels) or "body", repeated, True


def _path(levels: list[dict[str | int, bool]]) -> str:
    places = [next(reversed(level)) for level in levels if level]
    return "".join([f"[{at}]" if isinstance(at, int) else f".{at[:KEY_SHOWN]}" for at in places]).removeprefix(".")


def _key(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return token.strip(b'"').decode("utf-8", "replace")


def find_repeated_key(body: Body) -> Refused | None:
    """Return a refusal if an object has a duplicate key, or the body too many tokens."""
    _, repeated, complete = scan(body, len(body))
    if repeated is not None:
        return invalid(repeated, "this key occurs twice in one object")
    return None if complete else invalid("body", f"contains more than {TOKENS} JSON tokens")


def explain(fault: Exception, body: Body, tokens: int = TOKENS, kind: Any = None) -> Refused:
    """The refusal of a body that could not be decoded, as a `kind` if that is known."""
    text = str(fault)
    if isinstance(fault, RecursionError):
        return invalid("body", f"nested deeper than {limits.JSON_DEPTH} levels")
    if isinstance(fault, msgspec.ValidationError):
        return explain_value(text, body, kind)
    if isinstance(fault, UnicodeDecodeError):
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as first:
            return invalid(scan(body, first.start, tokens)[0], f"not valid UTF-8 (byte {first.start})")
    if not body.strip():
        return invalid("body", "expected a JSON object, got nothing")
    if body.startswith(b"\xef\xbb\xbf"):
        return invalid("body", "starts with a byte order mark. Send JSON without one (RFC 8259 8.1).")
    position = int(byte[1]) if (byte := _BYTE.search(text)) else 0
    reason, half = f"not valid JSON (byte {position})", None
    if "truncated" in text:  # msgspec also says this about an unpaired surrogate in the last 12 bytes
        half = _HIGH_HALF.search(mask_escapes(body), max(0, len(body) - 12))
        position, reason = half.start() + 1 if half else len(body), "the JSON ends too early"
    if half or "surrogate" in text:
        position -= 1
        reason = f"half of a surrogate pair (byte {position})"
    elif body[position : position + 2] in (b"Na", b"In"):
        reason = "NaN and Infinity are not JSON numbers"
    return invalid(scan(body, position, tokens)[0], reason)


def explain_value(text: str, body: Body = b"", kind: Any = None) -> Refused:
    path = match[1] if (match := _PATH.search(text)) else ""
    if path.endswith("[...]"):
        path = _entry(path.removesuffix("[...]"), body)
    for pattern, reason in _WRONG_FIELDS:
        if match := pattern.match(text):
            return invalid(f"{path}.{match[1][:KEY_SHOWN]}".removeprefix("."), reason)
    if text.startswith("Invalid enum value") and (values := _allowed(kind, path)):
        return invalid(path or "body", f"must be one of {', '.join(values)}")
    return invalid(path or "body", _reason(text))


def _allowed(kind: Any, path: str) -> list[str]:
    """The values of the enumeration at this path of a type."""
    types = _alternatives(msgspec.inspect.type_info(kind)) if kind is not None else []
    for step in re.findall(r"[^.\[\]]+", path):
        inner = [getattr(one, "item_type", None) for one in types]
        inner += [field.type for one in types for field in getattr(one, "fields", ()) if field.encode_name == step]
        types = [other for one in inner if one is not None for other in _alternatives(one)]
    enums = [value.value for one in types if isinstance(one, msgspec.inspect.EnumType) for value in one.cls]
    literals = [value for one in types if isinstance(one, msgspec.inspect.LiteralType) for value in one.values]
    return [str(value) for value in (*enums, *literals)]


def _alternatives(kind: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return [other for one in kind.types for other in _alternatives(one)]
    return [kind]


def _entry(path: str, body: Body) -> str:
    """Return the path of the invalid entry of `variables`, `headers` or `metadata`: msgspec names only the object."""
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


def _reason(text: str) -> str:
    if wrong := _WRONG_TYPE.match(text):
        named = wrong[1].removesuffix(" | null").split(" | ")
        if "int" in named and "float" not in named:
            named[named.index("int")] = "whole"
        *others, last = dict.fromkeys(words for name, words in _KINDS.items() if name in named) or ("another value",)
        expected = f"{', '.join(others)} or {last}" if others else last
        return f"expected {expected}, got {_KINDS.get(wrong[2], wrong[2])}"
    if wrong := _WRONG_LENGTH.match(text):
        if wrong[2] == ">=" and wrong[3] == "1":
            return "must not be empty"
        bound = "at most" if wrong[2] == "<=" else "at least"
        return f"must have {bound} {wrong[3]} {'characters' if wrong[1] == 'str' else 'entries'}"
    is_number = "out of range" in text or "`int`" in text or "`float`" in text
    return "this number is out of range" if is_number else "this value is not allowed"
