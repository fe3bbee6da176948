"""What is set up in the browser: keys, templates, suppressions, the account, other accounts, the queue."""

import time

import httpx
from msgspec.structs import replace
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from appliance.config.settings import WarmupSettings
from appliance.model.accounts import Role
from appliance.model.warmup import begin
from appliance.store.pools import EVERY
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import NO_TLS, PASSWORD, Provisioned


def read(stage: Stage, account: Provisioned) -> int:
    path = f"{stage.url}/emails/msg_{'0' * 32}"
    return httpx.get(path, headers=account.bearer, trust_env=False, timeout=30, verify=NO_TLS).status_code


def test_a_key_is_revoked(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    assert read(stage, account) == 404
    browser.log_in(account.email)
    browser.go("Keys & credentials")
    browser.click(f"Actions for key …{account.full_key[-4:]}")
    browser.click(f"Delete key …{account.full_key[-4:]}")
    browser.one("//dialog//button[normalize-space()='Delete key']").click()
    browser.see("revoked")
    assert read(stage, account) == 401


def test_a_key_is_made_with_limits_and_rolled(stage: Stage, browser: Browser) -> None:
    """Scope, domain and expiry are asked for and shown; rolling shows another secret once, and the audit log tells."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Keys & credentials")
    browser.click("New key")
    browser.fill("Name of the key", "deploy")
    browser.one("//dialog//label[b='read' or .//b='read']").click()
    for label, choice in (("From", account.domain), ("Expires", "in 90 days")):
        Select(browser.field(label)).select_by_visible_text(choice)
    browser.click("Create key")
    browser.see("Copy it now")
    browser.click("I have saved it")
    browser.one(f"//td[normalize-space()='read from {account.domain}']")
    (made,) = [each for each in stage.ask(account, "GET", "/v1/api-keys")["api_keys"] if each["name"] == "deploy"]
    assert (made["scope"], made["domain"], made["expires_at"] is None) == ("read", account.domain, False)
    browser.click("Actions for key deploy")
    browser.click("Roll key deploy")
    browser.one("//dialog//button[normalize-space()='Roll key']").click()
    browser.see("Copy it now")
    browser.click("I have saved it")
    browser.one("//td[contains(., 'works until')]")
    browser.go("Audit log")
    browser.see("api_key.rolled")
    browser.see(made["id"])
    browser.see("127.0.0.1")
    browser.fill("Action", "api_key.created")
    browser.click("Filter actions")
    browser.see("api_key.created")
    assert "action=api_key.created" in browser.path()
    browser.click("Export CSV")


def edited(browser: Browser) -> object:
    return browser.script("return document.querySelector('textarea[name=text]')?.value")


def test_a_template_is_written_with_its_preview(stage: Stage, browser: Browser) -> None:
    """What is typed is shown at once, values escaped; it is saved in versions, and sent as a test."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Templates")
    browser.click("New template")
    browser.fill("Alias", "order-shipped")
    browser.fill("Subject", "Order {{number}}")
    browser.fill("HTML", "<h1 style='color:#4f46e5'>Hello {{ name }}</h1>\n<p>Order {{number}} is on its way.</p>")
    browser.fill("Plain text", "Hello {{name}}")
    browser.fill("name", "Ada & <b>Co</b>")
    browser.fill("number", "4711")
    browser.see("Order 4711")
    frame = browser.one("//iframe")
    browser.driver.switch_to.frame(frame)
    assert browser.driver.find_element(By.TAG_NAME, "h1").text == "Hello Ada & <b>Co</b>"
    colour = browser.driver.find_element(By.TAG_NAME, "h1").value_of_css_property("color")
    assert colour == "rgba(79, 70, 229, 1)"
    browser.driver.switch_to.default_content()
    assert int(str(frame.get_attribute("height"))) < 300  # it does not grow with each key
    browser.picture("template")
    browser.click("Create template")
    browser.see("Version 1")
    browser.fill("Plain text", "Hello {{name}}, order {{number}}")
    browser.open("/dashboard/templates/order-shipped")
    browser.see("unsaved changes")
    browser.click("Save new version")
    browser.see("Version 2")
    browser.click("Edit version 1")
    browser.until(lambda: edited(browser) == "Hello {{name}}", "the first version")
    browser.click("Discard changes")
    browser.until(lambda: edited(browser) == "Hello {{name}}, order {{number}}", "the second version")
    browser.fill("name", "Ada")
    browser.fill("number", "4712")
    browser.click("Send a test")
    browser.fill("To", "me@good.test")
    browser.click("Send test")
    browser.see("Order 4712", "h1")
    browser.see("order-shipped", "a")
    assert browser.forbidden() == []


def template_account(stage: Stage) -> Provisioned:
    account = stage.account()
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hello {{name}}", "html": "<p>Hi {{name}}</p>"})
    return account


