"""Events on their way: what is posted, what the history tells of it, and replays."""

import time
from typing import Any

import pytest
from standardwebhooks import Webhook
from stripe import SignatureVerificationError, WebhookSignature
from svix.webhooks import Webhook as SvixWebhook

from tests.e2e.contract.service import bearer, change, eventually
from tests.e2e.webhooks.customer import Customer
from tests.fakes.webhook_server import Post

pytestmark = pytest.mark.both_engines

FIELDS = {
    "id",
    "event_id",
    "type",
    "message_id",
    "recipient_id",
    "url",
    "trigger",
    "status",
    "attempt",
    "max_attempts",
    "request_body",
    "response_status",
    "response_body",
    "error",
    "duration_ms",
    "created_at",
    "attempted_at",
    "next_attempt_at",
}


def check_signature(post: Post, secret: str) -> None:
    """The libraries of Standard Webhooks, Svix and stripe accept the post."""
    Webhook(secret).verify(post.body, post.headers)
    SvixWebhook(secret).verify(post.body, post.headers)
    assert post.headers["webhook-id"] == post.json()["id"]
    check_stripe(post, secret)


def check_stripe(post: Post, secret: str) -> None:
    """The stripe library accepts the post, and does not accept it altered."""
    header, body = post.headers["service-signature"], post.body.decode()
    assert WebhookSignature.verify_header(body, header, secret, tolerance=300)
    altered = header[:-1] + ("0" if header[-1] != "0" else "1")
    for wrong in ((body + " ", header, secret), (body, altered, secret), (body, header, secret + "x")):
        with pytest.raises(SignatureVerificationError):
            WebhookSignature.verify_header(*wrong, tolerance=300)


@pytest.mark.parametrize(
    ("to", "kind", "code"),
    [
        ("ada@example.net", "email.delivered", 250),
        ("bounce@example.net", "email.bounced", 550),
        ("fail@example.net", "email.failed", 451),
    ],
)
def test_a_result_is_posted(customer: Customer, to: str, kind: str, code: int) -> None:
    """Each kind of result reaches the receiver with the envelope, headers and signature of the interface."""
    secret = customer.saved()
    own: dict[str, Any] = {"tags": ["order"], "metadata": {"order": "10045", "city": "Köln"}}
    message = customer.sender.delivered(to=to, subject="s" * 300, **own)
    (post,) = customer.posts(1)
    event = post.json()
    assert set(event) == {"id", "type", "created_at", "data"}
    assert event["id"].startswith("evt_")
    assert event["type"] == kind
    data = event["data"]
    own |= {"message_id": f"{message['id'].removeprefix('msg_')}@example.com", "stream": "transactional"}
    own |= {"bounce_class": "invalid_recipient"} if kind == "email.bounced" else {}
    assert {name: data.pop(name) for name in own} == own
    assert f"Message-ID: <{own['message_id']}>\r\n".encode() in customer.sender.mime(message["id"])
    assert message["metadata"] == own["metadata"]
    assert set(data) == {"email_id", "recipient_id", "to", "from", "subject", "smtp_code", "smtp_response"}
    assert (data["email_id"], data["to"], data["from"]) == (message["id"], to, "sender@example.com")
    assert data["recipient_id"] == message["recipients"][0]["id"]
    assert (data["subject"], data["smtp_code"]) == ("s" * 200, code)
    assert post.headers["content-type"] == "application/json"
    assert post.headers["user-agent"] == "Service-Webhook/1.0"
    assert int(post.headers["content-length"]) == len(post.body)
    check_signature(post, secret)


def test_the_history_tells_of_it(customer: Customer) -> None:
    """A delivery has exactly the fields of the interface, and the webhook says when it last worked."""
    customer.saved()
    message = customer.sender.delivered()
    (delivery,) = customer.settled(1)
    (post,) = customer.posts(1)
    assert set(delivery) == FIELDS
    assert delivery["id"].startswith("whd_")
    assert delivery["event_id"] == post.json()["id"]
    assert (delivery["type"], delivery["trigger"]) == ("email.delivered", "event")
    assert delivery["message_id"] == message["id"]
    assert delivery["recipient_id"] == message["recipients"][0]["id"]
    assert (delivery["url"], delivery["status"]) == (customer.url, "success")
    assert (delivery["attempt"], delivery["max_attempts"]) == (1, 7)
    assert delivery["request_body"].encode() == post.body
    assert (delivery["response_status"], delivery["response_body"], delivery["error"]) == (200, "ok", None)
    assert delivery["duration_ms"] >= 0
    assert delivery["created_at"] <= delivery["attempted_at"]
    assert delivery["next_attempt_at"] is None
    webhook = customer.webhook()
    assert (webhook["last_success_at"], webhook["last_failure_at"]) == (delivery["attempted_at"], None)


