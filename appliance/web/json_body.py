"""In charge of the small JSON bodies of /v1: strict, and refused in the same words as those of POST /emails."""

from typing import TypeVar

import msgspec

from appliance.message.json_faults import explain, find_repeated_key

T = TypeVar("T")


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
