"""The message explorer: one test per task, with the number of clicks that the task takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from appliance.store import Store
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage

COUNT_CLICKS = """window.clicks = 0;
    const count = (event) => event.isTrusted && event.detail && (window.clicks += 1);
    window.counts ||= !addEventListener("click", count, true)"""
KEEP_FILES = """const make = URL.createObjectURL.bind(URL);
    URL.createObjectURL = (blob) => (blob.text().then((text) => (window.saved = text)), make(blob))"""


@contextmanager
def clicks(browser: Browser, number: int) -> Iterator[None]:
    """The task takes so many clicks of the pointer; keys do not count."""
    browser.script(COUNT_CLICKS)
    yield
    assert browser.script("return window.clicks") == number


def rows(browser: Browser, number: int) -> None:
    browser.until(lambda: browser.count("tr.linked") == number, f"{number} rows")


def search(browser: Browser, text: str) -> None:
    browser.script("document.querySelector('[name=q]').select()")
    browser.type(text, Keys.ENTER)


def counted(browser: Browser, text: str) -> None:
    browser.until(lambda: browser.script("return document.querySelector('.count')?.textContent") == text, text)


def test_todays_bounces_are_two_clicks_away(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    bounced = stage.send(account, "gone@bad.test", subject="Your order")
    stage.tried(bounced, stage.send(account, "ada@good.test"))
    browser.log_in(account.email)
    with clicks(browser, 2):
        browser.go("Messages")
        browser.one("//nav[@aria-label='Views']//a[starts-with(., 'Bounced today')][contains(., '1')]").click()
        rows(browser, 1)
    assert browser.path() == "/dashboard/messages?outcome=bounced&since=today"
    counted(browser, "1 message")


def test_typed_filters_become_chips_and_the_back_button_restores_them(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.send(account, "ada.lovelace@good.test", subject="Invoice", tags=["order"])
    stage.send(account, "bob@good.test", subject="Welcome", tags=["order"])
    stage.send(account, "bob@good.test", subject="Other")
    browser.log_in(account.email)
    browser.open("/dashboard/messages")
    rows(browser, 3)
    with clicks(browser, 1):
        search(browser, "tag:order contains:lovelace")
        rows(browser, 1)
        assert browser.path() == "/dashboard/messages?tag=order&address=lovelace"
        browser.click("Remove the filter Address contains: lovelace")
        rows(browser, 2)
    counted(browser, "2 messages")
    browser.driver.back()
    rows(browser, 1)
    browser.driver.back()
    rows(browser, 3)
    search(browser, "ovelace")
    browser.see("No results for “ovelace”", "h2")
    browser.click("Search inside addresses for “ovelace”")
    rows(browser, 1)


def test_a_filter_is_chosen_in_a_dialog(stage: Stage, browser: Browser) -> None:
    """By the key that sent the messages: two clicks, and the choice of the key."""
    account = stage.account()
    stage.send(account, "ada@good.test")
    stage.ask(account, "POST", "/v1/emails/test", {"to": "ada@good.test"})
    keys = stage.ask(account, "GET", "/v1/api-keys")["api_keys"]
    (key,) = [each["id"] for each in keys if account.bearer["Authorization"].endswith(each["hint"])]
    browser.log_in(account.email)
    browser.open("/dashboard/messages")
    rows(browser, 2)
    with clicks(browser, 2):
        browser.click("Filter")
        Select(browser.field("Key")).select_by_value(key)
        browser.click("Show messages")
        rows(browser, 1)
    assert browser.path() == f"/dashboard/messages?key={key}"


def test_text_that_cannot_be_searched_keeps_the_page(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.send(account, "ada@good.test")
    browser.log_in(account.email)
    browser.open("/dashboard/messages")
    for text in ("(", "\N{PARTY POPPER}"):
        browser.open("/dashboard/messages")
        browser.script(
            "const q = document.querySelector('[name=q]'); q.value = arguments[0]; q.form.requestSubmit()", text
        )
        browser.until(lambda: "q=" in browser.path(), "the search")
        browser.see("Messages", "h1")
        assert browser.script("return document.querySelector('[name=q]').value") == text


def test_a_view_is_saved_opened_and_deleted(stage: Stage, browser: Browser) -> None:
    """Two clicks and a name save it, one opens it; a deleted view can be restored."""
    account = stage.account()
    stage.send(account, "ada@good.test", tags=["order"])
    stage.send(account, "ada@good.test")
    browser.log_in(account.email)
    browser.open("/dashboard/messages?tag=order")
    with clicks(browser, 2):
        browser.click("Save view")
        browser.fill("Name", "Orders")
        browser.one("//dialog//button[normalize-space()='Save view']").click()
        browser.until(lambda: browser.count("dialog") == 0, "the list")
    browser.open("/dashboard/messages")
    rows(browser, 2)
    with clicks(browser, 1):
        browser.click("Orders")
        rows(browser, 1)
    browser.click("Delete view")
    browser.one("//button[normalize-space()='Undo']").click()
    browser.one("//nav[@aria-label='Views']//a[normalize-space()='Orders']")


async def rested(store: Store) -> None:
    """Let the attempts so far be two minutes old."""
    await store.engine.change("UPDATE recipients SET failed_at = failed_at - 120000000 WHERE failed_at IS NOT NULL", {})


def test_selected_messages_are_tried_now_and_cancelled(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    waiting = [stage.send(account, "ada@grey.test") for _ in range(2)]
    stage.tried(*waiting)
    change(stage.world.running.data_dir, rested)
    browser.log_in(account.email)
    browser.open("/dashboard/messages?status=queued")
    rows(browser, 2)

    def attempts() -> list[int]:
        details: list[Any] = [stage.ask(account, "GET", f"/v1/emails/{each}") for each in waiting]
        return [each["recipients"][0]["attempt_count"] for each in details]

    with clicks(browser, 3):
        browser.one("(//td//input[@type='checkbox'])[1]").click()
        browser.click("Select all shown")
        browser.click("Try now")
        browser.until(lambda: attempts() == [2, 2], "second attempts")
    with clicks(browser, 4):
        browser.one("(//td//input[@type='checkbox'])[1]").click()
        browser.click("Select all shown")
        browser.click("Cancel messages")
        browser.one("//dialog//button[normalize-space()='Cancel messages']").click()
        browser.until(lambda: browser.count("tr.linked") == 0, "an empty list")


def test_selected_messages_are_sent_again(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.tried(stage.send(account, "gone@bad.test"), stage.send(account, "ada@good.test"))
    browser.log_in(account.email)
    browser.open("/dashboard/messages")
    rows(browser, 2)
    with clicks(browser, 4):
        browser.one("(//td//input[@type='checkbox'])[1]").click()
        browser.click("Select all shown")
        browser.click("Send again")
        browser.one("//dialog//button[normalize-space()='Send again']").click()
        rows(browser, 3)
    browser.one("//*[contains(., 'Sent 1 message again; 1 message had no undelivered recipient')]")


def test_the_filtered_list_is_exported_with_one_click(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.tried(
        stage.send(account, "gone@bad.test", subject="=1+1"), stage.send(account, "ada@good.test", subject="Fine")
    )
    browser.log_in(account.email)
    browser.open("/dashboard/messages?outcome=bounced")
    rows(browser, 1)
    browser.script(KEEP_FILES)
    with clicks(browser, 1):
        browser.click("Export CSV")
        text = browser.until(lambda: browser.script("return window.saved"), "the file")
    heading, line = text.strip().splitlines()
    assert heading.startswith("message_id,accepted_at,")
    assert ",'=1+1," in line
    assert ",gone@bad.test,bounced,1,550," in line


def test_the_command_field_shows_messages_while_typing(stage: Stage, browser: Browser) -> None:
    """No click: `/`, a word, the arrow down to the message, and Enter."""
    account = stage.account()
    message = stage.send(account, "ada@good.test", subject="Your invoice 4711")
    browser.log_in(account.email)
    with clicks(browser, 0):
        browser.type("/")
        browser.until(lambda: browser.script("return document.activeElement.className") == "command", "the field")
        browser.type("invoice")
        browser.one("//*[@id='found-1' and contains(., 'Your invoice 4711')]")
        browser.type(Keys.ARROW_DOWN, Keys.ENTER)
        browser.until(lambda: browser.path() == f"/dashboard/messages/{message}", "the message")
