"""Scheduled mail: one test per task, with the number of clicks that the task takes."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_explorer import clicks, rows
from tests.running_appliance import Provisioned

ZONE = timedelta(hours=5, minutes=30)  # of the browser


def ahead(days: int) -> datetime:
    return (datetime.now(UTC) + timedelta(days=days)).replace(second=0, microsecond=0)


def written(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def shown(at: datetime) -> str:
    local = at + ZONE
    return f"{local.day} {local:%b}, {local:%H:%M}"


def choose(browser: Browser, label: str, at: datetime) -> None:
    browser.script("arguments[0].value = arguments[1]", browser.field(label), (at + ZONE).strftime("%Y-%m-%dT%H:%M"))


def due(stage: Stage, account: Provisioned, *messages: str) -> set[str | None]:
    found: list[Any] = [stage.ask(account, "GET", f"/v1/emails/{each}") for each in messages]
    return {each["scheduled_at"] for each in found}


def later(stage: Stage, account: Provisioned, at: datetime, **fields: Any) -> str:
    return stage.send(account, "ada@good.test", scheduled_at=at.isoformat(), **fields)


def test_a_message_is_written_and_sent_later(stage: Stage, browser: Browser) -> None:
    """Two clicks. A time in the past is refused at its field; a message without one goes out at once."""
    account, at = stage.account(), ahead(3)
    browser.log_in(account.email)
    browser.open("/dashboard/messages")

    def write() -> None:
        browser.click("New message")
        browser.fill("From", f"Shop <shop@{account.domain}>")
        browser.fill("To", "ada@good.test, bob@good.test")
        browser.fill("Subject", "Sale")
        browser.fill("Text", "From Friday on.")

    with clicks(browser, 2):
        write()
        choose(browser, "Send later", at)
        browser.one("//dialog//button[normalize-space()='Send message']").click()
        browser.see("Sale", "h1")
    browser.see("Goes out", "dt")
    browser.see(f"Next: attempt 1 at {shown(at)}, in 2 d 23 h", "p")
    assert due(stage, account, browser.path().rpartition("/")[2]) == {written(at)}
    browser.open("/dashboard/messages")
    write()
    choose(browser, "Send later", ahead(-1))
    browser.script("document.querySelector('dialog form').noValidate = true")
    browser.one("//dialog//button[normalize-space()='Send message']").click()
    assert "is in the past" in browser.one("//*[contains(@class, 'field')]//*[@role='alert']").text
    browser.script("arguments[0].value = ''", browser.field("Send later"))
    browser.one("//dialog//button[normalize-space()='Send message']").click()
    browser.see("2 delivered")


def test_scheduled_messages_are_listed_moved_and_cancelled(stage: Stage, browser: Browser) -> None:
    """One click lists them; four move all, one takes it back, four cancel. Waiting mail is another list."""
    account, first, second = stage.account(), ahead(1), ahead(2)
    scheduled = [later(stage, account, first, metadata={"campaign": "w47"}) for _ in range(2)]
    waiting = stage.send(account, "ada@grey.test")
    browser.log_in(account.email)
    browser.open("/dashboard/messages?waiting=true")
    browser.see("Status: waiting", "*[contains(@class, 'chip')]")
    rows(browser, 1)
    with clicks(browser, 1):
        browser.one("//nav[@aria-label='Views']//a[starts-with(., 'Scheduled')][contains(., '2')]").click()
        rows(browser, 2)
    assert browser.path() == "/dashboard/messages?outcome=scheduled"
    browser.see(f"scheduled {shown(first)}", "td")

    def select_all() -> None:
        browser.one("(//td//input[@type='checkbox'])[1]").click()
        browser.click("Select all shown")

    with clicks(browser, 4):
        select_all()
        browser.click("Reschedule")
        choose(browser, "Send at", second)
        browser.one("//dialog//button[normalize-space()='Reschedule']").click()
        browser.see(f"scheduled {shown(second)}", "td")
    assert due(stage, account, *scheduled) == {written(second)}
    with clicks(browser, 1):
        browser.one(f"//*[contains(., '2 messages go out {shown(second)}')]//button[.='Undo']").click()
        browser.see(f"scheduled {shown(first)}", "td")
    assert due(stage, account, *scheduled) == {written(first)}
    with clicks(browser, 4):
        select_all()
        browser.click("Cancel messages")
        browser.one("//dialog//button[normalize-space()='Cancel messages']").click()
        rows(browser, 0)
    browser.open("/dashboard/messages?outcome=cancelled&metadata=campaign:w47")
    browser.see("Metadata: campaign:w47", "*[contains(@class, 'chip')]")
    rows(browser, 2)
    browser.open(f"/dashboard/messages?q={waiting}")
    browser.one("(//td//input[@type='checkbox'])[1]").click()
    browser.click("Clear selection")
    assert "Reschedule" not in browser.text()


def test_a_scheduled_message_is_moved_and_cancelled_on_its_page(stage: Stage, browser: Browser) -> None:
    """Two clicks and a time move it, one takes it back, two cancel it; its metadata leads to its like."""
    account, first, second = stage.account(), ahead(1), ahead(2)
    message = later(stage, account, first, metadata={"campaign": "w47"})
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    assert "Try now" not in browser.text()
    with clicks(browser, 2):
        browser.click("Reschedule")
        choose(browser, "Send at", second)
        browser.one("//dialog//button[normalize-space()='Reschedule']").click()
        browser.see(f"Next: attempt 1 at {shown(second)}", "p")
    with clicks(browser, 1):
        browser.one(f"//*[contains(., 'Goes out {shown(second)}')]//button[.='Undo']").click()
        browser.see(f"Next: attempt 1 at {shown(first)}", "p")
    assert due(stage, account, message) == {written(first)}
    with clicks(browser, 2):
        browser.click("Cancel message")
        browser.one("//dialog//button[normalize-space()='Cancel message']").click()
        browser.see(f"cancelled: by {account.email}")
    assert "Reschedule" not in browser.text()
    browser.see("campaign: w47", "a").click()
    rows(browser, 1)
    assert browser.path() == "/dashboard/messages?metadata=campaign%3Aw47"
