"""How the shared components behave: toasts with undo, menus, charts by touch, and dialogs that ask first."""

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.e2e.dashboard.browser import PHONE, Browser
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_message import suppressed


def undo(browser: Browser, text: str) -> None:
    browser.one(f"//*[contains(@class, 'toast') and contains(., '{text}')]//button[.='Undo']").click()


def test_suppressing_and_releasing_are_told_and_undone(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.click("Suppress an address")
    browser.fill("Address", "ada@good.test")
    browser.click("Suppress address")
    undo(browser, "ada@good.test suppressed")
    browser.until(lambda: suppressed(stage, account) == [], "the undone suppression")
    bounced = {"address": "bob@good.test", "reason": "550 5.1.1 No such user", "origin": "bounce"}
    stage.ask(account, "POST", "/v1/suppressions", bounced)
    browser.open("/dashboard/suppressions")
    browser.click("Release bob@good.test")
    undo(browser, "bob@good.test released")
    browser.see("No such user", "td")
    (entry,) = stage.ask(account, "GET", "/v1/suppressions")["suppressions"]
    assert {name: entry[name] for name in bounced} == bounced


def test_a_release_is_offered_for_listed_addresses_only(stage: Stage, browser: Browser) -> None:
    """After the release, the message no longer offers it; undo suppresses the address again."""
    account = stage.account()
    complained = {"address": "ada@good.test", "reason": "abuse", "origin": "complaint"}
    stage.ask(account, "POST", "/v1/suppressions", complained)
    message = stage.send(account, "ada@good.test")
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    browser.click("Remove from suppressions")
    undo(browser, "no longer suppressed")
    browser.until(lambda: suppressed(stage, account) == ["ada@good.test"], "the undone release")
    (entry,) = stage.ask(account, "GET", "/v1/suppressions")["suppressions"]
    assert {name: entry[name] for name in complained} == complained
    stage.ask(account, "DELETE", "/v1/suppressions/ada@good.test")
    browser.open(f"/dashboard/messages/{message}")
    browser.see("It is not suppressed any more: send again.")
    assert "Remove from suppressions" not in browser.text()


def touch(browser: Browser, x: float, y: float) -> None:
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def test_a_touched_bar_shows_its_numbers(stage: Stage, browser: Browser) -> None:
    """The first touch shows them and stays on the page; the second lists the messages."""
    account = stage.account()
    stage.tried(stage.send(account, "ada@good.test"))
    browser.log_in(account.email)
    browser.size(*PHONE)
    browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        browser.open("/dashboard?by=day")
        chart = browser.one("//*[name()='svg' and @role='img']")
        browser.script("arguments[0].scrollIntoView({block: 'center'})", chart)
        box = browser.script("return arguments[0].getBoundingClientRect().toJSON()", chart)
        last = box["x"] + box["width"] * 0.97, box["y"] + box["height"] - 10
        touch(browser, *last)
        browser.until(lambda: "Delivered\n1" in browser.one("//*[@class='tip']").text, "the numbers")
        assert browser.path() == "/dashboard?by=day"
        touch(browser, *last)
        browser.see("Messages", "h1")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_a_key_is_asked_for_its_name(stage: Stage, browser: Browser) -> None:
    """No click creates a nameless key; the dialog explains each scope, and a menu works by keys."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Keys & credentials")
    before = len(stage.ask(account, "GET", "/v1/api-keys")["api_keys"])
    browser.click("New key")
    text = browser.one("//dialog").text
    for scope in ("Cannot read anything.", "Cannot send.", "Sends mail and reads its status.", "For automation"):
        assert scope in text
    browser.click("Create key")
    assert browser.script("return document.activeElement.name") == "name"
    assert len(stage.ask(account, "GET", "/v1/api-keys")["api_keys"]) == before
    browser.type(Keys.ESCAPE)
    browser.until(lambda: browser.count("dialog") == 0, "the end of the dialog")
    name = f"key …{account.full_key[-4:]}"
    browser.click(f"Actions for {name}")
    browser.until(lambda: browser.script("return document.activeElement.textContent") == "Roll key", "the first item")
    browser.type(Keys.ARROW_DOWN)
    browser.type(Keys.ENTER)
    browser.one("//dialog//h2[contains(., 'Delete key')]")
    browser.click("Cancel")
    browser.until(lambda: browser.count("dialog") == 0, "the end of the dialog")
    assert browser.script("return document.activeElement.ariaLabel") == f"Actions for {name}"


def test_a_step_is_ticked_when_it_is_done(stage: Stage, browser: Browser) -> None:
    """A domain that the operator allowed has no published records until DNS shows them."""
    browser.log_in(stage.account().email)
    step = browser.one("//li[.//h3='Publish its DNS records']")
    assert step.find_element(By.CSS_SELECTOR, ".tick").text.strip() != "✓"
    assert "done" not in str(step.get_attribute("class"))


def test_a_message_opens_on_the_tab_of_its_address(stage: Stage, browser: Browser) -> None:
    """Content is one click away, and its address can be shared."""
    account = stage.account()
    message = stage.send(account, "ada@good.test", html="<p>Hello</p>")
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    browser.tab("Content")
    browser.one("//iframe")
    assert browser.path() == f"/dashboard/messages/{message}?tab=content"
    browser.open(f"/dashboard/messages/{message}?tab=details")
    browser.see("Envelope sender")
