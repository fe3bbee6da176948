"""In charge of the names that people give to their keys and credentials."""

from typing import Annotated

from msgspec import Meta

from appliance.errors import invalid
from appliance.message.characters import LINE_PATTERN, fault_in_line

Label = Annotated[str, Meta(max_length=64, examples=["web shop"], extra_json_schema={"pattern": LINE_PATTERN})]


def check_label(name: str) -> str:
    """The name as it is kept; refused when it would not stay on one line."""
    if fault := fault_in_line(name):
        raise invalid("name", f"must not contain {fault}")
    return name.strip()
