"""One-click unsubscribe (RFC 8058) from the setting to the next message: header, page, POST, suppression, release."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from appliance.feedback.return_path import UnsubscribeLinks, Unsubscription
from appliance.keys.keyfile import load
from tests.e2e import raw
from tests.e2e.contract.service import Caller, error, eventually, owner
from tests.engines import Kind
from tests.running_appliance import Running, add_account, appliance

BASE = "https://mail.example.com"
HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ONE_CLICK = b"List-Unsubscribe=One-Click"
EVERY_ANSWER = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
POLICY = {
    "default-src 'none'",
    "style-src 'self'",
    "img-src 'self' data:",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: Kind) -> Iterator[Running]:
    """A sandbox that is reached over https, behind a proxy; its log holds no error at the end."""
    with appliance(tmp_path_factory.mktemp("unsubscribe"), http=f'base_url = "{BASE}"') as started:
        yield started
        log = started.log_file.read_text()
    assert '"level": "error"' not in log, log


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client(headers={}) as opened:
        yield opened


@pytest.fixture
def customer(running: Running, client: httpx.Client, request: pytest.FixtureRequest) -> Caller:
    """The owner of an account that no other test uses; its tag `news` has links."""
    account = add_account(running.data_dir, re.sub(r"\W+", "-", request.node.name)[:60] + str(time.monotonic_ns()))
    made = owner(Caller(running, account, client, account.bearer))
    assert made.request("PUT", "/v1/unsubscribe-tags", json={"tags": ["news"]}).json()["tags"] == ["news"]
    return made


def link(customer: Caller, **fields: Any) -> str:
    """The path of the link of a new message; empty where it has none."""
    sent = customer.send(**({"tags": "news"} | fields))
    found = re.search(rf"^List-Unsubscribe: <{BASE}(/unsubscribe/[\w-]+)>\r$", customer.mime(sent["id"]).decode(), re.M)
    return found[1] if found else ""


def forged(running: Running) -> str:
    token = UnsubscribeLinks(b"x" * 32, BASE).token(Unsubscription(running.account.account_id, "tag:news", "a@b.test"))
    return f"/unsubscribe/{token}"


def suppressions(customer: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = customer.get("/v1/suppressions").json()["suppressions"]
    return found


# ---- the course of things


def test_a_click_ends_one_kind_of_mail(customer: Caller, client: httpx.Client) -> None:
    """The POST of a mail program suppresses the address for that tag, until it is released; other mail goes."""
    path = link(customer, to="Ada <Ada@Example.net>")
    answer = client.post(path, content=ONE_CLICK, headers=FORM)
    assert answer.json() == {"unsubscribed": True, "request_id": answer.headers["x-request-id"]}
    (entry,) = suppressions(customer)
    assert (entry["address"], entry["origin"], entry["tag"]) == ("ada@example.net", "unsubscribe", "news")
    assert entry["template"] is None
    stopped = customer.delivered(tags=["other", "news"], to=["ada@example.net", "eve@example.net"])
    ada, eve = stopped["recipients"]
    assert (ada["status"], ada["billing_status"], ada["attempt_count"]) == ("bounced", "released", 0)
    assert ada["last_smtp_response"].startswith("suppressed: ")
    assert "tag news" in ada["last_smtp_response"]
    assert eve["status"] == "delivered"
    assert customer.delivered(tags="other")["status"] == "delivered"
    assert customer.delivered()["status"] == "delivered"
    error(customer.request("DELETE", "/v1/suppressions/ada@example.net"), 404, "not_found")
    for query in ("template=news", "tag=new", "tag=", "tag=news&template=news"):
        error(customer.request("DELETE", f"/v1/suppressions/ada@example.net?{query}"), 404, "not_found")
    released = customer.request("DELETE", "/v1/suppressions/ADA@example.net?tag=news")
    assert released.json()["deleted"] is True
    assert suppressions(customer) == []
    assert customer.delivered(tags="news")["status"] == "delivered"


def test_a_template_has_links_of_its_own(customer: Caller, client: httpx.Client) -> None:
    template = {"subject": "Hi", "text": "Hello", "unsubscribe": True}
    saved = customer.request("PUT", "/v1/templates/weekly", json=template).json()
    assert saved["unsubscribe"] is True
    fields = {"template": "weekly", "subject": ..., "text": ..., "tags": ...}
    assert client.post(link(customer, **fields)).status_code == 200
    (entry,) = suppressions(customer)
    assert (entry["origin"], entry["tag"], entry["template"]) == ("unsubscribe", None, "weekly")
    without = {name: value for name, value in template.items() if name != "unsubscribe"}
    assert customer.request("PUT", "/v1/templates/weekly", json=without).json()["unsubscribe"] is False
    assert customer.get("/v1/templates/weekly").json()["unsubscribe"] is False
    assert link(customer, **fields) == ""
    assert customer.delivered(**fields)["recipients"][0]["status"] == "bounced"
    assert customer.delivered(tags="weekly")["status"] == "delivered"
    released = customer.request("DELETE", "/v1/suppressions/ada@example.net?template=weekly")
    assert released.json()["deleted"] is True
    assert customer.delivered(**fields)["status"] == "delivered"


def test_links_outlive_the_setting_and_a_restart(customer: Caller, client: httpx.Client) -> None:
    """A link of a tag that no longer has any still unsubscribes, and what it did holds."""
    path = link(customer)
    assert customer.request("PUT", "/v1/unsubscribe-tags", json={"tags": []}).json()["tags"] == []
    eventually(lambda: link(customer), lambda found: found == "")
    assert client.post(path).json()["unsubscribed"] is True
    assert customer.delivered(tags="news")["recipients"][0]["status"] == "bounced"


def test_a_retry_of_a_send_has_the_same_answer(customer: Caller) -> None:
    """The header is no part of what the 202 tells, nor of what a retry is compared by."""
    body = {"from": "s@example.com", "to": "ada@example.net", "subject": "s", "text": "t", "tags": "news"}
    first, again = customer.post(body, key="same"), customer.post(body, key="same")
    assert (first.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert first.json()["headers"] == {}


# ---- the page


def test_reading_the_page_does_nothing(customer: Caller, client: httpx.Client) -> None:
    """However often scanners open it with GET or HEAD, nothing is unsubscribed."""
    path = link(customer)
    for method in ("GET", "HEAD"):
        for headers in ({}, HTML):
            answer = client.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert suppressions(customer) == []


def test_the_page_is_closed(customer: Caller, client: httpx.Client) -> None:
    """It has one button, no script, no cookie, and loads nothing from elsewhere; all that it loads is there."""
    path = link(customer, to="o'hara&sons@example.net")
    for answer in (client.get(path, headers=HTML), client.post(path, headers=HTML)):
        assert answer.status_code == 200
        assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
        assert {name: answer.headers[name] for name in EVERY_ANSWER} == EVERY_ANSWER
        assert "set-cookie" not in answer.headers
        assert not re.search(r"<script|<style|\son\w+=|\sstyle=|https?://", answer.text)
        assert "o&#39;hara&amp;sons@example.net" in answer.text
        for address in re.findall(r'(?:href|src)="([^"]+)"', answer.text):
            assert client.get(address).status_code == 200
    assert client.get(path, headers=HTML).text.count("<button") == 1
    assert "<button" not in answer.text
    assert len(suppressions(customer)) == 1


def test_hostile_names_stay_text(customer: Caller, client: httpx.Client) -> None:
    tag = '<img src=x onerror="alert(1)">'
    customer.request("PUT", "/v1/unsubscribe-tags", json={"tags": [tag]}).raise_for_status()
    path = eventually(lambda: link(customer, tags=[tag]), bool)
    page = client.get(path, headers=HTML).text
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


# ---- strangers


def test_a_forged_link_is_not_found(running: Running, customer: Caller, client: httpx.Client) -> None:
    """It is told in words to people and as the error object to programs, and changes nothing."""
    good = link(customer)
    cut, turned = good[:-5], good[:-5] + good[-4:] + "A"
    for path in (forged(running), cut, turned, "/unsubscribe/x", "/unsubscribe/" + "A" * 2000, "/unsubscribe/%00"):
        for method in ("GET", "POST"):
            error(client.request(method, path), 404, "not_found")
            shown = client.request(method, path, headers=HTML)
            assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
            assert "This link is not valid" in shown.text
            assert set(shown.headers["content-security-policy"].split("; ")) == POLICY
            assert "<button" not in shown.text
    assert suppressions(customer) == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(customer: Caller, client: httpx.Client, method: str) -> None:
    answer = client.request(method, link(customer))
    error(answer, 405, "invalid_request")
    assert answer.headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (FORM, ONE_CLICK),
        ({"Content-Type": 'multipart/form-data; boundary="b"'}, b"--b\r\n\r\nOne-Click\r\n--b--\r\n"),
        ({}, b""),
        ({"Content-Type": "application/json"}, b"{"),
        ({"Content-Encoding": "gzip"}, b"\x1f\x8b"),
        ({}, b"\0" * 8192),
    ],
)
def test_any_body_will_do(customer: Caller, client: httpx.Client, headers: dict[str, str], content: bytes) -> None:
    """What a mail program writes into its POST does not matter; the connection goes on after it."""
    assert client.post(link(customer), content=content, headers=headers).json()["unsubscribed"] is True
    assert len(suppressions(customer)) == 1


def test_a_large_body_is_refused(running: Running, customer: Caller, client: httpx.Client) -> None:
    """More than 8 KiB is 413, whether its length is told before or not."""
    path = link(customer)
    error(client.post(path, content=b"x" * 8193), 413, "payload_too_large")
    error(client.post(path, content=iter([b"x" * 5000, b"x" * 5000])), 413, "payload_too_large")
    with raw.Client(running.url) as stranger:
        stranger.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n".encode())
        (answer,) = stranger.rest()
    raw.check_error(answer)
    assert suppressions(customer) == []


# ---- the settings


def test_without_https_the_setting_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server without an https address says what to set; an empty list and false are fine."""
    with appliance(tmp_path_factory.mktemp("http")) as plain, plain.client(headers={}) as client:
        customer = owner(Caller(plain, plain.account, client, plain.account.bearer))
        text = error(customer.request("PUT", "/v1/unsubscribe-tags", json={"tags": ["x"]}), 400, "invalid_request")
        assert text.startswith("tags: ")
        assert "http.base_url" in text
        body = {"text": "t", "unsubscribe": True}
        text = error(customer.request("PUT", "/v1/templates/x", json=body), 400, "invalid_request")
        assert text.startswith("unsubscribe: ")
        error(customer.get("/v1/templates/x"), 404, "not_found")
        assert customer.request("PUT", "/v1/unsubscribe-tags", json={"tags": []}).status_code == 200
        assert customer.request("PUT", "/v1/templates/x", json=body | {"unsubscribe": False}).status_code == 200
        # A link that was made before, under an https address, still works.
        wanted = Unsubscription(plain.account.account_id, "tag:x", "ada@example.net")
        token = UnsubscribeLinks(load(plain.data_dir), BASE).token(wanted)
        assert client.post(f"/unsubscribe/{token}").json()["unsubscribed"] is True
