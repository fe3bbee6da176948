"""In charge of the send request's JSON Schema, with those rules between fields that a schema can say."""

from typing import Any

import msgspec

from appliance.message.fields import Attachment, SendRequest

# At least one kind of content; a template alone or none; variables only beside one; a subject unless a template has it.
_RULES: dict[str, Any] = {
    "anyOf": [
        {"required": ["text"]},
        {"required": ["html"]},
        {"required": ["template"]},
        {"required": ["attachments"], "properties": {"attachments": {"minItems": 1}}},
    ],
    "allOf": [
        {"not": {"required": ["template", "text"]}},
        {"not": {"required": ["template", "html"]}},
        {"anyOf": [{"required": ["subject"]}, {"required": ["template"]}]},
    ],
    "dependentRequired": {"variables": ["template"]},
}


def components(ref_template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """The schemas of `SendRequest` and `Attachment` by name, for the components of an OpenAPI 3.1 document."""
    _, found = msgspec.json.schema_components([SendRequest, Attachment], ref_template=ref_template)
    return {**found, "SendRequest": {**found["SendRequest"], **_RULES}}
