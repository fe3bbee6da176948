"""Received messages in other providers' formats: django-anymail verifies and reads them."""

import json
import time
from email.message import EmailMessage
from typing import Any

import pytest

from appliance.concurrency.fair_share import FairQueue
from appliance.inbound.authentication import unchecked
from appliance.intake.received import received_data
from appliance.keys.received_links import ReceivedLinks
from appliance.message.received import read_received
from appliance.model.received import ReceivedEnvelope, ReceivedFacts
from appliance.model.received_event import example_received, received_envelope
from appliance.model.webhooks import DuePost, EventType, Lane, Trigger, Webhook, WebhookFormat
from appliance.net.dial import Shortage
from appliance.webhook import received_posts
from appliance.webhook.connect import NotPosted
from appliance.webhook.received_formats import basic_password, read_event
from appliance.webhook.received_posts import ReceivedPosts
from appliance.webhook.signatures import sign
from tests.fakes.anymail import received

POSTMARK, MAILGUN, SENDGRID = WebhookFormat.POSTMARK, WebhookFormat.MAILGUN, WebhookFormat.SENDGRID
FORMATS = [POSTMARK, MAILGUN, SENDGRID]
SECRET = b"whsec_" + 43 * b"A" + b"="
EVENT_ID, INBOUND_ID = "evt_18de768175090030e8b3aabfc2b7e9ca", "inb_18de768175090030e8b3aabfc2b7e9ca"
URL, MIME_URL = "https://hooks.example.net/inbound", "https://hooks.example.net/inbound_mime/?a=b"
SENDER, RECIPIENT = "bounce+1@example.net", "Support+ticket-7@in.example.com"
FILE = bytes(range(256)) * 40


def mail() -> bytes:
    message = EmailMessage()
    message["From"], message["To"] = (
        '"Ada, Countess" <ada@example.net>',
        "Support <support@in.example.com>, b@example.org",
    )
    message["Cc"], message["Subject"], message["Date"] = "c@example.org", "Grüße", "Sun, 15 Jun 2025 15:06:40 +0000"
    message["Message-ID"], message["Reply-To"] = "<1@example.net>", "list@example.net"
    message["Received-SPF"] = "pass envelope-from=forged@example.org"
    message.set_content("How are you? Ä\n")
    message.add_alternative("<p>How are you?</p>", subtype="html")
    message.add_attachment(FILE, maintype="application", subtype="x-thing", filename='a "b"\u2028ä.bin')
    message.add_attachment(
        FILE, maintype="image", subtype="png", filename="i.png", cid="<i@example.net>", disposition="inline"
    )
    return message.as_bytes().replace(b"\n", b"\r\n")


def event(mime: bytes) -> bytes:
    envelope = ReceivedEnvelope(SENDER, (RECIPIENT, "other@in.example.com"), "192.0.2.1", "mx.example.net", True)
    links, facts = ReceivedLinks(bytes(32), "https://mail.example.com"), ReceivedFacts(unchecked("test"))
    content = read_received(mime, envelope.recipients)
    data = received_data(links, "acc_1", INBOUND_ID, envelope, len(mime), content, facts, 1_750_000_000_000_000)
    return received_envelope(EVENT_ID, 1_750_000_000_000_000, data)


def webhook(url: str = URL) -> Webhook:
    return Webhook("whk_1", "acc_1", url, (EventType.RECEIVED,), True, b"", "", 0, 0, None, None)


def due(format: WebhookFormat, body: bytes, message_id: str | None = INBOUND_ID) -> DuePost:
    lane = Lane("whk_1", Trigger.EVENT)
    return DuePost(lane, "whd_1", 0, body, EVENT_ID, message_id, None, format, EventType.RECEIVED)


async def posted(
    format: WebhookFormat, mime: bytes, url: str = URL, body: bytes | None = None, message_id: str | None = INBOUND_ID
) -> tuple[dict[str, str], bytes]:
    async def load(account_id: str, expected: str) -> bytes:
        assert (account_id, expected) == ("acc_1", INBOUND_ID)
        return mime

    post, seconds = due(format, body or event(mime), message_id), round(time.time())
    async with ReceivedPosts(load).shaped(webhook(url), post, SECRET, seconds) as shape:
        signed = sign(SECRET, post, seconds, shape.body)
        return dict([("content-type", shape.content_type), *signed.headers, *shape.headers]), signed.body


def anymail(format: WebhookFormat, post: tuple[dict[str, str], bytes]) -> Any:
    return received(format, *post, SECRET.decode(), basic_password(SECRET)).message


# ---- django-anymail


