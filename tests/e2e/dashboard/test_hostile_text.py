"""What strangers write is shown as text: nothing of it runs, nothing of it even reaches the policy that forbids it."""

import base64

import pytest

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.fakes.mx import FakeMx

SCRIPT = "<script>top.ran=1</script>"
IMAGE = "<img src=x onerror=top.ran=1>"
LINK = '"><a href="javascript:top.ran=1">x</a>'
BODY = f"""<html><head><base href="https://evil.example/"><meta http-equiv="refresh" content="0;url=https://evil.example/">
<link rel="stylesheet" href="https://evil.example/a.css"><style>@import "https://evil.example/b.css";
body {{ background: url(https://evil.example/c.png); color: rgb(1, 2, 3) }}</style></head>
<body onload="top.ran=1"><p id="greeting">Good evening</p>{SCRIPT}{IMAGE}<img src="https://evil.example/d.png">
<iframe src="https://evil.example/"></iframe>
<svg><script>top.ran=1</script><a xlink:href="javascript:top.ran=1">y</a></svg>
<form action="https://evil.example/"><button>Send</button></form><a href="https://evil.example/" target="_top">out</a>
<div style="background-image: url('https://evil.example/e.png')">z</div></body></html>"""


def shown(browser: Browser, *texts: str) -> None:
    """Each text can be read as it is, and none of it did anything."""
    for text in texts:
        browser.until(lambda text=text: text in browser.script("return document.body.innerText"), text)  # type: ignore[misc]
    assert browser.script("return window.ran") is None
    assert browser.count("main script, main img:not([alt]), main a[href^=javascript]") == 0
    assert browser.forbidden() == []


def test_nothing_in_a_message_runs(stage: Stage, browser: Browser) -> None:
    """Subject, recipient, sender's name, tag, filename, server's answer and body, in the list and on the page."""
    server = FakeMx(answers={"RCPT": f"451 4.7.1 {SCRIPT} {IMAGE}\r\n".encode()})
    stage.run(stage.world.domain, "hostile.test", server)
    account = stage.account()
    message = stage.send(
        account,
        "o'ne&two{{x}}@hostile.test",
        **{"from": f'"{SCRIPT}" <shop@example.com>'},
        subject=IMAGE,
        tags=[SCRIPT],
        html=BODY,
        attachments=[{"filename": f"{IMAGE}.txt", "content": base64.b64encode(b"x").decode()}],
        headers={"X-Note": LINK},
    )
    stage.tried(message)
    browser.log_in(account.email)
    browser.go("Messages")
    shown(browser, IMAGE, SCRIPT, "o'ne&two{{x}}@hostile.test")
    browser.open(f"/dashboard/messages/{message}")
    shown(browser, IMAGE, SCRIPT, f"451 4.7.1 {SCRIPT} {IMAGE}")
    browser.tab("Content")
    browser.until(lambda: browser.script("return document.querySelector('iframe')?.height"), "the preview")
    inside = "const page = document.querySelector('iframe').contentDocument; return "
    assert browser.script(f"{inside} page.getElementById('greeting').textContent") == "Good evening"
    assert browser.script(f"{inside} page.defaultView.getComputedStyle(page.body).color") == "rgb(1, 2, 3)"
    assert browser.script(f"{inside} page.querySelectorAll('script, iframe, link, meta, base, [onerror]').length") == 0
    browser.script("""for (const each of document.querySelector("iframe").contentDocument.querySelectorAll("a, button"))
        each.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}))""")
    browser.click("Files (1)")
    shown(browser, f"{IMAGE}.txt")
    browser.click("Header")
    shown(browser, LINK)
    browser.open(f"/dashboard/messages?tag={SCRIPT}&recipient=%3Cscript%3E")
    shown(browser, "No results for")


def test_no_text_turns_another_around(stage: Stage, browser: Browser) -> None:
    """An override of the direction is shown by its number, in <bdi>: name and badge stay in their order."""
    account = stage.account()
    message = stage.send(account, "ada@good.test", subject="\u202eevil.exe")
    browser.log_in(account.email)
    browser.go("Messages")
    shown(browser, "[U+202E]evil.exe")
    assert browser.script("return document.querySelectorAll('tr.linked bdi').length") >= 3
    browser.open(f"/dashboard/messages/{message}")
    shown(browser, "[U+202E]evil.exe")
    assert browser.script("return document.querySelector('h1 bdi').textContent") == "[U+202E]evil.exe"
    left, right = browser.script("""return [document.querySelector("h1 bdi"), document.querySelector("h1 .badge")].map(
        (each) => each.getBoundingClientRect().left)""")
    assert left < right
    assert "\u202e" not in browser.driver.title
    browser.tab("Content")
    browser.click("Header")
    shown(browser, "[U+202E]evil.exe")


def test_nothing_in_the_settings_runs(stage: Stage, browser: Browser) -> None:
    """Names of keys and credentials, templates, reasons, programs that log in, what DNS shows, addresses of pages."""
    account = stage.account()
    for path in ("/v1/api-keys", "/v1/smtp-credentials"):
        stage.ask(account, "POST", path, {"name": IMAGE})
    stage.ask(account, "PUT", "/v1/templates/evil", {"subject": SCRIPT, "html": BODY, "text": LINK})
    stage.ask(account, "POST", "/v1/suppressions", {"address": "a@b.test", "reason": SCRIPT}, agent=IMAGE)
    stage.world.publish("_dmarc.example.com", TXT=[f'"v=DMARC1; {SCRIPT}"'])
    browser.log_in(account.email)
    for page, text in (
        ("keys", IMAGE),
        ("templates", SCRIPT),
        ("templates/evil", SCRIPT),
        ("suppressions", SCRIPT),
        ("account", "127.0.0.1"),
        ("domains/example.com", SCRIPT),
    ):
        browser.open(f"/dashboard/{page}")
        shown(browser, text)
    browser.open("/dashboard/messages/%3Cimg%20src=x%20onerror=top.ran=1%3E")
    shown(browser, "No message has this id.")
    browser.open("/dashboard/templates/%22%3E%3Cimg%20src=x%20onerror=top.ran=1%3E")
    shown(browser, "No template has this alias.")


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example/x", "javascript:top.ran=1", "/emails"])
def test_a_login_leads_nowhere_else(stage: Stage, browser: Browser, wanted: str) -> None:
    """Whatever a link to the login page asks for, one ends up on a page of the dashboard."""
    account = stage.account()
    browser.log_in(account.email)
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.open(f"/dashboard/login?next={wanted}")
    browser.fill("Email address", account.email)
    browser.fill("Password", "correct horse battery staple")
    browser.click("Log in")
    browser.see("Overview", "h1")
    assert browser.path() == "/dashboard"
