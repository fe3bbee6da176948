"""Decodes the body of POST /emails, and computes its fingerprint for idempotency. Pure: no I/O, no state.

Any bytes become a valid request or a refusal that names the field. Time and memory are linear in the body; a large text
or attachment is never copied whole more than once.
"""

import hashlib
import re
from typing import Any

import msgspec
from msgspec import UNSET

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.json_faults import STRING, explain, mask_escapes, scan
from appliance.message.schema import NullableSendRequest, SendRequest, leave_out_nulls
from appliance.message.template import check_numbers

_DECODER = msgspec.json.Decoder(SendRequest)
_NULLABLE: msgspec.json.Decoder[SendRequest] = msgspec.json.Decoder(NullableSendRequest)
_ENCODER = msgspec.json.Encoder(order="deterministic")
_STRINGS = re.compile(STRING)
_STRING_OR_COMMA = re.compile(STRING + rb"|,")
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_BLOCK = 64 * 1024  # bytes or characters per step
_NEEDED = 3  # times the body's size: its texts, one text being unescaped, and other threads


def decode(body: bytes | bytearray) -> SendRequest:
    """Decode a body of any bytes; raises only Refused and MemoryError."""
    _check_number_of_values(body)
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
        raise explain(cause, body, SendRequest) from cause
    if request.variables is not UNSET and request.variables is not None:
        check_numbers(request.variables)
    if _has_repeated_key(request, body):
        path = scan(body, len(body))[2]
        raise invalid(path or "body", f"{'this' if path else 'a'} key occurs twice in one object")
    leave_out_nulls(request)
    return request


def _check_number_of_values(body: bytes | bytearray) -> None:
    """Refuse millions of tiny values before each becomes an object of 60 bytes or more."""
    if len(body) <= limits.JSON_VALUES or _count(body, b",") <= limits.JSON_VALUES:
        return
    commas = strings = 0
    for token in _STRING_OR_COMMA.finditer(mask_escapes(body)):
        if body[token.start()] == ord(","):
            commas += 1
        else:
            strings += 1
        if commas > limits.JSON_VALUES or strings > 2 * limits.JSON_VALUES + 1:  # a pair has two
            raise invalid("body", f"contains more than {limits.JSON_VALUES} values")


def _has_repeated_key(request: SendRequest, body: bytes | bytearray) -> bool:
    """Return whether msgspec, which keeps the last of two equal keys, dropped one.

    The body and the re-encoded request have the same colons, one per pair plus those in strings, unless a pair was
    dropped. A body with escaped colons is compared without its strings.
    """
    slim, texts = _take_out_long_texts(request) if len(body) > _BLOCK else (request, [])
    again = _ENCODER.encode(slim)
    if b"\\" in body and b"\\u003" in body and _ESCAPED_COLON.search(body):
        return _colons_outside_strings(body) != _colons_outside_strings(again)
    return _count(body, b":") != _count(again, b":") + sum(_count(text, ":") for _, text in texts)


def _colons_outside_strings(body: bytes | bytearray) -> int:
    return _STRINGS.sub(b"", mask_escapes(body)).count(b":")


def _take_out_long_texts(request: SendRequest) -> tuple[SendRequest, list[tuple[str, str]]]:
    """Return the request with its long texts emptied, and those texts: encoding them would copy the body again."""
    bodies = (("text", request.text), ("html", request.html))
    texts = [(name, body) for name, body in bodies if isinstance(body, str) and len(body) > _BLOCK]  # may be null
    changes: dict[str, object] = {name: "" for name, _ in texts}
    if isinstance(request.attachments, list):
        texts += [("content", file.content) for file in request.attachments]
        changes["attachments"] = [msgspec.structs.replace(file, content="") for file in request.attachments]
    return msgspec.structs.replace(request, **changes) if changes else request, texts


def _count(data: Any, mark: Any) -> int:
    """Return `data.count(mark)`; blocks without a mark, such as base64, are skipped ten times faster."""
    if len(data) <= _BLOCK:
        return int(data.count(mark))
    blocks = range(0, len(data), _BLOCK)
    return sum(data.count(mark, at, at + _BLOCK) for at in blocks if data.find(mark, at, at + _BLOCK) >= 0)


def fingerprint(request: SendRequest) -> bytes:
    """Return a SHA-256 that is equal exactly when two requests are equal as JSON.

    Key order, white space and escapes do not matter; 1 equals 1.0; true differs from 1, and `"a"` from `["a"]`. Compute
    it before `draft()`, which releases the contents of attachments. Long texts are hashed first, in pieces, each after
    its name and length; then the request without them.
    """
    slim, texts = _take_out_long_texts(request)
    if not texts and request.variables is UNSET:
        return hashlib.sha256(_ENCODER.encode(request)).digest()
    digest = hashlib.sha256()
    for name, text in texts:
        digest.update(f"{name}{len(text)}:".encode("ascii"))
        for start in range(0, len(text), _BLOCK):
            digest.update(text[start : start + _BLOCK].encode("utf-8"))
    if slim.variables is not UNSET:
        variables = dict(slim.variables)
        for name, value in variables.items():  # 1.0 and 1 are the same number
            if isinstance(value, float) and value.is_integer():
                variables[name] = int(value)
        slim = msgspec.structs.replace(slim, variables=variables)
    digest.update(_ENCODER.encode(slim))
    return digest.digest()
