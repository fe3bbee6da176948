"""Strangers at the doors: whatever they send, the answer is a refusal in the provider's shape, and never a 500."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.e2e.webhooks.customer import Customer

MIB = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """A door's route that sends, with a request that it accepts, the header of its key, and the keys of its errors."""

    path: str
    body: dict[str, Any]
    authorized: Callable[[str], dict[str, str]]
    error: set[str]
    lists: str  # a field with addresses
    batch: str
    content_type: str = "application/json"
    encode: Callable[[Any], str] = json.dumps
    status: int = 200
    login: str = "Authorization: Bearer ma_live_"  # part of the advice for a request without a key
    repeats: bool = False  # whether its idempotency keys work

    def message_id(self, answer: httpx.Response) -> str:
        return str(re.findall("msg_[0-9a-f]{32}", f"{answer.headers.get('x-message-id')} {answer.text}")[0])


def _mail(to: Any) -> dict[str, Any]:
    sender = {"email": "shop@example.com"}
    content = [{"type": "text/plain", "value": "Hi"}]
    return {"from": sender, "personalizations": [{"to": to}], "subject": "Hi", "content": content}


DOORS = {
    "resend": Entry(
        "/resend/emails",
        {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hi", "text": "Hi"},
        lambda key: {"Authorization": f"Bearer {key}"},
        {"statusCode", "name", "message"},
        "to",
        "/resend/emails/batch",
        repeats=True,
    ),
    "postmark": Entry(
        "/postmark/email",
        {"From": "shop@example.com", "To": "ada@example.net", "Subject": "Hi", "TextBody": "Hi"},
        lambda key: {"X-Postmark-Server-Token": key},
        {"ErrorCode", "Message"},
        "To",
        "/postmark/email/batch",
        login="X-Postmark-Server-Token: ma_live_",
    ),
    "mailgun": Entry(
        "/mailgun/v3/example.com/messages",
        {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hi", "text": "Hi"},
        lambda key: {"Authorization": f"Basic {b64encode(f'api:{key}'.encode()).decode()}"},
        {"message"},
        "to",
        "/mailgun/v3/example.com/messages.mime",
        "application/x-www-form-urlencoded",
        login="the user api, and an API key",
        encode=lambda body: urlencode(body if isinstance(body, dict) else [("to", "ada@example.net")] * len(body)),
    ),
    "sendgrid": Entry(
        "/sendgrid/v3/mail/send",
        _mail([{"email": "ada@example.net"}]),
        lambda key: {"Authorization": f"Bearer {key}"},
        {"errors"},
        "personalizations",
        "/sendgrid/v3/mail/send",
        status=202,
    ),
}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Entry:
    return DOORS[request.param]


class Stranger:
    def __init__(self, customer: Customer, door: Entry) -> None:
        self.client, self.door = customer.sender.client, door
        self.key = door.authorized(customer.sender.account.full_key)

    def post(self, content: bytes, path: str = "", **headers: str) -> httpx.Response:
        sent = {"Content-Type": self.door.content_type} | self.key | headers
        return self.client.post(path or self.door.path, content=content, headers=sent)

    def refused(self, answer: httpx.Response, *statuses: int) -> None:
        assert answer.status_code in statuses, answer.text
        assert set(answer.json()) == self.door.error
        assert "x-request-id" in answer.headers


@pytest.fixture
def stranger(customer: Customer, door: Entry) -> Stranger:
    return Stranger(customer, door)


HOSTILE = [
    *(b"", b"{", b"[]", b"null", b"7", b'"a"', b"\xff", b"\xef\xbb\xbf{}", b"{}" * 2, b'{"a": NaN}', b'{"\\ud800": 1}'),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"[" + b"{}," * 300_000 + b"{}]",
    b'{"to": [' + b'"a",' * 300_000 + b'"a"]}',
    b'{"attachments": [' + b"[1,2]," * 100_000 + b"[]]}",
    b"9" * 200_000,
]


def test_hostile_json_is_refused(stranger: Stranger) -> None:
    for path in (stranger.door.path, stranger.door.batch):
        for body in HOSTILE:
            stranger.refused(stranger.post(body, path), 400, 413, 422)


def test_hostile_fields_are_refused(stranger: Stranger) -> None:
    door, text = stranger.door, "a@example.net, " * 100_000
    for value in (text, '"' * 100_000, '\\"' * 50_000, "<" * 100_000, "\r\nBcc: a@b.c", "a@b.c\0"):
        stranger.refused(stranger.post(door.encode(door.body | {door.lists: value}).encode()), 400, 422)
    stranger.refused(stranger.post(door.encode([door.body] * 501).encode(), door.batch), 400, 422)


def test_wrong_requests_are_refused(stranger: Stranger) -> None:
    door, client = stranger.door, stranger.client
    good, kind = door.encode(door.body).encode(), {"Content-Type": door.content_type}
    stranger.refused(stranger.post(good, **{"Content-Type": "text/plain"}), 400, 422)
    stranger.refused(stranger.post(good, **{"Content-Encoding": "gzip"}), 400, 422)
    stranger.refused(stranger.post(b" " * 17 * MIB), 413)
    missing = client.post(door.path, content=good, headers=kind)
    stranger.refused(missing, 401)
    assert door.login in missing.text
    for key in ("x", "é", "ma_live_" + "a" * 5_000):
        headers: Any = {name: value.encode("utf-8") for name, value in door.authorized(key).items()}
        stranger.refused(client.post(door.path, content=good, headers=headers | kind), 401, 403)
    root = door.path.split("/")[1]
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("", "/", "/nowhere", "//", "/%00"):
            stranger.refused(client.request(method, f"/{root}{path}", headers=stranger.key), 404)
    assert client.head(f"/{root}/nowhere", headers=stranger.key).status_code == 404
    stranger.refused(stranger.post(good, f"{door.path}?a=b"), 400, 422)


def test_added_slashes_and_many_at_once(stranger: Stranger, customer: Customer) -> None:
    """Each is accepted by itself, and with one key where the provider has keys, once."""
    door, before = stranger.door, customer.sender.credits()
    assert before is not None
    good = door.encode(door.body).encode()
    assert stranger.post(good, f"{door.path}/").status_code == door.status
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda _: stranger.post(good, **{"Idempotency-Key": "one"}), range(30)))
    ids = {door.message_id(answer) for answer in answers if answer.status_code == door.status}
    assert len(ids) == (1 if door.repeats else 30)
    assert {answer.status_code for answer in answers} <= {door.status, 409}
    assert before - int(customer.sender.credits() or 0) == 1 + len(ids)


