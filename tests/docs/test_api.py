"""docs/api.md and the pages of docs/api/ describe the API: by hand, and in tables generated from `/openapi.json`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config.load import parse
from appliance.errors import Code
from appliance.message import limits
from appliance.message.header_lines import RESERVED_HEADER_PREFIXES, RESERVED_HEADERS
from appliance.model.accounts import Scope
from appliance.web.openapi import document
from appliance.web.operations import PAGE_LIMIT
from tests.docs import api_objects

PAGES = {path.name: path.read_text() for path in api_objects.PAGES}
BY_HAND = {name: api_objects.without_tables(text) for name, text in PAGES.items()}
TEXT = "\n".join(BY_HAND.values())
WHOLE = "\n".join(PAGES.values())
DOCUMENT = document("https://mail.example.com")
OPERATIONS = [f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods]
OBJECTS = api_objects.Objects(DOCUMENT)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
PROPERTIES = sorted({name for schema in SCHEMAS.values() for name in schema.get("properties", ())})
VALUES = sorted(
    {value for schema in SCHEMAS.values() for value in schema.get("enum", ())} - {code.value for code in Code}
)
DEFAULTS = parse("", Path("config.toml"))
LIMITS = {
    "Unique recipients of a message": limits.RECIPIENTS,
    "Entries in one of `to`, `cc`, `bcc`": limits.ADDRESS_ENTRIES,
    "Subject": limits.SUBJECT_LENGTH,
    "Message, assembled": limits.MESSAGE_SIZE,
    "Attachments": limits.ATTACHMENTS,
    "Filename": limits.FILENAME_LENGTH,
    "`content_type`": limits.CONTENT_TYPE_LENGTH,
    "`content_id`": limits.CONTENT_ID_LENGTH,
    "Tags": limits.TAGS,
    "Custom headers": limits.HEADERS,
    "Template variables": limits.VARIABLES,
    "Template alias": limits.ALIAS_LENGTH,
    "Address": limits.ADDRESS_LENGTH,
    "`Idempotency-Key`": limits.KEY_LENGTH,
    "JSON": limits.JSON_VALUES,
    "Page of a list": PAGE_LIMIT,
    "Requests": DEFAULTS.limits.requests_per_second,
    "Connections": DEFAULTS.http.max_connections,
}


def section(page: str, title: str) -> str:
    match = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##?#? |\Z)", BY_HAND[page], re.DOTALL | re.MULTILINE)
    assert match is not None, f"{page} has no section {title!r}"
    return match[2]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_there(operation: str) -> None:
    if operation in ("GET /healthz", "GET /readyz"):
        assert f"`{operation}`" in section("api.md", "Health")
        return
    (page,) = [name for name, text in BY_HAND.items() if f"\n### `{operation}`\n" in text]
    (row,) = [row for row in rows(section("api.md", "All routes")) if row[0] == f"`{operation}`"]
    assert f"](api/{page}#{anchor(operation)})" in row[1]


def test_there_is_no_operation_too_many() -> None:
    listed = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", section("api.md", "All routes"), re.MULTILINE)
    assert sorted(listed) == sorted(OPERATIONS)
    assert set(re.findall(r"^#+ `([A-Z]+ /[^`]*)`$", TEXT, re.MULTILINE)) <= set(OPERATIONS)


def test_every_page_is_linked_from_the_guide() -> None:
    linked = re.findall(r"^\| \[[^]]+\]\(api/([\w-]+\.md)\) \|", section("api.md", "Pages"), re.MULTILINE)
    assert sorted(["api.md", *linked]) == sorted(PAGES)


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_field_is_there(name: str) -> None:
    assert f"`{name}`" in WHOLE


@pytest.mark.parametrize("name", sorted(api_objects.BY_HAND))
def test_a_table_by_hand_has_every_field_of_its_schema(name: str) -> None:
    required = SCHEMAS[name].get("required", ())
    table = {field: row[2] for row in rows(BY_HAND["emails.md"]) for field in re.findall(r"^`(\w+)`$", row[0])}
    for field in SCHEMAS[name]["properties"]:
        assert (table[field] == "yes") == (field in required)


@pytest.mark.parametrize("value", VALUES)
def test_every_value_is_there(value: str) -> None:
    assert f"`{value}`" in WHOLE or f'"{value}"' in TEXT


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.SEND], ids=str)
def test_every_scope_that_reads_a_message_is_named_with_the_route(scope: Scope) -> None:
    (row,) = [row for row in rows(section("api.md", "All routes")) if row[0] == "`GET /emails/{id}`"]
    assert f"`{scope.value}`" in row[2]
    assert f"`{scope.value}`" in DOCUMENT["paths"]["/emails/{id}"]["get"]["description"]


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_every_error_has_its_entry(code: Code) -> None:
    entry = section("errors.md", f"`{code.value}`")
    assert entry.startswith(f"\n**Status:** {code.status}")
    for part in ("Cause", "Fix"):
        assert re.search(rf"^\*\*{part}:\*\* .{{8,}}", entry, re.MULTILINE), part
    (example,) = re.findall(r"^```json\n(.*?)^```$", entry, re.DOTALL | re.MULTILINE)
    assert json.loads(example)["code"] == code.value
    assert sorted(json.loads(example)) == sorted(SCHEMAS["Error"]["properties"])
    (row,) = [row for row in rows(BY_HAND["errors.md"]) if row[1] == f"[`{code.value}`](#{code.value})"]
    assert str(code.status) in row[0].split(", ")


@pytest.mark.parametrize(
    "header",
    [
        "X-Request-ID",
        "Retry-After",
        "WWW-Authenticate",
        "Allow",
        "Idempotency-Key",
        "Idempotent-Replayed",
        "Original-Request-ID",
    ],
)
def test_every_header_is_there(header: str) -> None:
    assert f"`{header}" in TEXT


@pytest.mark.parametrize("parameter", ["limit", "after"])
def test_every_query_parameter_is_there(parameter: str) -> None:
    assert f"`{parameter}`" in section("api.md", "Lists")


@pytest.mark.parametrize("what", LIMITS)
def test_every_limit_is_the_one_that_holds(what: str) -> None:
    (row,) = [row for row in rows(BY_HAND["limits.md"]) if row[0] == what]
    assert f"{LIMITS[what]:,}" in re.findall(r"[\d,]*\d", row[1])


def test_every_reserved_header_is_there() -> None:
    listed = {
        name.lower()
        for name in re.findall(r"`([A-Za-z*-]+)`", section("emails.md", "`POST /emails`").partition("Reserved")[2])
    }
    assert set(RESERVED_HEADERS) | {f"{prefix}*" for prefix in RESERVED_HEADER_PREFIXES} <= listed


@pytest.mark.parametrize("page", api_objects.PAGES, ids=lambda path: path.name)
def test_the_tables_of_objects_are_those_made_from_openapi(page: Path) -> None:
    """The tables of fields are up to date; `python -m tests.docs.api_objects` writes them."""
    assert page.read_text() == api_objects.with_tables(page, OBJECTS)


def test_every_object_has_one_table() -> None:
    shown = [name for text in PAGES.values() for group in api_objects.groups_on(text) for name in group]
    assert sorted([*shown, *api_objects.BY_HAND]) == sorted(name for name in SCHEMAS if "properties" in SCHEMAS[name])


@pytest.mark.parametrize("name", [name for name in SCHEMAS if "properties" in SCHEMAS[name]])
def test_every_field_has_a_description(name: str) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        assert re.fullmatch(r"[A-Z`].+\.", schema["description"], re.DOTALL), field
