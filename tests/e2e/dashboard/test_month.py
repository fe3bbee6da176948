"""A month of mail, looked at as people do: every page in light and dark without a finding of axe-core, and pictures."""

from itertools import product

import pytest

from appliance.model.accounts import Role
from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.month import write_month
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_accessible import DIALOGS, PAGES, axe
from tests.running_appliance import Provisioned

LOOKS = ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "dark"))
PICTURES = {"overview": "", "messages": "/messages", "streams": "/streams", "admin": "/admin"}


@pytest.fixture(scope="module")
def month(stage: Stage) -> Provisioned:
    account = stage.account("acme", domain="acme.example", role=Role.ADMIN)
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hi {{name}}", "text": "Hi", "html": "<p>Hi</p>"})
    write_month(stage.world.running.data_dir, account)
    return account


@pytest.fixture(scope="module")
def message(stage: Stage, month: Provisioned) -> str:
    (deferred, *_) = stage.ask(month, "GET", "/v1/emails?outcome=deferred")["emails"]
    return str(deferred["id"])


def test_axe_finds_nothing_on_any_page(browser: Browser, month: Provisioned, message: str) -> None:
    browser.open("/dashboard/login")
    findings = axe(browser)
    browser.log_in(month.email)
    for name, path in PAGES.items():
        browser.size(*DESKTOP)
        browser.open(
            "/dashboard" + path.format(message=message, account=month.account_id).replace("example.com", month.domain)
        )
        for size, theme in LOOKS:
            browser.size(*size)
            browser.theme(theme)
            findings += [f"{name}, {theme}, {size[0]}: {each}" for each in axe(browser)]
    assert findings == []


def test_axe_finds_nothing_in_any_dialog(browser: Browser, month: Provisioned, message: str) -> None:
    browser.log_in(month.email)
    findings = []
    for path, name in DIALOGS:
        browser.open("/dashboard" + path.format(message=message).replace("example.com", month.domain))
        browser.click(name)
        browser.one("//dialog[@open]")
        for theme in ("light", "dark"):
            browser.theme(theme)
            findings += [f"{name}, {theme}: {each}" for each in axe(browser)]
    assert findings == []


def test_the_month_is_shown(stage: Stage, browser: Browser, month: Provisioned) -> None:
    """The operator reads in one sentence that mail goes out; pictures of the pages are kept if they are wanted."""
    browser.log_in(month.email)
    for (name, path), theme in product(PICTURES.items(), ("light",)):
        browser.theme(theme)
        browser.open(f"/dashboard{path}")
        browser.picture(name)
    assert "Is mail going out?" in browser.text()
