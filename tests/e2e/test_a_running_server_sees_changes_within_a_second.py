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


def change(running: Running, *words: str) -> Any:
    """Such a command, and the second that a server may take to see it."""
    answer = shell(running, *words)
    time.sleep(1)
    return answer


def send(running: Running, authorization: dict[str, str] | None = None, domain: str = "example.com") -> httpx.Response:
    body = {"from": f"a@{domain}", "to": "user@example.net", "subject": "s", "text": "t"}
    with running.client(headers=authorization or running.account.bearer) as client:
        return client.post("/emails", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})


def code(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json().get("code")


def test_a_suspended_account_stops_and_a_resumed_one_goes_on(running: Running) -> None:
    assert send(running).status_code == 202
    change(running, "account", "suspend", "demo")
    assert code(send(running)) == (403, "account_suspended")
    change(running, "account", "resume", "demo")
    assert send(running).status_code == 202


def test_an_added_domain_may_send(running: Running) -> None:
    assert code(send(running, domain="new.example")) == (403, "forbidden")
    change(running, "domain", "add", "demo", "new.example")
    assert send(running, domain="new.example").status_code == 202


def test_credits_run_out_and_come_back(running: Running) -> None:
    """`account credit` decides whether the next message is paid for."""
    left = shell(running, "account", "show", "demo")["credits"]
    change(running, "account", "credit", "demo", f"-{left}")
    assert code(send(running)) == (402, "insufficient_credits")
    change(running, "account", "credit", "demo", "+50")
    assert send(running).status_code == 202


def test_a_cap_limits_the_day(running: Running) -> None:
    """`account cap` is reached at once by an account that has sent more today, until it is lifted."""
    assert send(running).status_code == 202
    change(running, "account", "cap", "demo", "1")
    assert code(send(running)) == (429, "warmup_limited")
    change(running, "account", "cap", "demo", "off")
    assert send(running).status_code == 202


def test_a_new_key_works_until_it_is_revoked(running: Running) -> None:
    made = shell(running, "key", "create", "demo")
    key = {"Authorization": f"Bearer {made['key']}"}
    assert send(running, key).status_code == 202
    change(running, "key", "revoke", made["id"])
    assert code(send(running, key)) == (401, "unauthorized")


def test_a_new_credential_works_until_it_is_revoked(running: Running) -> None:
    made = shell(running, "credential", "create", "demo")
    pair = httpx.BasicAuth(made["username"], made["password"])
    basic = {"Authorization": pair._auth_header}
    assert send(running, basic).status_code == 202
    change(running, "credential", "revoke", "demo", made["username"])
    assert code(send(running, basic)) == (401, "unauthorized")


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
    key = change(running, "key", "create", "late")["key"]
    assert send(running, {"Authorization": f"Bearer {key}"}, "late.example").status_code == 202
