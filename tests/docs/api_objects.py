"""The last section of docs/api.md, "Objects": a table of fields for each object of `/openapi.json`, made from it.

`python -m tests.docs.api_objects` rewrites the section after a change; tests/docs/test_api.py holds the two equal.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.web.openapi import document

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
HEADING = "\n## Objects\n"
INTRODUCTION = """
Every object of the API with all its fields, made from `/openapi.json`. Fields that are not required may be
left out of a request, and be missing from an answer. A "time" is a string in [RFC 3339](#requests-and-answers).
"""

Json = dict[str, Any]


def objects_section(described: Json) -> str:
    """The section for this OpenAPI document, heading included."""
    schemas = described["components"]["schemas"]
    uses = dict.fromkeys(schemas, "")
    for use, schema in _uses(described["paths"]):
        uses[schema] += f" {use}"
    uses |= {
        _schema_of(event["post"]["requestBody"]): " Posted to webhooks." for event in described["webhooks"].values()
    }
    tables = [_table(name, uses[name], schemas) for name in schemas if "properties" in schemas[name]]
    return "".join([HEADING, INTRODUCTION, *tables])


def _uses(paths: Json) -> Iterator[tuple[str, str]]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            name = f"`{method.upper()} {path}`"
            if "requestBody" in operation:
                yield f"Body of {name}.", _schema_of(operation["requestBody"])
            (success,) = (each for status, each in operation["responses"].items() if status < "300")
            if "application/json" in success["content"]:
                yield f"Answer to {name}.", _schema_of(success)


def _schema_of(message: Json) -> str:
    return _name(message["content"]["application/json"]["schema"]["$ref"])


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _table(name: str, uses: str, schemas: Json) -> str:
    schema = schemas[name]
    rows = [
        f"| `{field}` | {_type(each, schemas)} | {'yes' if field in schema.get('required', ()) else 'no'} "
        f"| {each['description']} |\n"
        for field, each in schema["properties"].items()
    ]
    about = " ".join(schema["description"].split()) + uses
    return f"\n### {name}\n\n{about}\n\n| field | type | required | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def _type(schema: Json, schemas: Json) -> str:
    match schema:
        case {"$ref": reference}:
            name = _name(reference)
            return f"[{name}](#{name.lower()})" if "properties" in schemas[name] else "string"
        case {"anyOf": choices}:
            return " or ".join(dict.fromkeys(_type(each, schemas) for each in choices))
        case {"enum": _} | {"const": _}:
            return "string"
        case {"type": "array", "items": items}:
            return f"array of {_type(items, schemas)}"
        case {"type": "object", "additionalProperties": values}:
            return f"object of {_type(values, schemas)}"
        case {"format": "date-time"}:
            return "time"
        case _:
            return str(schema["type"])


if __name__ == "__main__":
    by_hand = DOCUMENT.read_text().partition(HEADING)[0]
    DOCUMENT.write_text(by_hand + objects_section(document("https://mail.example.com")))
