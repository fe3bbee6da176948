"""A month of mail, looked at as people do: every page in light and dark without a finding of axe-core, and pictures."""

from collections.abc import Callable, Iterator

import pytest

from appliance.model.accounts import Role
from tests.e2e.dashboard.browser import DESKTOP, IMAGES, PHONE, Browser
from tests.e2e.dashboard.month import write_month
from tests.e2e.dashboard.stage import RECEIVES, Stage, staged
from tests.e2e.dashboard.test_accessible import COLOURS, DIALOGS, PAGES, SOURCES, axe, fresh, reply
from tests.running_appliance import Provisioned

LOOKS = ((DESKTOP, "light", ()), (DESKTOP, "dark", COLOURS), (PHONE, "dark", ()))
PICTURES = {
    "overview": "",
    "deliverability": "/deliverability",
    "messages": "/messages",
    "received": "/received",
    "streams": "/streams",
    "operator": "/admin",
}
REPLIES = (
    ("grace.hopper@bakery.example", "Re: Your order 10412 is on its way"),
    ("alan.turing@museum.example", "Question about my receipt"),
    ("margaret.hamilton@gmx.net", "Re: Your order 10438 is on its way"),
    ("hedy.lamarr@outlook.com", "Re: Winter is coming"),
    ("radia.perlman@contoso.example", "Invoice address for order 10451"),
    ("ken.knuth@gmail.com", "Return of order 10397"),
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its own: all of its mail is counted again."""
    with staged(tmp_path_factory.mktemp("month"), *RECEIVES, *SOURCES) as made:
        yield made


@pytest.fixture
def browser(_started: Browser, stage: Stage) -> Browser:
    return fresh(_started, stage)


@pytest.fixture(scope="module")
def month(stage: Stage) -> Provisioned:
    account = stage.account("acme", domain="acme.example", role=Role.ADMIN)
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hi {{name}}", "text": "Hi", "html": "<p>Hi</p>"})
    write_month(stage.world.running.data_dir, account)
    stage.ask(account, "POST", "/v1/inbound/addresses", {"address": f"in.{account.domain}"})
    return account


@pytest.fixture(scope="module")
def where(stage: Stage, month: Provisioned) -> Callable[[str], str]:
    """The address of a page of PAGES or DIALOGS."""
    (deferred, *_) = stage.ask(month, "GET", "/v1/emails?outcome=deferred")["emails"]
    received = stage.receive(month, reply(f"in.{month.domain}"))
    ids = {"account": month.account_id, "message": deferred["id"], "received": received}
    return lambda path: f"/dashboard{path.format(**ids)}".replace("example.com", month.domain)


def test_axe_finds_nothing_on_any_page(browser: Browser, month: Provisioned, where: Callable[[str], str]) -> None:
    browser.open("/dashboard/login")
    findings = axe(browser)
    browser.log_in(month.email)
    for name, path in PAGES.items():
        browser.size(*DESKTOP)
        browser.open(where(path))
        for size, theme, rules in LOOKS:
            browser.size(*size)
            browser.theme(theme)
            findings += [f"{name}, {theme}, {size[0]}: {each}" for each in axe(browser, rules)]
    assert findings == []


def test_axe_finds_nothing_in_any_dialog(browser: Browser, month: Provisioned, where: Callable[[str], str]) -> None:
    browser.log_in(month.email)
    findings = []
    for path, name in DIALOGS:
        browser.open(where(path))
        browser.click(name)
        browser.one("//dialog[@open]")
        for theme, rules in (("light", ()), ("dark", COLOURS)):
            browser.theme(theme)
            findings += [f"{name}, {theme}: {each}" for each in axe(browser, rules)]
    assert findings == []


def test_a_rate_of_few_deliveries_is_not_judged(browser: Browser, month: Provisioned, stage: Stage) -> None:
    """Neither by its text nor by the colour of its bar."""
    found = stage.ask(month, "GET", "/v1/feedback?days=30")["providers"]
    assert {each["complaint_mark"] for each in found} == {"too_few"}
    browser.log_in(month.email)
    browser.open("/dashboard/feedback")
    assert browser.count("td.share rect.queued") == len(found)
    assert browser.count("td.share rect.bounced") == 0


ROWS = """
const box = (each) => each.getBoundingClientRect();
return [...document.querySelectorAll(".tiles")].map((tiles) => {
  const last = [...tiles.children].at(-1);
  return [box(tiles).right - box(last).right, tiles.children.length];
});
"""


def test_the_overview_has_no_gap_beside_its_tiles(browser: Browser, month: Provisioned) -> None:
    """Late bounces and complaints are numbers, too; the tiles fill their rows at every width."""
    browser.log_in(month.email)
    browser.open("/dashboard?days=30")
    browser.see("Late bounced", "dt")
    browser.see("Complained", "dt")
    for width in (390, 768, 1_024, 1_440):
        browser.size(width, 900)
        for path in ("?days=30", "/streams", "/admin"):
            browser.open(f"/dashboard{path}")
            for gap, tiles in browser.until(lambda: browser.script(ROWS), "tiles"):
                assert abs(gap) < 2, (path, width, tiles)


def test_a_complaint_is_an_outcome_wherever_one_looks(stage: Stage, browser: Browser, month: Provisioned) -> None:
    complained = stage.ask(month, "GET", "/v1/emails?outcome=complained")["emails"]
    assert complained
    browser.log_in(month.email)
    browser.go("Messages")
    browser.one(
        f"//nav[@aria-label='Views']//a[starts-with(., 'Complaints')][contains(., '{len(complained)}')]"
    ).click()
    browser.until(lambda: browser.count("tr.linked .badge.complained") == len(complained), "the complaints")
    browser.open(f"/dashboard/messages/{complained[0]['id']}")
    browser.see("The recipient reported this message as spam.")
    assert "complained" in browser.see(complained[0]["recipients"][0]["email"], "h2").text


def test_a_badge_counts_all_recipients(stage: Stage, browser: Browser) -> None:
    """Not only the three that a row of the list names."""
    account = stage.account()
    good = [f"customer{number}@good.test" for number in range(5)]
    stage.tried(stage.send(account, *good, "gone@bad.test"))
    browser.log_in(account.email)
    browser.go("Messages")
    assert browser.see("and 5 more", "tr").find_element("css selector", ".badge").text == "5 of 6 delivered"


def test_the_month_is_shown(stage: Stage, browser: Browser, month: Provisioned) -> None:
    """The operator reads in one sentence that mail goes out; pictures of the pages are kept if they are wanted."""
    for sender, subject in REPLIES if IMAGES else ():
        stage.receive(month, reply(f"in.{month.domain}", subject, sender))
    browser.log_in(month.email)
    for name, path in PICTURES.items():
        browser.open(f"/dashboard{path}")
        browser.picture(name)
    assert "Is mail going out?" in browser.text()
