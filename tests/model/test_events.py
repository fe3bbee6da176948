"""In charge of what an event says: fixed bytes, the interface's fields, nothing empty."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from appliance.times import rfc3339
from hypothesis import given
from hypothesis import strategies as st

from appliance.model.events import EVENT_TYPES, envelope
from appliance.model.mail import RecipientStatus

NOW = 1_700_000_000_123_456
FIELDS: dict[str, Any] = {
    "email_id": "msg_1",
    "recipient_id": "rcp_1",
    "to": "b@example.net",
    "envelope_from": "a@example.com",
    "subject": "A subject",
    "smtp_code": 250,
    "smtp_response": "250 OK",
}


def told(status: RecipientStatus = RecipientStatus.DELIVERED, **fields: Any) -> dict[str, Any]:
    """An envelope, read."""
    body: dict[str, Any] = json.loads(envelope("evt_1", status, NOW, **{**FIELDS, **fields}))
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
    """Id, type and time around the data of one recipient."""
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
    """Waiting is not an event."""
    assert set(EVENT_TYPES) == {RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED}


def test_empty_fields_are_left_out() -> None:
    """What there is nothing to say about is not said."""
    data = told(subject="", smtp_code=None, smtp_response=None)["data"]
    assert set(data) == {"email_id", "recipient_id", "to", "from"}
    assert "smtp_response" not in told(smtp_response="")["data"]


def test_long_texts_are_cut() -> None:
    """Subject and response have a length at most, in characters."""
    data = told(subject="ß" * 500, smtp_response="€" * 2_000)["data"]
    assert data["subject"] == "ß" * 200
    assert data["smtp_response"] == "€" * 500


@given(st.text(), st.text(max_size=100))
def test_any_text_survives(subject: str, response: str) -> None:
    """Whatever is in a subject or a reply is data: the envelope stays JSON with the same fields."""
    data = told(subject=subject, smtp_response=response)["data"]
    assert data.get("subject", "") == subject[:200]
    assert data.get("smtp_response", "") == response


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (999, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999_999, "2023-11-14T22:13:20.999Z"),
        (4_102_444_800_000_000, "2100-01-01T00:00:00.000Z"),
    ],
)
def test_times_are_utc_to_the_millisecond(microseconds: int, text: str) -> None:
    """RFC 3339, rounded down, with a Z."""
    assert rfc3339(microseconds) == text


@given(st.integers(0, 7_258_118_400_000_000))
def test_times_are_those_of_the_standard_library(microseconds: int) -> None:
    """Second by second and cached, they are what a datetime says of itself."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert rfc3339(microseconds) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    """Byte for byte what encoding a dict of them gives."""
    email_id, recipient_id, to, sender = names
    data = {
        "email_id": email_id,
        "recipient_id": recipient_id,
        "to": to,
        "from": sender,
        "subject": subject[:200],
        "smtp_code": code,
        "smtp_response": (response or "")[:500],
    }
    data = {name: value for name, value in data.items() if value not in (None, "")}
    body = {"id": "evt_1", "type": EVENT_TYPES[status], "created_at": rfc3339(now), "data": data}
    assert msgspec.json.encode(body) == envelope(
        "evt_1",
        status,
        now,
        email_id=email_id,
        recipient_id=recipient_id,
        to=to,
        envelope_from=sender,
        subject=subject,
        smtp_code=code,
        smtp_response=response,
    )


@given(st.integers(0, 7_258_118_400_000))
def test_every_millisecond_is_written_exactly(milliseconds: int) -> None:
    """No float takes one away, up to the year 2200."""
    assert int(rfc3339(milliseconds * 1000)[20:23]) == milliseconds % 1000
