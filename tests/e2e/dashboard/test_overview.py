"""The overview tells the numbers, over days as over hours."""

import math
import time
from datetime import datetime
from functools import partial

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from appliance.model.mail import BounceClass
from appliance.store.statistics import CLASS_BUCKETS
from tests import engines
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.running_appliance import Provisioned

HOURS = 24 * 30
INSERT = "INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients) VALUES "


@pytest.fixture(scope="module")
def busy(stage: Stage) -> Provisioned:
    """An account with a month behind it: a day's work each day, some bounces, and one bad hour."""
    account = stage.account()
    now = int(time.time()) // 3600
    rows = []
    for back in range(1, HOURS):
        sent = round(60 + 50 * math.sin((now - back) / 24 * 2 * math.pi - 2) + (now - back) * 7 % 13)
        bounced, failed = sent // 30, 25 if back == 61 else 0
        for kind, bucket, count in (
            ("sent", 0, sent),
            ("delivered", 66, (sent - bounced - failed) // 2),
            ("delivered", 80, sent - bounced - failed - (sent - bounced - failed) // 2),
            ("bounced", CLASS_BUCKETS[BounceClass.MAILBOX_FULL], bounced),
            ("failed", 0, failed),
        ):
            rows.append((account.account_id, now - back, kind, bucket, count))
    marks = ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
    engines.rows(stage.world.running.data_dir, INSERT + marks, *(value for row in rows for value in row))
    stage.tried(stage.send(account, "night@grey.test"))
    return account


def numbers(browser: Browser) -> dict[str, str]:
    """The tiles."""
    tiles = browser.driver.find_elements(By.CSS_SELECTOR, ".tile")
    return {tile.find_element(By.TAG_NAME, "dt").text: tile.find_element(By.TAG_NAME, "dd").text for tile in tiles}


def test_the_numbers_are_those_of_the_api(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """Tiles and bars show what /v1/stats says, for each length of time; the address keeps which."""
    browser.log_in(busy.email)
    browser.see("Last 7 days")
    browser.picture("overview")
    for days, bars in ((7, 24 * 6), (30, 30), (90, 30)):
        if days > 7:
            browser.click(f"{days} days")
            browser.see(f"Last {days} days")
            assert browser.path() == f"/dashboard?days={days}"
        totals = stage.ask(busy, "GET", f"/v1/stats?days={days}")["totals"]
        shown = numbers(browser)
        assert shown["Sent"] == f"{totals['sent']:,}"
        assert shown["Delivered"].startswith(f"{totals['delivered']:,}")
        assert shown["Failed"] == f"{totals['failed']:,}"
        assert browser.count(".fill.sent") >= bars
        row = browser.one("//table[contains(., 'Failed')]//tr[contains(., 'mailbox full')]")
        assert row.text == f"mailbox full {totals['bounced']:,} 0"
    browser.driver.back()
    browser.see("Last 30 days")


def test_a_day_is_that_of_utc_wherever_one_looks(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """West of UTC the bars and the table of days have the dates of /v1/stats, and say that they are UTC."""
    browser.log_in(busy.email)
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/Los_Angeles"})
    try:
        browser.open("/dashboard?days=30")
        browser.click_summary("Show as a table")
        last = browser.one("(//main//tbody[tr[29]]/tr)[last()]/td[1]").text
        axis = browser.one("//*[@class='axis']/span[last()]").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    days = stage.ask(busy, "GET", "/v1/stats?days=30")["days"]
    start = datetime.fromisoformat(days[-1]["start"])
    assert last == axis == f"{start.day} {start:%b} UTC"


def test_what_waits_is_told_by_provider(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """The deferred message stands in its provider's row."""
    browser.log_in(busy.email)
    row = browser.see("grey.test", "tr")
    assert row.text.split()[-1] == "1"


@pytest.mark.parametrize(
    ("bounced", "said", "kind"),
    [
        (49, "4.9 %", ""),
        (50, "5.0 %, high", "deferred"),
        (99, "9.9 %, high", "deferred"),
        (100, "10 %, too high", "bounced"),
    ],
)
def test_a_bounce_rate_that_harms_is_told(stage: Stage, browser: Browser, bounced: int, said: str, kind: str) -> None:
    """From 5 % on in another colour, from 10 % on in a third, each with a word."""
    account = stage.account()
    hour = int(time.time()) // 3600
    for name, bucket, count in (("sent", 0, 1000), ("delivered", 66, 1000 - bounced), ("bounced", 1, bounced)):
        engines.rows(
            stage.world.running.data_dir, f"{INSERT} (?, ?, ?, ?, ?)", account.account_id, hour, name, bucket, count
        )
    browser.log_in(account.email)
    browser.see("Last 7 days")
    assert numbers(browser)["Bounced"] == f"{bounced}\n{said}"
    badges = browser.script("return [...document.querySelectorAll('.tile .badge')].map((each) => each.className)")
    assert badges == ([f"badge {kind}"] if kind else [])


def test_tiles_and_bars_lead_to_what_they_count(stage: Stage, browser: Browser) -> None:
    """Bounced is told apart from suppressed, in the tile as in the list; a bar's list is that of its time."""
    account = stage.account()
    stage.ask(account, "POST", "/v1/suppressions", {"address": "gone@good.test"})
    sent = {
        "Bounced": stage.send(account, "unknown@bad.test"),
        "Suppressed": stage.send(account, "gone@good.test"),
        "Delivered": stage.send(account, "ada@good.test"),
    }
    stage.tried(sent["Bounced"], sent["Delivered"])
    browser.log_in(account.email)
    for name, message in sent.items():
        browser.open("/dashboard")
        browser.until(lambda: "Suppressed" in numbers(browser), "the numbers")
        assert numbers(browser)[name].split()[0] == "1"
        browser.click(name)
        browser.until(partial(lists, browser, message), "the message that was counted")
        browser.see(name.lower(), "td")
    browser.open("/dashboard")
    browser.one("//*[name()='rect' and @data-kind='bounced']").click()
    browser.until(lambda: shown(browser) == [sent["Bounced"]], "the message of the bar")
    browser.open("/dashboard")
    browser.one("//*[name()='svg' and @role='img']").send_keys(Keys.ARROW_LEFT, Keys.ENTER)
    browser.until(lambda: len(shown(browser)) == len(sent), "all messages of the bar")
    browser.open("/dashboard")
    browser.click_summary("Show as a table")
    browser.one("(//main//figure//tbody//a)[last()]").click()
    browser.until(lambda: shown(browser) == [sent["Suppressed"]], "the message of the row")


def lists(browser: Browser, message: str) -> bool:
    return shown(browser) == [message]


def shown(browser: Browser) -> list[str]:
    return list(browser.script("return [...document.querySelectorAll('tr.linked')].map((each) => each.dataset.id)"))
