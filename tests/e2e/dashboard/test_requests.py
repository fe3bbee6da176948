"""The request log in the browser, links that survive a reload, the audit export, and two tabs that save the same."""

import httpx
from selenium.webdriver.common.by import By

from appliance.web.pages import DASHBOARD_PAGES, DASHBOARD_ROOT
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import NO_TLS

# A wrong filter of each list, and a control that keeps it.
WRONG = {
    "/messages?source=x": "//*[@class='chip' and contains(., 'Source: x')]",
    "/requests?status=x": "//select[@name='status']/option[@value='x' and @selected]",
    "/suppressions?origin=x&stream=digest": "//*[@class='chip' and contains(., 'Stream: digest')]",
    "/deliverability?domain=a.example&stream=x": "//select/optgroup/option[@value='stream=x' and @selected]",
}
LINKS = "return [...document.querySelectorAll('a[href^=\"/dashboard\"]')].map((link) => link.pathname)"


def test_a_refused_request_is_read_in_full(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    message_id = stage.send(account, "ada@example.net")
    browser.log_in(account.email)
    browser.until(lambda: stage.ask(account, "GET", "/v1/requests")["requests"], "the request is logged")
    browser.go("Requests")
    browser.see(message_id).click()
    browser.see("POST /emails", "code")
    browser.see("ada@example.net")
    browser.click(message_id)
    browser.until(lambda: browser.path() == f"/dashboard/messages/{message_id}", "the message opens")


def test_every_link_of_a_page_survives_a_reload(stage: Stage, browser: Browser) -> None:
    """The server knows every page that a script links to."""
    browser.log_in(stage.account().email)
    pages = {
        f"{DASHBOARD_ROOT}/{name}".rstrip("/") for name, page in DASHBOARD_PAGES.items() if page.section != "login"
    }
    links = set(pages)
    for page in pages:
        browser.open(page)
        links |= set(browser.script(LINKS))
    statuses = {path: httpx.get(stage.url + path, trust_env=False, verify=NO_TLS).status_code for path in links}
    assert set(statuses.values()) == {200}, statuses


def test_a_wrong_filter_can_be_corrected(stage: Stage, browser: Browser) -> None:
    """The error of the API takes the place of the list; the title and the filters stay."""
    browser.log_in(stage.account().email)
    for path, kept in WRONG.items():
        browser.open(f"/dashboard{path}")
        assert browser.one("//main//*[@role='alert']").text.split(":")[0] in path
        title = browser.one("//main//h1").text
        assert title.lower() in path
        assert browser.driver.find_elements(By.XPATH, f"//main{kept}"), path


def test_the_audit_log_is_exported(stage: Stage, browser: Browser) -> None:
    browser.log_in(stage.account().email)
    browser.go("Audit log")
    browser.script("window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download) }")
    browser.click("Export CSV")
    browser.until(lambda: browser.script("return saved") == ["audit.csv"], "the file is saved")
    assert browser.count(".error") == 0


def test_the_second_of_two_tabs_keeps_its_text(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    stage.ask(account, "PUT", "/v1/templates/hello", {"text": "one"})
    browser.log_in(account.email)
    browser.open("/dashboard/templates/hello")
    browser.fill("Plain text", "mine")
    stage.ask(account, "PUT", "/v1/templates/hello", {"text": "theirs"})
    browser.click("Save new version")
    browser.see("Version 2 was saved meanwhile, and you edited version 1. Compare them, then save.", "div")
    assert browser.field("Plain text").get_attribute("value") == "mine"
    browser.click("Save my text")
    browser.until(lambda: stage.ask(account, "GET", "/v1/templates/hello")["text"] == "mine", "it is saved")
