"""Problems in the browser: on the overview and in the list of domains; mail about them; a forgotten password."""

from selenium.webdriver.support.ui import Select

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage


def test_broken_dns_and_low_credits_lead_the_overview(stage: Stage, browser: Browser) -> None:
    """A domain that may send, without its records in DNS, is the first thing that its owner sees."""
    account = stage.account(credit=57)
    stage.ask(account, "GET", f"/v1/domains/{account.domain}")
    browser.log_in(account.email)
    region = browser.one("//section[@aria-label='Needs attention']")
    assert region.text.startswith(f"DNS of {account.domain} is broken")
    assert "Credits are low: 57 left" in region.text
    browser.picture("attention")
    browser.go("Domains")
    browser.see("DNS problem")
    browser.go("Overview")
    browser.click(f"View details: DNS of {account.domain} is broken")
    browser.until(lambda: browser.path() == f"/dashboard/domains/{account.domain}", "the domain")


def test_a_person_chooses_when_to_get_mail(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Account")
    Select(browser.field("Mail about problems")).select_by_visible_text("in a daily digest")
    browser.click("Save notifications")
    expected = ("daily", account.email, False)

    def saved() -> bool:
        answer = stage.ask(account, "GET", "/v1/account/notifications")
        return (answer["notify"], answer["email"], answer["enabled"]) == expected

    browser.until(saved, "the setting")


def test_a_forgotten_password_needs_a_server_that_sends_mail(stage: Stage, browser: Browser) -> None:
    browser.open("/dashboard/login")
    browser.click("Forgot your password?")
    browser.fill("Email address", "stranger@example.org")
    browser.click("Send a link")
    browser.see("This server sends no mail. Ask an administrator for a password link.")
