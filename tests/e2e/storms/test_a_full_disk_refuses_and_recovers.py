"""A disk without room (threats.md 25): refusals that can be retried, nothing lost, and it goes on by itself."""

import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from appliance.store import FILE_NAME
from tests.e2e.contract.service import eventually
from tests.e2e.delivery.world import CREDITS, world
from tests.e2e.storms.senders import Senders
from tests.e2e.storms.small_disk import SmallDisk
from tests.fakes.mx import FakeMx, wait_and_say
from tests.fakes.webhook_server import Answer, Post, hooks
from tests.running_appliance import PROGRAM, Running, add_account, appliance

pytestmark = pytest.mark.sqlite_only

RECOVERY = 10  # seconds
CREDIT = 1_000_000
LOGGED_PAGE = 4096 + 24  # bytes
INDEXED = 4062  # pages of the log in the first 32 KiB of its index
ONE_COMMIT = 24 * 4096  # bytes; room for a small message, and not for 32 KiB more


def warnings(running: Running) -> set[str]:
    return {json.loads(line)["event"] for line in running.complaints()}


def test_no_room_when_the_log_outgrows_its_index(disk: SmallDisk, tmp_path: Path) -> None:
    """A commit that is in the log must not fail because the next piece of the log's index finds no room."""
    with appliance(tmp_path, credit=CREDIT) as running:
        senders, log = Senders(size=60_000), running.data_dir / f"{FILE_NAME}-wal"
        with old_reader(running.data_dir / FILE_NAME):
            while pages(log) < INDEXED - 120:
                assert senders.post(running).status == 202
            senders.size = 100
            while pages(log) < INDEXED:
                if pages(log) > INDEXED - 60:
                    disk.fill(leave=ONE_COMMIT)
                senders.post(running)
                time.sleep(0.05)  # until it is delivered, too
                (disk.directory / "ballast").unlink(missing_ok=True)
        disk.fill()
        assert senders.post(running).status == 503
        disk.make_room()
        assert senders.accepted_again_within(running) < RECOVERY
        senders.check_all_are_delivered(running, CREDIT)
        assert running.terminate() == 0


@contextmanager
def old_reader(database: Path) -> Iterator[None]:
    """A reader of the database as it is now: the log cannot be copied into the file and begun again meanwhile."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM messages").fetchall()
        yield


def pages(log: Path) -> int:
    return log.stat().st_size // LOGGED_PAGE


async def test_results_wait_for_room(disk: SmallDisk, tmp_path: Path) -> None:
    """What servers have taken while nothing could be written is kept and recorded later: no recipient gets it twice."""
    async with world(tmp_path) as made:
        server = FakeMx(answers={".": wait_and_say(0.5, b"250 2.0.0 queued\r\n")})
        await made.domain("slow.test", server)
        sent = [await made.send(f"user{number}@slow.test") for number in range(8)]
        await made.until(lambda: sum(command == "DATA" for command in server.commands) == 8)
        disk.fill()
        await made.until(lambda: "recording paused: storage unavailable" in warnings(made.running))
        await made.send("late@slow.test", expect=503)
        disk.make_room()
        await made.final(*sent, within=RECOVERY)
        assert [made.status(message) for message in sent] == ["delivered"] * 8
        assert sum(command == "DATA" for command in server.commands) == 8
        assert made.credits() == CREDITS - 8


def steadily(_: Post) -> Answer:
    time.sleep(0.5)
    return 200, b""


def test_results_of_posts_wait_for_room(disk: SmallDisk, tmp_path: Path) -> None:
    """An event that was posted while nothing could be written is recorded later, and not posted again."""
    message = {"from": "a@example.com", "to": ["a@example.net", "b@example.net"], "subject": "s", "text": "t"}
    with hooks(tmp_path) as receiver, appliance(tmp_path, webhooks=receiver.settings(tmp_path)) as running:
        receiver.answers["/"] = steadily
        with running.client(headers=running.login()) as client:
            client.put("/v1/webhook", json={"url": receiver.url("/")}).raise_for_status()
            client.post("/emails", json=message, headers={"Idempotency-Key": "first"}).raise_for_status()
            eventually(lambda: len(receiver.posts), lambda count: count == 2)
            disk.fill()
            eventually(lambda: warnings(running), lambda found: "recording paused: storage unavailable" in found)
            disk.make_room()

            def statuses() -> list[str]:
                return [each["status"] for each in client.get("/v1/webhook/deliveries").json()["deliveries"]]

            eventually(statuses, lambda found: found == ["success"] * 2)
        assert len(receiver.posts) == 2


def refusal_to_start(directory: Path) -> str:
    settings = directory / "small.toml"
    settings.write_text(f'[server]\ndata_dir = "{directory / "data"}"\n[http]\nbind = ["127.0.0.1:0"]\n')
    result = subprocess.run(
        [*PROGRAM, "serve", "--config", str(settings)], capture_output=True, text=True, timeout=30, cwd=directory
    )
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_a_first_start_without_room_is_one_line(disk: SmallDisk, tmp_path: Path) -> None:
    disk.fill()
    assert "no space left on device: free space on the disk of" in refusal_to_start(tmp_path)
    disk.make_room()
    disk.fill(leave=150_000)
    line = refusal_to_start(tmp_path)
    assert f"{FILE_NAME}: the database cannot be used: " in line
    assert f"the disk is full: free space on the disk of {tmp_path / 'data'}" in line


def test_a_later_start_without_room_is_one_line(disk: SmallDisk, tmp_path: Path) -> None:
    add_account(disk.directory, "demo")
    disk.fill()
    assert f"free space on the disk of {tmp_path / 'data'}" in refusal_to_start(tmp_path)
