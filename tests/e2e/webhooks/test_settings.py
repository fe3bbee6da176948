"""The webhook's settings: GET, PUT and DELETE /v1/webhook, and its secret."""

import re
from typing import Any

import httpx
import pytest

from tests.e2e.contract.service import error
from tests.e2e.webhooks.customer import Customer

FIELDS = {"url", "events", "enabled", "format", "secret_hint", "created_at", "updated_at"}
FIELDS |= {"last_success_at", "last_failure_at"}
EVENTS = ["email.delivered", "email.bounced", "email.failed"]


def body_of(response: httpx.Response, status: int = 200) -> Any:
    """The body of an answer whose request id stands in its header, too; without it."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.pop("request_id") == response.headers["x-request-id"]
    return body


def test_there_is_none_at_first(customer: Customer) -> None:
    """GET tells null; what needs a webhook is 404, but for the history, which is empty."""
    assert body_of(customer.request("GET")) == {"webhook": None}
    assert body_of(customer.request("GET", "/deliveries")) == {"deliveries": [], "next": None}
    for method, path in (("DELETE", ""), ("POST", "/rotate-secret"), ("POST", "/ping")):
        error(customer.request(method, path), 404, "not_found")


def test_the_first_save_shows_the_secret(customer: Customer) -> None:
    """PUT answers with the webhook and the secret, of which only the end is ever told again."""
    body = body_of(customer.save())
    secret, webhook = body.pop("secret"), body.pop("webhook")
    assert body == {}
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", secret)
    assert set(webhook) == FIELDS
    assert (webhook["url"], webhook["events"], webhook["enabled"]) == (customer.url, EVENTS, True)
    assert webhook["secret_hint"] == secret[-4:]
    assert webhook["created_at"] == webhook["updated_at"]
    assert webhook["last_success_at"] is webhook["last_failure_at"] is None
    assert body_of(customer.request("GET")) == {"webhook": webhook}


def test_a_further_save_shows_no_secret(customer: Customer) -> None:
    """PUT on a webhook that is there changes what it says, all of it, and keeps secret and age."""
    customer.saved(events=["email.failed"], enabled=False)
    before = customer.webhook()
    assert (before["events"], before["enabled"]) == (["email.failed"], False)
    body = body_of(customer.save(url=f"{customer.url}/other"))
    assert set(body) == {"webhook"}
    after = body["webhook"]
    assert (after["url"], after["events"], after["enabled"]) == (f"{customer.url}/other", EVENTS, True)
    assert (after["secret_hint"], after["created_at"]) == (before["secret_hint"], before["created_at"])
    assert after["updated_at"] > before["updated_at"]
    assert customer.webhook() == after


def test_events_stand_once_and_in_order(customer: Customer) -> None:
    body = body_of(customer.save(events=["email.failed", "email.delivered", "email.failed"]))
    assert body["webhook"]["events"] == ["email.delivered", "email.failed"]


def test_other_events_are_named_to_be_had(customer: Customer) -> None:
    """A webhook that names them has them, and no others; without `events` it is the final results again."""
    wanted = ["email.delayed", "email.late_bounced", "email.complained"]
    assert body_of(customer.save(events=wanted))["webhook"]["events"] == wanted
    assert body_of(customer.save())["webhook"]["events"] == EVENTS


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": ...}, "url"),
        ({"url": 7}, "url"),
        ({"url": ""}, "url"),
        ({"url": "http://hooks.example.net/"}, "url"),
        ({"url": "https://localhost/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://mail.example.com/"}, "url"),
        ({"url": "https://127.0.0.1:25/"}, "url"),
        ({"url": "https://a.example/" + "a" * 2048}, "url"),
        ({"events": []}, "events"),
        ({"events": ["email.opened"]}, "events"),
        ({"events": ["webhook.test"]}, "events"),
        ({"events": "email.failed"}, "events"),
        ({"events": None}, "events"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": None}, "enabled"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_saved(customer: Customer, changes: dict[str, Any], field: str) -> None:
    assert field in error(customer.save(**changes), 400, "invalid_request")
    assert customer.webhook() is None


def test_delete_forgets_the_webhook_and_its_history(customer: Customer) -> None:
    secret = customer.saved()
    customer.sender.delivered()
    old = customer.settled(1)[0]["id"]
    assert body_of(customer.request("DELETE")) == {"deleted": True}
    assert customer.webhook() is None
    assert customer.deliveries() == []
    error(customer.request("DELETE"), 404, "not_found")
    assert customer.saved() != secret
    assert customer.deliveries() == []
    error(customer.request("POST", f"/deliveries/{old}/replay"), 404, "not_found")


def test_rotation_shows_the_new_secret(customer: Customer) -> None:
    """POST rotate-secret answers with nothing but a new secret, which the hint then belongs to."""
    first = customer.saved()
    body = body_of(customer.request("POST", "/rotate-secret"))
    assert set(body) == {"secret"}
    assert body["secret"] != first
    assert customer.webhook()["secret_hint"] == body["secret"][-4:]
