"""In charge of the values a template is filled with: which are allowed, and how each is written."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from msgspec import Meta

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.characters import BODY_PATTERN, fault_in_body, fault_in_line

# 63 bits, since a larger integer fits neither SQLite nor most callers' languages.
WholeNumber = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Meta(extra_json_schema={"pattern": BODY_PATTERN})]
Variable = Text | WholeNumber | float | bool


def check_variables(variables: Mapping[str, Variable]) -> None:
    """Refuse names and values that no template may be filled with."""
    if len(variables) > limits.VARIABLES:
        raise invalid("variables", f"at most {limits.VARIABLES} keys are allowed")
    for name, value in variables.items():
        _check_name(name)
        if isinstance(value, str) and (fault := fault_in_body(value)):
            raise invalid(f"variables.{name}", f"must not contain {fault}")


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= limits.VARIABLE_NAME_LENGTH:
        raise invalid("variables", f"a key has 1 to {limits.VARIABLE_NAME_LENGTH} characters")
    if fault := fault_in_line(name):
        raise invalid("variables", f"a key must not contain {fault}")


def written(value: Variable) -> str:
    """The text a value becomes: numbers and booleans as JavaScript writes them, so `1.0` is `1`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return _written_float(value)


def _written_float(value: float) -> str:
    """ECMA-262 6.1.6.1.20, Number::toString: Python agrees on the digits, not on where exponents begin."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("not a finite number")  # JSON has none, so decode() lets none through
    if not any(digits):
        return "0"
    text = "".join(map(str, digits))
    point = len(text) + exponent  # how many digits stand before the decimal point
    return "-" * sign + _placed(text, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
