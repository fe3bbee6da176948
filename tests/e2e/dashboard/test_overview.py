"""The overview tells the numbers, over days as over hours."""

import math
import re
import time
from datetime import datetime
from functools import partial

import pytest
from selenium.webdriver.common.action_chains import ActionChains
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
    tiles = [each.text.split("\n", 1) for each in browser.driver.find_elements(By.CSS_SELECTOR, ".tile")]
    return {each[0]: each[1] for each in tiles}


def test_the_numbers_are_those_of_the_api(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """Tiles and bars show what /v1/stats says, for each length of time; the address keeps which."""
    browser.log_in(busy.email)
    browser.see("Last 7 days")
    for days, bars in ((7, 24 * 6), (30, 30), (90, 30)):
        if days > 7:
            browser.click(f"{days} days")
            browser.see(f"Last {days} days")
            assert browser.path() == f"/dashboard?days={days}"
        totals = stage.ask(busy, "GET", f"/v1/stats?days={days}")["totals"]
        shown = numbers(browser)
        assert shown["Sent"].partition("\n")[0] == f"{totals['sent']:,}"
        assert ("before" in shown["Sent"]) == (days < 90)  # earlier versions kept 91 days
        assert shown["Delivered"].startswith(f"{totals['delivered']:,}\n")
        assert shown["Failed"].partition("\n")[0] == f"{totals['failed']:,}"
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
        browser.click_summary("Show as table")
        last = browser.one("(//main//tbody[tr[29]]/tr)[last()]/td[1]").text
        axis = browser.script("return document.querySelector('.axis text:last-child').textContent")
        browser.see("Recipients per day (UTC)", "span")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    days = stage.ask(busy, "GET", "/v1/stats?days=30")["days"]
    start = datetime.fromisoformat(days[-1]["start"])
    assert (last, axis) == (f"{start.day} {start:%b} UTC", f"{start.day} {start:%b}")


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
        (100, "10.0 %, too high", "bounced"),
        (-100, "50.3 %", ""),
    ],
)
def test_a_bounce_rate_that_harms_is_told(stage: Stage, browser: Browser, bounced: int, said: str, kind: str) -> None:
    """From 5 % on in another colour, from 10 % on in a third, each with a word; below 200 results in grey."""
    account = stage.account()
    hour = int(time.time()) // 3600
    sent, bounced = (1000, bounced) if bounced > 0 else (199, -bounced)
    for name, bucket, count in (("sent", 0, sent), ("delivered", 66, sent - bounced), ("bounced", 1, bounced)):
        engines.rows(
            stage.world.running.data_dir, f"{INSERT} (?, ?, ?, ?, ?)", account.account_id, hour, name, bucket, count
        )
    browser.log_in(account.email)
    browser.see("Last 7 days")
    assert numbers(browser)["Bounced"] == f"{bounced}\n{said}\n0 before"
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
    browser.click_summary("Show as table")
    browser.one("(//main//figure//tbody//a)[last()]").click()
    browser.until(lambda: shown(browser) == [sent["Suppressed"]], "the message of the row")


def lists(browser: Browser, message: str) -> bool:
    return shown(browser) == [message]


def shown(browser: Browser) -> list[str]:
    return list(browser.script("return [...document.querySelectorAll('tr.linked')].map((each) => each.dataset.id)"))


def test_the_latest_problems_lead_to_their_messages(stage: Stage, browser: Browser) -> None:
    """Each with its status, the reply of its server and the message behind it; live, and none where all is well."""
    account = stage.account()
    stage.tried(stage.send(account, "ada@good.test"))
    browser.log_in(account.email)
    browser.see("Last 7 days")
    ActionChains(browser.driver).move_to_element(browser.see("Overview", "h1")).perform()  # a chart that is read stays
    assert "Latest problems" not in browser.text()
    bounced = stage.send(account, "unknown@bad.test", subject="An order")
    deferred = stage.send(account, "later@grey.test")
    stage.tried(bounced, deferred)
    browser.see("Latest problems", "h2")
    found = browser.script("return [...document.querySelectorAll('.problems li')].map((each) => each.innerText)")
    assert len(found) == 2
    (line,) = (each for each in found if "unknown@bad.test" in each)
    assert "bounced" in line
    assert "550 5.1.1 No such user here" in line
    assert "An order" in line
    browser.see("later@grey.test", "li")
    browser.see("unknown@bad.test", "a").click()
    browser.see("An order", "h1")
    assert browser.path() == f"/dashboard/messages/{bounced}"


def hourly(stage: Stage, account: Provisioned, *counts: tuple[int, int]) -> None:
    now = int(time.time()) // 3600
    for back, count in counts:
        insert = f"{INSERT} (?, ?, 'sent', 0, ?)"
        engines.rows(stage.world.running.data_dir, insert, account.account_id, now - back, count)


