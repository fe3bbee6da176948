"""People in the browser: an invitation is accepted, a second factor turned on and asked for, and roles seen."""

import subprocess
import time
from base64 import b32decode
from pathlib import Path

import pytest

from appliance.keys.secrets import code_of
from appliance.model.accounts import AccountRole, Scope
from appliance.store import Store
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.stage import Stage
from tests.programs import find, needs, require
from tests.running_appliance import PASSWORD_HASH

RULES = (Path(__file__).parent / "rules.js").read_text()
NEW_PASSWORD = "a password of her own"


def check_rules(browser: Browser, where: str) -> None:
    for size in (DESKTOP, PHONE):
        for theme in ("light", "dark"):
            browser.size(*size)
            browser.theme(theme)
            assert list(browser.script(RULES)) == [], (where, size, theme)
    browser.size(*DESKTOP)
    browser.theme("light")


def forget(browser: Browser) -> None:
    browser.driver.get(f"{browser.url}/healthz")
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})


def shown(browser: Browser, css: str) -> list[str]:
    return list(
        browser.script("return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", css)
    )


def scanned(browser: Browser, directory: Path) -> str:
    """What a program that others wrote reads from the QR code on the screen."""
    picture = directory / "code.png"
    picture.write_bytes(browser.one("//*[name()='svg' and @class='qr']").screenshot_as_png)
    command = [require("zbar"), "--quiet", "--raw", str(picture)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.removesuffix("\n")


def invited(browser: Browser, email: str, role: str) -> str:
    browser.click("Invite user")
    browser.fill("Email address", email)
    browser.script("document.querySelector('dialog select').value = arguments[0]", role)
    browser.click("Create link")
    browser.see("Send this link to the user")
    (link,) = shown(browser, "[data-secret=Link]")
    return browser.url + link[link.index("/dashboard/") :]  # this program's port is not in its settings


def test_a_person_is_invited_and_enrols(stage: Stage, browser: Browser, tmp_path: Path) -> None:
    """From the link to a login with a code; a viewer sees no button that would be refused."""
    account = stage.account()
    email = f"ann-{account.name}@example.org"
    browser.log_in(account.email)
    browser.go("Account")
    browser.click("People")
    browser.see("owner")
    link = invited(browser, email, "viewer")
    browser.see(email, "bdi")
    check_rules(browser, "people")

    # The person opens the link in a browser without a session, and is in.
    forget(browser)
    browser.driver.get(link)
    browser.see("Set a password", "h1")
    browser.see(email, "bdi")
    check_rules(browser, "invitation")
    browser.fill("New password", NEW_PASSWORD)
    browser.click("Set password")
    browser.until(lambda: browser.path() == "/dashboard", "the overview")
    browser.open("/dashboard/people")
    browser.see(email, "bdi")
    assert "Invite user" not in browser.text()
    assert "Remove" not in browser.text()

    # The link was good once.
    browser.driver.get(f"{browser.url}/healthz")
    browser.driver.get(link)
    browser.fill("New password", NEW_PASSWORD)
    browser.click("Set password")
    browser.see("This link was used")

    # A second factor is turned on.
    browser.log_in(email, NEW_PASSWORD)
    browser.go("Account")
    browser.click("Turn on two-factor authentication")
    browser.one("//*[@data-secret='totp']")
    (secret,) = shown(browser, "[data-secret=totp]")
    raw = b32decode(secret.replace(" ", ""))
    uri = next(each for each in shown(browser, "main code") if each.startswith("otpauth:"))
    assert f"secret={secret.replace(' ', '')}" in uri
    if find("zbar"):
        assert scanned(browser, tmp_path) == uri
    check_rules(browser, "enrolment")
    browser.fill("Password", NEW_PASSWORD)
    browser.fill("Code", code_of(raw, int(time.time()) // 30))
    browser.click("Turn on two-factor authentication")
    browser.see("Save the recovery codes")
    codes = shown(browser, "[data-code]")
    assert len(codes) == 10
    check_rules(browser, "recovery codes")
    browser.click("I have saved them")
    browser.see("10 left")

    # The login asks for a code in a second step; a wrong one is told, and a recovery code is good.
    forget(browser)
    browser.open("/dashboard/login")
    browser.fill("Email address", email)
    browser.fill("Password", NEW_PASSWORD)
    browser.click("Log in")
    check_rules(browser, "code")
    browser.fill("Two-factor code", "000000")
    browser.click("Log in")
    browser.see("This code is wrong")
    browser.fill("Two-factor code", codes[0])
    browser.click("Log in")
    browser.until(lambda: browser.path() == "/dashboard", "the overview")
    browser.open("/dashboard/account")
    browser.see("9 left")
    browser.click("Turn off two-factor authentication")
    browser.fill("Password", NEW_PASSWORD)
    browser.fill("Code", codes[1])
    browser.script("document.querySelector('dialog button[type=submit]').click()")
    browser.see("Off. When on, a login also requires a code")


def test_roles_are_changed_and_people_removed(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    browser.log_in(account.email)
    browser.open("/dashboard/people")
    email = f"bob-{account.name}@example.org"
    invited(browser, email, "developer")
    browser.click(f"Withdraw invitation of {email}")
    browser.one("//dialog//button[normalize-space()='Withdraw invitation']").click()
    browser.until(lambda: email not in browser.text(), "no invitation")
    browser.click(f"Actions for {account.email}")
    browser.click(f"Change role of {account.email}")
    browser.script("document.querySelector('dialog select').value = 'viewer'")
    browser.script("document.querySelector('dialog button[type=submit]').click()")
    browser.until(lambda: "An account needs an owner" in browser.text(), "the reason")
    browser.click("Cancel")
    browser.click(f"Actions for {account.email}")
    browser.click(f"Remove user {account.email}")
    browser.one("//dialog//button[normalize-space()='Remove user']").click()
    browser.until(lambda: "An account needs an owner" in browser.text(), "the reason")
    assert stage.ask(account, "GET", "/v1/users")["users"][0]["role"] == "owner"


@pytest.mark.parametrize("kept", [True, False])
def test_a_removed_persons_keys_are_listed_and_revoked_unless_kept(stage: Stage, browser: Browser, kept: bool) -> None:
    account = stage.account()
    email = f"eve-{account.name}@example.org"

    async def join(store: Store) -> None:
        _, token = await store.people.invite(account.account_id, email, AccountRole.DEVELOPER)
        await store.people.use_link(token, PASSWORD_HASH)
        user = await store.accounts.user_by_email(email)
        assert user is not None
        await store.access.create_key(
            account.account_id, scope=Scope.SEND, test=False, name="nightly report", created_by=user.id
        )

    change(stage.world.running.data_dir, join)
    browser.log_in(account.email)
    browser.open("/dashboard/people")
    browser.click(f"Actions for {email}")
    browser.click(f"Remove user {email}")
    browser.until(lambda: "API key nightly report" in browser.text(), "the keys of the person")
    if kept:
        browser.script("document.querySelector('dialog input[name=keep]').click()")
    browser.one("//dialog//button[normalize-space()='Remove user']").click()
    browser.until(lambda: email not in browser.text(), "no such person")
    keys = {each["name"]: each["revoked_at"] for each in stage.ask(account, "GET", "/v1/api-keys")["api_keys"]}
    assert (keys["nightly report"] is None) is kept


DRAW = """
const [text, done] = arguments;
const src = document.querySelector("script[type=module]").src.replace("main.js", "qr.js");
import(src).then((module) => {
    const drawn = module.qr(text, "test");
    if (drawn) document.querySelector("main").replaceChildren(drawn);
    done(drawn !== null);
});
"""


@needs("zbar")
def test_a_qr_code_of_every_size_is_read(browser: Browser, tmp_path: Path) -> None:
    """The longest text of each version, and the shortest of the next; one that is too long is not drawn."""
    browser.open("/dashboard/login")
    for length in (1, 17, 18, 32, 33, 53, 54, 78, 79, 106, 107, 134, 135, 154, 155, 192, 193, 230, 231, 271):
        text = "".join("otpauth://totp/ABC234?secret=&issuer"[(at * 7 + length) % 36] for at in range(length))
        assert browser.driver.execute_async_script(DRAW, text) is True
        assert scanned(browser, tmp_path) == text, length
    assert browser.driver.execute_async_script(DRAW, "x" * 272) is False
