"""The SendGrid door, as SendGrid's own clients for Node and Python and django-anymail use it."""

import json
import warnings
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
import trio
from python_http_client.exceptions import HTTPError
from sendgrid import SendGridAPIClient
from sendgrid.helpers.eventwebhook import EventWebhook
from sendgrid.helpers.mail import Mail, To

from appliance.model.webhooks import WebhookFormat
from tests import engines
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import verifies
from tests.e2e.delivery.world import world
from tests.e2e.doors.libraries import add_template, manage_key, mime, node
from tests.e2e.webhooks.customer import Customer
from tests.fakes.anymail import configure, tracked
from tests.fakes.mx import FakeMx
from tests.fakes.webhook_server import hooks

SENDER = "shop@example.com"
MAIL: dict[str, Any] = {"from": SENDER, "to": "ada@example.net", "subject": "Hello", "text": "Hi Ada"}


def in_node(url: str, key: str, *calls: list[Any]) -> list[Any]:
    base = f"library.client.setDefaultRequest('baseUrl', '{url}/sendgrid')"
    return node("sendgrid", f"(library.setApiKey('{key}'), {base}, library)", *calls)


def answered(result: Any) -> tuple[int, str]:
    """Status and message id of the response that the client returns first."""
    response = result["value"][0]
    return response["statusCode"], response["headers"]["x-message-id"]


def in_python(customer: Customer, key: str) -> SendGridAPIClient:
    return SendGridAPIClient(key, host=f"{customer.sender.running.url}/sendgrid")


@pytest.mark.slow
async def test_everything_arrives_signed(tmp_path: Path) -> None:
    """Personalizations, substitutions and files at a real MX; a webhook that SendGrid's own verifier accepts."""
    with hooks(tmp_path) as receiver:
        async with world(tmp_path, "[webhooks]" + receiver.settings(tmp_path)) as made:
            server = FakeMx()
            await made.domain("mx.test", server)
            await made.ask("PUT", "/v1/webhook", {"url": receiver.url("/s"), "format": "sendgrid"})
            key = (await made.ask("GET", "/v1/webhook")).json()["webhook"]["public_key"]
            mail = {
                "from": {"email": SENDER, "name": "The Shop"},
                "replyTo": "help@example.com",
                "subject": "Order -number-",
                "text": "Hi -name-",
                "html": '<p>Hi -name-</p><img src="cid:logo">',
                "personalizations": [
                    {
                        "to": {"email": "ada@mx.test", "name": "Lovelace, Ada"},
                        "substitutions": {"name": "Ada", "number": "1"},
                        "customArgs": {"order": "1"},
                        "headers": {"X-Order": "-number-"},
                    },
                    {"to": ["bob@mx.test"], "cc": ["carol@mx.test"], "substitutions": {"name": "Bob", "number": "2"}},
                ],
                "substitutionWrappers": ["-", "-"],
                "categories": ["receipt"],
                "customArgs": {"shop": "a"},
                "sendAt": 1_700_000_000,
                "attachments": [
                    {"content": "AP8=", "filename": "a.bin", "type": "application/x-a", "disposition": "attachment"},
                    {"content": "cG5n", "filename": "l.png", "disposition": "inline", "content_id": "logo"},
                ],
                "mailSettings": {"sandboxMode": {"enable": False}},
                "trackingSettings": {"clickTracking": {"enable": False}, "openTracking": {"enable": False}},
            }  # fmt: skip
            where = made.running.url, made.running.account.full_key
            (sent,) = await trio.to_thread.run_sync(in_node, *where, ["send", mail])
            assert "value" in sent, sent
            assert answered(sent)[0] == 202
            await made.until(lambda: len(receiver.at("/s")) == 3)
            assert all(verifies(got.data, 0, published(made)) for got in server.messages)
            parsed = {
                one["To"]: one
                for one in (message_from_bytes(got.data, policy=policy.default) for got in server.messages)
            }
            ada, bob = parsed['"Lovelace, Ada" <ada@mx.test>'], parsed["bob@mx.test"]
            assert (ada["Subject"], ada["X-Order"], ada["From"]) == ("Order 1", "1", "The Shop <shop@example.com>")
            assert (bob["Subject"], bob["Cc"], bob["Reply-To"]) == ("Order 2", "carol@mx.test", "help@example.com")
            files = {part.get_filename(): part.get_content() for part in ada.walk() if part.get_filename()}
            assert files == {"a.bin": b"\x00\xff", "l.png": b"png"}
            post = next(post for post in receiver.at("/s") if b"ada@mx.test" in post.body)
            name, verifier = "x-twilio-email-event-webhook", EventWebhook()
            signed = post.headers[f"{name}-signature"], post.headers[f"{name}-timestamp"]
            assert verifier.verify_signature(post.body.decode(), *signed, verifier.convert_public_key_to_ecdsa(key))
            event = tracked(WebhookFormat.SENDGRID, post.headers, post.body, key)
            assert (event.event_type, event.tags) == ("delivered", ["receipt"])
            assert {"shop": "a", "order": "1"}.items() <= event.metadata.items()
            (data,) = json.loads(post.body)
            assert data["sg_message_id"] == answered(sent)[1]


