"""An operator deletes, replaces or moves files of the data directory: the server notices, stops and says so."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.store import FILE_NAME
from tests.e2e.storms.senders import Senders
from tests.running_appliance import PROGRAM, Running, appliance, command

pytestmark = pytest.mark.sqlite_only

ROOT = Path(__file__).parents[3]
CREDIT = 1_000_000
FOR_NOW = {"503 temporary_failure to be retried", "503 service_unavailable to be retried"}
CHANGED = "database files changed while the server was running"


def delete(*ends: str) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        for end in ends:
            (running.data_dir / f"{FILE_NAME}{end}").unlink()

    act.__name__ = "delete " + " ".join(f"{FILE_NAME}{end}" for end in ends)
    return act


def copy_over(running: Running) -> None:
    """Replace the log by a copy of itself, as a careless restore of single files does."""
    log = running.data_dir / f"{FILE_NAME}-wal"
    shutil.copy(log, running.directory / "copy")
    os.replace(running.directory / "copy", log)


def rename_database(running: Running) -> None:
    (running.data_dir / FILE_NAME).rename(running.data_dir / "old.db")


def move_directory(running: Running) -> None:
    running.data_dir.rename(running.directory / "elsewhere")


def reason(running: Running) -> str:
    line = json.loads(running.log_lines()[-1])
    assert line["event"] == CHANGED, line
    return str(line["reason"])


def started_by_hand(running: Running) -> "subprocess.CompletedProcess[str]":
    """A start that must fail."""
    return subprocess.run(
        [*PROGRAM, "serve", "--config", str(running.config_file)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=running.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def assert_start_is_refused(running: Running) -> None:
    """A new database in place of the missing one would make SQLite delete the log."""
    log = running.data_dir / f"{FILE_NAME}-wal"
    before = log.read_bytes()
    ran = started_by_hand(running)
    assert ran.returncode == 1
    assert "its files were deleted or replaced while a server ran: put the same files back" in ran.stderr
    assert log.read_bytes() == before


def acting_under_load(running: Running, senders: Senders, act: Callable[[Running], None]) -> None:
    sending = threading.Thread(target=senders.send_until_gone, args=(running,))
    sending.start()
    while len(senders.acknowledged) < 50:
        time.sleep(0.01)
    act(running)
    assert running.wait() == 1
    sending.join()
    assert set(senders.refused) <= FOR_NOW


@pytest.mark.parametrize("act", [delete("-wal"), delete("-shm"), delete("-wal", "-shm")], ids=lambda act: act.__name__)
def test_a_deleted_log_is_saved_under_load(tmp_path: Path, act: Callable[[Running], None]) -> None:
    """It ends with 1 and says why; a restart has every message that was acknowledged, and delivers it."""
    senders = Senders(size=1_000)
    with appliance(tmp_path, credit=CREDIT) as running:
        acting_under_load(running, senders, act)
        assert "start it again" in reason(running)
        running.start()
        senders.accepted_again_within(running)
        senders.check_all_are_there(running)


@pytest.mark.parametrize("act", [delete(""), copy_over])
def test_the_server_stops_when_its_database_is_gone(tmp_path: Path, act: Callable[[Running], None]) -> None:
    with appliance(tmp_path, credit=CREDIT) as running:
        acting_under_load(running, Senders(size=1_000), act)
        assert "restore the last backup" in reason(running)
        assert_start_is_refused(running)
        (running.data_dir / f"{FILE_NAME}.missed").unlink()
        running.start()


def test_a_database_that_is_put_back_has_every_message(tmp_path: Path) -> None:
    senders = Senders(size=1_000)
    with appliance(tmp_path, credit=CREDIT) as running:
        acting_under_load(running, senders, rename_database)
        assert "put the files back" in reason(running)
        assert_start_is_refused(running)
        (running.data_dir / "old.db").rename(running.data_dir / FILE_NAME)
        running.start()
        senders.accepted_again_within(running)
        senders.check_all_are_there(running)


def test_a_directory_that_is_moved(tmp_path: Path) -> None:
    senders = Senders(size=1_000)
    with appliance(tmp_path, credit=CREDIT) as running:
        acting_under_load(running, senders, move_directory)
        assert "was moved or replaced" in reason(running)
        assert not running.data_dir.exists()
        (tmp_path / "elsewhere").rename(running.data_dir)
        running.start()
        senders.accepted_again_within(running)
        senders.check_all_are_there(running)


def test_commands_and_backups_are_no_alarm(tmp_path: Path) -> None:
    """What the shell's commands do beside a running server, copies and checkpoints included, does not end it."""
    senders = Senders(size=1_000)
    with appliance(tmp_path, credit=CREDIT) as running:
        for number in range(3):
            senders.accepted_again_within(running)
            command(running.config_file, "queue")
            command(running.config_file, "backup", str(tmp_path / f"backup{number}.tar"))
            command(running.config_file, "account", "list")
        time.sleep(1.5)
        senders.accepted_again_within(running)
        assert running.complaints() == []
        assert running.terminate() == 0


@pytest.mark.parametrize("name", ["appliance.lock", None])
def test_without_its_lock_file_there_is_still_one_server(tmp_path: Path, name: str | None) -> None:
    """A second server is refused, whether or not the lock file was deleted; commands go on working."""
    with appliance(tmp_path) as running:
        if name is not None:
            (running.data_dir / name).unlink()
        second = started_by_hand(running)
        assert second.returncode == 1
        assert "another server runs on this data directory" in second.stderr
        assert second.stderr.count("\n") == 1
        command(running.config_file, "queue")
        assert running.terminate() == 0
