"""What the operator's shell changes, a running server does a second later, without a restart."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_appliance import Running, appliance, command

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("running"), credit=100) as started:
        yield started


def shell(running: Running, *words: str) -> Any:
    return command(running.config_file, *words)


def send(running: Running, authorization: dict[str, str] | None = None, domain: str = "example.com") -> httpx.Response:
    body = {"from": f"a@{domain}", "to": "user@example.net", "subject": "s", "text": "t"}
    with running.client(headers=authorization or running.account.bearer) as client:
        return client.post("/emails", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})


def code(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json().get("code")


def shell_then_wait(running: Running, *commands: str) -> None:
    for words in commands:
        shell(running, *words.split())
    time.sleep(1)  # that a server may take to see it


def test_accounts_domains_and_credentials_change(running: Running) -> None:
    """Suspension, a new domain, credits, a cap, and the end of keys and credentials hold; and what is lifted again."""
    key, credential = shell(running, "key", "create", "demo"), shell(running, "credential", "create", "demo")
    by_key = {"Authorization": f"Bearer {key['key']}"}
    by_password = {"Authorization": httpx.BasicAuth(credential["username"], credential["password"])._auth_header}
    for each in (None, by_key, by_password):
        assert send(running, each).status_code == 202
    assert code(send(running, domain="new.example")) == (403, "forbidden")
    left = shell(running, "account", "show", "demo")["credits"]
    revoke = (f"key revoke {key['id']}", f"credential revoke demo {credential['username']}")
    shell_then_wait(running, "domain add demo new.example", "account cap demo 1", *revoke)
    assert code(send(running, domain="new.example")) == (429, "warmup_limited")
    assert code(send(running, by_key)) == code(send(running, by_password)) == (401, "unauthorized")
    shell_then_wait(running, "account cap demo off", f"account credit demo -{left}")
    assert code(send(running)) == (402, "insufficient_credits")
    shell_then_wait(running, "account credit demo +50", "account suspend demo")
    assert code(send(running)) == (403, "account_suspended")
    shell_then_wait(running, "account resume demo")
    assert send(running, domain="new.example").status_code == 202


def test_a_new_account_can_send(running: Running) -> None:
    """Everything a sender needs can be made beside the running server."""
    command = ["account", "create", "late", "--email", "late@example.org", "--password-stdin"]
    subprocess.run(
        [sys.executable, "-m", "appliance", *command, "--config", str(running.config_file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="a password",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=30,
    )
    shell(running, "domain", "add", "late", "late.example")
    key = shell(running, "key", "create", "late")["key"]
    time.sleep(1)
    assert send(running, {"Authorization": f"Bearer {key}"}, "late.example").status_code == 202
