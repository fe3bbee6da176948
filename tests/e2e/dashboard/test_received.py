"""Received mail in the dashboard: an address is added, a reply arrives, is read, replayed and forwarded."""

import base64
import re
import smtplib
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import RECEIVES, Stage, staged
from tests.e2e.dashboard.test_accessible import broken, findings
from tests.e2e.dashboard.test_admin import person
from tests.fakes.webhook_server import Hooks
from tests.running_appliance import NO_TLS

IMAGE = "http://127.0.0.1:9/spy.png"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HTML = f"""<h1>Thanks</h1><script>top.hacked = 1</script><img src=x onerror="top.hacked = 1"><img src="{IMAGE}">
<img id="inline" src="cid:logo"><a href="https://acme.example/yes">It has arrived</a>"""
SUBJECT = "Re: Hello <img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def receiving(directory: Path, receiver: Hooks) -> Iterator[Stage]:
    webhooks = "\n".join(["[webhooks]", receiver.settings(directory)])
    with staged(directory, webhooks, *RECEIVES) as made:
        yield made


def reply(message_id: str = "", **fields: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = "Ada Lovelace <ada@example.net>", "support@in.example.com"
    message["Subject"] = fields.get("subject", SUBJECT)
    if message_id:
        message["In-Reply-To"] = f"<{message_id.removeprefix('msg_')}@example.com>"
    message.set_content("It has arrived. Thank you!")
    message.add_alternative(HTML, subtype="html")
    html = message.get_body(("html",))
    assert html is not None
    html.add_related(PIXEL, "image", "png", cid="<logo>", filename="logo.png")
    message.add_attachment(b"terms", "application", "octet-stream", filename="terms.bin")
    return message


def test_a_reply_is_received_read_replayed_and_forwarded(receiving: Stage, receiver: Hooks, browser: Browser) -> None:
    stage, here = receiving, Browser(browser.driver, receiving.url)
    owner = stage.account(name="acme", domain="example.com")
    sent = stage.send(owner, "ada@example.net", metadata={"order": "10045"})
    receiver.answers["/hook"] = lambda _: (500, b"broken")
    stage.ask(owner, "PUT", "/v1/webhook", {"url": receiver.url("/hook")})
    here.log_in(owner.email)
    here.go("Received")
    here.see("No address receives mail", "h2")
    found = findings(here)

    # An address, whose domain has its mailboxes elsewhere.
    here.click("Receiving addresses")
    stage.world.publish("example.com", MX=["10 mx0.good.test."])
    here.click("Add a receiving address")
    here.fill("Address or domain", "other.example")
    here.click("Add address")
    assert "neither a verified domain" in here.one("//*[contains(@class, 'field')]//*[@role='alert']").text
    here.fill("Address or domain", "sales@example.com")
    here.click("Add address")
    here.see("Once you change it, all mail of example.com arrives here")
    here.see("Mail for it goes to mx0.good.test")
    here.click("Remove address")
    here.one("//dialog//button[normalize-space()='Remove address']").click()
    here.see("Receiving addresses", "h1")
    here.click("Add a receiving address")
    here.fill("Address or domain", "in.example.com")
    here.click("Add address")
    here.see("10 mail.example.com.", "code")
    here.see("missing")
    assert "arrives here" not in here.text()
    found += findings(here)
    stage.world.publish("mail.example.com", A=["127.0.0.1"])
    stage.world.publish("in.example.com", MX=["10 mail.example.com."])

    def is_routed() -> bool:
        here.click("Check now")
        return "DNS routes its mail to this server." in here.text()

    here.until(is_routed, "the MX")
    here.open("/dashboard/receiving")
    here.see("in.example.com")
    here.see("No webhook gets received mail.")
    found += findings(here)

    # The webhook page offers the event, and keeps it.
    here.go("Webhook")
    here.field("email.received: a receiving address got a message").click()
    here.click("Save webhook")
    here.until(lambda: "email.received" in stage.ask(owner, "GET", "/v1/webhook")["webhook"]["events"], "the event")
    here.open("/dashboard/receiving")
    here.see("in.example.com")
    assert "No webhook gets received mail." not in here.text()

    # A reply arrives while its list is open.
    here.go("Received")
    here.see("No received messages", "h2")
    stage.receive(owner, reply(sent))
    row = here.one("//tbody/tr")
    assert all(part in row.text for part in ("ada@example.net", SUBJECT, "2 files", "SPF none", "DMARC none"))
    assert here.script("return document.querySelector('tbody [title]').title").splitlines() == [
        "ada@example.net", SUBJECT, "2 files", "To: support@in.example.com",
    ]  # fmt: skip
    found += findings(here)
    here.script("document.querySelector('tbody a').click()")
    here.see(SUBJECT, "h1")
    assert here.one("//dt[.='Answers']/following-sibling::dd[1]").text.split() == [sent, "order:", "10045"]

    # Its HTML does nothing.
    frame = "const frame = document.querySelector('iframe').contentDocument; return "
    here.until(lambda: here.script(f"{frame}frame.querySelector('h1')?.textContent") == "Thanks", "HTML")
    here.see("1 remote image blocked")
    assert here.script("return window.hacked") is None
    assert here.script(f"{frame}frame.querySelectorAll('script, [onerror], a[href]').length") == 0
    assert here.script(f"{frame}frame.querySelector('#inline').src").startswith("data:image/png")
    assert here.forbidden() == []
    found += findings(here)
    for tab, text in (
        ("Text", "It has arrived. Thank you!"),
        ("Source", "In-Reply-To: <"),
        ("Header", "Ada Lovelace <"),
    ):
        here.tab(tab)
        here.see(text)
    here.tab("Links")
    here.see("https://acme.example/yes", "code")

    # A link to a file needs no login.
    here.tab("Files (2)")
    found += findings(here)
    here.script("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    here.click("Copy link to terms.bin")
    link = here.until(lambda: here.script("return window.copied"), "the link")
    path = urlsplit(link).path
    assert httpx.get(f"{stage.url}{path}", trust_env=False, verify=NO_TLS).content == b"terms"

    here.tab("Checks")
    here.see("127.0.0.1")
    here.see("not encrypted")
    found += findings(here)

    # Its webhook failed, and is replayed.
    here.tab("Webhook")
    here.see("responded 500")
    here.click_summary("support@in.example.com")
    here.see("broken")
    receiver.answers["/hook"] = lambda _: (200, b"thank you")
    here.click("Replay")
    here.see("replay · attempt 1")
    here.until(lambda: "responded 200" in here.text(), "the replay")
    posts = [post for post in receiver.posts if b"email.received" in post.body]
    assert posts[0].body == posts[-1].body
    found += findings(here)

    # Forwarding: a refusal is shown at its field; then the message goes to the new address.
    here.click("Forward")
    here.one("//dialog[@open]")
    found += [f"the dialog: {each}" for each in broken(here)]
    assert here.field("From").get_attribute("value") == "support@example.com"
    here.fill("To", "grace@good.test")
    here.fill("From", "ada@example.net")
    here.click("Forward message")
    assert "From: " in here.one("//*[contains(@class, 'field')]//*[@role='alert']").text
    here.fill("From", "Support <support@example.com>")
    here.click("Forward message")
    here.see(f"Fwd: {SUBJECT}", "h1")
    here.see("delivered")
    (forward,) = re.findall(r"msg_[0-9a-f]{32}", here.path())
    body = stage.ask(owner, "GET", f"/v1/emails/{forward}/body")
    headers = {each["name"]: each["value"] for each in body["headers"]}
    assert (headers["To"], headers["Reply-To"]) == ("grace@good.test", "Ada Lovelace <ada@example.net>")
    assert [each["filename"] for each in body["attachments"]] == ["logo.png", "terms.bin"]
    assert "It has arrived" in body["text"]
    assert found == []


def test_search_pages_and_a_viewer(receiving: Stage, browser: Browser) -> None:
    """Older messages load on a click; a search keeps its words; a viewer sees all, and no button that changes."""
    stage, here = receiving, Browser(browser.driver, receiving.url)
    owner = stage.account(name="many", domain="many.example")
    stage.ask(owner, "POST", "/v1/inbound/addresses", {"address": "many.example"})
    listener = urlsplit(stage.world.running.inbound[0])
    with smtplib.SMTP(listener.hostname or "", listener.port or 0) as client:
        for number in range(52):
            text = f"From: a{number}@b.example\r\nTo: x@many.example\r\nSubject: Number {number}\r\n\r\nHi\r\n"
            client.sendmail("a@b.example", ["x@many.example"], text)
    here.until(lambda: stage.ask(owner, "GET", "/v1/inbound?q=number&limit=100")["emails"][51:], "52 messages")
    here.log_in(person(stage, owner, "viewer"))
    here.go("Received")
    here.until(lambda: here.count("tbody tr") == 50, "a page")
    here.click("Load older")
    here.until(lambda: here.count("tbody tr") == 52, "all")
    search = here.one("//input[@name='q']")
    search.send_keys("number 51\n")
    here.until(lambda: here.count("tbody tr") == 1, "one result")
    assert here.path() == "/dashboard/received?q=number+51"
    here.script("document.querySelector('tbody a').click()")
    here.see("Number 51", "h1")
    assert "Forward" not in here.text()
    here.click("← Received")
    assert here.path() == "/dashboard/received?q=number+51"
    here.open("/dashboard/received?q=nothing-like-it")
    here.see("No results for “nothing-like-it”", "h2")
    search = here.one("//input[@name='q']")
    search.clear()
    search.send_keys(f"{'word ' * 11}\n")
    here.see("q: must have 1 to 10 words")
    assert here.one("//input[@name='q']").get_attribute("value") == "word " * 10 + "word"
    here.open("/dashboard/receiving/nothing.example")
    here.see("This account does not receive mail at this address.")
    assert "Check now" not in here.text()
    here.open("/dashboard/receiving/many.example")
    here.see("10 mail.example.com.", "code")
    assert "Remove address" not in here.text()
    here.open("/dashboard/receiving")
    here.see("every address of the domain")
    assert "Add a receiving address" not in here.text()
