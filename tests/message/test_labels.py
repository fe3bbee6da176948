"""Metadata of a send request: what is accepted, and a 400 that names what is not."""

import json

import pytest

from appliance.errors import Refused
from appliance.message.compose import draft
from appliance.message.request import decode, fingerprint

LIMIT = {f"k{number}": "v" for number in range(20)}


def body(metadata: object) -> bytes:
    fields = {"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t", "metadata": metadata}
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("metadata", "stored"),
    [
        ({"order": "10045", "A_b.c-9": ""}, '{"order":"10045","A_b.c-9":""}'),
        ({"k" * 64: "ü" * 512}, json.dumps({"k" * 64: "ü" * 512}, ensure_ascii=False, separators=(",", ":"))),
        (LIMIT, json.dumps(LIMIT, separators=(",", ":"))),
        ({}, None),
        (None, None),
    ],
)
def test_metadata_is_kept_as_it_is(metadata: object, stored: str | None) -> None:
    assert draft(decode(body(metadata)), None).metadata == stored


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("order", "metadata: expected an object, got a string"),
        ([], "metadata: expected an object, got an array"),
        ({"order": 10045}, "metadata.order: expected a string, got a number"),
        ({"a": "b", "order": None}, "metadata.order: expected a string, got null"),
        ({"order": {"id": "1"}}, "metadata.order: expected a string, got an object"),
        ({"order": "v" * 513}, "metadata.order: must have at most 512 characters"),
        ({"order": "a\nb"}, "metadata.order: must not contain a line feed"),
        ({"order": "a\x00"}, "metadata.order: must not contain a NUL character"),
        (LIMIT | {"one more": "v"}, "metadata: must have at most 20 entries"),
        ({"": "v"}, "metadata: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
        ({"a b": "v"}, "metadata.a b: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
        ({"a\n": "v"}, "metadata.a\n: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
        ({"k" * 65: "v"}, f"metadata.{'k' * 64}: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
    ],
)
def test_a_refusal_names_the_entry(metadata: object, error: str) -> None:
    with pytest.raises(Refused) as refused:
        draft(decode(body(metadata)), None)
    assert refused.value.text == error


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(Refused, match=r"^metadata\.a: this key occurs twice"):
        decode(body({"a": "1", "b": "2"}).replace(b'"b"', b'"a"'))


def test_metadata_is_a_part_of_the_fingerprint() -> None:
    prints = {fingerprint(decode(body(metadata))) for metadata in ({"a": "1"}, {"a": "2"}, {"b": "1"}, None)}
    assert len(prints) == 4
    assert fingerprint(decode(body({"a": "1", "b": "2"}))) == fingerprint(decode(body({"b": "2", "a": "1"})))
