"""The send response: every field of the 202, its type and what it says."""

import base64
from typing import Any

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


def test_an_answer_is_not_for_caches(caller: Caller) -> None:
    """Answers are marked as not to be stored and as nothing but JSON."""
    response = caller.post(message())
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
