"""Every page can be used without eyes, mouse or colours: names, headings, order, contrast, in light and dark.

Two sets of rules: axe-core's, and those of rules.js, which axe-core does not have or checks less strictly.
"""

import re
from collections.abc import Iterator, Sequence
from email.message import EmailMessage
from itertools import product
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from appliance.model.accounts import Role
from appliance.web import pages
from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.stage import RECEIVES, Stage, staged
from tests.programs import require
from tests.running_appliance import Provisioned

RULES = (Path(__file__).parent / "rules.js").read_text()
PAGES = {
    "overview": "",
    "statistics": "/statistics",
    "deliverability": "/deliverability",
    "requests": "/requests",
    "list": "/messages",
    "message": "/messages/{message}",
    "feedback": "/feedback",
    "streams": "/streams",
    "domains": "/domains",
    "records": "/domains/example.com",
    "received": "/received",
    "received message": "/received/{received}",
    "receiving addresses": "/receiving",
    "receiving address": "/receiving/in.example.com",
    "templates": "/templates",
    "editor": "/templates/welcome",
    "webhook": "/webhook",
    "suppressions": "/suppressions",
    "keys": "/keys",
    "audit": "/audit",
    "account": "/account",
    "people": "/people",
    "admin": "/admin",
    "sources": "/sources",
    "managed account": "/admin/accounts/{account}",
    "managed list": "/admin/accounts/{account}/messages",
    "managed message": "/admin/accounts/{account}/messages/{message}",
    "nothing": "/nothing",
}

SOURCES = "[delivery.sources.mail]", 'ipv4 = "127.0.0.2"', "[delivery.sources.news]", 'ipv4 = "127.0.0.3"'
LONG_ADDRESS = f"{'a-long-local-part-without-a-gap' * 2}@good.test"
SUPPRESSED = f"{'no-more-mail-to-this-one-please' * 2}@good.test"
LONG_SUBJECT = "Your order of the seventeenth of November has left our warehouse and will be with you soon " * 2
WIDTHS = (320, 360, 390, 480, 600, 719, 720, 768, 900, 1_023, 1_024, 1_200, 1_440, 1_920)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its own: it also receives mail, and has source addresses."""
    with staged(tmp_path_factory.mktemp("pages"), *RECEIVES, *SOURCES) as made:
        yield made


@pytest.fixture
def browser(_started: Browser, stage: Stage) -> Browser:
    return fresh(_started, stage)


def fresh(started: Browser, stage: Stage) -> Browser:
    """The browser at a program of its own."""
    started.driver.get("about:blank")
    started.log()
    made = Browser(started.driver, stage.url)
    made.size(*DESKTOP)
    made.theme("light")
    return made


@pytest.fixture(scope="module")
def owner(stage: Stage) -> Provisioned:
    account = stage.account(role=Role.ADMIN)
    stage.ask(account, "PUT", "/v1/templates/welcome", {"subject": "Hi {{name}}", "text": "Hi", "html": "<p>Hi</p>"})
    stage.ask(account, "POST", "/v1/suppressions", {"address": "a@good.test"})
    stage.ask(account, "POST", "/v1/suppressions", {"address": SUPPRESSED, "reason": "asked us to stop " * 8})
    stage.ask(account, "POST", "/v1/api-keys", {"name": "the key of a web shop with a long name", "scope": "send"})
    stage.ask(account, "POST", "/v1/users", {"email": "invited@good.test", "role": "viewer"})
    stage.ask(account, "POST", "/v1/inbound/addresses", {"address": "in.example.com"})
    return account


@pytest.fixture(scope="module")
def message(stage: Stage, owner: Provisioned) -> str:
    to = ("a@good.test", "b@bad.test", "c@grey.test", "ok@good.test", "more@good.test")
    sent = stage.send(owner, *to, html="<p>Hello</p>", tags=["order"])
    stage.tried(stage.send(owner, "ada@good.test"), stage.send(owner, LONG_ADDRESS, subject=LONG_SUBJECT))
    return sent


@pytest.fixture(scope="module")
def ids(stage: Stage, owner: Provisioned, message: str) -> dict[str, str]:
    """The ids in the paths of PAGES and DIALOGS."""
    received = stage.receive(owner, reply("in.example.com", LONG_SUBJECT))
    return {"account": owner.account_id, "message": message, "received": received}


def reply(domain: str, subject: str = "Re: Your order", sender: str = "Ada Lovelace <ada@example.net>") -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, f"support@{domain}", subject
    mail.set_content("It has arrived. Thank you!")
    mail.add_alternative("<h1>Thank you</h1><p>It has <a href='https://acme.example/yes'>arrived</a>.</p>", "html")
    mail.add_attachment(b"terms", "application", "pdf", filename="terms-and-conditions.pdf")
    return mail


AXE = """
const done = arguments[arguments.length - 1];
const told = ({ id, nodes }) => nodes.map((node) => `axe ${id}: ${node.html.slice(0, 120)} ${node.failureSummary}`);
const runOnly = arguments[0].length ? { runOnly: arguments[0] } : {};
axe.run({ resultTypes: ["violations"], ...runOnly })
    .then(({ violations }) => done(violations.flatMap(told)), (error) => done([String(error)]));
