"""Administration in the browser: the page of an account, its people and messages; and what each role is offered."""

import time
from pathlib import Path

import httpx

from appliance.model.accounts import Role
from appliance.store.pools import EVERY
from tests import engines
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage, staged
from tests.running_appliance import NO_TLS, PASSWORD, Provisioned

SHOWN = """return [...document.querySelectorAll("main button, main a.button, main form")]
    .filter((each) => each.checkVisibility() || each.closest("[popover]")).map((each) => each.textContent)"""


def text_of(browser: Browser, css: str) -> str:
    return str(browser.script("return document.querySelector(arguments[0])?.textContent ?? ''", css))


def test_an_account_has_a_page(stage: Stage, browser: Browser) -> None:
    """Volume and rates with their marks, domains, cap, people; the cap and a role are changed, a password is reset."""
    customer = stage.account()
    stage.tried(stage.send(customer, "ada@good.test"))
    insert = "INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients) VALUES (?, ?, ?, 0, ?)"
    for kind, count in (("delivered", 150), ("bounced", 50)):
        hour = int(time.time()) // 3600
        engines.rows(stage.world.running.data_dir, insert, customer.account_id, hour, kind, count)
    operator = stage.account(role=Role.ADMIN)
    browser.log_in(operator.email)
    browser.go("Admin")
    browser.one(f"//table//a[normalize-space()='{customer.name}']").click()
    browser.see(customer.name, "h1")
    browser.until(lambda: "too high" in text_of(browser, ".tiles"), "the mark of the bounce rate")
    browser.see(customer.domain, "td")

    browser.click("Account actions")
    browser.click("Change daily cap")
    browser.fill("Recipients per day", "200")
    browser.click("Save cap")
    browser.see("200 recipients a day (UTC)")
    browser.click("Account actions")
    browser.click("Change credits")
    browser.fill("Amount", "500")
    browser.click("Save")
    browser.until(lambda: "1,000,499" in text_of(browser, ".tiles"), "the credits")

    browser.click(f"Actions for {customer.email}")
    browser.click(f"Reset password of {customer.email}")
    browser.click("Create link")
    browser.see("Send this link to the user")
    link = text_of(browser, "[data-secret=Link]")
    token = dict(each.split("=") for each in link.partition("#")[2].split("&"))["token"]
    answer = httpx.post(
        f"{stage.url}/v1/auth/invitation",
        json={"token": token, "password": PASSWORD},
        trust_env=False,
        verify=NO_TLS,
        timeout=30,
    )
    assert answer.is_success, answer.text
    browser.click("I have saved it")

    browser.click(f"Actions for {customer.email}")
    browser.click(f"Change role of {customer.email}")
    browser.script("document.querySelector('dialog select').value = 'viewer'")
    browser.script("document.querySelector('dialog button[type=submit]').click()")
    browser.until(lambda: "An account needs an owner" in browser.text(), "the reason")
    browser.click("Cancel")

    browser.click("Account actions")
    browser.click(f"Suspend {customer.name}")
    browser.click("Suspend account")
    browser.see("suspended", "span")
    browser.click("Account actions")
    browser.click(f"Resume {customer.name}")
    browser.see("active", "span")
    assert browser.forbidden() == []


def test_messages_of_another_account_are_read(stage: Stage, browser: Browser) -> None:
    """From the account's page; nothing can be done to them, and the account's audit log tells who read what, once."""
    customer = stage.account()
    sent = stage.send(customer, "gone@bad.test", subject="Not yours")
    stage.tried(sent)
    operator = stage.account(role=Role.ADMIN)
    browser.log_in(operator.email)
    browser.open(f"/dashboard/admin/accounts/{customer.account_id}")
    browser.click("View messages")
    browser.see("recorded in the audit log")
    browser.see("Not yours").click()
    browser.see("Not yours", "h1")
    browser.see("The mailbox does not exist.")
    assert browser.path() == f"/dashboard/admin/accounts/{customer.account_id}/messages/{sent}"
    for offered in ("Send again", "Remove from suppressions", "Cancel"):
        assert offered not in browser.text()
    lines = stage.ask(customer, "GET", "/v1/audit?action=email")["audit"]
    told = [(each["action"], each["object"], each["actor"]) for each in lines]
    assert told == [
        ("email.body_read", sent, operator.email),
        ("email.read", sent, operator.email),
        ("email.listed", customer.name, operator.email),
    ]
    assert browser.forbidden() == []


def test_all_mail_is_paused_and_resumed(stage: Stage, browser: Browser) -> None:
    browser.log_in(stage.account(role=Role.ADMIN).email)
    browser.go("Admin")
    try:
        browser.click("Pause all mail")
        browser.fill("Reason", "the address is being moved")
        browser.script("document.querySelector('dialog button[type=submit]').click()")
        browser.see("All mail is paused: the address is being moved")
        browser.click("Resume all mail")
        browser.until(lambda: "All mail is paused" not in browser.text(), "mail that goes")
    finally:
        change(stage.world.running.data_dir, lambda store: store.pools.release(EVERY))
    assert browser.forbidden() == []


