"""django-anymail sends through each door; its tracking views verify and read the events in that provider's format."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anymail.exceptions import AnymailError
from django.core.mail import EmailMultiAlternatives

from appliance.model.webhooks import WebhookFormat
from tests import engines
from tests.e2e.doors.libraries import mime
from tests.e2e.webhooks.customer import Customer
from tests.fakes.anymail import BACKENDS, connection, tracked

# Their messages have another id than ours: the Message-ID, or one that anymail makes.
OTHER_ID = {"mailgun", "sendgrid"}
SCHEDULES = {"resend", "mailgun", "sendgrid"}


def email(customer: Customer, provider: str, **fields: Any) -> Any:
    backend = connection(provider, customer.sender.running.url, customer.sender.account.full_key)
    fields = {"to": ["ada@example.net"], "from_email": "Shop <shop@example.com>"} | fields
    message = EmailMultiAlternatives("Grüße", "Hi", connection=backend, **fields)
    message.attach_alternative("<p>Hi</p>", "text/html")
    return message


@pytest.mark.parametrize("provider", BACKENDS)
def test_it_sends_and_follows_a_message(customer: Customer, provider: str) -> None:
    format = WebhookFormat(provider)
    secret = customer.saved(format=format.value)
    message = email(customer, provider, cc=["carol@example.net"], reply_to=["help@example.com", "sales@example.com"])
    message.attach("a.txt", "hello", "text/plain")
    message.extra_headers["X-Order"] = "10045"
    message.tags, message.metadata = ["receipt"], {"order": "10045"}
    assert message.send() == 1
    status = message.anymail_status
    sent_id = status.message_id
    posts = customer.posts(2)
    key = str(customer.webhook()["public_key"]) if format is WebhookFormat.SENDGRID else secret
    events = [tracked(format, post.headers, post.body, key) for post in posts]
    assert {(event.recipient, event.event_type) for event in events} == {
        ("ada@example.net", "delivered"),
        ("carol@example.net", "delivered"),
    }
    assert {event.message_id for event in events} == {sent_id}
    if provider not in OTHER_ID:
        made = mime(customer, sent_id)
        assert (made["Subject"], made["Cc"], made["X-Order"]) == ("Grüße", "carol@example.net", "10045")
        assert made["Reply-To"] == "help@example.com, sales@example.com"
    if provider != "resend":  # there anymail puts them into headers of its own
        assert [event.tags for event in events] == [["receipt"]] * 2
        assert [event.metadata["order"] for event in events] == ["10045"] * 2


@pytest.mark.parametrize("provider", [name for name in BACKENDS if name in SCHEDULES])
def test_it_schedules(customer: Customer, provider: str) -> None:
    message = email(customer, provider)
    message.send_at = datetime.now(UTC) + timedelta(hours=1)
    assert message.send() == 1
    if provider not in OTHER_ID:
        assert customer.sender.read(message.anymail_status.message_id)["recipients"][0]["status"] == "scheduled"


@pytest.mark.parametrize("provider", [name for name in BACKENDS if name != "resend"])
def test_what_is_refused_is_an_error(customer: Customer, provider: str) -> None:
    message = email(customer, provider)
    message.track_opens = True
    with pytest.raises(AnymailError, match=r"track.* opens"):
        message.send()


@pytest.mark.parametrize("provider", BACKENDS)
def test_a_recipient_of_a_batch_gets_a_message_of_its_own(customer: Customer, provider: str) -> None:
    message = email(customer, provider, to=["ada@example.net", "bob@example.net"])
    message.merge_metadata = {"ada@example.net": {"user": "1"}, "bob@example.net": {"user": "2"}}
    assert message.send() == 1
    sent = {status.message_id for status in message.anymail_status.recipients.values()}
    assert len(sent) == (1 if provider == "mailgun" else 2)  # its messages of one request share the id
    account_id = customer.sender.account.account_id
    rows = engines.rows(
        customer.sender.running.data_dir, f"SELECT metadata FROM messages WHERE account_id = '{account_id}'"
    )
    if provider != "resend":
        assert sorted(json.loads(metadata)["user"] for (metadata,) in rows) == ["1", "2"]
