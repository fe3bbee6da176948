"""Pages outside the API: what a page of the dashboard names, and the limits of one-click unsubscribe links."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.feedback.return_path import UnsubscribeLinks, Unsubscription
from appliance.store import open_store
from appliance.web import pages
from appliance.web.app import create_app
from appliance.web.pages import REQUESTS_PER_SECOND
from tests.store.samples import SECOND, Clock

LINKS = UnsubscribeLinks(b"k" * 32, "https://mail.example.com")
HTML = {"Accept": "text/html"}
BURST = 2 * REQUESTS_PER_SECOND


@dataclass
class Strangers:
    """Clients without a login, as the edge passes their requests on."""

    client: Any
    clock: Clock
    intake: SimpleNamespace
    link: str

    async def post(self, path: str = "/unsubscribe/forged", address: str = "192.0.2.1", **headers: str) -> Any:
        return await self.client.post(path, headers=headers, scope_base={"appliance": ("req_1", address, None)})


@pytest.fixture
async def strangers(tmp_path: Path) -> AsyncIterator[Strangers]:
    clock = Clock()
    async with open_store(tmp_path, Environment(now=clock), inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        intake = SimpleNamespace(links=LINKS, check_disk=lambda: None)
        services: Any = SimpleNamespace(store=store, env=Environment(now=clock), intake=intake)
        auth: Any = None
        app = create_app(auth, [], [pages.unsubscribe_blueprint(pages.read_site(), services)])
        token = LINKS.token(Unsubscription(account.id, "tag:news", "ada@example.net"))
        yield Strangers(app.test_client(), clock, intake, f"/unsubscribe/{token}")


async def test_too_many_posts_are_told_to_wait(strangers: Strangers) -> None:
    """One network has a burst, then 429 with Retry-After, as words to a browser; others are not affected."""
    assert {(await strangers.post()).status_code for _ in range(BURST)} == {404}
    refused = await strangers.post(strangers.link)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert (await refused.get_json())["code"] == "rate_limited"
    shown = await strangers.post(strangers.link, **HTML)
    assert (shown.status_code, shown.headers["Retry-After"]) == (429, "1")
    assert "Too many requests from your network" in await shown.get_data(as_text=True)
    assert (await strangers.post(strangers.link, "198.51.100.1")).status_code == 200
    strangers.clock.now += SECOND
    assert (await strangers.post(strangers.link)).status_code == 200


async def test_a_full_disk_is_told(strangers: Strangers) -> None:
    def refuse() -> None:
        raise Refused(Code.TEMPORARY_FAILURE, "The server is low on disk space.", retry_after=60)

    strangers.intake.check_disk = refuse
    answer = await strangers.post(strangers.link)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "60")
    assert (await answer.get_json())["code"] == "temporary_failure"
    shown = await strangers.post(strangers.link, **HTML)
    assert (shown.status_code, shown.headers["Retry-After"]) == (503, "60")
    assert "low on disk space" in await shown.get_data(as_text=True)


async def test_a_page_names_all_that_its_script_needs() -> None:
    """Its modules, each a file that is served, and one stylesheet with all rules: there is no chain of requests."""
    site = pages.read_site()
    client = create_app(None, [], [pages.blueprint(site, sandbox=False)]).test_client()  # type: ignore[arg-type]
    answer = await client.get("/dashboard/messages/msg_1", scope_base={"appliance": ("req_1", "192.0.2.1", None)})
    text = await answer.get_data(as_text=True)
    named = set(re.findall(r'<link rel="modulepreload" href="/static/\w+/([^"]+)"', text))
    assert {"main.js", "pages/message.js", "timeline.js", "pieces.js"} - named == {"main.js"}
    assert named <= site.files.keys()
    assert re.findall(r'<link rel="stylesheet" href="/static/\w+/([^"]+)">', text) == ["dashboard.css"]
    styles = (Path(pages.__file__).parent / "static").glob("*.css")
    assert all(style.read_bytes() in site.files["dashboard.css"][0] for style in styles)
