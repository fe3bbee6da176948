"""Every code block of the README runs, against a server on loopback."""

import hashlib
import hmac
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mail_appliance import Client
from mail_appliance.dev import COMMAND, DevAppliance
from mail_appliance.email_messages import close_shared_clients
from mail_appliance.models import event

from .conftest import Server, answer, reset

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", README, flags=re.MULTILINE)[1:]}
BLOCKS = {
    name: re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL) for name, part in SECTIONS.items()
}

COMMANDS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
UNTYPED = "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in ("django", "flask_mailman"))


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
    """It prints the message's id and status, and reads nothing."""
    run("First send")
    assert capsys.readouterr().out == "msg_1: queued\n"
    assert server.appliance.sent[0].idempotency_key == "order-17"
    assert [request.method for request in server.requests] == ["POST"]


def test_delivery_status(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the status of each recipient."""
    run("First send")
    with Client() as mail:
        run("Delivery status")["print_results"](mail, "msg_1")
    assert capsys.readouterr().out.splitlines()[1:] == ["ada@example.net: delivered", "grace@example.net: delivered"]


def test_batch(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a line per message, and one key covers them."""
    run("Batch")
    assert capsys.readouterr().out == "0 msg_1\n1 msg_2\n"
    assert [sent.idempotency_key for sent in server.appliance.sent] == ["news-17"] * 2


def test_scheduling(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is moved, then cancelled; once it is due there is nothing to cancel."""
    names = run("Scheduling and metadata")
    (sent,) = server.appliance.sent
    moved = names["tomorrow"] + names["timedelta"](hours=2)
    assert (sent.fields["scheduled_at"], sent.fields["metadata"]) == (moved.isoformat(), {"customer": "17"})
    assert server.appliance.cancelled == {sent.id}
    server.script += [answer(202, {"id": "msg_1"}), answer(200, {"id": "msg_1"})]
    server.script.append(answer(409, {"error": "None left.", "code": "conflict"}))
    run("Scheduling and metadata")
    assert capsys.readouterr().out == "already sent\n"


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
    """It prints the message's id and status."""
    pytest.importorskip("trio")
    run("Trio and asyncio")
    assert capsys.readouterr().out == "msg_1: queued\n"


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
    monkeypatch.delenv("MAIL_WEBHOOK_SECRET")
    assert client.post("/mail-events", data=body, headers=headers).status_code == 500


def test_a_received_message(capsys: pytest.CaptureFixture[str]) -> None:
    """The example prints it with the metadata of the message that it answers; it leaves automatic replies alone."""
    file_ticket = run("Webhooks", 1)["file_ticket"]
    data: dict[str, Any] = {"from": "ada@example.net", "subject": "Re: Hello", "dmarc": "pass"}
    data["in_reply_to_email"] = {"id": "msg_1", "metadata": {"ticket": "7"}}
    for more in ({}, {"auto_submitted": True}):
        file_ticket(event({"id": "evt_1", "type": "email.received", "data": data | more}))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("ada@example.net pass Re: Hello None {'ticket': '7'}")


def test_tests() -> None:
    """The example's own test passes."""
    run("Tests of your program")["test_confirm"]()


@pytest.mark.skipif(COMMAND not in os.environ, reason=f"{COMMAND} is not set")
def test_sign_up() -> None:
    """The example passes against the real program."""
    with DevAppliance() as appliance:
        run("Tests of your program", 1)["test_sign_up"](appliance)


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


@pytest.mark.slow
def test_every_block_is_strictly_typed(tmp_path: Path) -> None:
    """`mypy --strict` finds nothing in them, but that Django and Flask-Mailman have no types."""
    pytest.importorskip("mypy")
    for heading, blocks in BLOCKS.items():
        for number, block in enumerate(blocks):
            (tmp_path / f"{re.sub('[^a-z]+', '_', heading.lower())}_{number}.py").write_text(block)
    (tmp_path / "mypy.ini").write_text("[mypy]\n" + UNTYPED)
    files = sorted(map(str, tmp_path.glob("*.py")))
    assert len(files) == sum(map(len, BLOCKS.values()))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(tmp_path / "mypy.ini"), *files]
    environment = {**os.environ, "MYPYPATH": str(HERE / "src")}
    checked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository next to a project, with this library in its place."""
    library = tmp_path / "mail-appliance" / "clients" / "python"
    shutil.copytree(HERE / "src", library / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(HERE / name, library)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*git, *command], cwd=tmp_path / "mail-appliance", check=True)
    (tmp_path / "project").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", [0, 1])
def test_install(checkout: Path, number: int) -> None:
    """From a path and from git; without the network, so with the build packages that are here."""
    pytest.importorskip("hatchling")
    target = checkout / "installed"
    settings = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_TARGET": str(target)}
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(checkout)}
    environment = {**settings, **paths, "REPOSITORY": f"file://{checkout / 'mail-appliance'}"}
    shell = ["sh", "-ec", COMMANDS[number]]
    ran = subprocess.run(shell, cwd=checkout / "project", env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (about,) = target.glob("*.dist-info")
    assert (about / "licenses" / "LICENSE").read_text() == (HERE / "LICENSE").read_text()
    metadata = (about / "METADATA").read_text().partition("\n\n")[0].splitlines()
    assert {"Name: mail-appliance-client", "License-Expression: MIT", "License-File: LICENSE"} <= set(metadata)
    program = "import mail_appliance; print(mail_appliance.__version__)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {program}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == (HERE.parent / "VERSION").read_text().strip()


def test_every_block_is_run_by_a_test() -> None:
    """There is no block of another kind, and as many as the tests above run."""
    assert README.count("```") == 2 * (sum(map(len, BLOCKS.values())) + len(COMMANDS))
    assert len(COMMANDS) == 2
    assert {name: len(blocks) for name, blocks in BLOCKS.items() if blocks} == {
        "First send": 1,
        "Delivery status": 1,
        "Batch": 1,
        "Scheduling and metadata": 1,
        "Attachments": 1,
        "Errors": 1,
        "Trio and asyncio": 1,
        "Webhooks": 2,
        "Tests of your program": 2,
        "Django": 2,
        "Flask": 1,
    }
