"""Resend's libraries for Python and Node, unmodified, with only their URL and key changed."""

from typing import Any

import pytest
import resend
from resend.exceptions import ResendError

from tests.e2e.contract.service import eventually
from tests.e2e.doors.libraries import add_template, later, manage_key, mime, node
from tests.e2e.webhooks.customer import Customer

EMAILS: Any = resend.Emails
BATCH: Any = resend.Batch
SIMPLE: dict[str, Any] = {
    "from": "Shop <shop@example.com>",
    "to": ["ada@example.net"],
    "subject": "Hi",
    "text": "Hi Ada",
}
FULL: dict[str, Any] = SIMPLE | {
    "to": ["Ada <ada@example.net>", "bob@example.net"],
    "cc": "carol@example.net",
    "bcc": ["dan@example.net"],
    "html": '<img src="cid:logo">',
    "headers": {"X-Order": "10045"},
    "tags": [{"name": "category", "value": "receipt"}, {"name": "urgent", "value": ""}],
}
REPLY_TO = ["help@example.com", "Sales <sales@example.com>"]


@pytest.fixture
def python(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> Customer:
    monkeypatch.setattr(resend, "api_url", f"{customer.sender.running.url}/resend")
    monkeypatch.setattr(resend, "api_key", customer.sender.account.full_key)
    return customer


def in_node(customer: Customer, key: str, *calls: list[Any]) -> list[Any]:
    url = f"{customer.sender.running.url}/resend"
    results = node("resend", f"new library.Resend('{key}', {{ baseUrl: '{url}' }})", *calls)
    return [result["value"] for result in results]


def check_full(customer: Customer, message_id: str) -> None:
    made = mime(customer, message_id)
    assert (made["To"], made["Cc"], made["Bcc"]) == (
        "Ada <ada@example.net>, bob@example.net",
        "carol@example.net",
        None,
    )
    assert (made["Reply-To"], made["X-Order"]) == (", ".join(REPLY_TO), "10045")
    assert made["X-Service-Tag"] == "category, urgent"
    files = {part.get_filename(): part.get_content() for part in made.walk() if part.get_filename()}
    assert files == {"a.txt": "hello", "logo.png": b"\x89PNG"}
    read = customer.sender.read(message_id)
    assert (read["recipient_count"], read["metadata"]) == (4, {"category": "receipt"})


def test_python_sends_what_it_can(python: Customer) -> None:
    files = [
        {"filename": "a.txt", "content": list(b"hello")},
        {"filename": "logo.png", "content": "iVBORw==", "inline_content_id": "logo"},
    ]
    sent = EMAILS.send(FULL | {"reply_to": REPLY_TO, "attachments": files})
    check_full(python, sent["id"])
    found = eventually(lambda: EMAILS.get(sent["id"]), lambda found: found["last_event"] == "delivered")
    assert (found["cc"], found["bcc"]) == (["carol@example.net"], ["dan@example.net"])
    assert (found["reply_to"], found["html"]) == (REPLY_TO, '<img src="cid:logo">')
    listed = EMAILS.list({"limit": 1})
    assert [one["id"] for one in listed["data"]] == [sent["id"]]
    assert listed["has_more"] is False


def test_python_schedules_and_cancels(python: Customer) -> None:
    sent = EMAILS.send(SIMPLE | {"scheduled_at": later(hours=1)})
    moved = later(hours=2)
    assert EMAILS.update({"id": sent["id"], "scheduled_at": moved})["id"] == sent["id"]
    found = EMAILS.get(sent["id"])
    assert (found["last_event"], found["scheduled_at"]) == ("scheduled", moved)
    assert EMAILS.cancel(sent["id"])["object"] == "email"
    assert EMAILS.get(sent["id"])["last_event"] == "canceled"
    with pytest.raises(ResendError, match="expected an RFC 3339 time"):
        EMAILS.send(SIMPLE | {"scheduled_at": "in 1 min"})


def test_python_sends_batches(python: Customer) -> None:
    add_template(python, "welcome", subject="Hello {{name}}", text="Order {{number}}")
    template = {"id": "welcome", "variables": {"name": "Ada", "number": 7}}
    templated = {"from": "shop@example.com", "to": "ada@example.net", "template": template}
    bad = SIMPLE | {"to": []}
    sent = BATCH.send([templated, bad, SIMPLE], {"batch_validation": "permissive"})
    assert len(sent["data"]) == 2
    assert sent["errors"] == [{"index": 1, "message": "to: must not be empty"}]
    assert mime(python, sent["data"][0]["id"])["Subject"] == "Hello Ada"
    before = python.sender.credits()
    with pytest.raises(ResendError, match=r"emails\[1\].to: must not be empty"):
        BATCH.send([SIMPLE, bad])
    assert python.sender.credits() == before
    first, again = (BATCH.send([SIMPLE], {"idempotency_key": "batch 1"}) for _ in range(2))
    assert first["data"] == again["data"]
    with pytest.raises(ResendError) as refused:
        EMAILS.send(SIMPLE, {"idempotency_key": "batch 1"})
    assert (refused.value.code, refused.value.error_type) == (409, "invalid_idempotent_request")


def test_node_does_it_all(customer: Customer) -> None:
    files = [
        {"filename": "a.txt", "content": {"$bytes": "aGVsbG8="}},
        {"filename": "logo.png", "content": "iVBORw==", "contentId": "logo"},
    ]
    full, when = FULL | {"replyTo": REPLY_TO, "attachments": files}, later(hours=1)
    keyed = {"idempotencyKey": "node 1"}
    key = customer.sender.account.full_key
    sent, again, scheduled, batch, permissive = in_node(
        customer,
        key,
        ["emails.send", full, keyed],
        ["emails.send", full, keyed],
        ["emails.send", SIMPLE | {"scheduledAt": when}],
        ["batch.send", [SIMPLE, SIMPLE]],
        ["batch.send", [SIMPLE, SIMPLE | {"subject": None}], {"batchValidation": "permissive"}],
    )
    check_full(customer, sent["data"]["id"])
    assert (again["data"], again["error"]) == (sent["data"], None)
    assert len({*(one["id"] for one in batch["data"]["data"])}) == 2
    assert [len(permissive["data"][name]) for name in ("data", "errors")] == [1, 1]
    one = scheduled["data"]["id"]
    moved, found, cancelled, listed, newer, newest = in_node(
        customer,
        key,
        ["emails.update", {"id": one, "scheduledAt": later(hours=2)}],
        ["emails.get", one],
        ["emails.cancel", one],
        ["emails.list", {"limit": 2, "after": sent["data"]["id"]}],
        ["emails.list", {"limit": 2, "before": sent["data"]["id"]}],
        ["emails.list", {"limit": 2, "before": permissive["data"]["data"][0]["id"]}],
    )
    between = [one, *(item["id"] for item in batch["data"]["data"])]
    assert [item["id"] for item in newer["data"]["data"]] == between[1::-1]
    assert (newer["data"]["has_more"], newest["data"]) == (True, {"object": "list", "has_more": False, "data": []})
    assert [answer["data"]["id"] for answer in (moved, found, cancelled)] == [one] * 3
    assert found["data"]["last_event"] == "scheduled"
    assert listed["data"] == {"object": "list", "has_more": False, "data": []}


def test_domains(customer: Customer) -> None:
    key, name = manage_key(customer), "mail.example.org"
    added, listed, last, first, found, verified, removed, gone = in_node(
        customer,
        key,
        ["domains.create", {"name": name, "customReturnPath": "send", "openTracking": False}],
        ["domains.list"],
        ["domains.list", {"limit": 1, "before": "z"}],
        ["domains.list", {"before": name}],
        ["domains.get", name],
        ["domains.verify", name],
        ["domains.remove", name],
        ["domains.get", name],
    )
    assert (added["data"]["id"], added["data"]["status"]) == (name, "not_started")
    assert {record["record"] for record in added["data"]["records"]} >= {"DKIM", "SPF"}
    assert [domain["name"] for domain in listed["data"]["data"]] == ["example.com", name]
    pages = [([domain["name"] for domain in page["data"]["data"]], page["data"]["has_more"]) for page in (last, first)]
    assert pages == [([name], True), (["example.com"], False)]
    assert [answer["data"]["id"] for answer in (found, verified, removed)] == [name] * 3
    assert gone["error"]["name"] == "not_found"


REFUSED: list[tuple[str, list[Any], int, str, str]] = [
    ("full", ["emails.send", SIMPLE | {"topicId": "t"}], 422, "validation_error", "topic_id"),
    ("full", ["emails.send", SIMPLE | {"attachments": [{"path": "https://a.example/b.pdf"}]}], 422,
     "invalid_attachment", "attachments[0].path: this server fetches no files"),
    ("full", ["emails.send", SIMPLE | {"scheduledAt": "in 1 min"}], 422, "validation_error", "scheduled_at"),
    ("full", ["emails.send", SIMPLE | {"tags": [{"name": "a", "value": "x" * 600}]}], 422, "validation_error", "tags"),
    ("full", ["emails.send", SIMPLE | {"from": "shop@other.example"}], 403, "validation_error", "other.example"),
    ("full", ["emails.send", SIMPLE | {"subject": None}], 422, "missing_required_field", "subject"),
    ("full", ["emails.get", "msg_" + "0" * 32], 404, "not_found", "No message"),
    ("full", ["emails.list", {"before": "msg_1"}], 422, "validation_error", "before: expected the id of a message"),
    ("full", ["audiences.list"], 404, "not_found", "no lists of contacts"),
    ("full", ["contacts.create", {"email": "a@b.c"}], 404, "not_found", "no lists of contacts"),
    ("full", ["broadcasts.create", {"name": "a", "html": "b"}], 404, "not_found", "no campaigns"),
    ("full", ["apiKeys.list"], 404, "not_found", "dashboard"),
    ("full", ["domains.list"], 401, "restricted_api_key", "scope manage"),
    ("manage", ["domains.create", {"name": "a.example", "openTracking": True}], 422, "validation_error", "open_track"),
    ("manage", ["domains.create", {"name": "a.example", "region": "eu-west-1"}], 422, "validation_error", "region"),
    ("send", ["emails.get", "msg_" + "0" * 32], 401, "restricted_api_key", "may only send"),
    ("wrong", ["emails.send", SIMPLE], 403, "invalid_api_key", "not valid"),
]  # fmt: skip


def test_what_is_refused(customer: Customer) -> None:
    """The error that the library returns names the reason; each is Resend's."""
    account = customer.sender.account
    keys = {"full": account.full_key, "send": account.send_key, "manage": manage_key(customer), "wrong": "re_123"}
    for holder, key in keys.items():
        rows = [row for row in REFUSED if row[0] == holder]
        for (_, _, status, name, part), shown in zip(
            rows, in_node(customer, key, *(row[1] for row in rows)), strict=True
        ):
            error = shown["error"]
            assert (error["statusCode"], error["name"]) == (status, name), error
            assert part in error["message"]


def test_a_call_without_a_key(customer: Customer) -> None:
    answer = customer.sender.client.post("/resend/emails", json=SIMPLE)
    assert (answer.status_code, answer.json()["name"]) == (401, "missing_api_key")
