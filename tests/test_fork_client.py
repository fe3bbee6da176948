"""Forked programs: seen from outside, each is as one that was started on its own."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from appliance import __version__
from tests.fork_client import Forked, fork
from tests.running_appliance import Running, appliance


def ran(directory: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """The exit code of a forked command, and what it wrote."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        everything = {**os.environ, **environment}
        forked = fork(*words, directory=directory, environment=everything, stdout=stdout, stderr=stderr)
        code = forked.wait(30)
        stdout.seek(0)
        stderr.seek(0)
        return code, stdout.read().decode(), stderr.read().decode()


def about(running: Running) -> dict[str, object]:
    """What the system says of a running program, but for what is never twice the same."""
    process = Path(f"/proc/{running.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    of_signals = {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")}
    kinds = sorted(os.readlink(each).partition(":")[0] for each in (process / "fd").iterdir())
    return {
        **of_signals,
        "umask": status["Umask"],
        "directory": (process / "cwd").readlink(),
        "descriptors": [kind for kind in kinds if str(running.data_dir) not in kind],
        "group": os.getpgid(running.pid),
    }


def test_a_fork_is_like_a_start(tmp_path: Path) -> None:
    """Signals, directory, process group and open descriptors are those of a program that was started on its own."""
    with appliance(tmp_path) as running:
        assert isinstance(running.process, Forked)
        forked = about(running)
        assert running.terminate() == 0
        running.fresh = True
        running.start()
        assert isinstance(running.process, subprocess.Popen)
        assert about(running) == forked


def test_a_fork_is_told_its_words_and_where_it_is(tmp_path: Path) -> None:
    """It reads its own words, environment and directory, and writes where it is told to."""
    assert ran(tmp_path, "--version")[:2] == (0, f"appliance {__version__}\n")
    (tmp_path / "here.toml").write_text("nonsense = 1\n")
    code, _, told = ran(tmp_path, "queue", "--config", "here.toml")
    assert (code, told.startswith("Error: ")) == (1, True)
    assert "here.toml" in told
    assert "elsewhere.toml" in ran(tmp_path, "queue", APPLIANCE_CONFIG="elsewhere.toml")[2]


def test_the_usage_is_that_of_the_module(tmp_path: Path) -> None:
    """It takes itself for `python -m appliance`, and wrong usage is exit code 2."""
    code, _, told = ran(tmp_path, "nonsense")
    assert code == 2
    assert told.startswith("Usage: python -m appliance ")


def test_an_end_by_a_signal_is_told_as_such(tmp_path: Path) -> None:
    """A kill is the negative number of its signal; until then there is no exit code, and a wait ends in time."""
    with appliance(tmp_path) as running:
        assert running.process is not None
        assert running.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.01)
        running.kill()
        assert running.process.poll() == running.process.wait() == -signal.SIGKILL
        assert not running.is_alive()
        assert not Path(f"/proc/{running.pid}").exists()
