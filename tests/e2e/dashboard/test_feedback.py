"""The feedback page draws what /v1/feedback says, teaches what to publish, and can be used without eyes or mouse."""

import time
from functools import partial

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from appliance.model.feedback import FeedbackResult, KeptMail
from appliance.model.reports import DmarcCounts, DmarcSource, TlsCounts, TlsDomainCounts
from appliance.store import Store
from appliance.store.reports import record_dmarc_report, record_tls_report
from appliance.times import DAY, SECOND
from tests import engines
from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.stage import Stage
from tests.e2e.dashboard.test_accessible import RULES
from tests.running_appliance import Provisioned

INSERT = "INSERT INTO daily_feedback (account_id, day, kind, class, provider, recipients) VALUES "
# Of each of 30 days: what became of how many, by class and provider.
COUNTS = (
    ("delivered", "", "google", 5000),
    ("delivered", "", "yahoo", 2000),
    ("delivered", "", "", 3000),
    ("bounced", "invalid_recipient", "google", 40),
    ("bounced", "reputation", "yahoo", 12),
    ("bounced", "mailbox_full", "", 7),
    ("failed", "temporary", "", 3),
    ("late_bounced", "mailbox_full", "google", 2),
    ("complained", "", "google", 1),
    ("complained", "", "yahoo", 8),
    ("complained", "", "", 5),
)
OURS = DmarcSource("192.0.2.1", 900, 898, 898, 880, 0, 0)
STRANGER = DmarcSource("198.51.100.7", 35, 0, 0, 0, 3, 0)


def today() -> int:
    """Days since 1970."""
    return int(time.time()) * SECOND // DAY


async def reported(store: Store, domain: str) -> None:
    """Twenty days of reports about a domain, by strangers who may write what they like."""
    name, now = f"bounces.{domain}", store.reports.env.now()
    for back in range(20):
        begins = (now // DAY - back) * DAY
        dmarc = DmarcCounts(
            org="google.com",
            report_id=str(back),
            begins_at=begins,
            domain=domain,
            policy="none",
            percentage=100,
            sources=(OURS, STRANGER),
        )
        failures = {
            ("mx.<b>example</b>.com", "certificate-expired"): 3,
            ("mx2.example.com", "starttls-not-supported"): 1,
        }
        tls = TlsCounts(
            org="google.com",
            report_id=str(back),
            begins_at=begins,
            domains=(TlsDomainCounts(domain, 200, 4, failures),),
        )
        await store.engine.write(partial(record_dmarc_report, now=now, name=name, report=dmarc))
        await store.engine.write(partial(record_tls_report, now=now, name=name, report=tls))


@pytest.fixture(scope="module")
def busy(stage: Stage) -> Provisioned:
    account = stage.account()
    data_dir = stage.world.running.data_dir
    rows = [(account.account_id, today() - back, *each) for back in range(30) for each in COUNTS]
    marks = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows))
    engines.rows(data_dir, INSERT + marks, *(value for row in rows for value in row))

    async def record() -> None:
        async with engines.beside(data_dir) as store:
            await store.access.add_domain(account.account_id, "second.example", usable=True)
            await reported(store, account.domain)

    stage.run(record)
    return account


def cells(browser: Browser, caption: str) -> list[list[str]]:
    found = browser.one(f"//table[@aria-label='{caption}']")
    return [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
        for row in found.find_elements(By.CSS_SELECTOR, "tbody tr")
    ]


def test_the_page_shows_what_the_api_says(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """Bounces by class, complaints against their lines, DMARC by day and source with the next step, TLS by server."""
    browser.log_in(busy.email)
    browser.go("Feedback")
    assert browser.path() == "/dashboard/feedback"
    browser.picture("feedback")
    told = stage.ask(busy, "GET", "/v1/feedback")
    legend = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, ".legend:first-child .key")]
    assert legend[:4] == ["No such mailbox", "Mailbox full", "Reputation", "Given up"]
    assert browser.count(".chart .fill.one") == 30
    browser.see("60 bounces arrived after delivery.")
    assert [row[0:3] for row in cells(browser, "Complaints by provider")] == [
        ["Google", "150,000", "30"],
        ["Yahoo and AOL", "60,000", "240"],
        ["Other servers", "90,000", "150"],
    ]
    rates = [row[3].split() for row in cells(browser, "Complaints by provider")]
    assert rates == [["<", "0.1", "%"], ["0.4", "%,", "too", "high"], ["0.2", "%,", "high"]]
    assert browser.count("td.share .limit") == 6
    assert [row[-1] for row in cells(browser, "Bounces by provider")] == [
        "No such mailbox",
        "Reputation",
        "Mailbox full",
    ]
    (domain, _) = told["domains"]
    assert browser.see(domain["dmarc"]["next_step"]["text"])
    browser.see("p=quarantine; rua=mailto:dmarc@bounces.example.com", "pre")
    (source,) = [row for row in cells(browser, "Sources that fail for example.com") if row[0] == "198.51.100.7"]
    assert source[1:4] == ["700", "0", "0"]
    assert cells(browser, "TLS failures of example.com")[0][:3] == [
        "mx.<b>example</b>.com",
        "certificate-expired",
        "60",
    ]
    assert browser.forbidden() == []


