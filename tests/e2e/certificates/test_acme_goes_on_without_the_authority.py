"""An authority that is down, or refuses, prevents no start: why is told, and the certificate comes later."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.certificates.clients import NAME, SITE, anything, certified, events, shown, trusted, wait_until
from tests.fakes.pebble import needs_pebble, pebble
from tests.ports import free_port
from tests.running_appliance import Running


def doctor(running: Running) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "doctor", "--config", str(running.config_file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    return done.stdout + done.stderr


def failure(running: Running) -> dict[str, Any]:
    wait_until(lambda: [line for line in events(running) if line["level"] != "info"], running)
    return next(line for line in events(running) if line["level"] != "info")


@needs_pebble
def test_an_authority_that_is_down_is_waited_for(tmp_path: Path) -> None:
    """The server starts with a certificate of its own making, mail and HTTPS go on, and a reload asks again."""
    with pebble(tmp_path, NAME, SITE, started=False) as authority, certified(tmp_path, authority) as running:
        told = failure(running)
        assert told["event"] == "certificate not issued"
        assert told["reason"] == "127.0.0.1 cannot be reached: connection refused"
        own = shown(running, "https", anything())
        assert own == shown(running, "smtps", anything())
        assert "none yet: 127.0.0.1 cannot be reached: connection refused (failed 1 times" in doctor(running)
        authority.start()
        root = authority.root()
        assert not trusted(running, "https", root)
        running.hang_up("reloaded")
        wait_until(lambda: trusted(running, "https", root) and trusted(running, "smtp", root), running)
        assert f"for {NAME}, {SITE} until" in doctor(running)


@needs_pebble
@pytest.mark.parametrize("why", ["refused", "unreached"])
def test_a_refusal_is_told_with_what_to_do(tmp_path: Path, why: str) -> None:
    """In the log and by the doctor: a name the authority does not want, a port 80 that is closed."""
    reason, advice = {
        "refused": (f"the authority does not issue for {NAME}", "Use names in your own public domain"),
        "unreached": (f"the authority cannot reach port 80 of {NAME}", f"Make port 80 of {NAME} reach acme.bind"),
    }[why]
    refused = [NAME] if why == "refused" else []
    with (
        pebble(tmp_path, NAME, domainBlocklist=refused) as authority,
        certified(
            tmp_path, authority, acme=f'names = ["{NAME}"]', bind=free_port() if why == "unreached" else None
        ) as running,
    ):
        told = failure(running)
        assert reason in told["reason"]
        assert advice in told["advice"]
        examined = " ".join(doctor(running).split())
        assert f"none yet: {reason}" in examined
        assert advice in examined
        assert running.is_alive()