def test_a_test_of_an_edited_template_publishes_nothing(stage: Stage, browser: Browser) -> None:
    """A test sends what the editor holds, filled in; the template in use stays as it was, and the draft is kept."""
    account = template_account(stage)
    browser.log_in(account.email)
    browser.open("/dashboard/templates/welcome")
    browser.fill("Subject", "Draft for {{name}}")
    browser.fill("HTML", "<p>Draft for {{name}}</p>")
    browser.fill("name", "Ada & Co")
    browser.click("Send a test")
    browser.fill("To", "me@good.test")
    browser.click("Send test")
    browser.see("Draft for Ada & Co", "h1")
    message = browser.path().rpartition("/")[2]
    assert "Draft for Ada &amp; Co" in stage.ask(account, "GET", f"/v1/emails/{message}/body")["html"]
    stored = stage.ask(account, "GET", "/v1/templates/welcome")
    assert (stored["version"], stored["subject"]) == (1, "Hello {{name}}")
    browser.open("/dashboard/templates/welcome")
    browser.see("unsaved changes")


def test_sample_values_stay_and_one_click_saves(stage: Stage, browser: Browser) -> None:
    """Samples are filled in from the names of placeholders and kept; the head saves with one click."""
    account = template_account(stage)
    browser.log_in(account.email)
    browser.script("sessionStorage.clear(); localStorage.clear()")
    browser.open("/dashboard/templates/welcome")
    assert browser.field("name").get_attribute("value") == "Ada"
    assert browser.script("return document.querySelector('.layer .token-placeholder').textContent") == "{{name}}"
    browser.fill("name", "Grace")
    browser.see("Hello Grace")
    browser.open("/dashboard/templates/welcome")
    assert browser.field("name").get_attribute("value") == "Grace"
    browser.fill("Subject", "Mine for {{name}}")
    browser.click("Save new version")
    browser.see("Version 2")
    assert browser.forbidden() == []


def test_versions_are_compared_and_a_template_is_duplicated(stage: Stage, browser: Browser) -> None:
    """What changed is shown line by line; the preview has two widths and a person's values; a copy gets a new alias."""
    account = template_account(stage)
    html = "<p>Hi {{name}}</p>\n<p>Order {{number}}</p>"
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hello {{name}}", "html": html})
    browser.log_in(account.email)
    browser.script("sessionStorage.clear()")  # drafts of other tests
    browser.open("/dashboard/templates/welcome")
    browser.click("Compare versions 1 and 2")
    assert browser.one("//dialog//pre").text.splitlines() == ["  <p>Hi {{name}}</p>", "+ <p>Order {{number}}</p>"]
    browser.click("Close")
    browser.click("Variables from JSON")
    browser.fill("Variables as JSON", "[1]")
    browser.click("Use variables")
    browser.one("//dialog//*[contains(@class, 'error')]")
    browser.fill("Variables as JSON", '{"name": "Ada", "number": 4711}')
    browser.click("Use variables")
    browser.until(lambda: browser.field("number").get_attribute("value") == "4711", "the values")
    wide = browser.one("//iframe").size["width"]
    browser.click("Phone")
    assert browser.one("//iframe").size["width"] == 388 < wide
    browser.click("Duplicate template")
    browser.see("New template", "h1")
    browser.fill("Alias", "welcome-2")
    browser.click("Create template")
    browser.see("welcome-2", "h1")
    assert stage.ask(account, "GET", "/v1/templates/welcome-2")["html"] == html
    assert browser.forbidden() == []


def test_a_new_template_overwrites_none(stage: Stage, browser: Browser) -> None:
    """An alias that is taken is refused with the way to it, `new` is refused; one that a program made is reachable."""
    account = template_account(stage)
    stage.ask(account, "PUT", "/v1/templates/new", {"subject": "Made by a program", "text": "Hi"})
    browser.log_in(account.email)
    browser.open("/dashboard/templates/new")
    browser.fill("Alias", "new")
    browser.click("Create template")
    browser.see("This alias is reserved")
    browser.fill("Alias", "welcome")
    browser.click("Create template")
    browser.see("A template with this alias exists.")
    assert stage.ask(account, "GET", "/v1/templates/welcome")["version"] == 1
    browser.click("Open it")
    browser.see("welcome", "h1")
    browser.go("Templates")
    browser.one("//td//a[normalize-space()='new']").click()
    browser.until(lambda: browser.field("Subject").get_attribute("value") == "Made by a program", "the template")
    browser.click("Save new version")
    browser.see("Version 2")