def person(stage: Stage, account: Provisioned, role: str) -> str:
    email = f"{role}-{account.name}@example.org"
    link = stage.ask(account, "POST", "/v1/users", {"email": email, "role": role})["link"]
    token = dict(each.split("=") for each in link.partition("#")[2].split("&"))["token"]
    body = {"token": token, "password": PASSWORD}
    answer = httpx.post(f"{stage.url}/v1/auth/invitation", json=body, trust_env=False, verify=NO_TLS, timeout=30)
    assert answer.is_success, answer.text
    return email


# By page, what a viewer is not offered. An owner is.
CHANGES = {
    "": ["Send a test"],
    "/messages": ["Send a test"],
    "/messages/{message}": ["Send again", "Remove from suppressions"],
    "/domains": ["Add a domain"],
    "/domains/{domain}": ["Check now", "Remove domain"],
    "/templates": ["New template"],
    "/templates/welcome": ["Delete", "Duplicate", "Send a test"],
    "/webhook": ["Delete", "Rotate secret", "Send a test event", "Replay failed deliveries", "Replay selected"],
    "/suppressions": ["Suppress an address", "Import CSV", "Add a tag", "Release", "Select all shown"],
    "/keys": ["New key", "New credential", "Roll key", "Delete key", "Delete credential"],
    "/people": ["Invite user", "Change role", "Remove user"],
}


def test_what_a_role_may_not_do_is_not_offered(stage: Stage, browser: Browser) -> None:
    """A viewer sees every page without what would be refused; a developer lacks what is about people."""
    account = stage.account()
    sent = stage.send(account, "gone@bad.test")
    stage.tried(sent)
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hi", "text": "Hi"})
    stage.ask(account, "PUT", "/v1/webhook", {"url": "https://8.8.8.8/hook", "enabled": False})
    stage.ask(account, "POST", "/v1/suppressions", {"address": "a@good.test"})
    offered: dict[str, dict[str, str]] = {}
    people = {role: person(stage, account, role) for role in ("viewer", "developer")}
    for role, email in {"owner": account.email, **people}.items():
        browser.log_in(email)
        for path in CHANGES:
            browser.open("/dashboard" + path.format(message=sent, domain=account.domain))
            browser.until(lambda: browser.script("return document.querySelector('main h1') !== null"), "the page")
            offered.setdefault(role, {})[path] = "\n".join(browser.script(SHOWN))
    for path, labels in CHANGES.items():
        for label in labels:
            assert label in offered["owner"][path], (path, label)
            assert (label in offered["developer"][path]) is (path != "/people"), (path, label)
            assert label not in offered["viewer"][path], (path, label)
    waiting = stage.send(account, "night@grey.test")
    browser.log_in(people["developer"])
    browser.open(f"/dashboard/messages/{waiting}")
    browser.click("Cancel message")
    browser.one("//dialog//button[normalize-space()='Cancel message']").click()
    browser.see(f"cancelled: by {people['developer']}")
    browser.log_in(people["viewer"])
    browser.open("/dashboard/templates/welcome")
    browser.see("Only owners and developers can change templates.")
    assert browser.script("return document.querySelector('main form button[type=submit]').disabled") is True
    assert browser.forbidden() == []


def test_both_routes_of_a_ramp_are_compared(browser: Browser, tmp_path: Path) -> None:
    """Results by provider and route, the suggestion, and the route of each attempt."""
    settings = 'relay_host = "127.0.0.1"', "relay_port = 9", "[delivery.ramp]", "percent = 100"
    with staged(tmp_path, *settings, mode="relay") as stage:
        operator = stage.account(role=Role.ADMIN)
        message = stage.send(operator, "ada@good.test")
        stage.run(stage.world.final, message)
        browser = Browser(browser.driver, stage.url)
        browser.log_in(operator.email)
        browser.go("Admin")
        browser.see("Ramp from the relay to direct delivery", "h2")
        browser.see("100 % of the recipients go direct, the others by the relay.")
        browser.see("all mail goes direct", "td")
        browser.see("All providers", "td")
        browser.open(f"/dashboard/messages/{message}")
        browser.see("direct", "p")


def test_mail_that_does_not_go_out_is_told(stage: Stage, browser: Browser) -> None:
    """The operator's page answers in its first sentence: all paused, a provider held, or fine."""
    operator = stage.account(role=Role.ADMIN)
    browser.log_in(operator.email)
    browser.go("Admin")
    verdict = "return document.querySelector('[aria-label=\"Is mail going out?\"] .notice')?.textContent"
    browser.until(lambda: "Is mail going out?" in str(browser.script(verdict)), "the verdict")
    stage.ask(operator, "POST", "/v1/admin/queue/google/pause", {})
    try:
        browser.open("/dashboard/admin")
        browser.until(lambda: "Mail to Google is held." in str(browser.script(verdict)), "the held provider")
        stage.ask(operator, "POST", "/v1/admin/queue/pause", {"reason": "moving"})
        browser.open("/dashboard/admin")
        browser.until(lambda: "No. All mail is paused." in str(browser.script(verdict)), "the pause")
    finally:
        stage.ask(operator, "POST", "/v1/admin/queue/resume")
        stage.ask(operator, "POST", "/v1/admin/queue/google/resume")
