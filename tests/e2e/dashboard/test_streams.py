"""Streams in the dashboard and the shell: chosen for a key, compared, and found wherever mail is listed or counted."""

from selenium.webdriver.support.select import Select

from appliance.store import Store
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_explorer import clicks, rows
from tests.running_appliance import ran


def test_a_stream_is_followed_from_its_key_to_its_mail(stage: Stage, browser: Browser) -> None:
    """A key of a stream is made; the page shows it and the stream's numbers, and leads to its messages."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Keys & credentials")
    browser.click("New key")
    browser.fill("Name of the key", "newsletter")
    Select(browser.field("Stream")).select_by_visible_text("broadcast")
    browser.click("Create key")
    browser.click("I have saved it")
    browser.see("stream broadcast", "td")
    sent = stage.send(account, "ada@good.test", "bob@good.test", subject="News", stream="broadcast", tags=["news"])
    bounced = stage.send(account, "gone@bad.test", subject="More news", stream="broadcast")
    stage.tried(sent, bounced, stage.send(account, "eve@good.test", subject="Your code"))

    async def leave(store: Store) -> None:
        await store.unsubscriptions.add(account.account_id, "stream:broadcast", "ada@good.test")

    change(stage.world.running.data_dir, leave)
    with clicks(browser, 3):
        browser.go("Streams")
        part = browser.one("//section[@aria-label='broadcast']").text
        browser.one("//section[@aria-label='broadcast']//a[.='Bounced']").click()
        rows(browser, 1)
        browser.click("Remove the filter Status: bounced")
        rows(browser, 2)
    for text in ("Sent\n3", "Delivered\n2\n66.7 %", "Bounced\n1\n33.3 %", "Unsubscribed\n1\n50.0 %", "newsletter"):
        assert text in part
    assert "Goes after other streams" in part
    assert "stream=broadcast" in browser.path()
    browser.see("More news", "tr").click()
    browser.see("More news", "h1")
    browser.one("//dd//a[normalize-space()='broadcast']").click()
    rows(browser, 2)

    browser.open("/dashboard/statistics?by=stream")
    assert browser.see("broadcast", "tr").text.split()[:4] == ["broadcast", "3", "2", "1"]
    browser.open("/dashboard/deliverability")
    Select(browser.one("//select[@aria-label='Mail']")).select_by_visible_text("broadcast")
    browser.until(lambda: "stream=broadcast" in browser.path(), "the stream's mail")
    browser.see("550 5.1.1 No such user here", "tr")
    browser.open("/dashboard/suppressions?stream=broadcast")
    browser.click("Release ada@good.test")
    browser.see("No results", "h2")
    assert browser.forbidden() == []

    listed = ("message", "list", "--account", account.name, "--stream", "broadcast", "--json")
    code, out, _ = ran(stage.world.running.config_file, *listed)
    assert (code, out.count('"id"')) == (0, 2)


def test_the_editor_keeps_the_stream_of_a_template(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    content = {"subject": "Hi", "text": "Hello", "stream": "digest"}
    stage.ask(account, "PUT", "/v1/templates/weekly", content)
    browser.log_in(account.email)
    browser.open("/dashboard/templates/weekly")
    assert Select(browser.field("Stream")).first_selected_option.text == "digest"
    browser.fill("Subject", "Hello")
    browser.click("Save new version")
    browser.see("in use")
    browser.until(lambda: stage.ask(account, "GET", "/v1/templates/weekly")["version"] == 2, "the new version")
    assert stage.ask(account, "GET", "/v1/templates/weekly")["stream"] == "digest"