"""


def broken(browser: Browser) -> list[str]:
    return list(browser.script(RULES))


COLOURS = ("color-contrast",)  # all that another theme changes


def axe(browser: Browser, rules: Sequence[str] = ()) -> list[str]:
    """What axe-core finds on the page, by all of its rules or by these; it is loaded once for each document."""
    if not browser.script("return 'axe' in window"):
        browser.script(Path(require("axe")).read_text())
    return list(browser.driver.execute_async_script(AXE, rules))


CLIPPED = """
const edge = document.documentElement.clientWidth;
const scrolls = (each) => ["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX);
const found = document.documentElement.scrollWidth > edge ? ["the page"] : [];
for (const each of document.querySelectorAll("main *, .top *")) {
  const box = each.getBoundingClientRect();
  if (!box.width || box.right <= edge + 1 || !each.checkVisibility()) continue;
  let inside = each.parentElement;
  while (inside && !scrolls(inside)) inside = inside.parentElement;
  if (!inside || inside === document.documentElement) found.push(each.outerHTML.slice(0, 80));
}
if (edge < 1024) {
  for (const each of document.querySelectorAll(".table:has(.cards), .cards tbody *, .post summary, .post .lead"))
    if (each.clientWidth && each.scrollWidth > each.clientWidth + 1) found.push(`cut: ${each.outerHTML.slice(0, 80)}`);
} else
  for (const each of document.querySelectorAll(".table")) {
    const name = each.querySelector("table").ariaLabel;
    if (each.scrollWidth > each.clientWidth + 1) found.push(`cut: ${name}`);
    const cells = [...each.querySelectorAll("th, td")].map((cell) => getComputedStyle(cell).display);
    if (cells.some((display) => !["table-cell", "none"].includes(display))) found.push(`no cells: ${name}`);
  }
return found.slice(0, 3);
"""


def findings(browser: Browser) -> list[str]:
    """What the rules find, light and dark, wide and on a phone, and what is clipped."""
    found = []
    for size in (DESKTOP, PHONE):
        browser.size(*size)
        found += list(browser.script(CLIPPED))
        for theme, rules in (("light", ()), ("dark", COLOURS)):
            browser.theme(theme)
            found += axe(browser, rules) + broken(browser)
    browser.size(*DESKTOP)
    browser.theme("light")
    return [f"{browser.path()}: {each}" for each in found]


VAGUE = {"Delete", "Edit", "Compare", "Send"}  # a button says what it does to what


def test_every_page_keeps_the_rules(stage: Stage, browser: Browser, owner: Provisioned, ids: dict[str, str]) -> None:
    """All pages, light and dark, wide and narrow: no finding, no vague button, and nothing clipped at any width."""
    browser.open("/dashboard/login")
    assert broken(browser) == []
    browser.log_in(owner.email)
    findings, buttons = [], set[str]()
    for name, path in PAGES.items():
        browser.size(*DESKTOP)
        browser.open("/dashboard" + path.format(**ids))
        if name == "records":
            browser.see("DNS records", "h2")
        buttons |= set(
            browser.script("return [...document.querySelectorAll('button, .button')].map((e) => e.textContent)")
        )
        for size, theme in product((DESKTOP, PHONE), ("light", "dark")):
            browser.size(*size)
            browser.theme(theme)
            findings += [f"{name}, {theme}, {size[0]}: {each}" for each in broken(browser)]
        browser.theme("light")
        for width in WIDTHS:
            browser.size(width, 800)
            findings += [f"{name}, {width}: {each}" for each in browser.script(CLIPPED)]
    assert findings == []
    assert not buttons & VAGUE


def test_no_source_has_a_vague_button() -> None:
    for source in (Path(pages.__file__).parent / "static").rglob("*.js"):
        assert not re.findall(r'"(?:[A-Z][a-z]+ (?:it|them)|Look|New secret)",', source.read_text()), source


LINES = """
const box = (each) => each.getBoundingClientRect();
const inner = (each) => { const text = document.createRange(); text.selectNodeContents(each); return box(text); };
return [...document.querySelectorAll("main .cards tbody tr")].map((row) => {
  const lead = row.querySelector("td.lead");
  const shown = [...row.cells].filter((each) => each.checkVisibility() && each !== lead);
  const beside = shown.filter((each) => inner(each).top < inner(lead).bottom && inner(each).bottom > inner(lead).top);
  return {
    address: lead.textContent,
    whole: inner(lead).right <= box(row).right && inner(lead).left >= box(row).left,
    beside: beside.map((each) => each.textContent),
    below: shown.filter((each) => inner(each).top >= inner(lead).bottom - 1).map((each) => each.textContent),
    headed: document.querySelector("main .cards thead").getBoundingClientRect().height > 2,
  };
});
"""


@pytest.mark.parametrize("width", [390, 768, 1_023])
def test_rows_are_cards_where_there_is_little_room(
    stage: Stage, browser: Browser, owner: Provisioned, message: str, width: int
) -> None:
    """What leads a row and its state are on the first line, all else below it, and nothing is cut off."""
    browser.log_in(owner.email)
    browser.size(width, 800)
    for path, address, beside in (
        ("/messages", LONG_ADDRESS, "delivered"),
        ("/suppressions", SUPPRESSED, "Release"),
        ("/keys", "the key of a web shop with a long name", "works"),
        ("/people", owner.email, "Change role"),
        ("/audit", owner.email, ":"),
    ):
        browser.open("/dashboard" + path)
        rows = browser.until(lambda: browser.script(LINES), "rows")
        (row,) = [each for each in rows if address in each["address"]][:1]
        assert row["whole"], path
        assert not row["headed"], path
        assert row["below"], path
        if width > 390:
            assert any(beside in each for each in row["beside"]), (path, row)
        if path == "/messages":
            assert LONG_SUBJECT.strip() in [each.strip() for each in row["below"]]
    browser.size(1_024, 800)
    assert all(each["headed"] for each in browser.script(LINES))
    browser.open("/dashboard/messages?tag=order")
    tag = browser.see("order", "td/*[contains(@class, 'tag')]")
    cell = tag.find_element(By.XPATH, "..")
    assert tag.rect["x"] + tag.rect["width"] <= cell.rect["x"] + cell.rect["width"]
    assert browser.one("//tr[@title]").get_attribute("title") == "a@good.test\nHello\nFrom: shop@example.com\norder"


def test_an_error_is_at_its_field_and_keeps_its_distance(browser: Browser, owner: Provisioned) -> None:
    """It names the field by its label; the request id is behind "Details"; it touches neither field nor button."""
    browser.log_in(owner.email)
    browser.open("/dashboard/domains")
    browser.click("Add a domain")
    browser.fill("Domain name", "no domain")
    browser.click("Add domain")
    told = browser.one("//*[contains(@class, 'field')]//*[@role='alert']")
    assert told.text.startswith("Domain name: ")
    assert browser.field("Domain name").get_attribute("aria-invalid") == "true"
    assert "req_" not in told.text
    browser.click_summary("Details")
    assert "req_" in told.text
    assert broken(browser) == []
    browser.open("/dashboard/login")
    browser.fill("Email address", owner.email)
    browser.fill("Password", "not this one")
    browser.click("Log in")
    told = browser.one("//form//*[@role='alert']")
    above = browser.field("Password").rect
    below = browser.one("//form//button[normalize-space()='Log in']").rect
    assert told.rect["y"] - above["y"] - above["height"] >= 4
    assert below["y"] - told.rect["y"] - told.rect["height"] >= 8


def test_forms_are_no_wider_than_one_reads(browser: Browser, owner: Provisioned) -> None:
    """On a wide screen no field is wider than 560 pixels, but for those of the editor."""
    browser.log_in(owner.email)
    browser.size(1_920, 1_000)
    wide = "return [...document.querySelectorAll('main :is(input, select, textarea)')].map((e) => e.offsetWidth)"
    for path in ("/messages", "/suppressions", "/keys", "/account", "/webhook", "/audit", "/domains"):
        browser.open("/dashboard" + path)
        assert max(browser.script(wide), default=0) <= 560, path


DIALOGS = (
    ("", "Send a test"),
    ("/messages", "New message"),
    ("/messages", "Filter"),
    ("/messages?tag=order", "Save view"),
    ("/messages/{message}", "Cancel message"),
    ("/suppressions", "Suppress an address"),
    ("/suppressions", "Import CSV"),
    ("/suppressions", "Add a tag"),
    ("/keys", "New key"),
    ("/keys", "New credential"),
    ("/domains", "Add a domain"),
    ("/domains/example.com", "Remove domain"),
    ("/admin", "New account"),
    ("/templates/welcome", "Send a test"),
    ("/received/{received}", "Forward"),
    ("/receiving", "Add a receiving address"),
    ("/receiving/in.example.com", "Remove address"),
)


def test_dialogs_keep_the_rules_and_give_the_focus_back(
    browser: Browser, owner: Provisioned, ids: dict[str, str]
) -> None:
    """All dialogs, light and dark, wide and narrow; the focus is in the dialog, and returns to what opened it."""
    browser.log_in(owner.email)
    findings = []
    for path, name in DIALOGS:
        browser.open("/dashboard" + path.format(**ids))
        browser.click(name)
        browser.one("//dialog[@open]")
        assert browser.script("return document.activeElement.closest('dialog') !== null"), name
        for size, theme in product((DESKTOP, PHONE), ("light", "dark")):
            browser.size(*size)
            browser.theme(theme)
            findings += [f"{name}, {theme}, {size[0]}: {each}" for each in broken(browser)]
        browser.size(*DESKTOP)
        ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()  # `type` would choose a file in a field for one
        browser.until(lambda: browser.count("dialog") == 0, "the end of the dialog")
        assert browser.script("return document.activeElement.textContent") == name
    assert findings == []


def test_keys_are_enough(browser: Browser, owner: Provisioned) -> None:
    """From the first key on: skip the rail, go to a section with two keys, see the list of keys."""
    browser.log_in(owner.email)
    browser.open("/dashboard")
    browser.type(Keys.TAB)
    assert browser.script("return document.activeElement.className") == "skip"
    browser.script("document.activeElement.blur()")
    browser.type("g")
    browser.type("m")
    browser.see("Messages", "h1")
    assert browser.script("return document.activeElement.tagName") == "H1"
    browser.type("?")
    assert "Next and previous row" in browser.one("//dialog").text


def test_a_chart_is_told_in_words(stage: Stage, browser: Browser, owner: Provisioned, message: str) -> None:
    """The chart has its numbers in its name, tells each bar by the arrow keys, and is a table as well."""
    browser.log_in(owner.email)
    chart = browser.one("//*[name()='svg' and @role='img']")
    assert " sent, " in str(chart.get_attribute("aria-label"))
    browser.script("arguments[0].focus()", chart)
    browser.type(Keys.ARROW_LEFT)
    said = "return document.querySelector('.readout')?.textContent.includes(' sent, ')"
    browser.until(lambda: browser.script(said), "the bar in words")
    browser.click_summary("Show as table")
    browser.until(lambda: browser.count("figure tbody tr"), "the table")


def test_a_phone_shows_everything(stage: Stage, browser: Browser, owner: Provisioned, message: str) -> None:
    """At 390 pixels the rail is a bar of four tabs and *More*, and the story of a message can be read."""
    browser.size(*PHONE)
    browser.log_in(owner.email)
    bar = browser.one("//header[contains(@class, 'rail')]").rect
    assert bar["y"] + bar["height"] >= PHONE[1] - 1
    assert bar["height"] < 80
    tabs = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, ".rail nav li") if each.is_displayed()]
    assert [each.split()[-1] for each in tabs] == ["Overview", "Messages", "Feedback", "Domains", "More"]
    browser.one("//nav//button[contains(., 'More')]").click()
    assert broken(browser) == []
    browser.go("Suppressions")
    assert not browser.driver.find_element(By.XPATH, "//nav//a[contains(., 'Templates')]").is_displayed()
    browser.go("Messages")
    browser.open(f"/dashboard/messages/{message}")
    browser.see("Greylisted")


def test_light_and_dark_can_be_switched(browser: Browser, owner: Provisioned) -> None:
    browser.log_in(owner.email)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = browser.script(background)
    browser.click("Switch between light and dark")
    browser.until(lambda: browser.script(background) != light, "other colours")
    dark = browser.script(background)
    browser.open("/dashboard/account")
    assert browser.script(background) == dark
    browser.click("Switch between light and dark")
    browser.until(lambda: browser.script(background) == light, "the first colours")
    browser.script("localStorage.clear()")
