"""A webhook is set up, tried, watched and repaired in the browser."""

import re
from typing import Any

from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import Browser
from tests.fakes.webhook_server import Hooks
from tests.running_appliance import Running

HOSTILE = b"<script>top.ran=1</script>"


def test_a_webhook_is_set_up_tried_and_repaired(running: Running, receiver: Hooks, browser: Browser) -> None:
    """The secret is shown once; a ping, its answer, and a message's posts are there to read and to send again."""
    receiver.answers["/hook"] = lambda _: (500, HOSTILE)
    here = Browser(browser.driver, running.url)
    here.log_in(running.account.email)
    here.go("Webhook")
    here.fill("URL", receiver.url("/hook"))
    assert here.script("return document.querySelector('[name=\"email.failed\"]').checked")
    here.field("email.delayed: queued for an hour or longer, still being retried").click()
    here.click("Create webhook")
    secret = here.one("//*[@data-secret='Secret']").text
    assert secret.startswith("whsec_")
    here.click("I have saved it")
    here.see(f"whsec_…{secret[-4:]}")
    assert secret not in here.driver.page_source
    wanted = here.script("""return [...document.querySelectorAll("input[name^='email.']")]
        .filter((each) => each.checked).map((each) => each.name)""")
    assert wanted == ["email.delivered", "email.bounced", "email.failed", "email.delayed"]
    here.click("Send a test event")
    here.one("//dialog//button[normalize-space()='Send test event']").click()
    here.see("responded 500")
    here.click_summary("webhook.test")
    here.see(HOSTILE.decode())
    assert here.script("return window.ran") is None
    assert here.forbidden() == []

    receiver.answers["/hook"] = lambda _: (200, b"thank you")
    headers = {**running.account.bearer, "Idempotency-Key": "one"}
    body = {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hello."}
    with running.client(headers=headers) as client:
        message = client.post("/emails", json=body).json()["id"]
    here.open(f"/dashboard/messages/{message}")
    here.tab("Webhook")
    here.click_summary("email.delivered")
    here.see("thank you")
    here.click("Replay")
    here.until(lambda: here.count(".post") == 2, "the post that was sent again")
    first, second = (post.body for post in receiver.at("/hook") if b"email.delivered" in post.body)
    assert first == second


def test_posts_are_filtered_and_the_failed_ones_sent_again(running: Running, receiver: Hooks, browser: Browser) -> None:
    """By status and event, with the recipient beside each; all that failed in a period are posted once more."""
    receiver.answers["/hook"] = lambda _: (200, b"")
    with running.client(headers=running.login()) as client:
        client.put("/v1/webhook", json={"url": receiver.url("/hook")}).raise_for_status()
        body = {
            "from": "shop@example.com",
            "to": ["eve@example.net", "bounce@example.net"],
            "subject": "s",
            "text": "t",
        }
        key = {**running.account.bearer, "Idempotency-Key": "filtered"}
        message = client.post("/emails", json=body, headers=key).json()["id"]

        def posts() -> Any:
            path = f"/v1/webhook/deliveries?message_id={message}"
            return [each for each in client.get(path).json()["deliveries"] if each["status"] == "success"]

        browser.until(lambda: len(posts()) == 2, "both posts")
        failed = "UPDATE webhook_deliveries SET status = 'failed' WHERE message_id = :id"
        change(running.data_dir, lambda store: store.engine.change(failed, {"id": message}))
        assert posts() == []
        here = Browser(browser.driver, running.url)
        here.log_in(running.account.email)
        here.open("/dashboard/webhook?status=failed&type=email.bounced")
        here.until(lambda: here.count(".post") == 1, "the one that failed")
        here.see("bounce@example.net", "bdi")
        here.open("/dashboard/webhook?status=success&type=email.bounced")
        here.see("No results for this filter.")
        here.click("Replay failed deliveries")
        here.one("//dialog//button[normalize-space()='Replay deliveries']").click()
        here.until(lambda: "2 deliveries replayed." in here.one("//dialog//*[@role='status']").text, "the end of it")
        here.one("//dialog//button[normalize-space()='Close']").click()
        browser.until(lambda: len(posts()) == 2, "both posts, again")
        assert {each["trigger"] for each in posts()} == {"replay"}
        assert here.forbidden() == []
        here.open("/dashboard/webhook?status=nonsense&type=email.bounced")
        assert "status: must be one of" in here.one("//main//*[@role='alert']").text
        here.see("Success rate")
        filters = "return ['status', 'type'].map((name) => document.querySelector(`[name=${name}]`).value)"
        assert here.script(filters) == ["nonsense", "email.bounced"]
        refused = client.get("/v1/webhook/deliveries?type=x")
        assert (refused.status_code, refused.json()["error"][:5]) == (400, "type:")


def test_attempts_are_counted_selected_and_tried_with_an_example(
    running: Running, receiver: Hooks, browser: Browser
) -> None:
    """One click sends an example of an event after its type is chosen; two replay a selection; retries are told."""
    receiver.answers["/hook"] = lambda _: (503, b"")
    webhook = {"url": receiver.url("/hook")}
    with running.client(headers=running.login()) as client:
        client.put("/v1/webhook", json=webhook).raise_for_status()
        # The ping of an earlier test must not delay this one.
        change(running.data_dir, lambda store: store.engine.change("UPDATE webhook_pings SET pinged_at = 0", {}))
        here = Browser(browser.driver, running.url)
        here.log_in(running.account.email)
        here.open("/dashboard/webhook?type=email.complained")
        here.click("Send a test event")
        type_field = here.field("Event type of the test")
        type_field.find_element("xpath", ".//option[.='email.complained']").click()
        here.one("//dialog//button[normalize-space()='Send test event']").click()
        here.see("retrying (503")
        example = next(post.body for post in receiver.at("/hook") if b"email.complained" in post.body)
        assert b'"to":"ada@example.net"' in example
        assert b'"test":true' in example

        here.click("Replay failed deliveries")
        here.one("//dialog//button[normalize-space()='Replay deliveries']").click()
        status = "//dialog//*[@role='status']"
        left = re.compile(r"\d+ deliver(y is|ies are) still being retried: not replayed\.")  # those of other tests, too
        here.until(lambda: left.search(here.one(status).text), "the notice")
        here.one("//dialog//button[normalize-space()='Close']").click()

        receiver.answers["/hook"] = lambda _: (200, b"")
        here.click("Select all shown")
        here.click("Replay 1 delivery")
        here.see("delivered", "span")
        options = here.script("return [...document.querySelectorAll('[name=status] option')].map((o) => o.textContent)")
        assert options == ["any", "delivered", "failed", "queued or retrying"]
        counted = client.get("/v1/webhook/statistics").json()
        assert counted["totals"]["server_error"] >= 1
        assert counted["totals"]["success"] >= 1
        assert sum(each["server_error"] for each in counted["hours"]) == counted["totals"]["server_error"]
        assert len(counted["hours"]) == 24
    here.open("/dashboard/webhook")
    here.see("Success rate")
    here.see("Server errors (5xx)")
    assert here.forbidden() == []


def test_a_secret_is_changed_and_a_webhook_deleted(running: Running, receiver: Hooks, browser: Browser) -> None:
    """A new secret is shown once, after a question; what is refused is told at the field; a delete asks, too."""
    here = Browser(browser.driver, running.url)
    here.log_in(running.account.email)
    here.go("Webhook")
    here.click("Rotate secret")
    here.one("//dialog//button[normalize-space()='Rotate secret']").click()
    secret = here.one("//*[@data-secret='Secret']").text
    here.click("I have saved it")
    here.see(f"whsec_…{secret[-4:]}")
    here.fill("URL", "https://localhost/hook")
    here.click("Save webhook")
    here.one("//*[contains(@class, 'field')]//*[contains(@class, 'error')]")
    here.click("Delete webhook")
    here.one("//dialog//button[normalize-space()='Delete webhook']").click()
    here.one("//button[normalize-space()='Create webhook']")
