"""Decodes the body of POST /emails, and fingerprints it for idempotency. Pure: no I/O, no state.

A body may be any bytes: it becomes a request of the right shape or a refusal that names the field. Time and memory
grow with the body and no faster; a large text or attachment is never copied whole more than once.
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
_BLOCK = 64 * 1024  # bytes or characters handled at once
_NEEDED = 3  # times a body's size: its texts, one with escapes that is being unescaped, and what other threads take


def decode(body: bytes | bytearray) -> SendRequest:
    """Decode a body of any bytes; raises Refused when it is no send request, MemoryError, and nothing else."""
    _check_number_of_values(body)
    # msgspec does not check whether it got memory for a text, and crashes. This raises MemoryError in time.
    bytes(_NEEDED * len(body))
    try:
        try:
            request = _DECODER.decode(body)
        except msgspec.ValidationError:
            if b"null" not in body:
                raise
            request = _NULLABLE.decode(body)
    # UnicodeDecodeError for bad UTF-8 and RecursionError for deep nesting are no DecodeErrors.
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
    """Refuse a body of millions of tiny values before each becomes an object of 60 bytes and more."""
    if len(body) <= limits.JSON_VALUES or _count(body, b",") <= limits.JSON_VALUES:
        return
    commas = strings = 0
    for token in _STRING_OR_COMMA.finditer(mask_escapes(body)):
        if body[token.start()] == ord(","):
            commas += 1
        else:
            strings += 1
        if commas > limits.JSON_VALUES or strings > 2 * limits.JSON_VALUES + 1:  # a pair has two
            raise invalid("body", f"holds more than {limits.JSON_VALUES} values")


def _has_repeated_key(request: SendRequest, body: bytes | bytearray) -> bool:
    """Whether msgspec, which keeps the last of two equal keys, dropped one: then the encoded request has fewer pairs.

    The body and the encoded request hold one colon for each pair, and those inside strings; a dropped pair leaves at
    least its own over. Escaped colons would upset the count, so a body that has any is compared without its strings.
    """
    slim, texts = _take_out_long_texts(request) if len(body) > _BLOCK else (request, [])
    again = _ENCODER.encode(slim)
    if b"\\" in body and b"\\u003" in body and _ESCAPED_COLON.search(body):
        return _colons_outside_strings(body) != _colons_outside_strings(again)
    return _count(body, b":") != _count(again, b":") + sum(_count(text, ":") for _, text in texts)


def _colons_outside_strings(body: bytes | bytearray) -> int:
    return _STRINGS.sub(b"", mask_escapes(body)).count(b":")


def _take_out_long_texts(request: SendRequest) -> tuple[SendRequest, list[tuple[str, str]]]:
    """The request with its long texts empty, and those texts: encoding them too would cost another copy of the body."""
    bodies = (("text", request.text), ("html", request.html))
    texts = [(name, body) for name, body in bodies if isinstance(body, str) and len(body) > _BLOCK]  # it may be null
    changes: dict[str, object] = {name: "" for name, _ in texts}
    if isinstance(request.attachments, list):
        texts += [("content", each.content) for each in request.attachments]
        changes["attachments"] = [msgspec.structs.replace(each, content="") for each in request.attachments]
    return msgspec.structs.replace(request, **changes) if changes else request, texts


def _count(data: Any, mark: Any) -> int:
    """`data.count(mark)`, but base64 without any mark is passed over at the speed of memchr, ten times faster."""
    if len(data) <= _BLOCK:
        return int(data.count(mark))
    blocks = range(0, len(data), _BLOCK)
    return sum(data.count(mark, at, at + _BLOCK) for at in blocks if data.find(mark, at, at + _BLOCK) >= 0)


def fingerprint(request: SendRequest) -> bytes:
    """A SHA-256 that is equal exactly when two requests are equal as JSON.

    Order of keys, white space and escapes do not matter; 1 and 1.0 are equal; true and 1, or `"a"` and `["a"]`, are
    not. Take it before `draft()`, which releases the contents of attachments.

    Long texts go first, each behind its name and length and in pieces, so that none is copied whole; then the request
    without them. That begins with a brace, and a name with a letter: no two requests feed the same bytes.
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
