"""The JSON of an event, and excerpts of bodies in the history of deliveries."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.model.feedback import FeedbackRecipient
from appliance.model.mail import MessageLabels, RecipientStatus
from appliance.model.webhooks import EVENT_TYPES, EXCERPT_BYTES, envelope, excerpt
from appliance.times import rfc3339

NOW = 1_700_000_000_123_456


def whom(message_id: str, recipient_id: str, to: str, sender: str, subject: str) -> FeedbackRecipient:
    return FeedbackRecipient(recipient_id, message_id, "acc_1", to, "example.net", sender, subject, "example.com", ())


def told(
    status: RecipientStatus = RecipientStatus.DELIVERED,
    smtp_code: int | None = 250,
    smtp_response: str | None = "250 OK",
    **fields: str,
) -> dict[str, Any]:
    recipient = replace(whom("msg_1", "rcp_1", "b@example.net", "a@example.com", "A subject"), **fields)
    data = envelope("evt_1", EVENT_TYPES[status], NOW, recipient, MessageLabels(), smtp_code, smtp_response)
    body: dict[str, Any] = json.loads(data)
    return body


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (RecipientStatus.DELIVERED, "email.delivered"),
        (RecipientStatus.BOUNCED, "email.bounced"),
        (RecipientStatus.FAILED, "email.failed"),
    ],
)
def test_an_envelope_has_the_interfaces_fields(status: RecipientStatus, name: str) -> None:
    assert told(status) == {
        "id": "evt_1",
        "type": name,
        "created_at": "2023-11-14T22:13:20.123Z",
        "data": {
            "email_id": "msg_1",
            "recipient_id": "rcp_1",
            "to": "b@example.net",
            "from": "a@example.com",
            "subject": "A subject",
            "smtp_code": 250,
            "smtp_response": "250 OK",
        },
    }


def test_only_final_results_are_events() -> None:
    assert set(EVENT_TYPES) == {RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED}


def test_empty_fields_are_left_out() -> None:
    data = told(subject="", smtp_code=None, smtp_response=None)["data"]
    assert set(data) == {"email_id", "recipient_id", "to", "from"}
    assert "smtp_response" not in told(smtp_response="")["data"]


def test_long_texts_are_cut() -> None:
    data = told(subject="ß" * 500, smtp_response="€" * 2_000)["data"]
    assert data["subject"] == "ß" * 200
    assert data["smtp_response"] == "€" * 500


@given(st.text(), st.text(max_size=100))
def test_any_text_survives(subject: str, response: str) -> None:
    """Whatever is in a subject or a reply is data: the envelope stays JSON with the same fields."""
    data = told(subject=subject, smtp_response=response)["data"]
    assert data.get("subject", "") == subject[:200]
    assert data.get("smtp_response", "") == response


@given(
    st.sampled_from(sorted(EVENT_TYPES)),
    st.integers(0, 7_258_118_400_000_000),
    st.tuples(*[st.text(max_size=5)] * 4),
    st.text(max_size=300),
    st.none() | st.integers(0, 599),
    st.none() | st.text(max_size=600),
)
def test_an_envelope_is_its_fields_in_order_without_the_empty_ones(
    status: RecipientStatus, now: int, names: tuple[str, ...], subject: str, code: int | None, response: str | None
) -> None:
    email_id, recipient_id, to, sender = names
    data = {
        "email_id": email_id,
        "recipient_id": recipient_id,
        "to": to,
        "from": sender,
        "subject": subject[:200],
        "smtp_code": code,
        "smtp_response": (response or "")[:500],
        "message_id": email_id,
    }
    data = {name: value for name, value in data.items() if value not in (None, "")}
    body = {"id": "evt_1", "type": EVENT_TYPES[status], "created_at": rfc3339(now), "data": data}
    assert msgspec.json.encode(body) == envelope(
        "evt_1",
        EVENT_TYPES[status],
        now,
        whom(email_id, recipient_id, to, sender, subject),
        MessageLabels(email_id or None),
        code,
        response,
    )


# ---- excerpts


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b"ok", "ok"),
        ("Grüße".encode(), "Grüße"),
        (b"\xff\x00", "\ufffd\x00"),
        (b"a" * EXCERPT_BYTES, "a" * EXCERPT_BYTES),
        (b"a" * 5000, "a" * EXCERPT_BYTES),
        (b"a" * (EXCERPT_BYTES - 1) + "ü".encode(), "a" * (EXCERPT_BYTES - 1)),
        (b"a" * (EXCERPT_BYTES - 1) + "😀".encode(), "a" * (EXCERPT_BYTES - 1)),
    ],
)
def test_what_is_shown_of_a_body(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


@given(st.binary(max_size=5000))
def test_it_stays_within_its_limit(body: bytes) -> None:
    assert len(excerpt(body).encode()) <= EXCERPT_BYTES
