"""Links to unsubscribe in a browser: the page of a recipient, and where an owner chooses what has links."""

from typing import Any

from appliance.feedback.return_path import UnsubscribeLinks, Unsubscription
from appliance.keys.keyfile import load
from tests.e2e.contract.service import stored
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import Provisioned


def link(stage: Stage, account: Provisioned) -> str:
    wanted = Unsubscription(account.account_id, "tag:news", "ada@good.test")
    token = UnsubscribeLinks(load(stage.world.running.data_dir), "").token(wanted)
    return f"/unsubscribe/{token}"


def listed(stage: Stage, account: Provisioned) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.ask(account, "GET", "/v1/suppressions")["suppressions"]
    return found


def test_a_recipient_unsubscribes_and_is_let_in_again(stage: Stage, browser: Browser) -> None:
    """One button ends it, on a page that is whole under its policy; the owner sees the entry and can release it."""
    account = stage.account()
    browser.log()  # what earlier pages had to complain about
    browser.open(link(stage, account))
    browser.see("ada@good.test")
    browser.see("news")
    assert browser.count("script") == 0
    # The style has been applied: the page looks like the login page.
    assert browser.script("return getComputedStyle(document.querySelector('.login')).maxWidth") == "340px"
    assert listed(stage, account) == []
    browser.click("Unsubscribe")
    browser.see("Unsubscribed", "h1")
    assert browser.log() == []
    assert [each["tag"] for each in listed(stage, account)] == ["news"]
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.see("unsubscribed from the tag news", "td")
    browser.click("Release ada@good.test")
    browser.see("No address is suppressed")
    assert listed(stage, account) == []


def test_an_owner_chooses_what_has_links(stage: Stage, browser: Browser) -> None:
    """Tags are listed and removed, also while another window changes them; without an https address none is added."""
    account = stage.account()
    directory = stage.world.running.data_dir
    stored(directory, lambda store: store.unsubscriptions.replace_tags(account.account_id, ["news", "offers"]))
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.see("offers", "code")
    stored(directory, lambda store: store.unsubscriptions.replace_tags(account.account_id, ["news"]))
    browser.click("Remove tag news")
    browser.until(lambda: stage.ask(account, "GET", "/v1/unsubscribe-tags")["tags"] == [], "no tag")
    browser.click("Add a tag")
    browser.fill("Tag", "more")
    browser.click("Add tag")
    browser.one("//dialog//*[contains(., 'unsubscribe links require https')]")
    stage.ask(account, "PUT", "/v1/templates/weekly", {"subject": "Hello", "text": "Hi"})
    browser.open("/dashboard/templates/weekly")
    browser.field("One-click unsubscribe link").click()
    browser.click("Save new version")
    browser.see("unsubscribe links require https")
    assert stage.ask(account, "GET", "/v1/templates/weekly")["version"] == 1
