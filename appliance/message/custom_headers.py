"""In charge of which headers a caller may add to a message."""

import re
from collections.abc import Mapping

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line
from appliance.message.header_lines import encoded_length
from appliance.message.header_rules import is_reserved

_NAME = re.compile(r"[A-Za-z0-9-]{1,76}")


def read_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Judge the caller's headers; spaces around a value are dropped, as every reader of mail would."""
    if len(headers) > limits.HEADERS:
        raise invalid("headers", f"at most {limits.HEADERS} headers are allowed")
    accepted: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        _check_name(name)
        if name.lower() in accepted:
            raise invalid(f"headers.{name}", "the same header, but for upper and lower case, is given twice")
        accepted[name.lower()] = (name, _check_value(name, value))
    return tuple(accepted.values())


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise invalid("headers", "a header's name has 1 to 76 of A-Z, a-z, 0-9 and `-`")
    if is_reserved(name):
        raise invalid(f"headers.{name}", "this header is reserved")


def _check_value(name: str, value: str) -> str:
    if fault := fault_in_line(value):
        raise invalid(f"headers.{name}", f"must not contain {fault}")
    value = value.strip(" ")
    if encoded_length(value) > limits.HEADER_VALUE_LENGTH:
        raise invalid(f"headers.{name}", f"must have at most {limits.HEADER_VALUE_LENGTH} octets after encoding")
    return value