def test_an_address_is_suppressed_and_released(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Suppressions")
    browser.click("Suppress an address")
    browser.fill("Address", "ada@good.test")
    browser.fill("Reason", "asked us to stop")
    browser.click("Suppress address")
    browser.see("asked us to stop", "td")
    message = stage.send(account, "ada@good.test")
    browser.open(f"/dashboard/messages/{message}")
    browser.see("suppressed")
    browser.go("Suppressions")
    browser.click("Release ada@good.test")
    browser.see("No address is suppressed")


def test_the_password_is_changed_and_all_sessions_end(stage: Stage, browser: Browser) -> None:
    """A wrong current password is told; a right one ends the session, and the new one logs in."""
    account = stage.account()
    browser.log_in(account.email)
    browser.go("Account")
    browser.see("this one")
    browser.click("Set a new password")
    browser.fill("Current password", "wrong")
    browser.fill("New password", "a new and longer password")
    browser.click("Change password")
    browser.one("//form//*[contains(@class, 'error')]")
    browser.fill("Current password", PASSWORD)
    browser.click("Change password")
    browser.see("Log in", "h1")
    browser.log_in(account.email, "a new and longer password")
    browser.open("/dashboard/account")
    browser.see("Account", "h1")  # the cookie renewed the session after the reload
    browser.click("Log out everywhere")
    browser.one("//dialog//button[normalize-space()='Log out everywhere']").click()
    browser.see("Log in", "h1")
    browser.open("/dashboard/keys")
    browser.see("Log in", "h1")
    assert browser.path() == "/dashboard/login?next=%2Fdashboard%2Fkeys"


def test_after_a_logout_nothing_of_the_account_is_left(stage: Stage, browser: Browser) -> None:
    """The next user of the tab gets a new document, also by a step back to what the first one has seen."""
    first, second = stage.account(), stage.account()
    stage.send(first, "ada@good.test")
    stage.send(second, "bob@good.test")
    browser.log_in(first.email)
    browser.go("Messages")
    browser.see("ada@good.test")
    browser.script("window.ofTheFirst = true")
    browser.go("Account")
    browser.click("Log out")
    browser.see("Log in", "h1")
    browser.fill("Email address", second.email)
    browser.fill("Password", PASSWORD)
    browser.click("Log in")
    browser.see("Account", "h1")
    browser.driver.back()
    browser.see("bob@good.test")
    assert browser.path() == "/dashboard/messages"
    assert "ada@good.test" not in browser.text()
    assert browser.script("return window.ofTheFirst") is None


def test_a_pause_of_all_mail_is_seen(stage: Stage, browser: Browser) -> None:
    """An administrator is told why nothing goes; after a restore it is ended on the server."""
    data_dir = stage.world.running.data_dir
    browser.log_in(stage.account(role=Role.ADMIN).email)
    change(data_dir, lambda store: store.pools.hold(EVERY, "restored <b>from</b> a backup"))
    try:
        browser.go("Admin")
        browser.see("All mail is paused: restored <b>from</b> a backup. Paused since")
        browser.click("Resume all mail")
        browser.see("run `appliance resume` there")
    finally:
        change(data_dir, lambda store: store.pools.release(EVERY))
    assert browser.forbidden() == []


def test_a_warm_up_is_seen(stage: Stage, browser: Browser) -> None:
    """An administrator sees how far a new address has come at each provider, and until when its mail waits."""
    settings = WarmupSettings(enabled=True)
    now = time.time_ns() // 1000
    pace = replace(begin("google", "192.0.2.1", now), day=2, sent=9).take(settings, now, 39)
    change(stage.world.running.data_dir, lambda store: store.warmups.keep([pace]))
    browser.log_in(stage.account(role=Role.ADMIN).email)
    browser.go("Admin")
    browser.see("Warm-up of new addresses", "h2")
    row = browser.one("//section[h2='Warm-up of new addresses']//tbody/tr").text
    assert row.split()[:6] == ["Google", "192.0.2.1", "3", "of", "30", "39"]
    assert row.split()[6:8] == ["39", "in"]
    assert browser.forbidden() == []


def test_an_administrator_suspends_and_holds(stage: Stage, browser: Browser) -> None:
    """Accounts are suspended and given credits, pools are held and released; a customer sees no such page."""
    customer = stage.account()
    stage.tried(stage.send(customer, "night@grey.test"))
    operator = stage.account(role=Role.ADMIN)
    browser.log_in(operator.email)
    browser.go("Admin")
    browser.click(f"Actions for {customer.name}")
    browser.click(f"Change credits of {customer.name}")
    browser.fill("Amount", "500")
    browser.click("Save")
    browser.see("1,000,499", "td")
    browser.click(f"Actions for {customer.name}")
    browser.click(f"Suspend {customer.name}")
    browser.click("Suspend account")
    browser.one("//*[contains(@class, 'toast')]//button[.='Undo']")
    browser.click(f"Actions for {customer.name}")
    browser.one(f"//button[@aria-label='Resume {customer.name}']")
    browser.type(Keys.ESCAPE)
    browser.click("Hold mail to grey.test")
    browser.fill("Reason", "they move")
    browser.click("Hold mail")
    browser.see("they move", "td")

    browser.log_in(customer.email)
    browser.see("This account is suspended")
    browser.see("They move.")
    assert "Admin" not in browser.text()
    browser.open("/dashboard/admin")
    browser.see("Only an administrator may do this.")

    browser.log_in(operator.email)
    browser.go("Admin")
    browser.click("Resume mail to grey.test")
    browser.one("//button[@aria-label='Hold mail to grey.test']")
