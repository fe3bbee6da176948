"""The Mailgun door, as Mailgun's own client for Node and django-anymail use it."""

import json
import time
import uuid
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trio

from appliance.model.webhooks import WebhookFormat
from tests import engines
from tests.e2e.contract.service import eventually
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import verifies
from tests.e2e.delivery.world import world
from tests.e2e.doors.libraries import manage_key, mime, node
from tests.e2e.webhooks.customer import Customer
from tests.fakes.anymail import configure, tracked
from tests.fakes.mx import FakeMx
from tests.fakes.webhook_server import hooks
from tests.programs import require

DOMAIN, SENDER = "example.com", "Shop <shop@example.com>"
MAIL = {"from": SENDER, "to": "ada@example.net", "subject": "Hello", "text": "Hi Ada"}


def in_node(url: str, key: str, *calls: list[Any]) -> list[Any]:
    """Calls of a client as Ghost makes it."""
    options = json.dumps({"username": "api", "key": key, "url": url, "timeout": 60_000})
    forms = Path(require("mailgun")).parent / "node_modules/form-data"
    return node("mailgun", f"new library.default(require('{forms}')).client({options})", *calls)


def values(results: list[Any]) -> list[Any]:
    assert all("value" in result for result in results), results
    return [result["value"] for result in results]


def test_ghost_sends_a_newsletter_and_reads_its_results(customer: Customer) -> None:
    """1,000 recipients in one call, with Ghost's parameters; then its loop over the pages of events."""
    url, key = customer.sender.running.url, manage_key(customer)
    email_id, begin, data_dir = uuid.uuid4().hex, time.time() - 60, customer.sender.running.data_dir
    names = ["bounce1@example.net", *(f"reader{number}@example.net" for number in range(1, 1_000))]
    recipients = {}
    for number, name in enumerate(names):
        links = {
            "unsubscribe_url": f"https://blog.example/u/{number}?a=1&b=2",
            "list_unsubscribe": f"https://b/{number}",
        }
        recipients[name] = {"name": f"Reader {number}", **links}
    blog = '"The Blog" <noreply@example.com>'
    newsletter = {
        "to": names,
        "from": blog,
        "h:Reply-To": "noreply@example.com",
        "subject": "Issue 1, %recipient.name%",
        "html": '<p>Dear %recipient.name%</p><a href="%recipient.unsubscribe_url%">Leave</a>' + "<p>…</p>" * 999,
        "text": "Dear %recipient.name%\n%recipient.unsubscribe_url%",
        "recipient-variables": json.dumps(recipients),
        "h:Sender": blog,
        "h:Auto-Submitted": "auto-generated",
        "h:X-Auto-Response-Suppress": "OOF, AutoReply",
        "h:List-Unsubscribe": "<%recipient.list_unsubscribe%>, <%tag_unsubscribe_email%>",
        "h:List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        "v:email-id": email_id,
        "o:tag": ["ghost-email", "bulk-email"],
    }
    mail_domain = f"mail.{DOMAIN}"
    (sent,) = values(in_node(url, key, ["messages.create", mail_domain, newsletter]))
    assert (sent["status"], sent["message"]) == (200, "Queued. Thank you.")
    assert sent["id"].endswith(f"@{mail_domain}>")
    account_id = customer.sender.account.account_id
    waiting = f"SELECT count(*) FROM recipients WHERE account_id = '{account_id}' AND next_attempt_at IS NOT NULL"
    eventually(lambda: engines.rows(data_dir, waiting), lambda rows: rows == [(0,)])

    options = {
        "limit": 300,
        "event": "delivered OR opened OR failed OR unsubscribed OR complained",
        "tags": "bulk-email AND ghost-email",
        "begin": begin,
        "end": time.time() + 60,
        "ascending": "yes",
    }
    events: list[Any] = []
    page: dict[str, Any] = {}
    for _ in range(10):
        (answer,) = values(in_node(url, key, ["events.get", mail_domain, options | page]))
        if not answer["items"]:
            break
        events += answer["items"]
        page = {"page": answer["pages"]["next"]["page"]}
    assert {event["recipient"] for event in events} == set(names)
    assert len({event["id"] for event in events}) == len(events) == 1_000
    assert {event["user-variables"]["email-id"] for event in events} == {email_id}
    assert {f"<{event['message']['headers']['message-id']}>" for event in events} == {sent["id"]}
    assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
    (bounce,) = [event for event in events if event["event"] == "failed"]
    assert (bounce["recipient"], bounce["severity"], bounce["delivery-status"]["code"]) == (names[0], "permanent", 550)
    empty = ["events.get", "other.example", {"event": "delivered"}], ["events.get", mail_domain, {"event": "opened"}]
    assert [answer["items"] for answer in values(in_node(url, key, *empty))] == [[], []]
    (upper,) = values(in_node(url, key, ["events.get", mail_domain.upper(), {"limit": 1}]))
    assert len(upper["items"]) == 1

    one = f"SELECT message_id FROM recipients WHERE account_id = '{account_id}' AND address = '{names[7]}'"
    ((message_id,),) = engines.rows(data_dir, one)
    made = mime(customer, message_id)
    assert (made["To"], made["Subject"], made["Sender"]) == (names[7], "Issue 1, Reader 7", None)
    assert made["List-Unsubscribe"] == "<https://b/7>"
    html = made.get_body(("html",))
    assert html is not None
    assert 'href="https://blog.example/u/7?a=1&b=2"' in html.get_content()