def test_the_stream_of_the_key_counts(stranger: Stranger, customer: Customer) -> None:
    """A door without a field for it sends by the key's stream: here one that this server cannot keep, without https."""
    key = customer.manager.request("POST", "/v1/api-keys", json={"stream": "broadcast"}).json()["key"]
    answer = stranger.post(stranger.door.encode(stranger.door.body).encode(), **stranger.door.authorized(key))
    stranger.refused(answer, 400, 422)
    assert "messages of the stream broadcast have an unsubscribe link" in answer.text


FILE = {"content": "YQ==", "filename": "a"}


@pytest.mark.parametrize(
    ("door", "changes", "part"),
    [
        ("resend", {"metadata": {}}, "metadata: there is no such field"),
        ("resend", {"template": {"id": 7}}, "template.id: expected a string"),
        ("resend", {"template": {"id": "a", "variables": []}}, "template.variables: expected an object"),
        ("postmark", {"subject": "Hi"}, "subject: there is no such field"),
        ("mailgun", {"o:deliverytime": "\u0661"}, "o:deliverytime: expected a date"),
        ("sendgrid", {"text": "Hi"}, '"field":"text"'),
        ("sendgrid", {"attachments": [FILE | {"type": "x"}]}, '"field":"attachments.0.type"'),
        ("sendgrid", {"attachments": [FILE | {"content_id": "a"}]}, '"field":"attachments.0.content_id"'),
    ],
)
def test_an_error_has_the_name_that_the_client_wrote(
    customer: Customer, door: str, changes: dict[str, Any], part: str
) -> None:
    stranger = Stranger(customer, DOORS[door])
    answer = stranger.post(stranger.door.encode(stranger.door.body | changes).encode())
    stranger.refused(answer, 400, 422)
    assert part in answer.text
