"""A message's page: what it is, who has it, what each problem means and what to do, and all that can be kept of it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from selenium.webdriver.common.by import By

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import Provisioned

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# What the browser is given to keep, in place of its own dialogue.
KEEP = """
const blobs = new Map();
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { const url = make(blob); blobs.set(url, blob); return url; };
HTMLAnchorElement.prototype.click = async function () {
  window.kept = [this.download, await blobs.get(this.href).text()];
};
"""


@contextmanager
def image_server() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Image(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "image/png")
            self.send_header("Content-Length", str(len(PIXEL)))
            self.end_headers()
            self.wfile.write(PIXEL)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Image)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_problems_come_first_and_say_what_to_do(stage: Stage, browser: Browser) -> None:
    """The counts, the problems above the rest, what the code means; released and sent again it arrives."""
    account = stage.account()
    stage.ask(account, "POST", "/v1/suppressions", {"address": "ada@good.test", "reason": "by hand"})
    to = ["one@good.test", "two@good.test", "three@good.test", "gone@bad.test", "ada@good.test"]
    message = stage.send(account, *to, cc=["copy@good.test"], tags=["order"], subject="Your order")
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    browser.see("4 delivered · 1 suppressed · 1 bounced")
    top = browser.one("//main//dl[1]").text
    assert f"Shop <shop@{account.domain}>" in top
    assert "one@good.test, two@good.test" in top
    assert "copy@good.test" in top
    assert message in top
    shown = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, ".recipient .address")]
    assert shown[:2] == ["gone@bad.test", "ada@good.test"]
    browser.see("The mailbox does not exist. Ask the recipient for the correct address")
    browser.see("The address is suppressed, so no delivery was attempted.")
    own = "//*[contains(@class, 'recipient')][.//bdi[.='ada@good.test']]"
    browser.one(f"{own}//button[normalize-space()='Remove from suppressions']").click()
    browser.until(lambda: "ada@good.test" not in suppressed(stage, account), "the release")
    browser.one(f"{own}//button[normalize-space()='Send again']").click()
    browser.one("//dialog//button[normalize-space()='Send again']").click()
    browser.until(lambda: message not in browser.path(), "the new message")
    browser.see("1 delivered")
    browser.see(message, "a").click()
    browser.see("4 delivered · 1 suppressed · 1 bounced")
    own = "//*[contains(@class, 'recipient')][.//bdi[.='gone@bad.test']]"
    browser.one(f"{own}//a[normalize-space()='All messages to this address']").click()
    browser.see("Messages", "h1")
    assert browser.path().startswith("/dashboard/messages?recipient=gone%40bad.test")
    assert browser.forbidden() == []


def suppressed(stage: Stage, account: Provisioned) -> list[str]:
    return [each["address"] for each in stage.ask(account, "GET", "/v1/suppressions")["suppressions"]]


def test_images_files_and_the_whole_message(stage: Stage, browser: Browser) -> None:
    """Images that came along are shown, those of others only on a click; the message and its files are downloaded."""
    account = stage.account()
    with image_server() as (elsewhere, asked):
        html = f'<p>Hello</p><img src="cid:logo" alt="ours"><img src="{elsewhere}/seen.png" alt="theirs">'
        files = [
            {"filename": "logo.png", "content": base64.b64encode(PIXEL).decode(), "content_id": "logo"},
            {"filename": "invoice.txt", "content": base64.b64encode(b"42 euros").decode()},
        ]
        message = stage.send(account, "ada@good.test", html=html, attachments=files)
        stage.tried(message)
        browser.log_in(account.email)
        browser.open(f"/dashboard/messages/{message}")
        browser.tab("Content")
        widths = "return [...document.querySelector('iframe').contentDocument.images].map((each) => each.naturalWidth)"
        browser.until(lambda: browser.script(widths) == [1, 0], "the image that came along")
        browser.see("1 remote image blocked. Loading reveals that you opened the message.")
        assert asked == []
        assert browser.forbidden() == []
        browser.click("Load images")
        browser.until(lambda: browser.script(widths) == [1, 1], "the image of the other server")
        assert asked == ["/seen.png"]
        browser.script(KEEP)
        browser.click("Download .eml")
        name, text = browser.until(lambda: browser.script("return window.kept"), "the message")
        assert name == f"{message}.eml"
        assert "Subject: Hello\r\n" in text
        browser.script("window.kept = null")
        browser.click("Files (2)")
        browser.click("Download invoice.txt")
        assert browser.until(lambda: browser.script("return window.kept"), "the file") == ["invoice.txt", "42 euros"]


def test_a_message_is_printed_without_the_frame(stage: Stage, browser: Browser) -> None:
    """The facts and the chosen tab are on paper; the rail, the command field and the buttons are not."""
    account = stage.account()
    message = stage.send(account, "ada@good.test", html="<p>Hello</p>")
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}?tab=content")
    browser.until(lambda: browser.count("iframe"), "the content")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        seen = "return [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility()).length"
        for css, visible in (
            (".facts", True),
            ("iframe", True),
            (".timeline", False),
            (".rail, .top, .tabs, button", False),
        ):
            assert bool(browser.script(seen, css)) is visible, css
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