@pytest.mark.slow
async def test_everything_arrives_signed(tmp_path: Path) -> None:
    """Files, headers, variables and a complete message at a real MX; a webhook with Mailgun's signature."""
    with hooks(tmp_path) as receiver:
        async with world(tmp_path, "[webhooks]" + receiver.settings(tmp_path)) as made:
            server = FakeMx()
            await made.domain("mx.test", server)
            saved = await made.ask("PUT", "/v1/webhook", {"url": receiver.url("/m"), "format": "mailgun"})
            mail = MAIL | {
                "to": "Ada <ada@mx.test>, bob@mx.test",
                "cc": "carol@mx.test",
                "html": '<img src="cid:logo.png">',
                "h:X-Order": "10045",
                "h:Reply-To": "a@example.com, b@example.com",
                "v:order": "10045",
                "o:tag": ["receipt"],
                "o:tracking": False,
                "o:deliverytime": "Fri, 14 Nov 2025 13:00:00 +0000",
                "attachment": {"data": {"$bytes": "AP9wZGYNCi0teA=="}, "filename": "invoice.pdf"},
                "inline": {"data": {"$bytes": "cG5n"}, "filename": "logo.png"},
            }
            raw = {"to": "dora@mx.test", "message": "From: shop@example.com\r\nSubject: Raw\r\n\r\nHi\r\n", "v:a": "b"}
            calls = [["messages.create", DOMAIN, mail], ["messages.create", DOMAIN, raw]]
            where = f"{made.running.url}/mailgun", made.running.account.full_key
            sent = values(await trio.to_thread.run_sync(in_node, *where, *calls))
            await made.until(lambda: len(receiver.at("/m")) == 4)
            assert all(verifies(got.data, 0, published(made)) for got in server.messages)
            whole, simple = sorted(server.messages, key=lambda got: b"Subject: Raw" in got.data)[-2:]
            parsed = message_from_bytes(whole.data, policy=policy.default)
            assert parsed["Message-ID"] == sent[0]["id"]
            assert (parsed["To"], parsed["Cc"]) == ("Ada <ada@mx.test>, bob@mx.test", "carol@mx.test")
            assert (parsed["X-Order"], parsed["Reply-To"]) == ("10045", "a@example.com, b@example.com")
            files = {part.get_filename(): part.get_content() for part in parsed.walk() if part.get_filename()}
            assert files == {"invoice.pdf": b"\x00\xffpdf\r\n--x", "logo.png": b"png"}
            assert message_from_bytes(simple.data)["Message-ID"] == sent[1]["id"]
            post = next(post for post in receiver.at("/m") if b"ada@mx.test" in post.body)
            event = tracked(WebhookFormat.MAILGUN, post.headers, post.body, saved.json()["secret"])
            assert (event.event_type, event.tags, event.metadata) == ("delivered", ["receipt"], {"order": "10045"})
            assert event.message_id == sent[0]["id"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"o:tracking-opens": True}, "o:tracking-opens: this server does not track opens"),
    ({"o:tracking-clicks": "htmlonly"}, "o:tracking-clicks: this server does not track opens"),
    ({"o:dkim": False}, "o:dkim: this server signs every message"),
    ({"o:require-tls": True}, "o:require-tls: the recipient's domain decides about TLS"),
    ({"o:sending-ip": "192.0.2.1"}, "o:sending-ip: this server has no such field"),
    ({"o:deliverytime": "tomorrow"}, "o:deliverytime: expected a date as in mail"),
    ({"o:deliverytime": "Fri, 14 Nov 2098 13:00:00 +0000"}, "o:deliverytime: must be at most 30 days ahead"),
    ({"o:testmode": "maybe"}, "o:testmode: expected yes or no"),
    ({"amp-html": "<html>"}, "amp-html: this server has no such field"),
    ({"template": "no-such", "text": ""}, "template: this account has no template"),
    ({"t:variables": '{"a": 1}'}, "t:variables: needs a template"),
    ({"t:version": "2", "template": "a"}, "t:version: this server has no such field"),
    ({"h:Sender": "other@example.com"}, "h:Sender: must be the address in from"),
    ({"h:Received": "x"}, "h:Received: "),
    ({"h:Reply-To": "nobody"}, "h:Reply-To[0]: an address needs an @"),
    ({"h:X-Service-Stream": "news"}, "h:X-Service-Stream: there is no such stream"),
    ({"v:a b": "c"}, "v:a b: a key has 1 to 64 characters"),
    ({"o:tag": ["a,b"]}, "o:tag[0]: a tag has 1 to 64"),
    ({"from": "shop@elsewhere.example"}, "from: the domain elsewhere.example is not registered"),
    ({"from": "two@example.com, three@example.com"}, "from: expected one address"),
    ({"to": [f"u{n}@example.net" for n in range(51)]}, "to: has 51 addresses (limit 50). Send recipient-variables"),
    ({"recipient-variables": "{}", "text": "%recipient.name%"}, "recipient-variables: ada@example.net has no value"),
    ({"recipient-variables": "{}", "text": "%unsubscribe_url%"}, "text: %unsubscribe_url% is an address of Mailgun"),
    ({"recipient-variables": "[]"}, "recipient-variables: expected an object"),
    ({"recipient-variables": "{}", "to": ["ada@example.net", "nobody"]}, "to: an address needs an @"),
]  # fmt: skip


