"""The lock on a data directory."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from appliance.system.data_directory import AlreadyRunning, is_running, only_server


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """While one holds the directory another is told so, and may come once it has gone."""
    with only_server(tmp_path), pytest.raises(AlreadyRunning, match="another server runs"), only_server(tmp_path):
        pytest.fail("two servers at once")
    with only_server(tmp_path):
        assert (tmp_path / "appliance.lock").stat().st_mode & 0o077 == 0


def test_a_deleted_lock_file_changes_nothing(tmp_path: Path) -> None:
    """The directory itself is locked: without the file, or with a new one, there is still one server."""
    with only_server(tmp_path):
        (tmp_path / "appliance.lock").unlink()
        assert is_running(tmp_path)
        for _ in range(2):
            with pytest.raises(AlreadyRunning), only_server(tmp_path):
                pytest.fail("two servers at once")
            (tmp_path / "appliance.lock").touch()


def test_a_server_of_an_earlier_version_is_seen(tmp_path: Path) -> None:
    """It locks only the file."""
    with (tmp_path / "appliance.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_running(tmp_path)
        with pytest.raises(AlreadyRunning), only_server(tmp_path):
            pytest.fail("two servers at once")


def test_whether_a_server_runs_can_be_seen(tmp_path: Path) -> None:
    """Before, during and after; and looking creates nothing."""
    assert not is_running(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with only_server(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_a_look_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    """A process that checks all the time holds the lock for moments only: a start in between succeeds."""
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
