"""In charge of the small JSON bodies of /v1: strict, and refused in the same words as those of POST /emails."""

import re
from typing import TypeVar

import msgspec

from appliance.errors import Code, Refused
from appliance.message.json_faults import explain, find_repeated_key

T = TypeVar("T")

_JSON_TYPE = re.compile(rb'application/json(?:\s*;\s*charset\s*=\s*"?utf-8"?)?\s*', re.IGNORECASE)


def check_content_type(given: bytes) -> None:
    """Refuse what does not say that it is JSON, or says that it is in other letters than JSON may be."""
    if not _JSON_TYPE.fullmatch(given):
        raise Refused(Code.INVALID_REQUEST, "Content-Type: must be application/json")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type; raises Refused, naming the field, when it is not."""
    try:
        value = decoder.decode(body)
    # UnicodeDecodeError for bad UTF-8 and RecursionError for deep nesting are no DecodeErrors.
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise explain(fault, body) from fault
    if (repeated := find_repeated_key(body)) is not None:
        raise repeated
    return value
