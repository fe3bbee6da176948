"""Every code block of the README runs, against a server on loopback."""

import hashlib
import hmac
import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mail_appliance.email_messages import close_shared_clients

from .conftest import Server, answer, reset

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", README, flags=re.MULTILINE)[1:]}
BLOCKS = {
    name: re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL) for name, part in SECTIONS.items()
}


def run(heading: str, number: int = 0) -> dict[str, Any]:
    """Run a block and return its names."""
    block = BLOCKS[heading][number]
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, f"README.md, {heading}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def environment(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The variables that the README speaks of, and a folder with the files."""
    for name, value in {"URL": server.url, "USERNAME": "u", "PASSWORD": "p"}.items():
        monkeypatch.setenv(f"MAIL_APPLIANCE_{name}", value)
    for name in ("invoice.pdf", "logo.png", "report.csv"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    yield
    close_shared_clients()


def test_first_send(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints what became of each recipient."""
    run("First send")
    assert capsys.readouterr().out.splitlines() == [
        "ada@example.net: delivered",
        "grace@example.net: delivered",
    ]
    assert server.appliance.sent[0].idempotency_key == "order-17"


def test_attachments(server: Server) -> None:
    """All three arrive."""
    run("Attachments")
    sent = server.appliance.sent[0]
    assert [sent.attachment(name) for name in ("invoice.pdf", "logo.png", "report.csv")] == [
        b"invoice.pdf",
        b"logo.png",
        b"report.csv",
    ]


def test_errors(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is caught by its class, and a lost answer is asked for with the same key."""
    server.script.append(answer(402, {"error": "None.", "code": "insufficient_credits"}))
    run("Errors")
    server.script.append(answer(400, {"error": "to: no.", "code": "invalid_request", "request_id": "req_1"}))
    run("Errors")
    assert capsys.readouterr().out.splitlines() == [
        "no credits left",
        "400 invalid_request to: no. req_1 None",
    ]
    server.script += [reset] * 4
    run("Errors")
    assert len({request.headers["idempotency-key"] for request in server.requests[2:]}) == 1
    assert len(server.appliance.sent) == 1


def test_trio(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the final status."""
    pytest.importorskip("trio")
    run("Trio and asyncio")
    assert capsys.readouterr().out == "delivered\n"


def test_webhooks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The receiver takes what is signed and refuses the rest."""
    pytest.importorskip("flask")
    monkeypatch.setenv("MAIL_WEBHOOK_SECRET", "whsec_1")
    client = run("Webhooks")["app"].test_client()
    body = b'{"id":"evt_1","type":"email.bounced","data":{"to":"a@example.net","smtp_response":"550 no"}}'
    seconds = str(int(time.time()))
    signature = hmac.new(b"whsec_1", seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
    headers = {"Service-Signature": f"t={seconds},v1={signature}"}
    assert client.post("/mail-events", data=body, headers=headers).status_code == 204
    assert capsys.readouterr().out == "a@example.net 550 no\n"
    assert client.post("/mail-events", data=body + b" ", headers=headers).status_code == 400
    assert client.post("/mail-events", data=body).status_code == 400


def test_tests() -> None:
    """The example's own test passes."""
    run("Tests of your program")["test_confirm"]()


def test_django(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings and the message."""
    settings = pytest.importorskip("django.conf").settings
    if not settings.configured:
        settings.configure()
    older = import_module("django").VERSION < (6, 1)
    left_out = "MAILERS" if older else "EMAIL_BACKEND"
    chosen = {name: value for name, value in run("Django").items() if name.isupper() and name != left_out}
    with import_module("django.test.utils").override_settings(**chosen):
        run("Django", 1)
    assert capsys.readouterr().out == "msg_1\n"
    sent = server.appliance.sent[0]
    assert (sent.fields["tags"], sent.idempotency_key) == (["order"], "order-17-confirmation")


def test_flask(server: Server) -> None:
    """The request sends."""
    pytest.importorskip("flask_mailman")
    assert run("Flask")["app"].test_client().post("/orders/17/confirm").text == "sent"
    assert server.appliance.sent[0].idempotency_key == "order-17-confirmation"


def test_every_block_is_run_by_a_test() -> None:
    """There is no block of another kind, and as many as the tests above run."""
    assert README.count("```") == 2 * sum(map(len, BLOCKS.values()))
    assert {name: len(blocks) for name, blocks in BLOCKS.items() if blocks} == {
        "First send": 1,
        "Attachments": 1,
        "Errors": 1,
        "Trio and asyncio": 1,
        "Webhooks": 1,
        "Tests of your program": 1,
        "Django": 2,
        "Flask": 1,
    }