@pytest.mark.parametrize(("format", "url"), [(POSTMARK, URL), (MAILGUN, URL), (MAILGUN, MIME_URL), (SENDGRID, URL)])
async def test_anymail_reads_it(format: WebhookFormat, url: str) -> None:
    message = anymail(format, await posted(format, mail(), url))
    assert (message.from_email.display_name, message.from_email.addr_spec) == ("Ada, Countess", "ada@example.net")
    assert [item.addr_spec for item in message.to] == ["support@in.example.com", "b@example.org"]
    assert [item.addr_spec for item in message.cc] == ["c@example.org"]
    assert message.subject == "Grüße"
    assert message.date is not None
    assert message["Reply-To"] == "list@example.net"
    assert message["Message-ID"] == "<1@example.net>"
    assert message.text.splitlines() == ["How are you? Ä"]
    assert message.html.strip() == "<p>How are you?</p>"
    assert message.envelope_sender == SENDER
    assert message.envelope_recipient == RECIPIENT
    (file,) = message.attachments
    assert (file.get_content_type(), file.get_content_bytes()) == ("application/x-thing", FILE)
    assert message.content_id_map["i@example.net"].get_content_bytes() == FILE


async def test_postmark_without_the_raw_message() -> None:
    """Anymail reads the parsed fields then. The fields that Postmark adds are not the sender's."""
    headers, body = await posted(POSTMARK, b"Return-Path: <forged@example.org>\r\n" + mail())
    fields = json.loads(body)
    assert (fields["OriginalRecipient"], fields["MailboxHash"]) == (RECIPIENT, "ticket-7")
    assert fields["FromFull"] == {"Email": "ada@example.net", "Name": "Ada, Countess", "MailboxHash": ""}
    assert "forged" not in json.dumps(fields["Headers"])
    del fields["RawEmail"]
    message = anymail(POSTMARK, (headers, json.dumps(fields).encode()))
    assert (message.from_email.addr_spec, message.subject) == ("ada@example.net", "Grüße")
    assert message.text.splitlines() == ["How are you? Ä"]
    assert (message.envelope_sender, [box.addr_spec for box in message.bcc]) == (SENDER, [RECIPIENT])
    assert message.content_id_map["i@example.net"].get_content_bytes() == FILE
    assert [file.get_content_bytes() for file in message.attachments] == [FILE]


async def test_a_stranger_ends_no_part_of_a_form() -> None:
    """Nor can one guess the boundary: it depends on the webhook's secret."""
    hostile = (
        b'From: a@b.c\r\nSubject: x\r\nContent-Type: application/x; name="a\\"; name=\\"recipient"\r\n\r\n--\r\n\r\n'
    )
    message = anymail(MAILGUN, await posted(MAILGUN, hostile))
    assert message.envelope_recipient == RECIPIENT
    boundaries = set()
    for secret in (SECRET, b"whsec_other"):
        async with ReceivedPosts(partial_load(hostile)).shaped(
            webhook(), due(MAILGUN, event(hostile)), secret, 1
        ) as form:
            boundaries.add(form.content_type)
    assert len(boundaries) == 2


@pytest.mark.parametrize("format", FORMATS)
async def test_a_test_event_has_an_example_message(format: WebhookFormat) -> None:
    post = await posted(format, b"", body=example_received(EVENT_ID, 1_750_000_000_000_000), message_id=None)
    assert anymail(format, post).subject == "Re: Your order"


# ---- limits


def partial_load(mime: bytes | None) -> Any:
    async def load(account_id: str, message_id: str) -> bytes | None:
        return mime

    return load


async def test_large_messages_take_turns() -> None:
    """A post that waits too long for its turn is not an attempt; a small message needs no turn."""
    large = b"From: a@b.c\r\n\r\n" + b"x" * 700_000
    assert read_event(event(large)).size > received_posts.UNTURNED_BYTES
    posts = ReceivedPosts(partial_load(large), FairQueue(1, patience=0.01))
    async with posts.shaped(webhook(), due(MAILGUN, event(large)), SECRET, 1):
        with pytest.raises(Shortage):
            async with posts.shaped(webhook(), due(MAILGUN, event(large)), SECRET, 1):
                pass
        async with posts.shaped(webhook(), due(MAILGUN, event(mail())), SECRET, 1):
            pass


async def test_a_message_that_is_gone_is_a_failed_attempt() -> None:
    with pytest.raises(NotPosted):
        async with ReceivedPosts(partial_load(None)).shaped(webhook(), due(MAILGUN, event(mail())), SECRET, 1):
            pass
