"""Metadata of a send request, and what the headers of a submitted message say: tags, metadata, an idempotency key."""

import gc
import json
import sys
from types import FrameType

import pytest

from appliance.errors import Refused
from appliance.message.compose import draft
from appliance.message.labels import read_labels
from appliance.message.request import decode, fingerprint
from appliance.message.submitted import SubmittedMessage, read, write
from tests.cpu_time import cpu_seconds

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


# ---- over SMTP

OWN = "X-Service-Metadata"


def submitted(*fields: str) -> SubmittedMessage:
    head = ("From: shop@example.com", "Subject: s", *fields, "X-Last: 1", "", "Hello", "")
    return read("shop@example.com", ["ada@example.net"], "\r\n".join(head).encode())


@pytest.mark.parametrize(
    ("fields", "tags", "metadata"),
    [
        ([f"{OWN}: order=1", f"{OWN.lower()}:city = =?utf-8?q?K=C3=B6ln?="], [], {"order": "1", "city": "Köln"}),
        ([f"{OWN}: url=a=b", f"{OWN}: empty="], [], {"url": "a=b", "empty": ""}),
        ([f"{OWN}: a=1", "X-PM-Metadata-a: 2", "X-PM-Metadata-Color: blue"], [], {"a": "1", "Color": "blue"}),
        (["X-PM-Tag: welcome mail", "X-Service-Tag: order"], ["order", "welcome mail"], {}),
        (["X-Mailgun-Tag: a", "X-Mailgun-Tag: b", "X-Mailgun-Tag: a"], ["a", "b"], {}),
        (["X-MC-Tags: a, b,,c", "X-MC-Metadata: {\"id\": 7,\r\n \"on\": true, \"none\": null}"], ["a", "b", "c"],
         {"id": "7", "on": "true"}),
        (['X-Mailgun-Variables: {"id": "1"}', 'X-Mailgun-Variables: {"is": "\\u00fc", "deep": {"a": 1}}'], [],
         {"id": "1", "is": "ü"}),
        (["X-SMTPAPI: {\"category\": \"a\", \"unique_args\": {\"id\": 1}, \"to\": [\"x@y.z\"]}"], ["a"], {"id": "1"}),
        (["X-SMTPAPI: {\"category\": [\"a\", 2, \"b\"], \"unique_args\": []}"], ["a", "b"], {}),
        # What does not fit our rules is left out, and the message accepted.
        (["X-SMTPAPI: {", "X-MC-Metadata: [1]", "X-Mailgun-Variables: " + "[" * 900, "X-SMTPAPI: 7"], [], {}),
        (["X-PM-Tag: ä", f"X-PM-Tag: {'t' * 65}", "X-PM-Tag: a,b"], [], {}),
        (["X-PM-Metadata-: v", f"X-PM-Metadata-a: {'v' * 513}"], [], {}),
        (["X-MC-Tags: " + ",".join(f"t{n}" for n in range(30))], [f"t{n}" for n in range(20)], {}),
        ([f"{OWN}: own{n}=" for n in range(20)] + ["X-PM-Metadata-a: 1"], [], {f"own{n}": "" for n in range(20)}),
        (["X-PM-Message-Stream: b", "X-MC-Track: opens", "X-Mailgun-Dkim: yes", "X-SES-CONFIGURATION-SET: x"], [], {}),
    ],
)  # fmt: skip
def test_headers_are_read_and_removed(fields: list[str], tags: list[str], metadata: dict[str, str]) -> None:
    message = submitted(*fields)
    assert (list(message.tags), json.loads(message.metadata or "{}")) == (tags, metadata)
    mime = write(message, message_id="msg_1", now_seconds=1, hostname="h").lower()
    names = {field.partition(":")[0].lower().encode() for field in fields} - {b"x-service-tag"}
    assert not [name for name in names if name in mime]
    assert b"\r\nx-last: 1\r\n" in mime


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([f"{OWN}: order"], f"{OWN}: expected key=value"),
        ([f"{OWN}: =v"], f"{OWN}: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
        ([f"{OWN}: a b=v"], f"{OWN}.a b: a key has 1 to 64 characters of A-Z, a-z, 0-9 and `_.-`"),
        ([f"{OWN}: a={'v' * 513}"], f"{OWN}.a: must have at most 512 characters"),
        ([f"{OWN}: a=1", f"{OWN}: a=1"], f"{OWN}.a: this key occurs twice"),
        ([f"{OWN}: k{n}=v" for n in range(21)], f"{OWN}: must occur at most 20 times"),
        ([f"Resend-Idempotency-Key: {'k' * 256}"], "Resend-Idempotency-Key: must be 1 to 255 printable"),
    ],
)  # fmt: skip
def test_our_own_header_is_checked(fields: list[str], error: str) -> None:
    with pytest.raises(Refused) as refused:
        submitted(*fields)
    assert refused.value.text.startswith(error)


def test_the_idempotency_key_of_resend_works_unless_there_is_our_own() -> None:
    theirs, ours = submitted("Resend-Idempotency-Key: r1"), submitted("Idempotency-Key: r1")
    assert (theirs.key, ours.key, theirs.fingerprint) == ("r1", "r1", ours.fingerprint)
    assert submitted("Resend-Idempotency-Key: r1", "Idempotency-Key: i1").key == "i1"
    assert submitted("Idempotency-Key: r1", f"{OWN}: a=1").fingerprint != ours.fingerprint


@pytest.mark.parametrize("field", ["X-Mailgun-Tag", "X-MC-Metadata", "X-SMTPAPI", "X-PM-Metadata-{}"])
def test_only_the_first_fields_of_a_provider_are_read(field: str) -> None:
    """Counted in calls of functions, of which none more is made for ten times as many fields."""

    def calls(fields: int) -> int:
        removed = [(field.format(number).encode(), b' {"a": "\xc3\xa4"}') for number in range(fields)]
        made = 0

        def note(_: FrameType, event: str, __: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        gc.disable()  # hypothesis, once loaded, calls functions at every collection
        sys.setprofile(note)
        try:
            read_labels((), removed)
        finally:
            sys.setprofile(None)
            gc.enable()
        return made - fields  # each name is put into lower case

    assert 100 < calls(100) == calls(1_000)


def test_no_header_of_a_provider_takes_long() -> None:
    for names in (["X-Mailgun-Tag: ä"] * 990, ['X-SMTPAPI: {"category": [' + '\r\n "ä",' * 4_900 + ' "a"]}']):
        assert cpu_seconds(lambda names=names: submitted(*names)) < 0.05  # type: ignore[misc]