def test_numbers_are_compared_with_the_period_before(stage: Stage, browser: Browser) -> None:
    account = stage.account()
    hourly(stage, account, (0, 150), (7 * 24, 100), (8 * 24, 20))
    previous = stage.ask(account, "GET", "/v1/stats")["previous"]
    assert previous["sent"] == 120
    browser.log_in(account.email)
    browser.see("Last 7 days")
    assert numbers(browser)["Sent"] == "150\n+25 %, 120 before"
    assert numbers(browser)["Bounced"] == "0\n0 before"
    browser.open("/dashboard?days=30")
    browser.see("Last 30 days")
    assert numbers(browser)["Sent"] == "270\n0 before"


def test_few_busy_hours_are_drawn_by_day(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    account = stage.account()
    hourly(stage, account, (0, 5), (30, 5))
    browser.log_in(account.email)
    browser.see("Recipients per day (UTC)", "span")
    browser.click("Per hour")
    browser.see("Recipients per hour", "span")
    assert browser.path() == "/dashboard?by=hour"
    browser.click("Per day")
    browser.see("Recipients per day (UTC)", "span")
    browser.log_in(busy.email)
    browser.see("Recipients per hour", "span")


def test_a_bar_is_told_in_a_tooltip(stage: Stage, browser: Browser, busy: Provisioned) -> None:
    """With the mouse and with the keys, inside of the chart, and gone with either; marks name the days."""
    browser.log_in(busy.email)
    browser.see("Recipients per hour", "span")
    marks = browser.script("return [...document.querySelectorAll('.axis text')].map((each) => each.textContent)")
    assert 5 <= len(marks) <= 8
    assert all(re.fullmatch(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{1,2}", each) for each in marks)
    chart = browser.one("//*[name()='svg' and @role='img']")
    hours = stage.ask(busy, "GET", "/v1/stats")["hours"]
    for bar in (0, len(hours) // 2):
        wanted = hours[bar]
        away = round(((bar + 0.5) / len(hours) - 0.5) * chart.rect["width"])
        ActionChains(browser.driver).move_to_element_with_offset(chart, away, 20).perform()
        told = browser.one("//*[@class='tip']").text
        assert f"Sent\n{wanted['sent']:,}" in told
        edges = browser.script(
            "const [tip, all] = ['.tip', '.field'].map((each) => document.querySelector(each).getBoundingClientRect());"
            "return [tip.left - all.left, all.right - tip.right]"
        )
        assert min(edges) >= 0
    ActionChains(browser.driver).move_to_element(browser.see("Overview", "h1")).perform()
    browser.until(lambda: not browser.driver.find_element(By.CSS_SELECTOR, ".tip").is_displayed(), "the end of it")
    browser.script("arguments[0].focus()", chart)
    browser.type(Keys.ARROW_LEFT)
    browser.until(lambda: f"Sent\n{hours[-1]['sent']:,}" in browser.one("//*[@class='tip']").text, "the last bar")
    browser.type(Keys.ARROW_LEFT)
    browser.until(lambda: f"Sent\n{hours[-2]['sent']:,}" in browser.one("//*[@class='tip']").text, "the one before")
    browser.type(Keys.ESCAPE)
    browser.until(lambda: not browser.driver.find_element(By.CSS_SELECTOR, ".tip").is_displayed(), "the end of it")
    assert browser.forbidden() == []


def test_numbers_are_broken_down(stage: Stage, browser: Browser) -> None:
    """From the overview, by domain and others; the address keeps which, and a line leads to its messages."""
    account = stage.account()
    tagged = stage.send(account, "ada@good.test", tags=["order"])
    stage.tried(tagged, stage.send(account, "unknown@bad.test"))
    browser.log_in(account.email)
    browser.click("Break down")
    browser.see("Statistics", "h1")
    assert browser.see(account.domain, "tr").text.split() == [
        account.domain,
        "2",
        "1",
        "1",
        "0",
        "0",
        "0",
        "0",
        "0",
        "50.0",
        "%",
        "0.0",
        "%",
    ]
    browser.click("By provider")
    browser.see("Other servers", "td")
    browser.click("By template")
    browser.see("No mail by template")
    browser.click("By tag")
    assert browser.path() == "/dashboard/statistics?by=tag&days=7"
    browser.see("order", "a").click()
    browser.until(partial(lists, browser, tagged), "the message with the tag")
    browser.driver.back()
    browser.see("Statistics", "h1")
    browser.click("90 days")
    browser.until(lambda: browser.path() == "/dashboard/statistics?by=tag&days=90", "another time")


def test_what_is_not_added_up_yet_is_told(stage: Stage, browser: Browser) -> None:
    """Beside the numbers by value, while the API says that some are missing."""
    browser.log_in(stage.account().email)
    browser.open("/dashboard/statistics")
    browser.see("No mail by domain")
    assert "Still being computed" not in browser.text()
    browser.script("""const real = window.fetch;
        window.fetch = async (path, ...more) => {
            const answer = await real(path, ...more);
            if (!path.startsWith("/v1/stats")) return answer;
            return Response.json({ ...(await answer.json()), breakdown_until: "2026-01-02T03:04:05.000Z" });
        }""")
    browser.click("By tag")
    assert re.search("data after .+ is missing", browser.see("Still being computed", "p").text)
