"""How fast the dashboard's pages show their data, and answer a click, over a long history; needs chromium.

    .venv/bin/python -m tests.bench.pages                       # 100,000 messages; about two minutes

A cold page starts with an empty cache. Its time is that from the start of navigation until its data is painted. A click
ends when its result is painted; the first one of each kind also loads the scripts that it needs. The peer is the same
program with an account that has 100 messages; rounds alternate.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.listing import fill
from tests.e2e.dashboard.browser import Browser, chromium
from tests.running_appliance import Provisioned, Running, add_account, appliance

FEW = 100
PAGES = {
    "overview": ("/dashboard", ".tiles .tile"),
    "messages": ("/dashboard/messages", "tbody tr.linked"),
    "search": ("/dashboard/messages?q=order", "tbody tr.linked"),
    "bounced": ("/dashboard/messages?outcome=failed", "main .empty, tbody tr.linked"),
    "statistics": ("/dashboard/statistics", "tbody tr"),
    "deliverability": ("/dashboard/deliverability", "tbody tr"),
}
# A click, and the element that its result shows.
CLICKS = {
    "open a message": ("tbody tr.linked a", "main dl.facts"),
    "to its content": ("[role=tab]:nth-child(2)", "[role=tab]:nth-child(2)[aria-selected=true]"),
    "to the list": (".crumb a", "tbody tr.linked"),
    "open the filter": (".toolbar button", "dialog[open]"),
    "to the overview": ("nav li:first-child a", ".tiles .tile"),
    "90 days": (".segments a[href*='90']", ".segments a[href*='90'][aria-current]"),
}
WATCH = """
window.painted = (selector) => new Promise((done) => {
  const look = () => document.querySelector(selector)
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : requestAnimationFrame(look);
  look();
});
"""
LOADED = "painted(arguments[0]).then(arguments[1])"
CLICKED = """
const [start, end, done] = arguments;
if (document.querySelector(end)) throw new Error(`already there: ${end}`);
const began = performance.now();
document.querySelector(start).click();
painted(end).then((at) => done(at - began));
"""


def cold(browser: Browser, path: str, shown: str) -> float:
    browser.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    browser.driver.get(browser.url + path)
    return float(browser.driver.execute_async_script(LOADED, shown))


def clicks(browser: Browser) -> dict[str, float]:
    browser.driver.get(f"{browser.url}/dashboard/messages")
    browser.driver.execute_async_script(LOADED, "tbody tr.linked")
    took = {}
    for again in ("", ", again"):
        for name, (start, end) in CLICKS.items():
            took[name + again] = float(browser.driver.execute_async_script(CLICKED, start, end))
            time.sleep(0.2)
            browser.script("document.querySelector('dialog')?.close()")
        browser.driver.execute_async_script(CLICKED, "nav a[href$=messages]", "tbody tr.linked")
    return took


def measured(browser: Browser, account: Provisioned) -> dict[str, float]:
    browser.log_in(account.email)
    return {name: cold(browser, *page) for name, page in PAGES.items()} | clicks(browser)


def counted(running: Running) -> None:
    """Wait until the program has counted all messages."""
    with running.client(headers=running.login()) as client:
        while client.get("/v1/stats?days=30&by=domain").json()["breakdown_until"] is not None:
            time.sleep(1)


def run(directory: Path, messages: int, rounds: int) -> None:
    with appliance(directory, fresh=True) as running:
        accounts = [add_account(running.data_dir, name) for name in ("few", "many")]
    for account, count in zip(accounts, (FEW, messages), strict=True):
        fill(running.data_dir, account.account_id, count)
    with appliance(directory, account=accounts[1], fresh=True) as running, chromium(running.url) as browser:
        browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        counted(running)
        found = [[measured(browser, account) for account in accounts] for _ in range(rounds + 1)][1:]
    print(f"{'milliseconds, medians':<24}{f'{FEW:,} messages':>16}{f'{messages:,}':>12}   ratio")
    for name in found[0][0]:
        few, many = (statistics.median(each[at][name] for each in found) for at in (0, 1))
        print(f"{name:<24}{few:>16.0f}{many:>12.0f}   {many / few:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), options.messages, options.rounds)


if __name__ == "__main__":
    main()
