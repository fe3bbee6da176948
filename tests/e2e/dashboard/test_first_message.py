"""The first message is shown in each language, as tabs that a keyboard reaches; the code is complete, and it sends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.dashboard.browser import PHONE, Browser
from tests.e2e.dashboard.stage import Stage
from tests.programs import require
from tests.running_appliance import Provisioned

CLIENTS = Path(__file__).parents[3] / "clients"
LANGUAGES = ["curl", "Python", "Node", "Go", "PHP", "Ruby"]
MINUTES = 4 * 60  # seconds that a compiler may take on a busy machine


@pytest.fixture
def account(stage: Stage, browser: Browser) -> Provisioned:
    """An account without messages, whose owner is logged in and has chosen no language yet."""
    made = stage.account()
    browser.log_in(made.email)
    browser.script("localStorage.removeItem('language')")
    return made


def chosen(browser: Browser) -> str:
    """The name of the tab that is chosen, when its panel, and no other, is the one that is shown."""
    name, shown = browser.script("""const tab = document.querySelector("[role=tab][aria-selected=true]");
        const seen = [...document.querySelectorAll("[role=tabpanel]")].filter((each) => !each.hidden);
        return [tab.textContent, seen.length === 1 && seen[0].id === tab.getAttribute("aria-controls")]""")
    assert shown
    return str(name)


def code(browser: Browser) -> str:
    return str(browser.script("return document.querySelector('[role=tabpanel]:not([hidden]) pre').textContent"))


def test_tabs_are_chosen_by_keys(browser: Browser, account: Provisioned) -> None:
    """Tab stops at the chosen one; arrows go round, Home and End to the ends; then Tab leads to the code."""
    browser.go("Messages")
    browser.see("No messages yet")
    names = browser.script(
        "return [...document.querySelectorAll('[role=tablist] [role=tab]')].map((e) => e.textContent)"
    )
    assert names == LANGUAGES
    assert chosen(browser) == "curl"
    browser.one("//a[normalize-space()='Create a key']").send_keys(Keys.TAB)
    seen = []
    for key in (None, *[Keys.ARROW_RIGHT] * 6, Keys.ARROW_LEFT, Keys.HOME, Keys.END):
        if key:
            browser.type(key)
        assert browser.script("return document.activeElement.getAttribute('aria-selected')") == "true"
        seen.append(chosen(browser))
    assert seen == [*LANGUAGES, "curl", "Ruby", "curl", "Ruby"]
    browser.type(Keys.TAB)
    assert browser.script("return document.activeElement.tagName") == "PRE"
    assert browser.script("return document.activeElement.textContent") == code(browser)


def test_the_choice_is_remembered(browser: Browser, account: Provisioned) -> None:
    browser.go("Messages")
    browser.click("Go")
    assert "mailappliance.New(" in code(browser)
    browser.open("/dashboard/messages")
    browser.see("No messages yet")
    assert chosen(browser) == "Go"
    browser.go("Keys & credentials")
    browser.click("New key")
    browser.fill("Name of the key", "web shop")
    browser.click("Create key")
    browser.see("Your first message")
    assert chosen(browser) == "Go"


def test_each_has_the_address_and_the_key(stage: Stage, browser: Browser, account: Provisioned) -> None:
    """Every language shows the user's own URL, domain and new key, and its button copies exactly what is shown."""
    browser.go("Keys & credentials")
    browser.click("New key")
    browser.fill("Name of the key", "web shop")
    browser.click("Create key")
    browser.see("Your first message")
    key = browser.script("return document.querySelector('.secret [data-secret]').textContent")
    browser.script("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    for name in LANGUAGES:
        browser.click(name)
        shown = code(browser)
        for part in (stage.url, key, f"hello@{account.domain}", "someone@example.net"):
            assert part in shown
        browser.click(f"Copy the {name} code")
        copied = browser.until(lambda: browser.script("return window.copied"), "a copy")
        browser.script("window.copied = null")
        assert copied == shown
    assert browser.forbidden() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone(browser: Browser, account: Provisioned, theme: str) -> None:
    """On a narrow screen all tabs are in sight, and only the code scrolls."""
    browser.size(*PHONE)
    browser.theme(theme)
    browser.go("Messages")
    browser.see("No messages yet")
    browser.click("Go")
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    env = browser.script("""return [...document.querySelectorAll("[role=tab]")]
        .map((each) => each.getBoundingClientRect())
        .filter((box) => box.left < 0 || box.right > innerWidth || box.height < 24).length""")
    assert env == 0


# ---- the code sends, with the library of its language


def in_python(directory: Path, text: str) -> list[str]:
    """The command that runs it in this directory, in which the library was made available; so for the others."""
    (directory / "first.py").write_text(text)
    os.symlink(CLIENTS / "python/src/mail_appliance", directory / "mail_appliance")
    return [sys.executable, "first.py"]


def in_node(directory: Path, text: str) -> list[str]:
    (directory / "first.mjs").write_text(text)
    library = directory / "node_modules/mail-appliance"
    shutil.copytree(CLIENTS / "node", library, ignore=shutil.ignore_patterns("node_modules", "dist", "tests"))
    # Types are checked by the library's own tests, which fetch those of Node.
    subprocess.run([require("typescript"), "-p", ".", "--noCheck"], cwd=library, capture_output=True, timeout=MINUTES)
    return [require("node"), "first.mjs"]


def in_go(directory: Path, text: str) -> list[str]:
    (directory / "first.go").write_text(text)
    (directory / "go.mod").write_text(
        f"module first\n\ngo 1.19\n\nrequire mailappliance v1.0.0\n\nreplace mailappliance => {CLIENTS / 'go'}\n"
    )
    return [require("go"), "run", "."]


def in_php(directory: Path, text: str) -> list[str]:
    (directory / "first.php").write_text(text)
    (directory / "vendor").mkdir()
    source = CLIENTS / "php/src"
    (directory / "vendor/autoload.php").write_text(
        f"""<?php spl_autoload_register(function ($name) {{
            require '{source}/' . strtr(substr($name, strlen('MailAppliance\\\\')), '\\\\', '/') . '.php'; }});"""
    )
    require("php-curl")
    return [require("php"), "first.php"]


def in_ruby(directory: Path, text: str) -> list[str]:
    (directory / "first.rb").write_text(text)
    return [require("ruby"), "-I", str(CLIENTS / "ruby/lib"), "first.rb"]


RUNS: dict[str, Callable[[Path, str], list[str]]] = {
    "Python": in_python,
    "Node": in_node,
    "Go": in_go,
    "PHP": in_php,
    "Ruby": in_ruby,
}


@pytest.mark.slow
@pytest.mark.timeout(MINUTES + 60)
@pytest.mark.parametrize("name", [name for name in RUNS if (CLIENTS / name.lower()).exists()])
def test_the_code_sends(name: str, stage: Stage, browser: Browser, account: Provisioned, tmp_path: Path) -> None:
    """Pasted into a file and run with the library, it sends a message, which then stands in the list."""
    browser.go("Messages")
    browser.click(name)
    command = RUNS[name](tmp_path, code(browser).replace("$KEY", account.send_key))
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MINUTES)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    message, status = ran.stdout.split()
    assert message.startswith("msg_")
    assert status == "queued"
    browser.see("someone@example.net", "a")
