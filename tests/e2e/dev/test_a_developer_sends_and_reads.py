"""`appliance dev`: everything can send, nothing needs a login, and tests wait for what arrives."""

import http.server
import json
import smtplib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.running_dev import Dev, running_dev

MESSAGE = {"from": "shop@any.example", "to": "ada@example.net", "subject": "Welcome", "text": "Hello"}
_keys = iter(range(1_000_000))


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev")) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(dev: Dev) -> None:
    assert dev.http.delete("/v1/emails").json()["deleted"] is True
    assert dev.http.get("/v1/emails").json()["emails"] == []


def send(dev: Dev, **fields: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": f"dev-{next(_keys)}", **fields.pop("headers", {})}
    response = dev.http.post("/emails", json=MESSAGE | fields, headers=headers)
    assert response.status_code == 202, response.text
    return dict(response.json())


def status_of(dev: Dev, message_id: str) -> str:
    while True:
        message = dev.http.get(f"/emails/{message_id}").json()
        if message["status"] != "queued":
            return str(message["recipients"][0]["status"])


@pytest.mark.parametrize("authorization", [None, "Bearer anything", "Basic bm9ib2R5OnNlY3JldA==", "Bearer ma_live_x"])
def test_any_key_or_none_sends_from_any_domain(dev: Dev, authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    assert send(dev, headers=headers)["source"] == "api"
    assert dev.waited(to="ada@example.net")["from"] == "shop@any.example"


def test_a_test_key_sends_test_mail(dev: Dev) -> None:
    message_id = send(dev, headers={"Authorization": "Bearer ma_test_x"})["id"]
    assert dev.http.get(f"/emails/{message_id}").json()["source"] == "test"


def test_results_come_from_the_address(dev: Dev) -> None:
    results = {name: send(dev, to=f"{name}@example.net")["id"] for name in ("bounce", "fail", "defer", "ada")}
    assert {name: status_of(dev, message_id) for name, message_id in results.items()} == {
        "bounce": "bounced",
        "fail": "failed",
        "defer": "delivered",
        "ada": "delivered",
    }


def test_a_bounce_can_be_repeated_and_a_suppression_tested(dev: Dev) -> None:
    """A simulated bounce suppresses nothing; an added suppression does what it does in production."""
    for _ in range(2):
        assert status_of(dev, send(dev, to="bounce@example.net")["id"]) == "bounced"
    assert dev.http.get("/v1/suppressions").json()["suppressions"] == []
    dev.http.post("/v1/suppressions", json={"address": "gone@example.net"}).raise_for_status()
    send(dev, to="gone@example.net")
    found = dev.http.get("/v1/emails", params={"outcome": "suppressed", "wait": "60s"}).json()["emails"]
    assert [email["recipients"][0]["email"] for email in found] == ["gone@example.net"]
    dev.http.delete("/v1/suppressions/gone@example.net").raise_for_status()
    assert status_of(dev, send(dev, to="gone@example.net")["id"]) == "delivered"


def test_a_request_waits_for_its_message(dev: Dev) -> None:
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(dev.waited(to="late@example.net", subject="your CODE")))
    waiting.start()
    send(dev, to="other@example.net", subject="Your code")
    send(dev, to="late@example.net", subject="Something else")
    wanted = send(dev, to="Late@example.net", subject="Your code is 42")["id"]
    waiting.join()
    assert [message["id"] for message in found] == [wanted]


def test_nothing_comes_and_the_answer_is_empty(dev: Dev) -> None:
    answer = dev.http.get("/v1/emails", params={"to": "noone@example.net", "wait": "0s"})
    assert (answer.status_code, answer.json()["emails"]) == (200, [])
    refused = dev.http.get("/v1/emails", params={"wait": "5m"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


def test_emptying_forgets_keys_and_waiting_mail(dev: Dev) -> None:
    key = {"Idempotency-Key": "same"}
    first = send(dev, headers=key)["id"]
    due = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    send(dev, scheduled_at=due)
    dev.http.delete("/v1/emails")
    assert dev.http.get("/v1/emails").json()["emails"] == []
    assert send(dev, headers=key)["id"] != first


def test_scheduled_mail_of_any_domain_goes_out(dev: Dev) -> None:
    due = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert status_of(dev, send(dev, scheduled_at=due)["id"]) == "delivered"


@pytest.mark.parametrize("login", [False, True])
def test_smtp_needs_no_tls_and_no_password(dev: Dev, login: bool) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "webmaster@localhost", "ada@example.net", "By SMTP"
    message.set_content("Hello")
    with smtplib.SMTP("localhost", dev.smtp_port) as client:
        client.ehlo()
        assert not client.has_extn("starttls")  # libraries would use it, and refuse a self-signed certificate
        if login:
            client.login("anyone", "anything")
        client.send_message(message)
    assert dev.waited(subject="by smtp")["source"] == "smtp"


def test_an_http_request_cannot_speak_smtp(dev: Dev) -> None:
    """A web page can post to this port, with commands in the body."""
    commands = b"\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nSubject: x\r\n\r\nx\r\n.\r\n"
    client = smtplib.SMTP("localhost", dev.smtp_port)
    assert client.sock is not None
    client.sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nEHLO x" + commands)
    assert client.getreply()[0] == 421
    client.close()
    assert dev.http.get("/v1/emails").json()["emails"] == []


def test_the_dashboard_needs_no_login(dev: Dev) -> None:
    token = dev.http.post("/v1/auth/refresh").json()
    assert token["account"]["name"] == "dev"
    assert dev.http.get("/", follow_redirects=True).url.path == "/dashboard/inbox"
    for page in ("inbox", "overview", "messages", "webhook"):
        path = "/dashboard" if page == "overview" else f"/dashboard/{page}"
        assert "nothing leaves this machine" in dev.http.get(path).text


def test_a_message_is_checked(dev: Dev) -> None:
    html = '<img src="https://a.example/a.png"><a href="https://a.example/">Start</a>'
    message_id = send(dev, html=html)["id"]
    answer = dev.http.get(f"/v1/emails/{message_id}/checks").json()
    assert [finding["title"] for finding in answer["findings"]] == ["Image without alt"]
    assert answer["links"] == [{"target": "https://a.example/", "text": "Start"}]


def test_the_doors_need_no_key(dev: Dev) -> None:
    body = {"From": "a@b.example", "To": "ada@example.net", "Subject": "Door", "TextBody": "x"}
    assert dev.http.post("/postmark/email", json=body).json()["ErrorCode"] == 0
    mail = {"from": "a@b.example", "to": ["ada@example.net"], "subject": "Door", "text": "x"}
    sent = dev.http.post("/resend/emails", json=mail).json()
    assert dev.http.get(f"/resend/emails/{sent['id']}").json()["subject"] == "Door"


def test_a_broadcast_has_an_unsubscribe_link(dev: Dev) -> None:
    """In production that needs https; here the link leads to this machine."""
    message_id = send(dev, stream="broadcast")["id"]
    assert f"<{dev.url}/unsubscribe/" in dev.http.get(f"/v1/emails/{message_id}/raw").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=lambda headers: next(iter(headers)),
)
@pytest.mark.parametrize("request_line", ["POST /emails", "DELETE /v1/emails", "GET /v1/emails", "POST /resend/emails"])
def test_web_pages_are_refused(dev: Dev, request_line: str, headers: dict[str, str]) -> None:
    send(dev)
    method, path = request_line.split()
    refused = dev.http.request(method, path, json=MESSAGE, headers={**headers, "Idempotency-Key": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert len(dev.http.get("/v1/emails").json()["emails"]) == 1


@contextmanager
def receiver() -> Iterator[tuple[str, list[dict[str, Any]], threading.Event]]:
    received: list[dict[str, Any]] = []
    came = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield f"http://localhost:{server.server_port}/hook", received, came
    finally:
        server.shutdown()
        server.server_close()


def test_webhooks_reach_this_machine_and_no_other(dev: Dev) -> None:
    for url in ("https://example.com/hook", "http://example.com/hook", "https://10.0.0.1/hook", "http://10.0.0.1/"):
        assert dev.http.put("/v1/webhook", json={"url": url}).status_code == 400
    with receiver() as (url, received, came):
        assert dev.http.put("/v1/webhook", json={"url": url}).status_code == 200
        wanted = send(dev, to="ada@example.net")["id"]
        assert came.wait(60)
        assert [event["data"]["email_id"] for event in received] == [wanted]
    assert dev.http.delete("/v1/webhook").status_code == 200


@pytest.mark.slow
def test_messages_stay_where_they_are_asked_to(tmp_path: Path) -> None:
    for expected in (0, 1):
        with running_dev(tmp_path, "--data", "mail") as server:
            assert len(server.http.get("/v1/emails").json()["emails"]) == expected
            send(server)
    assert (tmp_path / "mail").is_dir()
