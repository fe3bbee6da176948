"""A real browser that does what a person does: look for words, type into labelled fields, click."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.programs import require
from tests.running_appliance import NO_TLS, PASSWORD

T = TypeVar("T")

WITHIN = 60.0  # seconds that anything waited for here may take
DESKTOP = (1280, 800)
PHONE = (390, 844)
# Where the pictures of docs/dashboard.md are put, if new ones are wanted.
IMAGES = os.environ.get("DASHBOARD_IMAGES", "")


# Notes in every page and frame what its policy forbade, and whatever a stranger's script would leave behind.
WITNESS = """
window.forbidden = [];
addEventListener("securitypolicyviolation", (event) => {
  const seen = `${event.violatedDirective} ${event.blockedURI} ${event.sample}`;
  try { top.forbidden.push(seen); } catch { console.error(`Content Security Policy: ${seen}`); }
});
"""


class Browser:
    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    # ---- where it is

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)
        self.settled()

    def settled(self) -> None:
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, "main h1"), "a page")

    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.url)

    def log_in(self, email: str, password: str = PASSWORD) -> None:
        """Have the session of a login, without the page that asks for it."""
        self.log_out()
        headers = {"User-Agent": str(self.script("return navigator.userAgent"))}
        wanted = {"email": email, "password": password}
        answer = httpx.post(f"{self.url}/v1/auth/login", json=wanted, headers=headers, trust_env=False, verify=NO_TLS)
        for cookie in answer.cookies.jar:
            fields = {"name": cookie.name, "value": cookie.value, "path": cookie.path, "sameSite": "Strict"}
            self.driver.execute_cdp_cmd("Network.setCookie", {"url": self.url, "httpOnly": True, **fields})
        self.open("/dashboard")
        self.see("Overview", "h1")

    def log_in_by_hand(self, email: str, password: str = PASSWORD) -> None:
        self.log_out()
        self.open("/")
        self.until(lambda: self.path() == "/dashboard/login", "the login page")
        self.fill("Email address", email)
        self.fill("Password", password)
        self.click("Log in")
        self.see("Overview", "h1")

    def log_out(self) -> None:
        """Leave the page, and forget its session."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def go(self, section: str) -> None:
        self.one(f"//nav[@aria-label='Dashboard']//a[normalize-space()={quoted(section)}]").click()
        self.see(section, "h1")

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 720}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # ---- what is there

    def until(self, condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
        deadline = time.monotonic() + within
        while True:
            try:
                found = condition()
            except WebDriverException:
                found = None  # redrawn in the middle of it
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"waited too long for {what} at {self.path()}:\n{self.text()}\n{self.log()}")
            time.sleep(0.03)

    def one(self, xpath: str) -> WebElement:
        def find() -> WebElement | None:
            found = self.driver.find_elements(By.XPATH, xpath)
            return next((each for each in found if each.is_displayed()), None)

        element = self.until(find, xpath)
        assert element is not None
        return element

    def see(self, text: str, tag: str = "*") -> WebElement:
        return self.one(f"//main//{tag}[contains(normalize-space(), {quoted(text)})]")

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def count(self, css: str) -> int:
        return len(self.driver.find_elements(By.CSS_SELECTOR, css))

    def script(self, source: str, *arguments: Any) -> Any:
        return self.driver.execute_script(source, *arguments)

    def log(self) -> list[str]:
        """What the browser had to complain about since last asked, answers of the API left out."""
        found = [str(each["message"]) for each in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [line for line in found if "/v1/" not in line]

    def forbidden(self) -> list[str]:
        reported = list(self.script("return window.forbidden"))
        return reported + [line for line in self.log() if "Content Security Policy" in line]

    # ---- what a person does

    def field(self, label: str) -> WebElement:
        control = self.one(f"//label[normalize-space()={quoted(label)}]").get_attribute("for")
        return self.driver.find_element(By.ID, str(control))

    def fill(self, label: str, text: str) -> None:
        field = self.field(label)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text or Keys.DELETE)

    def click(self, name: str) -> None:
        words = quoted(name)
        xpath = f"//*[self::button or self::a][normalize-space()={words} or @aria-label={words}]"

        def done() -> bool:
            self.one(xpath).click()
            return True

        self.until(done, name)  # again, if it was redrawn in that moment

    def tab(self, name: str) -> None:
        self.one(f"//*[@role='tab' and normalize-space()={quoted(name)}]").click()

    def click_summary(self, name: str) -> None:
        self.one(f"//summary[contains(normalize-space(), {quoted(name)})]").click()

    def type(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def picture(self, name: str) -> None:
        if IMAGES:
            Path(IMAGES).mkdir(parents=True, exist_ok=True)
            self.script("scrollTo(0, 0)")
            time.sleep(0.4)  # what moves comes to rest
            self.driver.save_screenshot(str(Path(IMAGES) / f"{name}.png"))


def quoted(text: str) -> str:
    pieces = text.split("'")
    return f"concat('{chr(39).join(pieces[:1])}', {', '.join(_after(piece) for piece in pieces[1:]) or chr(39) * 2})"


def _after(piece: str) -> str:
    return f"\"'\", '{piece}'"


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    options = Options()
    options.binary_location = require("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(require("chromedriver")))
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WITNESS})
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
        browser = Browser(driver, url)
        browser.size(*DESKTOP)
        browser.theme("light")
        yield browser
    finally:
        driver.quit()
