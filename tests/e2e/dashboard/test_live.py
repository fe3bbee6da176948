"""Pages that update themselves: no row is missed, none stays that has left, focus and selected text stay, the user is
told when the server or the session is gone, and a page that is only open takes next to nothing of the network."""

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.model.accounts import Role
from appliance.model.webhooks import EventType, SealedSecret, WebhookOptions
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.relay import STREAM, Relay, relayed
from tests.e2e.dashboard.stage import Stage, staged
from tests.running_appliance import PASSWORD

HIDE = "Object.defineProperty(document, 'hidden', { configurable: true, value: arguments[0] })"
SELECT = "getSelection().selectAllChildren(document.querySelector(arguments[0]))"
LOST = "Connection lost"
TOLD_WITHIN = 20.0  # seconds: three, and what a busy machine adds; without a sign of the server it is never
AN_HOUR = 1_000_000  # bytes that an idle page may take, headers included
# Seconds until a page asks seldom, a problem that the server finds in its first minutes included; seconds measured.
SETTLED, WATCHED = 240.0, 60.0
# A busy machine delays the stream: the page then takes the server for lost, and loads all it shows again.
MINUTES = 6  # measured at the most, until each page had one in which its stream was never late
LIVE_PAGES = ("", "/messages", "/messages/{message}", "/webhook", "/admin")


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
@pytest.mark.parametrize("holds_streams", [False, True], ids=["streams", "behind a proxy that holds streams back"])
def test_a_server_that_is_gone_is_told(stage: Stage, browser: Browser, path: str, holds_streams: bool) -> None:
    """Within seconds, on a page that is only looked at; when it is back, that is seen as well."""
    process = stage.world.running.process
    assert process is not None
    with relayed(stage.url, holds_streams=holds_streams) as relay:
        here = Browser(browser.driver, relay.url)
        here.log_in(stage.account(role=Role.ADMIN).email)
        wanted = b"HEAD /healthz " if holds_streams else STREAM
        begun = len(relay.requests)
        here.open(path)
        here.until(lambda: any(each.startswith(wanted) for each in relay.requests[begun:]), "a sign of the server")
        heard(relay)
        process.send_signal(signal.SIGSTOP)
        try:
            here.until(lambda: LOST in here.text(), "a notice", TOLD_WITHIN)
        finally:
            process.send_signal(signal.SIGCONT)
        here.until(lambda: LOST not in here.text(), "the end of the notice")
        here.driver.get("about:blank")


def heard(relay: Relay) -> None:
    passed = relay.passed
    deadline = time.monotonic() + 20
    while relay.passed == passed and time.monotonic() < deadline:
        time.sleep(0.05)


def is_silent(relay: Relay) -> bool:
    passed = relay.passed
    time.sleep(4)
    return relay.passed == passed


def test_a_page_that_is_only_open_takes_little(tmp_path: Path, browser: Browser) -> None:
    """On every live page, what crosses the wire in both directions is less than a megabyte an hour."""
    with staged(tmp_path, first_retry="4h") as stage:  # a retry in the measured minute is no idle minute
        taken = idle_bytes_an_hour(stage, browser)
    assert taken.keys() == set(LIVE_PAGES)
    assert min(taken.values()) > 3600  # all of them were alive
    assert max(taken.values()) < AN_HOUR, taken


def idle_bytes_an_hour(stage: Stage, browser: Browser) -> dict[str, float]:
    account = stage.account(role=Role.ADMIN)
    hook = WebhookOptions("https://hooks.example.net/", (EventType.COMPLAINED,), True)
    secret = SealedSecret(b"sealed", "hint")
    change(
        stage.world.running.data_dir, lambda store: store.webhooks.save(account.account_id, hook, "whk_idle", secret)
    )
    message = stage.send(account, "ada@grey.test")
    stage.tried(message)
    first = browser.driver.current_window_handle
    with ExitStack() as stack:
        relays = {path: stack.enter_context(relayed(stage.url)) for path in LIVE_PAGES}
        Browser(browser.driver, relays[""].url).log_in(account.email)
        for path, relay in relays.items():
            browser.driver.switch_to.new_window("window")
            stack.callback(_close, browser, browser.driver.current_window_handle, first)
            Browser(browser.driver, relay.url).open("/dashboard" + path.format(message=message))
            assert browser.script("return document.hidden") is False
        browser.driver.switch_to.window(first)
        browser.driver.get("about:blank")
        time.sleep(SETTLED)
        taken: dict[str, float] = {}
        for _ in range(MINUTES):
            before = {path: (relay.passed, len(relay.requests)) for path, relay in relays.items()}
            began = time.monotonic()
            time.sleep(WATCHED)
            for path, relay in relays.items():
                passed, asked = before[path]
                if not any(request.startswith((STREAM, b"HEAD /healthz ")) for request in relay.requests[asked:]):
                    taken.setdefault(path, (relay.passed - passed) * 3600 / (time.monotonic() - began))
            if len(taken) == len(relays):
                break
        return taken


def _close(browser: Browser, window: str, first: str) -> None:
    browser.driver.switch_to.window(window)
    browser.driver.close()
    browser.driver.switch_to.window(first)


def test_a_hidden_page_asks_nothing(stage: Stage, browser: Browser) -> None:
    """Neither for news nor for the stream; seen again, it is told at once what came meanwhile."""
    account = stage.account()
    with relayed(stage.url) as relay:
        here = Browser(browser.driver, relay.url)
        here.log_in(account.email)
        here.open("/dashboard/messages")
        here.until(lambda: any(each.startswith(STREAM) for each in relay.requests), "the stream")
        here.script(HIDE + "; document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))", True)
        here.until(lambda: is_silent(relay), "silence")
        stage.send(account, "ada@good.test")
        here.script(HIDE + "; document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))", False)
        here.until(lambda: here.count("tr.linked") == 1, "the row")
        here.driver.get("about:blank")


def test_mail_is_shown_soon_after_a_long_silence(stage: Stage, browser: Browser) -> None:
    """A page that asks seldom, because nothing changed, is told that mail was accepted."""
    account = stage.account()
    with relayed(stage.url) as relay:

        def rounds() -> int:
            return sum(each.startswith(b"GET /v1/emails?") for each in relay.requests)

        here = Browser(browser.driver, relay.url)
        here.log_in(account.email)
        here.open("/dashboard/messages")
        here.until(lambda: rounds() >= 5, "the round after 30 seconds")  # the next one comes 32 seconds later
        began = time.monotonic()
        stage.send(account, "ada@good.test")
        here.until(lambda: here.count("tr.linked") == 1, "the row")
        assert time.monotonic() - began < 30
        here.driver.get("about:blank")


def test_a_session_that_ended_takes_nothing_away(stage: Stage, browser: Browser) -> None:
    """The login is asked for over the page; what was typed is still there, and is sent after it."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.click("Suppress an address")
    browser.fill("Address", "typed@good.test")
    stage.ask(account, "DELETE", "/v1/auth/sessions")
    browser.script("window.stays = true")
    browser.click("Suppress address")
    browser.one("//dialog//h2[contains(., 'Your session has ended')]")
    browser.fill("Password", PASSWORD)
    browser.click("Log in")
    browser.see("typed@good.test", "td")
    assert browser.script("return window.stays") is True
