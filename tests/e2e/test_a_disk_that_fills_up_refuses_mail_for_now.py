"""While the disk is nearly full mail is refused for now, over HTTP and SMTP; once there is room it is taken again."""

import json
import shutil
import smtplib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.submission.client import MESSAGE, messages, smtp
from tests.running_appliance import Running, appliance
from tests.waiting import wait_until

BODY = {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hello"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """The program on a disk where a seventh of what is free now may be used up, and not more."""
    free = shutil.disk_usage(tmp_path).free
    with appliance(tmp_path) as started:
        settings = started.config_file.read_text()
        watermark = f'min_free_disk = "{free - free // 7}B"\nmin_free_disk_percent = 0'
        started.config_file.write_text(settings.replace('min_free_disk = "0"', watermark))
        started.hang_up("reloaded")
        yield started


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[], Path]:
    """What takes more than that, in no time: the space is only set aside."""

    def take() -> Path:
        file = tmp_path / "filler"
        size = shutil.disk_usage(tmp_path).free * 2 // 7
        taken = subprocess.run(["fallocate", "-l", str(size), str(file)], capture_output=True, text=True)
        if taken.returncode:
            pytest.skip(f"no space can be set aside here: {taken.stderr}")
        return file

    return take


def posted(running: Running, key: str) -> int:
    with running.client() as client:
        answer = client.post("/emails", json=BODY, headers={"Idempotency-Key": key})
        if answer.status_code == 503:
            assert answer.json()["code"] == "temporary_failure"
            assert int(answer.headers["retry-after"]) >= 1
        return answer.status_code


def submitted(running: Running) -> tuple[int, bytes]:
    with smtp(running) as client:
        try:
            client.sendmail("shop@example.com", "ada@example.net", MESSAGE)
        except smtplib.SMTPSenderRefused as refused:
            return refused.smtp_code, refused.smtp_error if isinstance(refused.smtp_error, bytes) else b""
        except smtplib.SMTPDataError as refused:
            return refused.smtp_code, refused.smtp_error if isinstance(refused.smtp_error, bytes) else b""
    return 250, b""


def test_it_refuses_for_now_and_recovers_by_itself(running: Running, fill: Callable[[], Path]) -> None:
    """Below the watermark both ways refuse and nothing is kept; with room again mail is taken, without a restart."""
    assert posted(running, "before") == 202
    assert submitted(running)[0] == 250
    taken = fill()
    wait_until(lambda: posted(running, f"try-{time.monotonic_ns()}") == 503)
    before = messages(running)
    assert posted(running, "full") == 503
    code, text = submitted(running)
    assert (code, text[:5]) == (451, b"4.3.0")
    assert messages(running) == before
    with running.client(headers=running.login()) as client:
        assert client.put("/v1/templates/full", json={"text": "x"}).status_code == 503
        assert client.delete("/v1/templates/none").status_code == 404  # room can be made
        assert client.post("/v1/auth/logout").status_code == 200
    taken.unlink()
    wait_until(lambda: posted(running, "full") == 202)
    assert submitted(running)[0] == 250
    lines = [json.loads(line) for line in running.log_lines()]
    disk = [line for line in lines if line["logger"] == "appliance.disk"]
    assert [(line["level"], line["event"]) for line in disk] == [
        ("warning", "low on disk space: new mail is refused"),
        ("info", "enough disk space again: new mail is accepted"),
    ]
    assert disk[0]["free_bytes"] < disk[0]["needed_bytes"] <= disk[1]["free_bytes"]
