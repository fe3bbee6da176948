"""Where mail to one provider is late or refused, and what its servers said."""

from selenium.webdriver.support.ui import Select

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import UNKNOWN, Stage
from tests.e2e.dashboard.test_explorer import KEEP_FILES, clicks
from tests.fakes.mx import FakeMx

HOST = "contoso-test.mail.protection.outlook.com"


def test_the_reason_of_bounces_at_a_provider_is_two_clicks_away(stage: Stage, browser: Browser) -> None:
    """From the overview to the provider's numbers and replies; filters are in the address and in the file."""
    account = stage.account()
    stage.run(stage.world.host, HOST, FakeMx(answers={"RCPT": UNKNOWN}).serve)
    stage.world.publish("contoso.test", MX=[f"10 {HOST}."])
    refused = stage.send(account, "gone1@contoso.test", "gone2@contoso.test")
    stage.tried(refused, stage.send(account, "ada@good.test"))
    browser.log_in(account.email)
    with clicks(browser, 2):
        browser.click("Deliverability")
        browser.click("Microsoft 365")
        browser.one("//*[contains(@class, 'chip') and contains(., 'Provider: Microsoft 365')]")
    assert browser.path() == "/dashboard/deliverability?days=7&provider=microsoft365"
    row = browser.see("550 5.1.1 No such user here", "tr").text
    for part in ("The mailbox does not exist.", "Microsoft 365", "2"):
        assert part in row
    assert "451" not in browser.text()
    browser.script(KEEP_FILES)
    browser.click("Export CSV")
    text = browser.until(lambda: browser.script("return window.saved"), "the file")
    heading, *days = text.strip().splitlines()
    assert heading.startswith("start,sent,delivered,deferred,bounced,")
    assert [day.split(",")[1:5] for day in days][-2:] == [["0", "0", "0", "0"], ["2", "0", "0", "2"]]

    Select(browser.one("//select[@aria-label='Mail']")).select_by_visible_text(account.domain)
    browser.until(lambda: browser.path().endswith(f"&domain={account.domain}"), "mail of one domain")
    browser.click("Remove the filter Provider: Microsoft 365")
    browser.see("Other servers", "td")
    browser.see("550 5.1.1 No such user here", "a").click()
    browser.until(lambda: browser.path() == f"/dashboard/messages/{refused}", "the message")
    assert browser.forbidden() == []
