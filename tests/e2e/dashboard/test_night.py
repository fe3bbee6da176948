"""At night: where is my mail, and why?"""

import json
import re
import time

from selenium.webdriver.common.keys import Keys

from tests.e2e.dashboard.browser import PHONE, Browser
from tests.e2e.dashboard.stage import Stage


def test_a_deferred_message_is_explained_in_ten_seconds(stage: Stage, browser: Browser) -> None:
    """Paste the address, open the message, read what the server said and when it is tried again: by keys alone."""
    account = stage.account()
    message = stage.send(account, "night@grey.test", subject="Your login code", tags=["login"])
    stage.send(account, *(f"customer{number}@good.test" for number in range(3)))
    stage.tried(message)
    browser.log_in(account.email)
    begun = time.monotonic()
    browser.type("/")
    browser.type("night@grey.test")
    browser.one("//*[@id='found-0' and contains(., 'Messages to night@grey.test')]")
    browser.type(Keys.ENTER)
    browser.see("night@grey.test", "a")
    assert browser.path() == "/dashboard/messages?recipient=night%40grey.test"
    browser.until(lambda: browser.count("tbody tr") == 1, "the list")
    browser.type("j")
    browser.until(lambda: browser.count("tr a:focus"), "the row")
    browser.type(Keys.ENTER)
    why = browser.see("Greylisted, please come back in five minutes", "p[contains(@class, 'standing')]").text
    assert "mx0.grey.test said 451 4.7.1" in why
    assert time.monotonic() - begun < 60  # ten seconds of a person, on a busy machine
    assert "try 2 of 4 at " in why
    browser.see("Next: attempt 2 at ")
    browser.see("no TLS")
    browser.one("//summary[contains(., 'SMTP dialogue')]").click()
    browser.see("RCPT TO:<night@grey.test>")
    browser.picture("message")
    browser.size(*PHONE)
    browser.picture("phone")


def test_times_are_the_viewers_with_utc_on_hover(stage: Stage, browser: Browser) -> None:
    """In Kolkata the clock is five and a half hours ahead, and the exact UTC stands behind each time."""
    account = stage.account()
    message = stage.send(account, "night@grey.test")
    stage.tried(message)
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    clocks = browser.script("""return [...document.querySelectorAll(".standing time:not([data-relative])")]
        .map((each) => [each.textContent, each.title, each.dateTime])""")
    assert clocks
    for shown, title, exact in clocks:
        assert title.startswith(exact[:10])
        assert title.endswith("UTC")
        minutes = int(exact[11:13]) * 60 + int(exact[14:16]) + 330
        assert f"{minutes // 60 % 24:02}:{minutes % 60:02}" in shown


def test_a_refusal_has_its_class_and_a_late_bounce_its_place(stage: Stage, browser: Browser) -> None:
    """The class stands beside the status; a bounce that came by mail follows the delivery, which is not folded then."""
    account = stage.account()
    refused = stage.send(account, "night@grey.test", "gone@bad.test")
    taken = stage.send(account, *(f"customer{number}@good.test" for number in range(4)))
    stage.tried(refused, taken)
    words = "550 5.1.1 <i>moved</i> away"
    late = {"at": 1_750_000_000_000_000, "code": 550, "response": words, "class": "mailbox_full"}
    stage.world.rows(
        "UPDATE recipients SET late_bounce = ? WHERE message_id = ? AND address = ?",
        json.dumps(late),
        taken,
        "customer1@good.test",
    )
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{refused}")
    assert "invalid recipient" in browser.see("gone@bad.test", "h2").text
    assert "temporary" in browser.see("night@grey.test", "h2").text
    browser.open(f"/dashboard/messages/{taken}")
    title = browser.see("customer1@good.test", "h2").text
    assert "late bounced" in title
    browser.see("1 of 4 late bounced", "span")
    browser.see("3 delivered · 1 late bounced")
    (banner,) = browser.script(
        "return [...document.querySelectorAll('.standing.late_bounced')].map((p) => p.innerText)"
    )
    assert re.fullmatch("Bounced by mail at 15 Jun 2025, 20:36:40, after the server had accepted the message.", banner)
    assert re.search(r"Times are in Asia/\w+, UTC\+5:30\.", browser.text())
    browser.see("Bounced by mail after delivery")
    browser.see("mailbox full", "span")
    browser.see(words, "p[contains(@class, 'reply')]")
    assert browser.count("details.recipient") == 3


def test_a_message_is_cancelled(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    message = stage.send(account, "night@grey.test")
    stage.tried(message)
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    browser.click("Cancel message")
    browser.click("Keep message")
    assert stage.world.recipient(message).status == "deferred"
    browser.click("Cancel message")
    browser.one("//dialog//button[normalize-space()='Cancel message']").click()
    browser.see(f"cancelled: by {account.email}")
    assert stage.world.recipient(message).status == "failed"


def test_new_messages_come_by_themselves_and_older_on_request(stage: Stage, browser: Browser) -> None:
    """The list is live; what is below the first fifty is fetched by a click; filters live in the address."""
    account = stage.account()
    for number in range(55):
        tags = ["first" if number == 0 else "order"]
        stage.send(account, f"customer{number}@good.test", subject=f"Your order {4700 + number}", tags=tags)
    browser.log_in(account.email)
    browser.go("Messages")
    browser.see("customer54@good.test")
    assert browser.count("tbody tr") == 50
    stage.send(account, "late@grey.test")
    browser.see("late@grey.test")
    browser.until(lambda: browser.count(".badge.deferred") == 1, "the status that changed")
    browser.click("Load older")
    browser.see("customer0@good.test")
    browser.open("/dashboard/messages?tag=first")
    browser.see("customer0@good.test")
    assert browser.count("tbody tr") == 1
    browser.see("Tag: first", "*[contains(@class, 'chip')]")
