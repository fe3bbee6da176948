"""A webhook is set up, tried, watched and repaired in the browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.dashboard.browser import Browser
from tests.fakes import webhook_server
from tests.running_appliance import Running, appliance

HOSTILE = b"<script>top.ran=1</script>"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of it is."""
    return tmp_path_factory.mktemp("webhook")


@pytest.fixture(scope="module")
def receiver(directory: Path) -> Iterator[Any]:
    """The customer's server."""
    with webhook_server.hooks(directory) as started:
        yield started


@pytest.fixture(scope="module")
def running(directory: Path, receiver: Any) -> Iterator[Running]:
    """A program that may post to it."""
    settings: Any = {"webhooks": receiver.settings(directory)}
    with appliance(directory, **settings) as started:
        yield started


def test_a_webhook_is_set_up_tried_and_repaired(running: Running, receiver: Any, browser: Browser) -> None:
    """The secret is shown once; a ping, its answer, and a message's posts are there to read and to send again."""
    receiver.answers["/hook"] = lambda _: (500, HOSTILE)
    here = Browser(browser.driver, running.url)
    here.log_in(running.account.email)
    here.go("Webhook")
    here.fill("URL", receiver.url("/hook"))
    assert here.script("return document.querySelector('[name=\"email.failed\"]').checked")
    here.field("email.delayed: it waits for an hour or longer, and is still tried").click()
    here.click("Create webhook")
    secret = here.one("//*[@data-secret='Secret']").text
    assert secret.startswith("whsec_")
    here.click("I have saved it")
    here.see(f"whsec_…{secret[-4:]}")
    assert secret not in here.driver.page_source
    wanted = here.script("""return [...document.querySelectorAll("input[name^='email.']")]
        .filter((each) => each.checked).map((each) => each.name)""")
    assert wanted == ["email.delivered", "email.bounced", "email.failed", "email.delayed"]
    here.click("Send a ping")
    here.see("answered 500")
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
    here.see("Webhook posts")
    here.click_summary("email.delivered")
    here.see("thank you")
    here.click("Send again")
    here.until(lambda: here.count(".post") == 2, "the post that was sent again")
    first, second = (post.body for post in receiver.at("/hook") if b"email.delivered" in post.body)
    assert first == second


def test_a_secret_is_changed_and_a_webhook_deleted(running: Running, receiver: Any, browser: Browser) -> None:
    """A new secret is shown once, after a question; what is refused is told at the field; a delete asks, too."""
    here = Browser(browser.driver, running.url)
    here.log_in(running.account.email)
    here.go("Webhook")
    here.click("New secret")
    here.click("Make a new secret")
    secret = here.one("//*[@data-secret='Secret']").text
    here.click("I have saved it")
    here.see(f"whsec_…{secret[-4:]}")
    here.fill("URL", "https://localhost/hook")
    here.click("Save")
    here.one("//*[contains(@class, 'field')]//*[contains(@class, 'error')]")
    here.click("Delete")
    here.click("Delete it")
    here.one("//button[normalize-space()='Create webhook']")
