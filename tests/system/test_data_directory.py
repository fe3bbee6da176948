"""The data directory: its lock, and private files that are written whole or not at all."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from appliance.system.data_directory import AlreadyRunning, is_running, only_server, write_private_file


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with only_server(tmp_path), pytest.raises(AlreadyRunning, match="another server runs"), only_server(tmp_path):
        pytest.fail("two servers at once")
    with only_server(tmp_path):
        assert (tmp_path / "appliance.lock").stat().st_mode & 0o077 == 0


def test_a_deleted_lock_file_changes_nothing(tmp_path: Path) -> None:
    with only_server(tmp_path):
        (tmp_path / "appliance.lock").unlink()
        assert is_running(tmp_path)
        for _ in range(2):
            with pytest.raises(AlreadyRunning), only_server(tmp_path):
                pytest.fail("two servers at once")
            (tmp_path / "appliance.lock").touch()


def test_a_server_of_an_earlier_version_is_seen(tmp_path: Path) -> None:
    with (tmp_path / "appliance.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_running(tmp_path)
        with pytest.raises(AlreadyRunning), only_server(tmp_path):
            pytest.fail("two servers at once")


def test_whether_a_server_runs_can_be_seen(tmp_path: Path) -> None:
    assert not is_running(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with only_server(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_a_look_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    with only_server(tmp_path):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_running(tmp_path)
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            with only_server(tmp_path):
                pass
    finally:
        stop.set()
        thread.join()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"old")
    before = os.umask(0)
    try:
        with file.open("rb") as opened:
            write_private_file(file, b"new")
            assert opened.read() == b"old"
    finally:
        os.umask(before)
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    write_private_file(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_private_file(file, b"new")
    assert file.read_bytes() == b"old"
    write_private_file(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [file]
