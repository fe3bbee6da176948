"""The one search field of the messages page, its filters in the address, and the words for what became of mail."""

from selenium.webdriver.common.keys import Keys

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage


def test_messages_are_found_by_words(stage: Stage, browser: Browser) -> None:
    """By a part of the subject or of an address; without a result it is said what was searched."""
    account = stage.account()
    stage.send(account, "ada.lovelace@good.test", subject="Your invoice 4711")
    stage.send(account, "bob@good.test", subject="Welcome")
    browser.log_in(account.email)
    browser.go("Messages")
    browser.until(lambda: browser.count("tr.linked") == 2, "all messages")
    browser.script("document.querySelector('[name=q]').focus()")
    browser.type("INV lovelace", Keys.ENTER)
    browser.until(lambda: browser.count("tr.linked") == 1, "the one message")
    assert browser.path() == "/dashboard/messages?q=INV+lovelace"
    assert browser.script("return document.querySelector('[name=q]').value") == "INV lovelace"
    browser.open("/dashboard/messages?q=nothing&outcome=bounced&since=2020-01-01")
    browser.see("No results for “nothing”", "h2")
    text = browser.script("return document.querySelector('main').textContent")
    assert "Searched: “nothing”; Status: bounced; Since: 2020-01-01." in text
    assert "in recipients, senders, subjects" in text


def test_the_command_field_leads_to_the_search(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.send(account, "ada@good.test", subject="Your invoice 4711")
    stage.send(account, "ada@good.test", subject="Welcome")
    browser.log_in(account.email)
    browser.type("/")
    browser.until(lambda: browser.script("return document.activeElement.className") == "command", "the field")
    browser.type("invoice")
    browser.one("//*[@id='found-0' and contains(., 'Search messages for “invoice”')]")
    browser.type(Keys.ENTER)
    browser.until(lambda: browser.count("tr.linked") == 1, "the one message")
    assert browser.path() == "/dashboard/messages?q=invoice"