def test_a_refusal_names_the_field(customer: Customer) -> None:
    """Each feature that the door does not have is an error that the client shows its user."""
    url, key = f"{customer.sender.running.url}/mailgun", customer.sender.account.full_key
    results = in_node(url, key, *(["messages.create", DOMAIN, MAIL | changes] for changes, _ in REFUSED))
    for (changes, text), result in zip(REFUSED, results, strict=True):
        assert str(result.get("error", {}).get("details")).startswith(text), (changes, result)
        assert result["error"]["status"] in (400, 403)
    (wrong,) = in_node(url, "ma_live_wrong", ["messages.create", DOMAIN, MAIL])
    assert wrong["error"]["status"] == 401
    (missing,) = in_node(url, key, ["domains.list"])
    assert missing["error"]["status"] == 404


def test_a_complete_message_is_filled_for_each_recipient(customer: Customer) -> None:
    url, key = f"{customer.sender.running.url}/mailgun", customer.sender.account.full_key
    recipients = {"ada@example.net": {"name": "Zoë"}, "bob@example.net": {"name": "Bob"}}
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = SENDER, "%recipient%", "Grüße, %recipient.name%"
    message.set_content("Hi %recipient.name%", cte="base64")
    message.add_attachment(b"pdf", maintype="application", subtype="pdf", filename="a.pdf")
    mail = {"to": list(recipients), "message": message.as_string(), "recipient-variables": json.dumps(recipients)}
    (sent,) = values(in_node(url, key, ["messages.create", DOMAIN, mail]))
    one = f"SELECT id FROM messages WHERE header_id = '{sent['id'][1:-1]}'"
    stored = {
        made["To"]: made
        for (found,) in engines.rows(customer.sender.running.data_dir, one)
        if (made := mime(customer, found))
    }
    assert stored.keys() == recipients.keys()
    for address, made in stored.items():
        name, body, (file,) = recipients[address]["name"], made.get_body(), made.iter_attachments()
        assert (made["Subject"], made["From"], file.get_content()) == (f"Grüße, {name}", SENDER, b"pdf")
        assert body is not None
        assert body.get_content().strip() == f"Hi {name}"


