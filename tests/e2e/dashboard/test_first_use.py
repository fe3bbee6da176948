"""A user who has never seen the product gets from the login to a delivered message, by what the pages say alone."""

import subprocess

import pytest

from appliance.model.accounts import Role
from tests import engines
from tests.e2e.dashboard.browser import PHONE, Browser
from tests.e2e.dashboard.stage import Stage
from tests.engines import Kind


def publish(stage: Stage, browser: Browser) -> None:
    """Do as the page says: put each record that it shows into the DNS."""
    records = browser.script("""return [...document.querySelectorAll(".dns tbody tr")].map((each) =>
        [each.dataset.id.split(" ")[1], each.cells[3].querySelector("code").textContent])""")
    assert len(records) >= 3
    stage.world.publish("mail.example.com", A=["192.0.2.25"])
    for name, value in records:
        pieces = " ".join(f'"{value[at : at + 200]}"' for at in range(0, len(value), 200))
        stage.world.publish(name, TXT=[pieces])


@pytest.mark.both_engines
def test_from_the_login_to_a_message_that_arrived(stage: Stage, browser: Browser) -> None:
    """Log in, add a domain, publish its records, create a key, paste the line that is shown, and watch it arrive."""
    email = stage.newcomer()
    browser.log_in_by_hand(email)
    browser.see("First steps")
    browser.click("Add a domain")
    browser.fill("Domain name", "Shop.Example")
    browser.click("Add domain")
    browser.see("shop.example", "h1")
    browser.see("Not verified")
    browser.click("Check now")
    browser.see("missing")
    publish(stage, browser)
    browser.click("Check now")
    browser.see("Verified: you can send from this domain.")
    assert browser.count(".dns .badge.missing") == 0

    browser.go("Keys & credentials")
    browser.see("No key yet")
    browser.click("New key")
    browser.fill("Name of the key", "web shop")
    browser.click("Create key")
    browser.see("will not be shown again")
    browser.one("//*[@class and contains(@class, 'secret')]//*[@role='tab' and normalize-space()='curl']").click()
    line = browser.script("return document.querySelector('.secret [role=tabpanel]:not([hidden]) pre').textContent")
    assert "ma_live_" in line
    browser.click("I have saved it")
    browser.see("web shop", "td")
    assert "ma_live_" in browser.text()
    key = line.split("Bearer ")[1].split('"')[0]
    assert key not in browser.driver.page_source

    browser.go("Messages")
    browser.see("No messages yet")
    pasted = ["sh", "-c", line.replace("curl ", "curl -sS --noproxy '*' ")]
    sent = subprocess.run(pasted, capture_output=True, text=True, timeout=20)
    assert '"status":"queued"' in sent.stdout.replace(" ", ""), (sent.stdout, sent.stderr)
    browser.see("someone@example.net", "a").click()  # it came by itself
    browser.see("It works", "h1")
    browser.see("Delivered at")
    browser.see("mx0.example.net")


def test_the_first_step_that_is_left_has_the_primary_button(stage: Stage, browser: Browser) -> None:
    """No other has: of a new account it is the domain, with a domain that is not verified its records."""
    email = stage.newcomer()
    browser.log_in(email)
    browser.see("First steps")
    assert primary(browser) == ["Add a domain"]
    browser.click("Add a domain")
    browser.fill("Domain name", f"{email.split('@')[0]}.example")
    browser.click("Add domain")
    browser.see("Not verified")
    browser.open("/dashboard")
    browser.see("First steps")
    assert primary(browser) == ["Show the records"]


def primary(browser: Browser) -> list[str]:
    return list(
        browser.script("return [...document.querySelectorAll('main .primary')].map((each) => each.textContent)")
    )


def test_a_test_is_sent_and_watched(stage: Stage, browser: Browser) -> None:
    """The button of the overview sends a test, and its page becomes delivered without a reload."""
    account = stage.account()
    browser.log_in(account.email)
    browser.click("Send a test")
    browser.fill("To", "me@good.test")
    browser.click("Send test")
    browser.see("Delivered at")
    browser.see("by a test")
    browser.driver.back()
    browser.see("Overview", "h1")


def test_what_the_api_says_stands_beside_the_field(stage: Stage, browser: Browser) -> None:
    """A refusal is told in the API's own words at the field that caused it, with a request id to copy."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Domains")
    browser.click("Add a domain")
    browser.fill("Domain name", "not a domain")
    browser.click("Add domain")
    error = browser.one("//*[contains(@class, 'error')]")
    assert "req_" not in error.text
    browser.click_summary("Details")
    assert "req_" in error.text
    browser.one("//button[@aria-label='Copy request id']")
    browser.fill("Domain name", account.domain)
    browser.click("Add domain")
    browser.one("//dialog//*[contains(., 'already')]")


@pytest.mark.both_engines
def test_nodes_are_seen_where_there_are_some(stage: Stage, browser: Browser, engine: Kind) -> None:
    """An administrator sees the nodes of a shared database, each with what it delivers; of an embedded one, nothing."""
    browser.log_in(stage.account(role=Role.ADMIN).email)
    browser.go("Admin")
    browser.see("Accounts", "h2")
    if engine is Kind.SQLITE:
        assert "Nodes" not in browser.text()
        return
    browser.see("Nodes", "h2")
    row = browser.one("//section[h2='Nodes']//tbody/tr").text
    assert "running" in row
    assert "mail.example.com" in row
    assert "Drain" in row
    widths = browser.script("return [...document.querySelectorAll('.trace')].map(each => each.clientWidth)")
    assert widths == [60, 60]  # what is in flight, and what waits
    assert browser.forbidden() == []


def test_the_list_of_domains_shows_what_dns_shows(stage: Stage, browser: Browser) -> None:
    """SPF, DKIM and DMARC each with a word, and the time of the last check; live, and on a phone as well."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Domains")
    browser.click("Add a domain")
    browser.fill("Domain name", "Listed.Example")
    browser.click("Add domain")
    browser.see("listed.example", "h1")
    browser.see("DNS is checked every ten minutes")
    publish(stage, browser)
    browser.click("Check now")
    browser.see("Verified: you can send from this domain.")
    browser.see("Last check:")
    browser.go("Domains")
    row = "//tr[@data-id='listed.example']"

    def told() -> list[str]:
        return [each.strip() for each in browser.one(f"{row}//ul").text.split("\n") if each.strip()]

    assert told() == ["SPF published", "DKIM published", "DMARC published"]
    assert "ago" in browser.one(f"{row}//time").text or "now" in browser.one(f"{row}//time").text
    change = 'UPDATE domains SET dns = replace(dns, \'"spf":"ok"\', \'"spf":"differs"\') WHERE name = ?'
    engines.rows(stage.world.running.data_dir, change, "listed.example")
    browser.until(lambda: told()[0] == "SPF differs", "the list to follow")
    assert browser.forbidden() == []
    browser.size(*PHONE)
    browser.open("/dashboard/domains")
    assert browser.one(f"{row}//ul").is_displayed()
    assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0]
