"""In charge of the send request's JSON Schema, with those rules between fields that a schema can say."""

from typing import Any

import msgspec

from appliance.message.fields import NullableAttachment, NullableSendRequest


def _given(*names: str) -> dict[str, Any]:
    """All of these are there, and none is null, which is the same as leaving it out."""
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


# At least one kind of content; a template alone or none; variables only beside one; a subject unless a template has it.
_RULES: dict[str, Any] = {
    "anyOf": [
        _given("text"),
        _given("html"),
        _given("template"),
        {"required": ["attachments"], "properties": {"attachments": {"type": "array", "minItems": 1}}},
    ],
    "allOf": [
        {"not": _given("template", "text")},
        {"not": _given("template", "html")},
        {"anyOf": [_given("subject"), _given("template")]},
        {"anyOf": [{"not": _given("variables")}, _given("template")]},
    ],
}


def components(ref_template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """The schemas of `SendRequest` and `Attachment` by name, for the components of an OpenAPI 3.1 document."""
    _, found = msgspec.json.schema_components([NullableSendRequest, NullableAttachment], ref_template=ref_template)
    return {**found, "SendRequest": {**found["SendRequest"], **_RULES}}
