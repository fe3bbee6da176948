"""Started by a service manager, the program says when it is ready, that it lives, that it reloads and that it ends."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.service_manager import Manager
from tests.running_appliance import appliance

WATCHDOG = "400000"  # microseconds, so that it is fed every 0.2 s


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    with made.socket:
        yield made


def test_from_start_to_end(tmp_path: Path, manager: Manager) -> None:
    """Ready once it answers, fed from then on, reloading and ready again on SIGHUP, stopping on SIGTERM."""
    environment = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": WATCHDOG}
    with appliance(tmp_path, environment=environment, fresh=True) as running:
        assert manager.next() == "STATUS=opening the database"
        assert manager.next() == "READY=1\nSTATUS=serving"
        assert httpx.get(f"{running.url}/healthz", trust_env=False).status_code == 200
        assert [manager.next(skipping="") for _ in range(3)] == ["WATCHDOG=1"] * 3
        running.hang_up("reloaded")
        assert manager.next().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert manager.next() == "READY=1\nSTATUS=serving"
        assert running.terminate() == 0
        assert manager.next() == "STOPPING=1\nSTATUS=finishing work in flight"


def test_a_failed_reload_is_told(tmp_path: Path, manager: Manager) -> None:
    """It is ready again with what it had, and `systemctl status` shows why nothing changed."""
    with appliance(tmp_path, environment={"NOTIFY_SOCKET": manager.name}, fresh=True) as running:
        assert [manager.next()[:6] for _ in range(2)] == ["STATUS", "READY="]
        running.config_file.write_text("[http\n")
        running.hang_up("reload failed; the current settings stay")
        assert manager.next().startswith("RELOADING=1\n")
        assert manager.next().startswith(
            f"READY=1\nSTATUS=serving; the last reload failed: {running.config_file}: line 1"
        )