def test_what_another_process_cancels_is_posted(customer: Customer) -> None:
    """A message that is cancelled from the shell while the server runs has its event, too."""
    customer.saved()
    later = customer.sender.send(to="defer@example.net")
    eventually(lambda: customer.sender.read(later["id"]), lambda found: found["recipients"][0]["status"] == "deferred")
    change(customer.sender.running.data_dir, lambda store: store.queue_control.cancel(later["id"], "by the operator"))
    (post,) = customer.posts(1)
    assert (post.json()["type"], post.json()["data"]["email_id"]) == ("email.failed", later["id"])
    assert post.json()["data"]["smtp_response"] == "cancelled: by the operator"


def test_a_test_key_has_its_events(customer: Customer) -> None:
    customer.saved()
    customer.sender.using(bearer(customer.sender.account.test_key)).delivered()
    (post,) = customer.posts(1)
    assert post.json()["type"] == "email.delivered"
    assert "test" not in post.json()["data"]


# ---- pages


def test_the_history_of_one_message(customer: Customer) -> None:
    """`message_id` leaves only that message's deliveries, also over pages; an unknown one leaves none."""
    customer.saved()
    first = customer.sender.delivered(to=["ada@example.net", "bob@example.net"])
    customer.sender.delivered()
    customer.settled(3)
    assert {each["message_id"] for each in customer.deliveries(message_id=first["id"])} == {first["id"]}
    page = customer.request("GET", "/deliveries", params={"message_id": first["id"], "limit": 1}).json()
    assert len(customer.deliveries(message_id=first["id"], before=page["next"])) == 1
    assert customer.deliveries(message_id="msg_0") == []


# ---- replays and pings


def test_a_replay_sends_the_same_bytes(customer: Customer) -> None:
    """Same event id and body, a fresh signature, a delivery of its own beside the first."""
    secret = customer.saved()
    customer.sender.delivered()
    (first,) = customer.settled(1)
    credits = customer.sender.credits()
    time.sleep(1.1)  # so that a fresh signature has another second
    response = customer.request("POST", f"/deliveries/{first['id']}/replay")
    assert response.status_code == 202
    body = response.json()
    assert set(body) == {"delivery", "request_id"}
    begun = body["delivery"]
    assert (begun["trigger"], begun["status"], begun["attempt"]) == ("replay", "pending", 0)
    second, again = customer.settled(2)
    assert again == first
    assert second["id"] == begun["id"] != first["id"]
    same = ("event_id", "type", "message_id", "recipient_id", "request_body")
    assert [second[name] for name in same] == [first[name] for name in same]
    posts = customer.posts(2)
    assert posts[0].body == posts[1].body
    assert posts[0].headers["service-signature"] != posts[1].headers["service-signature"]
    check_signature(posts[1], secret)
    assert customer.sender.credits() == credits


def test_a_ping_is_posted(customer: Customer) -> None:
    """POST ping answers 202 with its delivery; the event is `webhook.test`, says so, and costs nothing."""
    secret = customer.saved(events=["email.failed"])
    credits = customer.sender.credits()
    response = customer.request("POST", "/ping")
    assert response.status_code == 202
    assert set(response.json()) == {"delivery", "request_id"}
    (delivery,) = customer.settled(1)
    assert delivery["id"] == response.json()["delivery"]["id"]
    assert (delivery["trigger"], delivery["type"], delivery["status"]) == ("ping", "webhook.test", "success")
    assert delivery["message_id"] is delivery["recipient_id"] is None
    (post,) = customer.posts(1)
    event = post.json()
    assert (event["id"], event["type"]) == (delivery["event_id"], "webhook.test")
    assert set(event["data"]) == {"test", "subject"}
    assert event["data"]["test"] is True
    check_signature(post, secret)
    assert customer.sender.credits() == credits
