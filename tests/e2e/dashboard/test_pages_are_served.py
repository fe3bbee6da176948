"""The pages as any client gets them: from this server alone, small, kept by browsers, and closed to other sites."""

import re
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests import engines
from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.programs import needs, require
from tests.running_appliance import NO_TLS

ROOT = Path(__file__).parents[3]
WEB = ROOT / "appliance" / "web"
SOURCES = sorted(path for path in [*(WEB / "static").rglob("*"), *(WEB / "templates").iterdir()] if path.is_file())
FIRST_PAGE = 60_000  # bytes of our own code, compressed
FIRST_REQUESTS = 24  # for it
PARTS = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "frame-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
}


def fetch(stage: Stage, path: str, **headers: str) -> httpx.Response:
    return httpx.get(stage.url + path, headers=headers, trust_env=False, timeout=30, verify=NO_TLS)


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/messages/msg_1", "/dashboard/login", "/dashboard/admin"])
def test_a_page_is_closed_to_other_sites(stage: Stage, path: str) -> None:
    """Every page has a policy without inline script and style, and may not be framed."""
    answer = fetch(stage, path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert set(answer.headers["content-security-policy"].split("; ")) == PARTS
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", answer.text)


def test_the_preview_may_do_nothing(stage: Stage) -> None:
    """The page that mail is put into runs no script, loads nothing, and stands in our own frames only."""
    policy = set(fetch(stage, "/dashboard/preview").headers["content-security-policy"].split("; "))
    assert {"sandbox allow-same-origin", "default-src 'none'", "img-src data:", "frame-ancestors 'self'"} <= policy
    assert not any(part.startswith(("script-src", "connect-src", "frame-src")) for part in policy)


def test_the_root_leads_to_the_dashboard(stage: Stage) -> None:
    """A browser that is given the bare URL ends up there."""
    answer = fetch(stage, "/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/dashboard")


@pytest.mark.parametrize(
    ("path", "led_to"),
    [
        ("/dashboard/", "/dashboard"),
        ("/dashboard/messages/?status=queued&tag=a%26b", "/dashboard/messages?status=queued&tag=a%26b"),
        ("/dashboard/templates/welcome/", "/dashboard/templates/welcome"),
        ("/dashboard/domains/%0d%0ax//", "/dashboard/domains/%0d%0ax"),
        ("/dashboard//example.com/", "/dashboard//example.com"),
    ],
)
def test_a_slash_at_the_end_leads_to_the_page(stage: Stage, path: str, led_to: str) -> None:
    """A path with a slash too many is redirected within the dashboard, its query kept."""
    answer = fetch(stage, path)
    assert (answer.status_code, answer.headers["location"]) == (302, led_to)


def test_the_documentation_is_served_as_markdown(stage: Stage) -> None:
    """/llms.txt lists every document of docs/ by its title; each is there as it was written, and nothing else."""
    listed = fetch(stage, "/llms.txt")
    assert (listed.status_code, listed.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    links = re.findall(r"^- \[(.+)\]\(/docs/([\w/-]+\.md)\): ", listed.text, re.MULTILINE)
    documents = (ROOT / "docs").rglob("*.md")
    assert {name for _, name in links} == {str(path.relative_to(ROOT / "docs")) for path in documents}
    for title, name in links:
        answer = fetch(stage, f"/docs/{name}")
        assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
        assert answer.text == (ROOT / "docs" / name).read_text()
        assert answer.text.startswith(f"# {title}\n")
    assert (
        fetch(stage, "/docs/dns.md", **{"If-None-Match": fetch(stage, "/docs/dns.md").headers["etag"]}).status_code
        == 304
    )
    for path in ("/docs/none.md", "/docs/..%2fREADME.md", "/docs/images"):
        assert fetch(stage, path).status_code == 404


def test_an_address_that_was_mistyped_shows_a_page(stage: Stage, browser: Browser) -> None:
    """A slash too many leads to the page, and a malformed percent escape is told as a page that is not there."""
    browser.log_in(stage.account().email)
    browser.open("/dashboard/messages/?status=queued")
    browser.see("Messages", "h1")
    assert browser.path() == "/dashboard/messages?status=queued"
    for path in ("/dashboard/messages/%zz", "/dashboard/domains/%ff"):
        browser.open(path)
        browser.see("Page not found", "h1")
    browser.click("Overview")
    browser.see("Overview", "h1")


def test_the_api_stays_as_it_is(stage: Stage) -> None:
    """Unknown paths are the error object, and answers of the API keep their policy; unknown pages are pages."""
    for path in ("/nothing", "/v1/nothing", "/dashboards"):
        answer = fetch(stage, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "frame-src" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    lost = fetch(stage, "/dashboard/nothing")
    assert (lost.status_code, lost.headers["content-type"]) == (404, "text/html; charset=utf-8")


def test_files_are_kept_by_their_content(stage: Stage) -> None:
    """A file's address changes with its content, so browsers keep it; under an old address they ask again."""
    page = fetch(stage, "/dashboard").text
    (address,) = re.findall(r'src="(/static/[^"]+/main\.js)"', page)
    answer = fetch(stage, address)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/javascript")
    again = fetch(stage, address, **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert not {"content-length", "content-type"} & again.headers.keys()
    assert fetch(stage, "/static/000000000000/main.js").headers["cache-control"] == "no-cache"
    same = fetch(stage, "/dashboard", **{"If-None-Match": fetch(stage, "/dashboard").headers["etag"]})
    assert same.status_code == 304


@pytest.mark.parametrize("name", ["../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "nothing.js", "pages"])
def test_only_files_of_the_site_are_served(stage: Stage, name: str) -> None:
    assert fetch(stage, f"/static/x/{name}").status_code == 404


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(WEB)))
def test_sources_keep_the_rules(path: Path) -> None:
    """No file names another host, makes markup of text, evaluates text, or has grown beyond what one can read."""
    text = path.read_text()
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)(?!example\.com)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert len(text.splitlines()) <= 400
    assert path.suffix in {".js", ".css", ".svg", ".html"}
    if path.suffix in {".js", ".css"}:
        assert re.match(r"(//|/\*) [A-Z]", text), "a file begins by saying what it does"
        assert max(len(line.expandtabs(2)) for line in text.splitlines()) <= 120


@pytest.mark.parametrize("sends", [False, True], ids=["new account", "account that sends"])
def test_the_first_page_is_small(stage: Stage, browser: Browser, sends: bool) -> None:
    """A first visit to the overview loads less than 60 kB, compressed, beside the API's answers, in few requests.

    A browser sends six at a time: each six more delay the page by a round trip.
    """
    account = stage.account() if sends else None
    browser.log_in(account.email if account else stage.newcomer())
    if account:
        insert = "INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients) VALUES (?, ?, 'sent', 0, 7)"
        engines.rows(stage.world.running.data_dir, insert, account.account_id, int(time.time()) // 3600)
    browser.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    browser.open("/dashboard")
    browser.see("Show as table" if sends else "First steps")
    loaded = browser.script("""return performance.getEntries().filter((each) => each.encodedBodySize !== undefined)
        .filter((each) => !each.name.includes("/v1/")).map((each) => [each.name, each.encodedBodySize])""")
    browser.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
    assert all(name.startswith(stage.url) for name, _ in loaded)
    assert 8 < len({name for name, _ in loaded}) <= FIRST_REQUESTS, loaded
    assert sum(dict(loaded).values()) < FIRST_PAGE, loaded


def test_text_is_compressed_for_clients_that_take_it(stage: Stage) -> None:
    """Files and answers of the API are a fraction on the wire; each form has its own ETag, and others get it plain."""
    account = stage.account()
    page = fetch(stage, "/dashboard").text
    (address,) = re.findall(r'src="(/static/[^"]+/main\.js)"', page)
    small, plain = (fetch(stage, address, **{"Accept-Encoding": name}) for name in ("gzip", "identity"))
    assert (small.headers["content-encoding"], small.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert "content-encoding" not in plain.headers
    assert small.text == plain.text
    assert int(small.headers["content-length"]) * 2 < int(plain.headers["content-length"])
    assert small.headers["etag"] != plain.headers["etag"]
    again = fetch(stage, address, **{"Accept-Encoding": "gzip", "If-None-Match": small.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    described = fetch(stage, "/openapi.json", **{"Accept-Encoding": "gzip"})
    assert int(described.headers["content-length"]) * 4 < len(described.content)
    with stage.session(account) as client:
        told = client.get("/v1/stats")
        assert told.headers["content-encoding"] == "gzip"
        assert int(told.headers["content-length"]) * 4 < len(told.content)
        assert "content-encoding" not in client.get("/v1/suppressions").headers


def test_what_has_not_changed_is_not_sent_again(stage: Stage) -> None:
    """An answer of the API has an ETag, whatever its request id: with it the same is 304, and anything else is sent."""
    account = stage.account()
    with stage.session(account) as client:
        first = client.get("/v1/emails")
        known = {"If-None-Match": first.headers["etag"]}
        again = client.get("/v1/emails", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert not {"content-length", "content-type"} & again.headers.keys()
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert client.get("/v1/emails").json()["emails"] == first.json()["emails"]
        stage.send(account, "ada@grey.test")
        assert client.get("/v1/emails", headers=known).status_code == 200
        del client.headers["Authorization"]
        assert client.get("/v1/emails", headers={"If-None-Match": "*"}).status_code == 401


def test_the_stream_needs_a_login(stage: Stage) -> None:
    """And is a GET; what it sends comes at once, and proxies are asked not to hold it back."""
    account = stage.account()
    assert fetch(stage, "/dashboard/live").status_code == 401
    with stage.session(account) as client:
        assert client.post("/dashboard/live").status_code == 405
        with client.stream("GET", "/dashboard/live") as answer:
            assert (answer.status_code, answer.headers["x-accel-buffering"]) == (200, "no")
            lines = answer.iter_raw()
            assert [next(lines), next(lines)] == [b"\n", b"\n"]


def test_two_windows_share_a_session(stage: Stage, browser: Browser) -> None:
    """Each reload renews by a cookie that is good once; two windows that do so at a time do not end the session."""
    account = stage.account()
    browser.log_in(account.email)
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    try:
        for _ in range(3):
            browser.open("/dashboard/keys")
            browser.script("const other = open('/dashboard/domains'); setTimeout(() => other.close(), 400)")
            browser.open("/dashboard/templates")
            browser.see("Templates", "h1")
    finally:
        browser.driver.close()
        browser.driver.switch_to.window(first)
    browser.open("/dashboard/account")
    browser.see("Account", "h1")


def test_windows_that_renew_together_stay_logged_in(stage: Stage, browser: Browser) -> None:
    """Without a lock in common, as over plain HTTP, requests with one cookie are all answered; the session goes on."""
    browser.log_in(stage.account().email)
    ask = """const done = arguments[0];
        Promise.all(Array.from({length: 6}, () => fetch("/v1/auth/refresh", {method: "POST"})))
            .then((answers) => done(answers.map((each) => each.status)))"""
    assert browser.driver.execute_async_script(ask) == [200] * 6
    browser.open("/dashboard/account")
    browser.see("Account", "h1")


def test_a_server_that_is_away_is_told_and_no_session_ends(stage: Stage, browser: Browser) -> None:
    """While nothing answers the page says so; afterwards one goes on where one was."""
    away = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.log_in(stage.account().email)
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", away)
    try:
        browser.one("//nav//a[normalize-space()='Suppressions']").click()
        browser.see("does not respond")
    finally:
        back = {**away, "offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", back)
    browser.driver.refresh()
    browser.see("Suppressions", "h1")


@needs("prettier")
def test_sources_are_formatted() -> None:
    """`prettier --config packaging/prettier.json --write appliance/web/static` changes nothing."""
    words = ("--config", "packaging/prettier.json", "--check", "appliance/web/static")
    done = subprocess.run((require("prettier"), *words), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs("typescript")
def test_every_name_exists() -> None:
    """Of what a script uses, all is declared or imported, and what it imports is exported."""
    options = "--allowJs --checkJs --noEmit --target esnext --module esnext --moduleResolution bundler --skipLibCheck"
    words = (
        *options.split(),
        "--lib",
        "esnext,dom,dom.iterable",
        *(str(path) for path in SOURCES if path.suffix == ".js"),
    )
    done = subprocess.run((require("typescript"), *words), cwd=ROOT, capture_output=True, text=True, timeout=120)
    missing = r".*TS(?:2304|2305|2307|2552|2614|2724): .*"  # other findings are about types, which scripts do not have
    assert re.findall(missing, done.stdout) == []
    assert "TS2339" in done.stdout, "it looked at the scripts"
