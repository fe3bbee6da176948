"""Paths, keys, queries and headers made to break things: refused with 400 by their name, or carried; never a 500."""

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.contract.service import Caller, any_error, error, message

EXAMPLES = 40
lightly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


def proper(response: httpx.Response) -> bool:
    """Whether it was accepted; anything but a 2xx must be a proper error of the caller's."""
    if response.status_code in (200, 201, 202):
        assert response.json()["request_id"] == response.headers["x-request-id"]
        return True
    any_error(response)
    assert response.status_code < 500
    return False


@lightly
@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=300))
def test_any_idempotency_key_is_accepted_or_refused_properly(caller: Caller, key: str) -> None:
    """Printable ASCII of the right length is a key; anything else is refused by name."""
    stripped = key.strip(" ")  # as HTTP does
    response = caller.client.post(
        "/emails",
        json=message(),
        headers=[
            (b"Authorization", caller.authorization["Authorization"].encode()),
            (b"Idempotency-Key", stripped.encode("latin-1")),
        ],
    )
    right = 1 <= len(stripped) <= 255 and stripped.isascii() and stripped.isprintable()
    if not proper(response):
        assert not right
        assert response.json()["error"].startswith("Idempotency-Key:")
    else:
        assert right


@pytest.mark.parametrize(
    "query",
    ["&".join(["a"] * 101), "&" * 100, "tag=" + "%ff" * 2_001, "tag=" + "%" * 2_001],
    ids=["names", "nothing", "escapes", "percent signs"],
)
def test_a_query_has_its_bounds(customer: Caller, query: str) -> None:
    """More than 100 parameters or 2,000 escapes are 400, and it says so."""
    assert "The query has too many" in error(customer.get(f"/v1/emails?{query}"), 400, "invalid_request")


def test_a_query_of_all_filters_is_answered(customer: Caller) -> None:
    """Each in the longest form that it may have, outside ASCII, and 50 parameters in all."""
    names = {"recipient": "\u00e9" * 120 + "@example.net", "from": "\u00e9" * 120 + "@example.net", "tag": "x" * 64}
    filters = names | {"q": "\U00020000" * 200, "status": "queued", "since": "2026-01-01", "limit": "1"}
    response = customer.get("/v1/emails", params=filters | {f"other{index}": "" for index in range(50 - len(filters))})
    assert response.status_code == 200, response.text


def test_long_fields_that_may_be_ignored_are(customer: Caller) -> None:
    """An answer is neither compressed nor 304 for a field of more than 512 bytes; with a short one it is."""
    etag = customer.get("/dashboard", headers={"Accept-Encoding": "gzip"}).headers["etag"]
    for length, status, encoding in ((512, 304, "gzip"), (513, 200, None)):
        coding = {"Accept-Encoding": "gzip".ljust(length - 2, ",") + ",a"}
        assert customer.get("/dashboard", headers=coding).headers.get("content-encoding") == encoding
        known = {"Accept-Encoding": "gzip", "If-None-Match": etag.ljust(length - 2, ",") + ",a"}
        assert customer.get("/dashboard", headers=known).status_code == status
