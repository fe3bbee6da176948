"""Free mail until an account keeps as much as it may: it is refused then, on every way in, and others are not."""

import smtplib
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from tests.e2e.submission.client import MESSAGE, smtp
from tests.running_appliance import Running, add_account, appliance, command

QUOTA = 2 * 2**20
LIMITS = f'min_free_disk = "0"\nstored_bytes_per_account = {QUOTA}'
LARGE = "x" * 500_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An appliance whose accounts may keep two mebibytes each, and an account with one credit."""
    with appliance(tmp_path_factory.mktemp("quota"), disk=LIMITS, credit=1) as started:
        yield started


def send(client: httpx.Client, running: Running, key: str, number: int, text: str = LARGE) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"{running.account.name}-{key[-4:]}-{number}"}
    wanted = {"from": "a@example.com", "to": "bounce@example.net", "subject": "x", "text": text}
    return client.post("/emails", json=wanted, headers=headers)


def stored_bytes(running: Running) -> int:
    return int(command(running.config_file, "account", "show", running.account.name)["stored_bytes"])


def test_free_mail_ends_at_the_quota_and_others_go_on(running: Running) -> None:
    """With test keys and a balance of one: four messages are taken, then 429 and 452, and another account sends on."""
    with running.client(headers={}) as client:
        statuses = [send(client, running, running.account.test_key, number).status_code for number in range(10)]
        assert statuses == [202] * 4 + [429] * 6
        refused = send(client, running, running.account.test_key, 11)
        assert refused.json()["code"] == "rate_limited"
        figures = f"keeps {stored_bytes(running):,} bytes of messages and templates and may keep {QUOTA:,} bytes"
        assert figures in refused.json()["error"]
        assert refused.headers["retry-after"] == "600"
        assert send(client, running, running.account.full_key, 0).status_code == 429
        replayed = send(client, running, running.account.test_key, 0)
        assert (replayed.status_code, replayed.headers["idempotent-replayed"]) == (202, "true")
        other = replace(running, account=add_account(running.data_dir, "other"))
        assert send(client, other, other.account.full_key, 0).status_code == 202

    session = smtp(running)
    with pytest.raises(smtplib.SMTPDataError) as said:
        session.sendmail("a@example.com", ["b@example.net"], MESSAGE.replace(b"Hello", (b"x" * 76 + b"\r\n") * 5_000))
    assert said.value.smtp_code == 452
    assert b"4.7.1 This account keeps 2,0" in bytes(said.value.smtp_error)  # type: ignore[arg-type]  # it is bytes
    session.quit()
    assert QUOTA - 500_000 < stored_bytes(running) < QUOTA
