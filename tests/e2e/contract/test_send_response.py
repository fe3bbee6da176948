"""The send response: every field of the 202, its type and what it says."""

import base64
from typing import Any

import pytest

from tests.e2e.contract.service import Caller, accepted, message

CONTENT = b"%PDF-1.7 \xff"
EVERYTHING: dict[str, Any] = {
    "from": "Shop <shop@example.com>",
    "to": ["Ada <ada@example.net>", "grace@example.net"],
    "cc": "cc@example.net",
    "bcc": ["bcc@example.net"],
    "reply_to": "Help <help@example.org>",
    "subject": "Ihre Bestellung – danke",
    "text": "t",
    "html": "<p>h</p>",
    "headers": {"X-Order": "4711", "List-Id": "Käufe <buyers.example.com>"},
    "tags": ["order", "eu"],
    "attachments": [
        {"filename": "invoice.pdf", "content": base64.b64encode(CONTENT).decode()},
        {"filename": "logo", "content": "", "content_type": "image/png", "content_id": "logo"},
    ],
}
ALWAYS = {
    "id": str,
    "status": str,
    "source": str,
    "request_id": str,
    "from": str,
    "to": list,
    "cc": list,
    "bcc": list,
    "subject": str,
    "billing_status": str,
    "recipient_count": int,
    "credits_reserved": int,
    "headers": dict,
    "tags": list,
    "attachments": list,
}


def test_everything_that_was_sent_is_told(caller: Caller) -> None:
    """A request with every field is answered with every field of the interface, and no other."""
    sent = accepted(caller.post(EVERYTHING))
    assert sent.pop("id").startswith("msg_")
    assert sent.pop("request_id").startswith("req_")
    assert sent == {
        "status": "queued",
        "source": "api",
        "from": "Shop <shop@example.com>",
        "to": ["Ada <ada@example.net>", "grace@example.net"],
        "cc": ["cc@example.net"],
        "bcc": ["bcc@example.net"],
        "reply_to": "Help <help@example.org>",
        "subject": "Ihre Bestellung – danke",
        "billing_status": "reserved",
        "recipient_count": 4,
        "credits_reserved": 4,
        "headers": {"X-Order": "4711", "List-Id": "Käufe <buyers.example.com>"},
        "tags": ["order", "eu"],
        "attachments": [
            {"filename": "invoice.pdf", "content_type": "application/pdf", "size": len(CONTENT)},
            {"filename": "logo", "content_type": "image/png", "size": 0, "content_id": "logo"},
        ],
    }


def test_what_was_not_sent_is_empty(caller: Caller) -> None:
    """The least request is answered with the same fields, empty; only reply_to is left out, having no empty form."""
    sent = accepted(caller.post(message()))
    assert {name: type(value) for name, value in sent.items()} == ALWAYS
    assert (sent["cc"], sent["bcc"], sent["headers"], sent["tags"], sent["attachments"]) == ([], [], {}, [], [])


def test_a_single_tag_is_told_as_a_list(caller: Caller) -> None:
    """tags is a list in the response, whatever it was in the request."""
    assert caller.send(tags="order")["tags"] == ["order"]


@pytest.mark.parametrize("to", ["ada@example.net", "bounce@example.net", "fail@example.net", "defer@example.net"])
def test_a_202_says_queued_and_reserved(caller: Caller, to: str) -> None:
    """Whatever will become of it, an accepted message is queued, from the API, and its credits are reserved."""
    sent = caller.send(to=to)
    assert (sent["status"], sent["source"], sent["billing_status"]) == ("queued", "api", "reserved")


def test_every_request_has_its_own_ids(caller: Caller) -> None:
    """Two requests that differ only in their key make two messages."""
    first, second = caller.send(), caller.send()
    assert first["id"] != second["id"]
    assert first["request_id"] != second["request_id"]


def test_an_answer_is_not_for_caches(caller: Caller) -> None:
    """Answers are marked as not to be stored and as nothing but JSON."""
    response = caller.post(message())
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
