"""Input made to break things: refused with 400 by the field's name, or carried harmlessly; never a 500."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.contract.service import Caller, any_error, error, message

EXAMPLES = 40
FILE = {"filename": "a.txt", "content": "aGk="}
CONTROLS = ["\0", "\x01", "\x08", "\x0b", "\x0c", "\x1b", "\x1f", "\x7f", "\x80", "\x85", "\x9f"]

# Every place of a send request that holds text, and how it gets there.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "from": lambda text: message(from_=text),
    "from name": lambda text: message(from_=f"{text} <a@example.com>"),
    "to": lambda text: message(to=text),
    "to list": lambda text: message(to=["a@example.net", text]),
    "to local part": lambda text: message(to=f"{text}@example.net"),
    "to domain": lambda text: message(to=f"a@{text}.example"),
    "cc": lambda text: message(cc=text),
    "bcc": lambda text: message(bcc=[text]),
    "reply_to": lambda text: message(reply_to=text),
    "subject": lambda text: message(subject=text),
    "text": lambda text: message(text=text),
    "html": lambda text: message(html=text),
    "template": lambda text: message(text=..., template=text),
    "variable name": lambda text: message(text=..., template="hostile", variables={"v": "x", text: 1}),
    "variable value": lambda text: message(text=..., subject=..., template="hostile", variables={"v": text}),
    "header name": lambda text: message(headers={text: "x"}),
    "header value": lambda text: message(headers={"X-A": text}),
    "tags": lambda text: message(tags=text),
    "tag list": lambda text: message(tags=["a", text]),
    "filename": lambda text: message(attachments=[FILE | {"filename": text}]),
    "content": lambda text: message(attachments=[FILE | {"content": text}]),
    "content_type": lambda text: message(attachments=[FILE | {"content_type": text}]),
    "content_id": lambda text: message(attachments=[FILE | {"content_id": text}]),
    "field name": lambda text: message() | {text: "x"},
}

hostile_text = st.one_of(
    st.text(st.characters(), max_size=80),  # surrogates too
    st.text(
        st.sampled_from([*CONTROLS, *"\r\n\t \"'\\<>@,;:=?_{}[]().%&", "\u2028", "\ufeff", "ä", "😀", "\u202e"]),
        max_size=30,
    ),
    st.lists(
        st.sampled_from(
            [
                "\r\nBcc: evil@example.net",
                "=?utf-8?q?a=0ABcc:_x?=",
                "=?utf-8?b?DQpCY2M6IHg=?=",
                "{{v}}",
                "a@example.net",
                "Name <a@example.com>",
                "<script>",
                "' OR 1=1 --",
                "../../etc/passwd",
                "\n.\n",
                "x" * 1000,
                "%0d%0a",
                "a;b=c",
            ]
        ),
        max_size=4,
    ).map("".join),
)
lightly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


@pytest.fixture(scope="module", autouse=True)
def template(customer: Caller) -> None:
    body = {"subject": "s{{v}}", "text": "t{{v}}", "html": "<p>{{v}}</p>"}
    assert customer.request("PUT", "/v1/templates/hostile", json=body).status_code == 200


def proper(response: httpx.Response) -> bool:
    """Whether it was accepted; anything but a 2xx must be a proper error of the caller's."""
    if response.status_code in (200, 201, 202):
        assert response.json()["request_id"] == response.headers["x-request-id"]
        return True
    any_error(response)
    assert response.status_code < 500
    return False


# ---- any text anywhere


@pytest.mark.parametrize("place", PLACES)
@lightly
@given(text=hostile_text)
def test_any_text_is_accepted_or_refused_properly(caller: Caller, place: str, text: str) -> None:
    """Whatever text stands in a field, the answer is a 202 or a 4xx with the error object."""
    proper(caller.post(PLACES[place](text)))


@pytest.mark.parametrize(
    "path",
    ["/emails/{}", "/v1/templates/{}", "/v1/suppressions/{}", "/v1/templates?after={}", "/v1/suppressions?limit={}"],
)
@lightly
@given(data=st.binary(max_size=40))
def test_any_bytes_in_a_path_are_answered_properly(customer: Caller, path: str, data: bytes) -> None:
    url = path.format("".join(f"%{octet:02x}" for octet in data))
    for method in ("GET", "DELETE"):
        proper(customer.request(method, url))


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


# ---- characters that break lines


# ---- JSON bombs


@pytest.mark.parametrize(
    "query",
    ["&".join(["a"] * 101), "&" * 100, "tag=" + "%ff" * 2_001, "tag=" + "%" * 2_001],
    ids=["names", "nothing", "escapes", "percent signs"],
)
def test_a_query_has_its_bounds(customer: Caller, query: str) -> None:
    """More than 100 parameters or 2,000 escapes are 400, and it says so."""
    assert "The query has too many" in error(customer.get(f"/v1/emails?{query}"), 400, "invalid_request")


def test_a_query_of_all_filters_is_answered(customer: Caller) -> None:
    """Each in the longest form that it may have, outside ASCII, and 100 parameters in all."""
    names = {"recipient": "\u00e9" * 120 + "@example.net", "from": "\u00e9" * 120 + "@example.net", "tag": "x" * 64}
    filters = names | {"q": "\U00020000" * 200, "status": "queued", "since": "2026-01-01", "limit": "1"}
    response = customer.get("/v1/emails", params=filters | {f"other{index}": "" for index in range(100 - len(filters))})
    assert response.status_code == 200, response.text


def test_long_fields_that_may_be_ignored_are(customer: Caller) -> None:
    """An answer is neither compressed nor 304 for a field of more than 512 bytes; with a short one it is."""
    etag = customer.get("/dashboard", headers={"Accept-Encoding": "gzip"}).headers["etag"]
    for length, status, encoding in ((512, 304, "gzip"), (513, 200, None)):
        coding = {"Accept-Encoding": "gzip".ljust(length - 2, ",") + ",a"}
        assert customer.get("/dashboard", headers=coding).headers.get("content-encoding") == encoding
        known = {"Accept-Encoding": "gzip", "If-None-Match": etag.ljust(length - 2, ",") + ",a"}
        assert customer.get("/dashboard", headers=known).status_code == status
