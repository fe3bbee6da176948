"""The inbox of `appliance dev`: a message comes in, is looked at from all sides, and its faults are listed."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.test_accessible import findings
from tests.running_dev import Dev, running_dev

IMAGE = "http://127.0.0.1:9/spy.png"
HTML = f"""<h1>Welcome</h1><style>@media (prefers-color-scheme: dark) {{ h1 {{ color: rgb(1, 2, 3) }} }}</style>
<script>top.hacked = 1</script><img src=x onerror="top.hacked = 1"><img src="{IMAGE}">
<a href="https://acme.example/confirm?token=1">Confirm</a> <a href="javascript:top.hacked=1">Click</a>
<form action="/v1/emails" method="post"><button>Go</button></form>"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("inbox")) as server:
        yield server


@pytest.fixture
def browser(_started: Browser, dev: Dev) -> Browser:
    _started.driver.get("about:blank")
    _started.log()
    dev.http.delete("/v1/emails")
    made = Browser(_started.driver, dev.url)
    made.size(*DESKTOP)
    return made


def send(dev: Dev, key: str, **fields: Any) -> None:
    message = {"from": "shop@any.example", "to": "ada@example.net", "subject": "Welcome", "text": "Plain words"}
    sent = dev.http.post("/emails", json=message | fields, headers={"Idempotency-Key": key})
    assert sent.status_code == 202


def inside(browser: Browser, script: str) -> Any:
    """Run a script on the frame of the message."""
    return browser.script(f"const frame = document.querySelector('iframe'); return {script}")


def test_a_message_comes_in_and_is_looked_at_from_all_sides(browser: Browser, dev: Dev) -> None:
    browser.open("/")
    browser.see("No messages yet")
    assert "nothing leaves this machine" in browser.text()
    file = {"filename": "terms.txt", "content": base64.b64encode(b"Terms").decode()}
    send(dev, "look", html=HTML, attachments=[file])
    browser.see("Welcome", "h2")
    browser.until(
        lambda: inside(browser, "frame.contentDocument.querySelector('h1')?.textContent") == "Welcome", "HTML"
    )
    browser.click("Phone")
    assert inside(browser, "frame.clientWidth") <= 375
    browser.click("Dark")
    assert (
        inside(browser, "frame.contentWindow.getComputedStyle(frame.contentDocument.documentElement).colorScheme")
        == "dark"
    )
    browser.tab("Text")
    browser.see("Plain words", "pre")
    browser.tab("Source")
    browser.see("MIME-Version: 1.0", "pre")
    browser.tab("Header")
    browser.see("shop@any.example", "code")
    browser.tab("Files (1)")
    browser.see("terms.txt")
    browser.tab("Links (2)")
    browser.see("https://acme.example/confirm?token=1", "code")
    browser.tab("Checks (4)")
    for title in ("Script in a link", "Image without alt", "<script> is dropped", "<form> is dropped"):
        browser.see(title)


def test_the_rules_find_nothing_in_any_tab(browser: Browser, dev: Dev) -> None:
    """The empty inbox, and each tab of a message with faults, light and dark, wide and on a phone."""
    browser.open("/dashboard/inbox")
    browser.see("No messages yet")
    found = findings(browser)
    file = {"filename": "terms.txt", "content": base64.b64encode(b"Terms").decode()}
    send(dev, "rules", html=HTML, attachments=[file])
    browser.see("Welcome", "h2")
    tabs = browser.driver.find_elements(By.CSS_SELECTOR, "[role=tab]")
    for name in [each.text for each in tabs]:
        browser.tab(name)
        browser.one("//*[@role='tabpanel']//*")
        found += [f"{name}: {each}" for each in findings(browser)]
    assert len(tabs) == 7
    assert found == []


def test_hostile_html_does_nothing(browser: Browser, dev: Dev) -> None:
    send(dev, "hostile", html=HTML, subject="<img src=x onerror=alert(1)>")
    browser.open("/dashboard/inbox")
    browser.see("1 remote image blocked")
    assert browser.script("return window.hacked") is None
    assert inside(browser, "frame.contentDocument.querySelectorAll('script, [onerror], a[href]').length") == 0
    assert not [line for line in browser.forbidden() if IMAGE in line]
    browser.click("Load images")
    browser.until(
        lambda: inside(browser, f"frame.contentDocument.querySelector('img[src=\"{IMAGE}\"]') !== null"), "an image"
    )
    assert len(dev.http.get("/v1/emails").json()["emails"]) == 1


CUT = """
const at = (element) => element.getBoundingClientRect();
const cut = [...document.querySelectorAll(".mails button")].filter((each) =>
  [...each.children].some((part) => at(part).left > at(each).left + 14 || at(part).right > at(each).right));
const button = at(document.querySelector(".content > button"));
const below = [...document.querySelectorAll(".content [role=tab]")].filter((each) => {
  const { left, right, top, bottom } = at(each);
  return left < button.right && right > button.left && top < button.bottom && bottom > button.top;
});
return [...cut, ...below].map((each) => each.textContent);
"""


def test_nothing_in_it_is_cut_off_or_covered(browser: Browser, dev: Dev) -> None:
    """At any width, subjects begin at the left edge and wrap, and no button lies on a tab."""
    file = {"filename": "terms.txt", "content": base64.b64encode(b"Terms").decode()}
    send(dev, "short", subject="Hi")
    send(dev, "long", subject="Winter is coming: everything 20 % off until Sunday, and free shipping", html=HTML)
    send(dev, "files", html=HTML, attachments=[file])
    for width in (1440, 1024, 390):
        browser.size(width, 900)
        browser.open("/dashboard/inbox")
        browser.see("Download .eml", "button")
        assert browser.script(CUT) == [], width


def test_the_newest_is_first_and_all_can_be_deleted(browser: Browser, dev: Dev) -> None:
    browser.size(*PHONE)
    for number in range(3):
        send(dev, f"many-{number}", subject=f"Number {number}")
    browser.open("/dashboard/inbox")
    browser.until(lambda: browser.count(".mails li") == 3, "three messages")
    subjects = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, ".mails b")]
    assert subjects == ["Number 2", "Number 1", "Number 0"]
    browser.driver.find_elements(By.CSS_SELECTOR, ".mails button")[2].click()
    browser.see("Number 0", "h2")
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    browser.click("Delete all")
    browser.see("No messages yet")


def test_pages_without_meaning_here_are_left_out(browser: Browser, tmp_path: Path) -> None:
    browser.open("/dashboard/inbox")
    names = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, ".rail nav a span")]
    assert names == ["Inbox", "Overview", "Messages", "Templates", "Webhook", "Requests", "Suppressions"]
