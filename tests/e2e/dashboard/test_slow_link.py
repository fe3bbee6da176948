"""With a latency of 300 ms: a page asks for all of its data at once, shows that it is loading, and loses no click."""

from collections.abc import Iterator

import pytest

from appliance.model.accounts import Role
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import Provisioned

LATENCY = 300  # milliseconds
# Requests for the data of the page: when each began, and when its answer was there.
ASKED = """
return performance.getEntriesByType("resource")
  .filter((each) => /[/]v1[/](?!auth|events|views|emails[/]count)/.test(each.name))
  .map((each) => [new URL(each.name).pathname, each.startTime, each.responseEnd]);
"""
# Notes when there is a skeleton and when there is a title.
WATCH = """
window.seen = [];
new MutationObserver(() => {
  for (const [name, selector] of [["skeleton", "main .skeleton"], ["title", "main h1"]])
    if (document.querySelector(selector) && !seen.includes(name)) seen.push(name);
}).observe(document, { childList: true, subtree: true });
"""


@pytest.fixture
def slow(stage: Stage, browser: Browser) -> Iterator[tuple[Browser, Provisioned]]:
    """A browser behind the slow link, in which an administrator is logged in."""
    account = stage.account(role=Role.ADMIN)
    browser.log_in(account.email)
    browser.driver.execute_cdp_cmd("Network.enable", {})
    link = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", link | {"latency": LATENCY})
    yield browser, account
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", link | {"latency": 0})


@pytest.mark.parametrize("path", ["", "/messages/{message}", "/suppressions", "/keys", "/deliverability", "/admin"])
def test_a_page_asks_for_all_its_data_at_once(stage: Stage, slow: tuple[Browser, Provisioned], path: str) -> None:
    """One answer does not wait for another, which would take 300 ms more each."""
    browser, account = slow
    browser.open(f"/dashboard{path.format(message=stage.send(account, 'ada@example.net'))}")
    asked = browser.script(ASKED)
    first_answer = min(end for _, _, end in asked)
    assert [name for name, begin, _ in asked if begin > first_answer] == []


def test_a_skeleton_stands_until_the_page_is_there(slow: tuple[Browser, Provisioned]) -> None:
    """Also while the session is resumed, which is a round trip of its own."""
    browser, _ = slow
    added = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    browser.open("/dashboard/suppressions")
    browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert browser.script("return seen") == ["skeleton", "title"]


def test_a_double_click_asks_once(stage: Stage, slow: tuple[Browser, Provisioned]) -> None:
    """The second click comes while the answer to the first one is on its way."""
    browser, account = slow
    stage.ask(account, "POST", "/v1/suppressions", {"address": "gone@example.net"})
    browser.open("/dashboard/suppressions")
    browser.script("""
      window.deletes = 0;
      const { fetch } = window;
      window.fetch = (path, options) => { deletes += options?.method === "DELETE"; return fetch(path, options); };
      const release = document.querySelector("[aria-label='Release gone@example.net']");
      release.click();
      release.click();
    """)
    browser.one("//*[contains(@class, 'toast') and contains(., 'gone@example.net released')]")
    assert browser.script("return deletes") == 1
