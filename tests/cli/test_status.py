"""`appliance status`, and how it finds the server: by the note that `serve` leaves in the data directory."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.config.load import SYSTEM_FILE
from tests.cli.shell import fields
from tests.docs.test_cli import documented
from tests.fork_client import Piped, piped
from tests.ports import free_port
from tests.running_appliance import TRUSTS_NONE, appliance

without_settings = pytest.mark.skipif(SYSTEM_FILE.exists(), reason="this machine has a configuration file")


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def start(directory: Path, *words: str) -> Piped:
    """The program in that directory."""
    environment = {name: value for name, value in os.environ.items() if name != "APPLIANCE_CONFIG"}
    return piped(*words, directory=directory, environment={**environment, **TRUSTS_NONE})


def run(directory: Path, *words: str) -> Ran:
    process = start(directory, *words)
    output, errors = process.communicate(60)
    return Ran(process.wait(), output, errors)


def findings(ran: Ran, check: str) -> list[dict[str, Any]]:
    """What `doctor` found in one check."""
    return [row for row in json.loads(ran.stdout)["findings"] if row["check"] == check]


@contextmanager
def served(directory: Path, *options: str) -> Iterator[None]:
    """A server with the built-in settings in that directory."""
    process = start(directory, "serve", *options)
    try:
        line = process.stderr.readline()
        assert '"ready"' in line, line
        yield
    finally:
        process.terminate()
        process.communicate(60)


def test_status_is_one_screen(tmp_path: Path) -> None:
    """Version, uptime, listeners, queue, last hour, certificate, disk and problems, as documented; 1 when it stops."""
    with appliance(tmp_path) as running:
        ran = run(tmp_path, "status", "--json", "--config", str(running.config_file))
        answer = json.loads(ran.stdout)
        assert answer.keys() == documented("status").keys()
        assert fields(answer["queue"]) == fields(documented("status")["queue"])
        assert (answer["running"], answer["queue"]["due"]) == (True, 0)
        assert answer["started_at"] is not None
        shown = run(tmp_path, "status", "--config", str(running.config_file)).stdout
        assert len(shown.splitlines()) < 30
        titles = ("server", "listeners", "queue", "last hour", "certificate", "disk", "problems")
        assert [title for title in titles if f"\n{title} " not in f"\n{shown}"] == []
        assert running.terminate() == 0
        ran = run(tmp_path, "status", "--config", str(running.config_file))
        assert (ran.returncode, "not running" in ran.stdout) == (1, True)


@without_settings
def test_commands_find_a_server_on_another_port(tmp_path: Path) -> None:
    """`doctor`, `health` and `status` ask the server of this directory, and say so when it is stopped."""
    port, smtp_port = free_port(), free_port()
    with served(tmp_path, "--port", str(port), "--smtp-port", str(smtp_port)):
        assert run(tmp_path, "health").stdout == f"The server at 127.0.0.1:{port} is up.\n"
        ran = run(tmp_path, "doctor", "--json")
        assert {row["subject"]: row["level"] for row in findings(ran, "listener")} == {
            f"127.0.0.1:{port}": "ok",
            f"127.0.0.1:{smtp_port}": "ok",
        }
        assert f"127.0.0.1:{port} answers" in run(tmp_path, "status").stdout
    ran = run(tmp_path, "health")
    assert (ran.returncode, ran.stderr.count("\n"), "appliance serve" in ran.stderr) == (1, 1, True)
    ran = run(tmp_path, "doctor", "--json")
    (server,) = findings(ran, "server")
    assert (ran.returncode, server["level"]) == (1, "fault")
    assert server["advice"] == "Start it: appliance serve"


@without_settings
def test_a_port_in_use_is_answered_with_a_free_one(tmp_path: Path) -> None:
    """A second first look proposes the options that make it start."""
    port, smtp_port = free_port(), free_port()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with served(first, "--port", str(port), "--smtp-port", str(smtp_port)):
        ran = run(second, "serve", "--sandbox", "--port", str(port), "--smtp-port", str(smtp_port))
        reason = json.loads(ran.stderr)["reason"]
        advice = reason.partition("use another port: appliance serve ")[2]
        assert (ran.returncode, reason.startswith(f"cannot listen on 127.0.0.1:{port}: address already")) == (1, True)
        assert advice.startswith("--sandbox --port ")
        with served(second, *advice.split()):
            assert run(second, "health").returncode == 0
