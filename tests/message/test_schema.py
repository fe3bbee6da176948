"""The published schema: what the server accepts is valid by it, and what it can say is said."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Refused
from appliance.message.schema import components
from appliance.model.mail import StoredTemplate
from tests.message.samples import body, drafted, hostile_text, line_text

SCHEMA = {**components("#/$defs/{name}")["SendRequest"], "$defs": components("#/$defs/{name}")}
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)


def valid(value: object) -> bool:
    return bool(VALIDATOR.is_valid(value))


def test_references_resolve() -> None:
    found = components()
    assert set(found) == {"SendRequest", "Attachment"}
    assert set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(found))) == {"#/components/schemas/Attachment"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"to": ["Ada <a@x.test>"], "cc": [], "bcc": "b@x.test", "reply_to": "r@x.test"},
        {"from": '"Lovelace, Ada" <a@müller.example>'},
        {"text": "a\r\nb\tc\n", "tags": "one tag"},
        {
            "attachments": [
                {"filename": "a b.pdf", "content": "QQ==", "content_type": 'a/b; c=d; e="f g"', "content_id": "x"}
            ]
        },
        {"headers": {"X-A": "é"}, "tags": ["a", "b"]},
        {"text": None, "attachments": [{"filename": "a", "content": ""}]},
    ],
)
def test_accepted_by_both(fields: dict[str, Any]) -> None:
    assert valid(body(**fields))
    drafted(None, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"from": None}, {"to": None}, {"to": []}, {"to": ""}, {"to": "x"}, {"subject": "a\nb"}, {"subject": "x" * 501},
        {"text": "a\rb"}, {"text": 1}, {"unknown": 1}, {"text": None, "template": "T"}, {"headers": {"X A": "b"}},
        {"headers": {"X": 1}}, {"tags": "a,b"}, {"tags": ["t"] * 21},
        {"attachments": [{"filename": "a/b", "content": ""}]}, {"attachments": [{"filename": "a", "content": "Q"}]},
        {"attachments": [{"filename": "a", "content": "", "content_type": 'a/b; c="d\\"'}]},
        {"attachments": [{"filename": "a", "content": ""}] * 21},
    ],
)  # fmt: skip
def test_refused_by_both(fields: dict[str, Any]) -> None:
    assert not valid(body(**fields))
    with pytest.raises(Refused):
        drafted(None, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"subject": None}, {"text": None}, {"variables": {}}, {"template": "t"}, {"text": None, "attachments": []}],
)
def test_rules_between_fields_are_in_words(fields: dict[str, Any]) -> None:
    """Rules about several fields are the server's and the description's alone: no keyword for them is at the root."""
    assert valid(body(**fields))
    with pytest.raises(Refused):
        drafted(None, **fields)
    assert not {"anyOf", "allOf", "oneOf", "not", "if"} & set(SCHEMA)
    assert set(fields) <= set(re.findall(r"`(\w+)`", SCHEMA["description"]))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "to": st.builds(
                "{} <{}@{}>".format, line_text, st.sampled_from("aé+"), st.sampled_from(["x.test", "ü.de"])
            ),
            "subject": hostile_text,
            "text": hostile_text,
            "headers": st.dictionaries(st.sampled_from(["X-A", "From", "x"]), hostile_text, max_size=2),
            "tags": hostile_text | st.lists(hostile_text, max_size=2),
            "attachments": st.lists(
                st.fixed_dictionaries(
                    {"filename": hostile_text, "content": st.sampled_from(["", "QQ==", "QQ"])},
                    optional={"content_type": hostile_text | st.just("a/b"), "content_id": hostile_text},
                ),
                max_size=2,
            ),
        },
    )
)
def test_whatever_is_accepted_is_valid(fields: dict[str, Any]) -> None:
    try:
        drafted(StoredTemplate("t", 1, None, "x", None, 0, 0), **fields)
    except Refused:
        return
    assert valid(body(**fields))
