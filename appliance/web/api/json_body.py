"""In charge of the small JSON bodies of /v1: strict, and refused in the same words as those of POST /emails."""

import re
from typing import TypeVar

import msgspec

from appliance.errors import Code, Refused
from appliance.message.json_faults import explain, find_repeated_key

T = TypeVar("T")

_SHOWN = 40  # characters of a header repeated in a sentence

_JSON_TYPE = re.compile(rb"application/json\s*(?:;\s*charset\s*=\s*\"?([^\s\";]{1,40})\"?\s*)?;?", re.IGNORECASE)


def check_content_type(given: bytes) -> None:
    """Refuse what does not say that it is JSON, or says that it is in other letters than JSON may be (RFC 8259 8.1)."""
    found = _JSON_TYPE.fullmatch(given)
    if found is None:
        raise Refused(Code.INVALID_REQUEST, "Content-Type: must be application/json")
    charset = (found[1] or b"utf-8").decode("ascii", "replace")
    if charset.lower() not in ("utf-8", "utf8"):
        raise Refused(Code.INVALID_REQUEST, f"Content-Type: the charset {charset} is not supported; send UTF-8")


def check_encoding(given: bytes | None) -> None:
    """Refuse a body that is compressed or otherwise encoded: a small one could become any size."""
    if given is not None and given.strip().lower() not in (b"", b"identity"):
        name = given.strip()[:_SHOWN].decode("ascii", "replace")
        raise Refused(Code.INVALID_REQUEST, f"Content-Encoding: {name} is not supported; send the body as it is")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type; raises Refused, naming the field, when it is not."""
    try:
        value = decoder.decode(body)
    # UnicodeDecodeError for bad UTF-8 and RecursionError for deep nesting are no DecodeErrors.
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise explain(fault, body, decoder.type) from fault
    if (repeated := find_repeated_key(body)) is not None:
        raise repeated
    return value
