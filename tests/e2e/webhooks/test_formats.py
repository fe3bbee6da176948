"""Events in other providers' formats, as the running program posts them: their own libraries verify and read them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sendgrid.helpers.eventwebhook import EventWebhook
from svix.webhooks import Webhook as SvixWebhook

from appliance.model.webhooks import WebhookFormat
from tests.e2e.contract.service import error
from tests.e2e.webhooks.customer import Customer
from tests.e2e.webhooks.test_deliveries import check_stripe
from tests.fakes.anymail import tracked
from tests.programs import require

OTHERS = [each for each in WebhookFormat if each is not WebhookFormat.NATIVE]
# Both libraries of Node: their verdicts on a post, and on one that was altered.
NODE = """
const { Resend } = require(process.argv[2]), { EventWebhook } = require(process.argv[3]);
const { format, body, headers, secret, key } = JSON.parse(require("fs").readFileSync(0));
function verified(payload) {
    if (format === "sendgrid") {
        const verifier = new EventWebhook(), name = "x-twilio-email-event-webhook";
        const signed = [headers[`${name}-signature`], headers[`${name}-timestamp`]];
        return verifier.verifySignature(verifier.convertPublicKeyToECDSA(key), payload, ...signed);
    }
    const given = Object.fromEntries(["id", "timestamp", "signature"].map((each) => [each, headers[`svix-${each}`]]));
    try {
        new Resend("re_1").webhooks.verify({ payload, headers: given, webhookSecret: secret });
        return true;
    } catch { return false; }
}
console.log(JSON.stringify([verified(body), verified(body + " ")]));
"""


def key_of(customer: Customer, format: WebhookFormat, secret: str) -> str:
    return str(customer.webhook()["public_key"]) if format is WebhookFormat.SENDGRID else secret


@pytest.mark.parametrize("format", OTHERS)
def test_results_are_posted_in_a_format(customer: Customer, format: WebhookFormat) -> None:
    """One post per recipient; a replay sends the same bytes, even if new events have another format by then."""
    secret = customer.saved(format=format.value)
    assert customer.webhook()["format"] == format.value
    assert ("public_key" in customer.webhook()) == (format is WebhookFormat.SENDGRID)
    key = key_of(customer, format, secret)
    labels: dict[str, Any] = {"tags": ["receipt"], "metadata": {"order": "10045"}}
    sent = customer.sender.send(to=["ada@example.net", "bounce@example.net"], **labels)
    posts = customer.posts(2)
    events = [tracked(format, post.headers, post.body, key) for post in posts]
    results = {(event.recipient, event.event_type) for event in events}
    assert results == {("ada@example.net", "delivered"), ("bounce@example.net", "bounced")}
    if format is not WebhookFormat.RESEND:  # anymail takes these from headers of its own
        assert {"tags": events[0].tags, "metadata": events[0].metadata} == labels
    by_number = format in (WebhookFormat.RESEND, WebhookFormat.POSTMARK)
    assert all(event.message_id == sent["id"] if by_number else "@example.com>" in event.message_id for event in events)
    customer.save(format="native")
    history = customer.settled(2)
    assert customer.request("POST", f"/deliveries/{history[0]['id']}/replay").status_code == 202
    again = customer.posts(3)[2]
    assert stored(format, again.body) in [stored(format, post.body) for post in posts]
    assert stored(format, again.body) == history[0]["request_body"]
    check_stripe(again, secret)
    assert tracked(format, again.headers, again.body, key).event_type in ("delivered", "bounced")
    customer.sender.delivered()
    assert customer.posts(4)[3].json()["type"] == "email.delivered"


def stored(format: WebhookFormat, body: bytes) -> str:
    """A body as the history has it: without Mailgun's signature, which each attempt makes anew."""
    text = body.decode()
    return text.partition(',"signature":{')[0] + "}" if format is WebhookFormat.MAILGUN else text


@pytest.mark.parametrize("format", OTHERS)
def test_a_ping_is_a_sample_delivery(customer: Customer, format: WebhookFormat) -> None:
    secret = customer.saved(format=format.value)
    assert customer.request("POST", "/ping").status_code == 202
    (post,) = customer.posts(1)
    event = tracked(format, post.headers, post.body, key_of(customer, format, secret))
    assert (event.event_type, event.recipient) == ("delivered", "ada@example.net")
    assert b"msg_00000000000000000000000000000000" in post.body or format is WebhookFormat.MAILGUN
    (delivery,) = customer.settled(1)
    assert (delivery["type"], delivery["status"]) == ("webhook.test", "success")


@pytest.mark.parametrize("format", [WebhookFormat.RESEND, WebhookFormat.SENDGRID])
def test_the_providers_libraries_verify_it(customer: Customer, tmp_path: Path, format: WebhookFormat) -> None:
    """`svix` or `sendgrid` of Python, and `resend` or `@sendgrid/eventwebhook` of Node; not an altered one."""
    libraries = [Path(require(name)).parent for name in ("resend", "eventwebhook")]
    secret = customer.saved(format=format.value)
    customer.sender.delivered(subject="Grüße")
    (post,) = customer.posts(1)
    key = key_of(customer, format, secret)
    if format is WebhookFormat.SENDGRID:
        name, verifier = "x-twilio-email-event-webhook", EventWebhook()
        signed = post.headers[f"{name}-signature"], post.headers[f"{name}-timestamp"]
        assert verifier.verify_signature(post.body.decode(), *signed, verifier.convert_public_key_to_ecdsa(key))
    else:
        SvixWebhook(secret).verify(post.body, {k: v for k, v in post.headers.items() if k.startswith("svix-")})
    (tmp_path / "verify.js").write_text(NODE)
    about = {"format": format.value, "body": post.body.decode(), "headers": post.headers, "secret": secret, "key": key}
    command = [require("node"), str(tmp_path / "verify.js"), *map(str, libraries)]
    done = subprocess.run(command, input=json.dumps(about), capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [True, False], done.stderr


def test_an_unknown_format_is_refused(customer: Customer) -> None:
    for wrong in ("Postmark", "ses", "", 1, None):
        text = error(customer.save(format=wrong), 400, "invalid_request")
        assert "format" in str(text)