ON = {"enable": True}
FILE = {"content": "cG5n", "filename": "l.png"}
REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"asm": {"groupId": 1}}, "asm", "this server has no unsubscribe groups"),
    ({"ipPoolName": "pool"}, "ip_pool_name", "the operator of this server chooses"),
    ({"batchId": "b"}, "batch_id", "this server has no batch ids"),
    ({"sections": {"a": "b"}}, "sections", "this server has no sections"),
    ({"trackingSettings": {"openTracking": ON}}, "tracking_settings.open_tracking", "this server does not track"),
    ({"trackingSettings": {"clickTracking": ON}}, "tracking_settings.click_tracking", "this server does not track"),
    ({"mailSettings": {"footer": {"enable": True, "text": "x"}}}, "mail_settings.footer", "this server adds no footer"),
    ({"mailSettings": {"bypassListManagement": ON}}, "mail_settings.bypass_list_management", "suppressed addresses"),
    ({"templateId": "d-0123456789abcdef", "text": None}, "template_id", "this account has no template"),
    ({"from": "shop@elsewhere.example"}, "from", "the domain elsewhere.example is not registered"),
    ({"to": "nobody"}, "personalizations.0.to.0", "an address needs an @"),
    ({"headers": {"Received": "x"}}, "headers.Received", "this header"),
    ({"headers": {"X-Service-Stream": "news"}}, "headers.X-Service-Stream", "there is no such stream"),
    ({"categories": ["a,b"]}, "categories.0", "a tag has 1 to 64"),
    ({"customArgs": {"a b": "c"}}, "custom_args.a b", "a key has 1 to 64"),
    ({"sendAt": 4_000_000_000}, "send_at", "must be at most 30 days ahead"),
    ({"attachments": [FILE | {"disposition": "inline"}]}, "attachments.0.content_id", "an inline file needs it"),
    ({"attachments": [FILE | {"content": "!"}]}, "attachments.0.content", ""),
    ({"content": [{"type": "text/calendar", "value": "x"}], "text": None}, "content.0.type", "expected text/plain"),
]  # fmt: skip


def test_a_refusal_names_the_field(customer: Customer) -> None:
    """Each feature that the door does not have is an error that the client shows its user."""
    url, key = customer.sender.running.url, customer.sender.account.full_key
    mails = [
        {name: value for name, value in (MAIL | changes).items() if value is not None} for changes, _, _ in REFUSED
    ]
    results = in_node(url, key, *(["send", mail] for mail in mails))
    for (changes, field, text), result in zip(REFUSED, results, strict=True):
        assert "error" in result, changes
        (error,) = result["error"]["body"]["errors"]
        assert (error["field"], error["help"]) == (field, None), (changes, error)
        assert error["message"].startswith(text), (changes, error)
    (wrong,) = in_node(url, "SG.wrong", ["send", MAIL])
    assert wrong["error"]["code"] == 401


def test_a_template_fills_each_message(customer: Customer) -> None:
    add_template(customer, "welcome", subject="Hello {{name}}", text="Hi {{name}}")
    to = [
        To("ada@example.net", dynamic_template_data={"name": "Ada"}),
        To("bob@example.net", dynamic_template_data={"name": "Bob"}),
    ]
    mail = Mail(SENDER, to, is_multiple=True)
    mail.template_id = "welcome"
    answer = in_python(customer, customer.sender.account.full_key).send(mail)
    assert answer.status_code == 202
    assert mime(customer, answer.headers["X-Message-Id"])["Subject"] in ("Hello Ada", "Hello Bob")
    rows = engines.rows(
        customer.sender.running.data_dir,
        f"SELECT subject FROM messages WHERE account_id = '{customer.sender.account.account_id}'",
    )
    assert sorted(rows) == [("Hello Ada",), ("Hello Bob",)]


