"""The way back, and what stays: filters, loaded rows, lists, the command field, and single values to copy."""

from selenium.webdriver.common.keys import Keys

from tests import engines
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage

ROWS = 60  # more than a page


def test_the_way_back_keeps_filters_and_rows(stage: Stage, browser: Browser) -> None:
    """The link above a message leads to the filtered list; a step back shows the rows that were loaded."""
    account = stage.account()
    for _ in range(ROWS):
        stage.send(account, "ada@good.test", tags=["mine"])
    browser.log_in(account.email)
    browser.open("/dashboard/messages?tag=mine")
    browser.click("Load older")
    browser.until(lambda: browser.count("tr.linked") == ROWS, "all rows")
    browser.script("document.querySelectorAll('tr.linked a')[55].click()")
    browser.see("Hello", "h1")
    browser.driver.back()
    browser.see("Messages", "h1")
    assert browser.count("tr.linked") == ROWS
    browser.script("document.querySelector('tr.linked a').click()")
    browser.see("Hello", "h1")
    browser.click("← Messages")
    browser.see("Messages", "h1")
    assert browser.path() == "/dashboard/messages?tag=mine"


def test_escape_empties_the_command_field(stage: Stage, browser: Browser) -> None:
    browser.log_in(stage.account().email)
    browser.type("/")
    browser.until(lambda: browser.script("return document.activeElement.className") == "command", "the field")
    browser.type("exampl")
    browser.type(Keys.ESCAPE)
    browser.until(lambda: browser.script("return document.querySelector('.command').value") == "", "an empty field")
    assert browser.script("return document.activeElement.className") != "command"


def test_a_release_stays_on_its_page(stage: Stage, browser: Browser) -> None:
    """One row goes; rows that were loaded later stay, and the next row's button has the focus."""
    account = stage.account()
    marks = ", ".join(["(?, ?, 'asked', 1)"] * 102)
    given = [value for number in range(102) for value in (account.account_id, f"user{number:03}@good.test")]
    insert = f"INSERT INTO suppressions (account_id, address, reason, created_at) VALUES {marks}"
    engines.rows(stage.world.running.data_dir, insert, *given)
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.click("Load more")
    browser.until(lambda: browser.count("tbody tr") == 102, "all rows")
    browser.click("Release user100@good.test")
    browser.until(lambda: browser.count("tbody tr") == 101, "one row less")
    focused = browser.script("return document.activeElement.getAttribute('aria-label')")
    assert focused == "Release user101@good.test"


def test_a_port_is_copied_alone(stage: Stage, browser: Browser) -> None:
    browser.log_in(stage.account().email)
    browser.go("Keys & credentials")
    browser.script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click("New credential")
    browser.fill("Name of the credential", "CRM")
    browser.click("Create credential")
    browser.see("will not be shown again")
    browser.click("Copy Port")
    shown = browser.one("//*[@data-secret='Port']").text
    copied = browser.until(lambda: browser.script("return window.copied"), "the copied text")
    assert copied.isdecimal()
    assert shown.startswith(f"{copied} (")
