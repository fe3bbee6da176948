"""Checks what a sender attaches to a message for itself: metadata. Pure: no I/O, no state."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line
from appliance.message.schema import METADATA_KEY

_KEY: Final = re.compile(METADATA_KEY)
_KEY_SHOWN: Final = 64  # characters of a wrong key quoted in an error
_encoder = msgspec.json.Encoder()


def read_metadata(pairs: Mapping[str, str], field: str = "metadata") -> str | None:
    """Check metadata and return it as JSON; None if it is empty."""
    if len(pairs) > limits.METADATA:
        raise invalid(field, f"must have at most {limits.METADATA} entries")
    for key, value in pairs.items():
        if not _KEY.fullmatch(key):
            reason = f"a key has 1 to {limits.METADATA_KEY_LENGTH} characters of A-Z, a-z, 0-9 and `_.-`"
            raise invalid(f"{field}.{key[:_KEY_SHOWN]}" if key else field, reason)
        if len(value) > limits.METADATA_VALUE_LENGTH:
            raise invalid(f"{field}.{key}", f"must have at most {limits.METADATA_VALUE_LENGTH} characters")
        if fault := fault_in_line(value):
            raise invalid(f"{field}.{key}", f"must not contain {fault}")
    return _encoder.encode(dict(pairs)).decode() if pairs else None
