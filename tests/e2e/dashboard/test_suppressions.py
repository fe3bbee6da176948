"""The suppression list: searched, released together, from and to files."""

from pathlib import Path

from selenium.webdriver.common.by import By

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_message import KEEP, suppressed

HEADING = "status,reason,email\n"


def shown(browser: Browser) -> list[str]:
    return [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "tbody bdi.mono")]


def test_a_file_comes_in_and_goes_out(stage: Stage, browser: Browser, tmp_path: Path) -> None:
    """A hosted service's file is imported in parts, with a report; the list is searched, released and exported."""
    account = stage.account()
    rows = [f"550,no such user,user{number:04}@x.example" for number in range(1_100)]
    rows[700] = "550,no such user,not an address"
    file = tmp_path / "bounces.csv"
    file.write_text(HEADING + "\n".join(rows) + "\n")
    stage.ask(account, "POST", "/v1/suppressions", {"address": "ada@y.example", "reason": "=asked to stop"})
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.click("Import CSV")
    browser.one("//input[@id='csv-file']").send_keys(str(file))
    browser.one("//dialog//button[normalize-space()='Import file']").click()
    told = browser.one("//dialog//*[@role='status']").text
    assert told == "1,099 addresses imported, 0 already listed, 1 line skipped."
    assert browser.one("//dialog//tbody/tr").text.startswith("702 ")
    browser.click("Close")
    browser.until(lambda: len(shown(browser)) == 100, "the list")

    browser.fill("Search", "user000")
    browser.click("Search")
    browser.until(lambda: len(shown(browser)) == 10, "what was found")
    assert browser.path() == "/dashboard/suppressions?q=user000"
    browser.see("import", "td")
    browser.click("Select all shown")
    browser.click("Release 10 addresses")
    browser.see("No results", "h2")
    assert len(suppressed(stage, account)) == 100  # a page of them
    browser.click("Show all")
    browser.until(lambda: "ada@y.example" in shown(browser), "the whole list")
    browser.script(KEEP)
    browser.click("Export CSV")
    name, text = browser.until(lambda: browser.script("return window.kept"), "the file")
    lines = text.split("\r\n")
    assert (name, lines[0], len(lines)) == ("suppressions.csv", "address,reason,origin,created_at", 1_092)
    assert lines[1].startswith('"ada@y.example","\'=asked to stop",manual,')
    assert browser.forbidden() == []