def test_lists_of_suppressions(customer: Customer) -> None:
    url, key = f"{customer.sender.running.url}/mailgun", manage_key(customer)
    kinds = ("bounces", "complaints", "unsubscribes")

    def of_each(method: str, *words: Any) -> list[Any]:
        return values(in_node(url, key, *([f"suppressions.{method}", DOMAIN, kind, *words] for kind in kinds)))

    for kind in kinds:
        values(in_node(url, key, ["suppressions.create", DOMAIN, kind, {"address": f"{kind}@example.net"}]))
    listed = of_each("list", {"limit": 1})
    assert [item["address"] for page in listed for item in page["items"]] == [f"{kind}@example.net" for kind in kinds]
    pages = [page["pages"]["next"]["page"] for page in listed]
    following = [["suppressions.list", DOMAIN, kind, {"page": page}] for kind, page in zip(kinds, pages, strict=True)]
    assert [page["items"] for page in values(in_node(url, key, *following))] == [[], [], []]
    for kind in kinds:
        one = [DOMAIN, kind, f"{kind}@example.net"]
        entry, removed, gone = in_node(
            url, key, *([f"suppressions.{name}", *one] for name in ("get", "destroy", "get"))
        )
        assert [answer["address"] for answer in values([entry, removed])] == [one[2], one[2]]
        assert gone["error"]["status"] == 404
    assert [page["items"] for page in of_each("list")] == [[], [], []]
    (refused,) = in_node(url, customer.sender.account.send_key, ["suppressions.list", DOMAIN, "bounces"])
    assert refused["error"]["status"] == 403
    single = {"address": "ada@example.net", "tag": "news"}
    (refused,) = in_node(url, key, ["suppressions.create", DOMAIN, "unsubscribes", single])
    assert refused["error"]["details"] == "[0].tag: this server adds no unsubscribes of single tags"


def test_django_anymail_sends(customer: Customer) -> None:
    """Merge data and metadata of each recipient, as the backend writes them into Mailgun's variables."""
    configure()
    from anymail.backends.mailgun import EmailBackend
    from anymail.message import AnymailMessage

    account, running = customer.sender.account, customer.sender.running
    message = AnymailMessage("Hello %recipient.name%", "Hi", SENDER, ["Ada <ada@example.net>", "bob@example.net"])
    message.attach_alternative("<p>Hi %recipient.name%</p>", "text/html")
    message.attach("a.txt", "content", "text/plain")
    message.merge_data = {"ada@example.net": {"name": "Ada"}, "bob@example.net": {"name": "Bob"}}
    message.merge_metadata = {"ada@example.net": {"order": 1}, "bob@example.net": {"order": 2}}
    message.metadata, message.tags, message.track_opens = {"shop": "a"}, ["receipt"], False
    backend = EmailBackend(api_key=account.full_key, api_url=f"{running.url}/mailgun/v3")
    assert backend.send_messages([message]) == 1
    header_id = message.anymail_status.message_id[1:-1]
    rows = engines.rows(running.data_dir, f"SELECT subject, metadata FROM messages WHERE header_id = '{header_id}'")
    entries = {(subject, *sorted(json.loads(metadata).items())) for subject, metadata in rows}
    assert entries == {
        (f"Hello {name}", ("order", order), ("shop", "a")) for name, order in (("Ada", "1"), ("Bob", "2"))
    }
