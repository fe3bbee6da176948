"""Source addresses in the dashboard: which are in use, and what each provider did with their mail."""

import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from appliance.config.settings import WarmupSettings
from appliance.model.accounts import Role
from appliance.model.warmup import begin
from appliance.times import DAY
from tests.e2e.contract.service import change
from tests.e2e.dashboard.browser import DESKTOP, PHONE, Browser
from tests.e2e.dashboard.stage import Stage, staged
from tests.e2e.dashboard.test_accessible import axe

SOURCES = """
[delivery.sources.mail]
ipv4 = "127.0.0.2"
hostname = "mail2.example.com"
[delivery.sources.news]
ipv4 = "127.0.0.3"
hostname = "news.example.com"
[delivery.sources.gone]
ipv4 = "192.0.2.1"
[delivery.streams.transactional]
sources = ["mail"]
"""


@pytest.fixture(scope="module")
def sending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("sources"), SOURCES) as made:
        yield made


def part(browser: Browser, name: str) -> str:
    return browser.one(f"//section[@aria-label='{name}']").text


def test_each_source_is_seen_with_its_results(sending: Stage, browser: Browser) -> None:
    """Of the one that sent mail the provider's reply; of the one that no session can bind to the reason."""
    world, settings, now = sending.world, WarmupSettings(enabled=True), time.time_ns() // 1000
    world.publish("2.0.0.127.in-addr.arpa", PTR=["mail2.example.com."])
    world.publish("mail2.example.com", A=["127.0.0.2"])
    world.publish("news.example.com", A=["8.8.4.4"])  # behind NAT
    world.publish("4.4.8.8.in-addr.arpa", PTR=["other.example.com."])
    world.publish("4.4.8.8.bl.spamcop.net", A=["127.0.0.2"], TXT=['"Blocked - see example.com"'])
    pace = replace(begin("google", "192.0.2.1", now), day=2, sent=9).take(settings, now, 39)
    change(world.running.data_dir, lambda store: store.warmups.keep([pace]))
    refused = "a server refuses mail from the source news with 550 5.7.1"
    change(world.running.data_dir, lambda store: store.pools.hold("outlook@news", refused, now + DAY))
    operator = sending.account(role=Role.ADMIN)
    sending.tried(sending.send(operator, "ada@good.test"), sending.send(operator, "eve@grey.test"))
    query = "SELECT sum(delivered), sum(deferred) FROM source_days WHERE source = 'mail'"
    browser.until(lambda: world.rows(query) == [(1, 1)], "the published results")

    here = Browser(browser.driver, sending.url)
    here.log_in(operator.email)
    here.go("Sources")
    mail, news, gone = (" ".join(part(here, name).split()) for name in ("mail", "news", "gone"))
    assert mail.startswith("mail in use")
    assert "127.0.0.2 mail2.example.com reverse name matches" in mail
    row = here.one("//section[@aria-label='mail']//tbody/tr").text
    assert row.split()[:5] == ["Other", "servers", "1", "1", "0"]
    assert "451 4.7.1 Greylisted, please come back in five minutes" in row
    assert "8.8.4.4 other.example.com reverse name does not match" in news
    assert "listed at bl.spamcop.net 8.8.4.4: listed (127.0.0.2): Blocked - see example.com" in news
    assert "Blocklists" not in mail  # no public address
    assert "Other servers by day (UTC)" in mail
    assert "No mail in the last 30 days." in news
    assert f"Out at Outlook.com {refused}, since " in news
    assert "; next test message in 23 h 59 min" in news
    assert gone.startswith("gone out Reason 192.0.2.1 is not on this machine")
    assert "no reverse name" in gone
    assert "Google 192.0.2.1 3 of 30 39 39" in gone
    assert here.forbidden() == []
    findings = []
    for size in (DESKTOP, PHONE):
        for theme in ("light", "dark"):
            here.size(*size)
            here.theme(theme)
            findings += axe(here)
    assert findings == []


def test_without_sources_the_page_shows_the_lines_to_add(stage: Stage, browser: Browser) -> None:
    """Administrators only: a customer finds neither the entry of the navigation nor the page."""
    browser.log_in(stage.account(role=Role.ADMIN).email)
    browser.go("Sources")
    browser.see("No sources", "h2")
    assert "[delivery.sources.news]" in browser.text()
    browser.log_in(stage.account().email)
    assert "Sources" not in browser.text()
    browser.open("/dashboard/sources")
    assert "[delivery.sources.news]" not in browser.text()
    assert browser.forbidden() == []
