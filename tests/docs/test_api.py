"""docs/api.md says what the API is: by hand in all but its last section, which is made from `/openapi.json`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config.load import parse
from appliance.errors import Code
from appliance.message import limits
from appliance.message.header_rules import RESERVED_HEADER_PREFIXES, RESERVED_HEADERS
from appliance.model.accounts import Scope
from appliance.web.field_descriptions import FIELD_DESCRIPTIONS, SCHEMA_FIELD_DESCRIPTIONS
from appliance.web.openapi import document
from appliance.web.operations import PAGE_LIMIT
from tests.docs import api_objects

WHOLE = api_objects.DOCUMENT.read_text()
TEXT = WHOLE.partition(api_objects.HEADING)[0]  # what is written by hand
DOCUMENT = document("https://mail.example.com")
OPERATIONS = [f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods]
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


def section(title: str) -> str:
    """What the document says under one heading, up to the next of its rank or above."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/api.md has no section {title!r}"
    return found[2]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of the tables in a text."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_there(operation: str) -> None:
    """Each method of each path is in the first table and is told about further down."""
    assert TEXT.count(f"`{operation}`") >= 2


def test_there_is_no_operation_too_many() -> None:
    """What the first table lists exists."""
    assert sorted(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", TEXT, re.MULTILINE)) == sorted(OPERATIONS)


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_field_is_there(name: str) -> None:
    """Each property of each schema is explained in words, or shown in an example where words would add nothing."""
    assert f"`{name}`" in TEXT or f'"{name}": ' in TEXT


@pytest.mark.parametrize("name", ["SendRequest", "Attachment", "Receipt", "MessageObject", "RecipientObject"])
def test_every_field_of_a_message_has_its_row(name: str) -> None:
    """The fields of the request, the answer, the message and its recipients stand in tables."""
    heads = {field for row in rows(TEXT) for field in re.findall(r"`(\w+)`", row[0])}
    assert set(SCHEMAS[name]["properties"]) <= heads


@pytest.mark.parametrize("value", VALUES)
def test_every_value_is_there(value: str) -> None:
    """Each status, source, scope and role that an answer may have is named."""
    assert f"`{value}`" in TEXT or f'"{value}"' in TEXT


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.SEND], ids=str)
def test_every_scope_that_reads_a_message_is_named_with_the_route(scope: Scope) -> None:
    """In the list of routes, and in the description of the operation."""
    (row,) = [row for row in rows(TEXT) if row[0] == "`GET /emails/{id}`"]
    assert f"`{scope.value}`" in row[2]
    assert f"`{scope.value}`" in DOCUMENT["paths"]["/emails/{id}"]["get"]["description"]


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_every_error_has_its_row(code: Code) -> None:
    """Each code stands in the table of errors with its status, its meaning, and what to do."""
    (row,) = [row for row in rows(section("Errors")) if row[:2] == [str(code.status), f"`{code.value}`"]]
    assert all(len(cell) > 5 for cell in row[2:])


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
    """Each header that means something is named."""
    assert f"`{header}" in TEXT


@pytest.mark.parametrize("parameter", ["limit", "after"])
def test_every_query_parameter_is_there(parameter: str) -> None:
    """Paging is explained where lists are."""
    assert f"`{parameter}`" in section("Lists")


@pytest.mark.parametrize("what", LIMITS)
def test_every_limit_is_the_one_that_holds(what: str) -> None:
    """The numbers in the table of limits are those of the code."""
    (row,) = [row for row in rows(section("Limits")) if row[0] == what]
    assert f"{LIMITS[what]:,}" in re.findall(r"[\d,]*\d", row[1])


def test_every_reserved_header_is_there() -> None:
    """The list of reserved headers is complete."""
    listed = {name.lower() for name in re.findall(r"`([A-Za-z*-]+)`", section("Sending").partition("Reserved")[2])}
    assert set(RESERVED_HEADERS) | {f"{prefix}*" for prefix in RESERVED_HEADER_PREFIXES} <= listed


def test_links_lead_somewhere() -> None:
    """Every link inside the document names one of its headings."""
    headings = re.findall(r"^#+ (.*)$", WHOLE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", WHOLE)) <= anchors


def test_the_section_of_objects_is_the_one_made_from_openapi() -> None:
    """The tables of fields are up to date; `python -m tests.docs.api_objects` writes them."""
    assert TEXT + api_objects.objects_section(DOCUMENT) == WHOLE


@pytest.mark.parametrize("name", [name for name in SCHEMAS if "properties" in SCHEMAS[name]])
def test_every_field_has_a_description(name: str) -> None:
    """Each property of each schema is described in a sentence."""
    for field, schema in SCHEMAS[name]["properties"].items():
        assert re.fullmatch(r"[A-Z`].+\.", schema["description"], re.DOTALL), field


def test_no_description_is_left_over() -> None:
    """Each description belongs to a field that there is and that its type does not describe already."""
    shown = {
        (name, field["description"]) for each in SCHEMAS.values() for name, field in each.get("properties", {}).items()
    }
    assert set(FIELD_DESCRIPTIONS.items()) <= shown
    for schema, fields in SCHEMA_FIELD_DESCRIPTIONS.items():
        for name, text in fields.items():
            assert SCHEMAS[schema]["properties"][name]["description"] == text