def test_sandbox_mode_sends_nothing(customer: Customer) -> None:
    (sent,) = in_node(
        customer.sender.running.url,
        customer.sender.account.full_key,
        [
            "send",
            MAIL | {"mailSettings": {"sandboxMode": {"enable": True}}, "attachments": [FILE | {"content_id": ""}]},
        ],
    )
    status, message_id = answered(sent)
    assert (status, customer.sender.read(message_id)["source"]) == (200, "test")


def test_lists_of_suppressions(customer: Customer) -> None:
    client = in_python(customer, manage_key(customer)).client
    for address, origin in (("a@example.net", "bounce"), ("b@example.net", "bounce"), ("c@example.net", "unsubscribe")):
        customer.manager.request("POST", "/v1/suppressions", json={"address": address, "origin": origin})
    bounces = client.suppression.bounces
    assert [entry["email"] for entry in json.loads(bounces.get().body)] == ["a@example.net", "b@example.net"]
    assert json.loads(bounces._("a@example.net").get().body)[0]["email"] == "a@example.net"
    for parameters, listed in (
        ({"offset": 1}, ["b@example.net"]),
        ({"limit": 1, "start_time": 1, "end_time": 2**33}, ["a@example.net"]),
        ({"end_time": 1}, []),
    ):
        assert [entry["email"] for entry in json.loads(bounces.get(query_params=parameters).body)] == listed
    with pytest.raises(HTTPError):
        bounces._("a@example.net").delete(query_params={"email_address": "b@example.net"})
    assert bounces._("a@example.net").delete(query_params={"email_address": "a@example.net"}).status_code == 204
    with pytest.raises(HTTPError) as missing:
        bounces.delete(request_body={"emails": []})
    assert missing.value.to_dict["errors"][0]["field"] == "emails"
    assert bounces.delete(request_body={"emails": ["b@example.net"]}).status_code == 204
    assert json.loads(bounces.get().body) == []
    left = client.asm.suppressions._("global")._("c@example.net")
    assert json.loads(left.get().body) == {"recipient_email": "c@example.net"}
    assert left.delete().status_code == 204
    assert json.loads(left.get().body) == {}
    with pytest.raises(HTTPError) as refused:
        in_python(customer, customer.sender.account.send_key).client.suppression.bounces.get()
    assert refused.value.status_code == 403


def test_django_anymail_sends(customer: Customer) -> None:
    """Merge data becomes substitutions, metadata custom arguments, and each recipient a personalization."""
    configure()
    from anymail.message import AnymailMessage

    with warnings.catch_warnings():  # anymail's authors cannot try SendGrid any more
        warnings.simplefilter("ignore")
        from anymail.backends.sendgrid import EmailBackend

        account, running = customer.sender.account, customer.sender.running
        message = AnymailMessage("Hello *name*", "Hi *name*", SENDER, ["Ada <ada@example.net>", "bob@example.net"])
        message.attach_alternative("<p>Hi *name*</p>", "text/html")
        message.attach("a.ics", "content", "text/calendar")
        message.merge_data = {"ada@example.net": {"name": "Ada"}, "bob@example.net": {"name": "Bob"}}
        message.esp_extra = {"merge_field_format": "*{}*"}
        message.metadata, message.tags, message.track_clicks = {"shop": 1}, ["receipt"], False
        backend = EmailBackend(api_key=account.full_key, api_url=f"{running.url}/sendgrid/v3/")
        assert backend.send_messages([message]) == 1
    rows = engines.rows(
        running.data_dir, f"SELECT subject, metadata FROM messages WHERE account_id = '{account.account_id}'"
    )
    assert {subject for subject, _ in rows} == {"Hello Ada", "Hello Bob"}
    ids = {status.message_id for status in message.anymail_status.recipients.values()}
    assert {json.loads(metadata)["anymail_id"] for _, metadata in rows} == ids