def test_days_and_domain_are_part_of_the_address(browser: Browser, busy: Provisioned) -> None:
    """A week has its seven bars, the chosen domain stays chosen, and the way back leads to what was shown before."""
    browser.log_in(busy.email)
    browser.go("Feedback")
    browser.click("7 days")
    browser.until(lambda: browser.count(".chart .fill.one") == 7, "a week")
    assert browser.path() == "/dashboard/feedback?days=7"
    browser.field("Domain").send_keys("second")
    browser.see("No DMARC reports yet")
    assert browser.path() == "/dashboard/feedback?days=7&domain=second.example"
    browser.driver.back()
    browser.until(lambda: browser.count(".chart .fill.delivered") == 7, "the first domain again")


def test_an_account_without_reports_is_told_what_to_publish(stage: Stage, browser: Browser) -> None:
    """The records are there to copy, and so is that this server takes no mail; without a domain, one is to be added."""
    account = stage.account()
    browser.log_in(account.email)
    browser.open("/dashboard/feedback")
    browser.see("No bounces in this period.")
    browser.see("No deliveries in this period.")
    browser.see("This server does not receive mail")
    browser.see("_dmarc.example.com", "code")
    browser.see("v=DMARC1; p=none; rua=mailto:dmarc@bounces.example.com", "pre")
    browser.see("_smtp._tls.example.com", "code")
    browser.see("v=TLSRPTv1; rua=mailto:tlsrpt@bounces.example.com", "pre")
    browser.log_in(stage.newcomer())
    browser.open("/dashboard/feedback")
    browser.see("Reports need a domain")


def test_the_plots_are_told_to_those_who_do_not_see_them(browser: Browser, busy: Provisioned) -> None:
    """Bar by bar with the arrow keys, and as a table; the rules hold in light and dark, wide and narrow."""
    browser.log_in(busy.email)
    browser.open("/dashboard/feedback")
    drawing = browser.one("(//main//*[name()='svg'][@role='img'])[1]")
    label = str(drawing.get_attribute("aria-label"))
    assert label.startswith("Bounces by class per day (UTC). Total: 1,200 no such mailbox")
    drawing.send_keys(Keys.ARROW_LEFT)
    browser.see("UTC: 40 no such mailbox, 9 mailbox full, 12 reputation, 3 given up")
    browser.click_summary("Show as table")
    assert len(cells(browser, "Bounces by class per day (UTC)")) == 30
    findings = []
    for size in (DESKTOP, PHONE):
        browser.size(*size)
        for theme in ("light", "dark"):
            browser.theme(theme)
            findings += [f"{theme}, {size[0]}: {each}" for each in browser.script(RULES)]
        if browser.script("return document.documentElement.scrollWidth") > size[0]:
            findings.append(f"wider than {size[0]}")
    assert findings == []


HOSTILE = (
    b"From: Loop <fbl@provider.example>\r\nSubject: =?utf-8?q?Verify_=3Cb=3E?=\r\nContent-Type: text/html\r\n\r\n"
    b"<p>Open https://provider.example/?code=12</p><script>document.title = 'taken'</script>&lt;img src=x&gt;"
)


def test_the_inbox_shows_mail_as_text(stage: Stage, browser: Browser) -> None:
    """The verification mail of a feedback loop can be read; nothing in it is markup, and nothing is fetched."""
    account = stage.account()

    async def receive() -> None:
        async with engines.beside(stage.world.running.data_dir) as store:
            now = store.reports.env.now()
            mail = KeptMail("fbm_1", "fbl", "fbl@bounces.example.com", "Loop <b>", "Verify <b>", now, HOSTILE)
            mail_id = await store.feedback.add(["fbl@bounces.example.com"], HOSTILE)
            await store.feedback.finish(mail_id, [store.feedback_inbox.keep(mail, FeedbackResult.NOT_UNDERSTOOD)])
            await store.engine.change(
                "UPDATE feedback_inbox SET account_id = :account_id", {"account_id": account.account_id}
            )

    stage.run(receive)
    browser.log_in(account.email)
    browser.open("/dashboard/feedback")
    browser.see("Verify <b>")
    browser.see("not a complaint")
    browser.driver.find_element(By.CSS_SELECTOR, "details.post > summary").click()
    browser.until(lambda: "code=12" in browser.one("//details//pre").text, "the text of the mail")
    assert "<img src=x>" in browser.one("//details//pre").text
    assert browser.count("details.post img") == browser.count("details.post b") == 0
    assert browser.driver.title != "taken"
    assert browser.forbidden() == []
