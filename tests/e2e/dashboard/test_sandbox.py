"""A program that delivers nothing says so: what the dashboard tells in the sandbox is true there."""

from appliance.model.accounts import Role
from appliance.store.pools import EVERY
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.fakes.webhook_server import Hooks
from tests.running_appliance import Running, add_account


def test_no_sentence_is_false_in_the_sandbox(running: Running, receiver: Hooks, browser: Browser) -> None:
    """The login page, the test dialog and the webhook's secret say what holds for this server."""
    here = Browser(browser.driver, running.url)
    here.open("/dashboard/login")
    assert "The first start printed a login" not in here.text()
    here.see("appliance account create", "code")
    here.log_in(running.account.email)
    for section in ("Domains", "Suppressions", "Overview"):
        here.go(section)
        here.one("//*[.='Sandbox: no mail leaves this server. Results are simulated.']")
    here.click("Send a test")
    dialog = here.one("//dialog")
    assert "nothing leaves this server" in dialog.text
    assert "really delivered" not in dialog.text
    here.click("Cancel")
    here.go("Webhook")
    here.fill("URL", receiver.url("/hook"))
    here.click("Create webhook")
    secret = here.one("//*[contains(@class, 'secret')]").text
    assert "stores it encrypted" in secret
    assert "only a hash" not in secret


def test_what_waits_in_the_sandbox_is_told(running: Running, browser: Browser) -> None:
    """Under a pause of all mail, overview and administration say how many recipients wait."""
    operator = add_account(running.data_dir, "operator", role=Role.ADMIN)
    change(running.data_dir, lambda store: store.pools.hold(EVERY, "maintenance"))
    headers = {**operator.bearer, "Idempotency-Key": "waits"}
    body = {"from": f"shop@{operator.domain}", "to": ["a@example.net", "b@example.net"], "subject": "Hi", "text": "Hi."}
    try:
        with running.client(headers=headers) as client:
            assert client.post("/emails", json=body).status_code == 202
        here = Browser(browser.driver, running.url)
        here.log_in(operator.email)
        here.see("2 recipients are queued in the sandbox.")
        assert "The queue is empty" not in here.text()
        here.go("Admin")
        here.see("2 recipients are queued in the sandbox.")
        assert "The queue is empty" not in here.text()
    finally:
        change(running.data_dir, lambda store: store.pools.release(EVERY))


def test_a_test_that_is_delivered_says_so(stage: Stage, browser: Browser) -> None:
    browser.log_in(stage.account().email)
    assert "Sandbox" not in browser.text()
    browser.click("Send a test")
    assert "really delivered" in browser.one("//dialog").text
    browser.click("Cancel")
