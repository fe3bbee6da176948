"""Pages that update themselves: no row is missed, none stays that has left, focus and selected text stay, and the
user is told when the server or the session is gone."""

import signal
import time

import pytest

from appliance.model.mail import Role
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import PASSWORD

HIDE = "Object.defineProperty(document, 'hidden', { configurable: true, value: arguments[0] })"
SELECT = "getSelection().selectAllChildren(document.querySelector(arguments[0]))"
LOST = "Connection lost"
TOLD_WITHIN = 3.0  # seconds


def shown_ids(browser: Browser) -> list[str]:
    return list(browser.script("return [...document.querySelectorAll('tr.linked')].map((each) => each.dataset.id)"))


def test_no_row_is_missed_while_the_tab_is_hidden(stage: Stage, browser: Browser) -> None:
    """More than a page comes meanwhile: all of it is there, newest first, when the tab is seen again."""
    account = stage.account()
    first = stage.send(account, "ada@good.test")
    browser.log_in(account.email)
    browser.go("Messages")
    browser.until(lambda: browser.count("tr.linked") == 1, "the first row")
    browser.script(HIDE, True)
    sent = [first, *(stage.send(account, "ada@good.test") for _ in range(120))]
    browser.script(HIDE, False)
    browser.until(lambda: browser.count("tr.linked") == len(sent), "all rows")
    assert shown_ids(browser) == sorted(sent, reverse=True)


def test_a_row_that_left_the_filter_goes(stage: Stage, browser: Browser) -> None:
    """In a list of what waits, a cancelled message is no longer shown, on whichever page it was loaded."""
    account = stage.account()
    sent = [stage.send(account, "ada@grey.test") for _ in range(60)]
    browser.log_in(account.email)
    browser.open("/dashboard/messages?status=queued")
    browser.click("Load older")
    browser.until(lambda: browser.count("tr.linked") == len(sent), "all rows")
    for gone in (sent[0], sent[-1]):
        stage.ask(account, "POST", f"/v1/emails/{gone}/cancel")
    browser.until(lambda: shown_ids(browser) == sent[-2:0:-1], "the rows that still wait")


def test_focus_and_selection_stay_while_a_message_is_watched(stage: Stage, browser: Browser) -> None:
    """Its recipients are drawn again when something happens: not what the reader is at."""
    account = stage.account()
    message = stage.send(account, "ada@grey.test", "bob@grey.test")
    stage.tried(message)
    browser.log_in(account.email)
    browser.open(f"/dashboard/messages/{message}")
    browser.click_summary("SMTP dialogue")
    browser.script(SELECT, ".reply")
    selected = browser.script("return String(getSelection())")
    assert "Greylisted" in selected
    browser.script("document.querySelector('article summary').focus()")
    stage.ask(account, "POST", f"/v1/emails/{message}/cancel")
    browser.see("cancelled")
    assert browser.script("return document.activeElement.tagName") == "SUMMARY"
    assert browser.script("return String(getSelection())") == selected
    assert browser.count("article details[open]") == 1


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/messages", "/dashboard/admin"])
def test_a_server_that_is_gone_is_told(stage: Stage, browser: Browser, path: str) -> None:
    """Within seconds, on a page that is only looked at; when it is back, that is seen as well."""
    process = stage.world.running.process
    assert process is not None
    browser.log_in(stage.account(role=Role.ADMIN).email)
    browser.open(path)
    browser.until(lambda: _asked(browser), "the first question whether the server is there")
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        browser.until(lambda: LOST in browser.text(), "a notice")
        assert time.monotonic() - began < TOLD_WITHIN + 2  # of a busy machine
    finally:
        process.send_signal(signal.SIGCONT)
    browser.until(lambda: LOST not in browser.text(), "the end of the notice")


def _asked(browser: Browser) -> bool:
    names = browser.script("return performance.getEntries().map((each) => each.name)")
    return any(name.endswith("/healthz") for name in names)


def test_a_session_that_ended_takes_nothing_away(stage: Stage, browser: Browser) -> None:
    """The login is asked for over the page; what was typed is still there, and is sent after it."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.fill("Suppress an address", "typed@good.test")
    stage.ask(account, "DELETE", "/v1/auth/sessions")
    browser.script("window.stays = true")
    browser.click("Suppress")
    browser.one("//dialog//h2[contains(., 'Your session has ended')]")
    browser.fill("Password", PASSWORD)
    browser.click("Log in")
    browser.see("typed@good.test", "td")
    assert browser.script("return window.stays") is True
